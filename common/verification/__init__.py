"""temporary"""

from common.verification.rewards import require_binary
from common.verification.verifier import Verifier as Old

import torch


class Verifier(Old):
    def __init__(self, args, tokenizer, problems):
        super().__init__(tokenizer, problems, args.answer_format, args.tolerance, args.reward)
        self.reward_functions = self.own

    def __call__(self, problems, rollouts):
        from common.clock import clock
        from common.distributed import device

        with clock("verify"):
            rollouts.correct = super().__call__(problems, rollouts)
            return torch.tensor(rollouts.rewards, dtype=torch.float, device=device()).view(len(problems), -1)
