"""Write the loop: GRPO from the engine's responses to the optimizer's step.

    for each step:  give the weights to the engine; sample P problems and G responses to each; rewards (B,);
                    batch; old log-probs (B, T); advantages (B, T); TIS weights (B, T)
        for each epoch, for each minibatch:  log-probs (b, T); loss; backward; clip the gradient; step

tiny.py says what `policy`, `engine`, `data` and `optimizer` can do. B = P * G rows: row b answers problem b // G.
`pytest -k loop` runs the loop on a tiny model and compares the gradient of every update with the solution's. Then train
the embedded model: `python train.py loop`, and `python train.py changed` for the method of your choice.
"""

import re
from dataclasses import dataclass
from typing import Any

from grpo import compute_advantages, policy_loss, tis_weight, token_weights

import torch
from torch import Tensor

CHANGE = ""  # the method that `changed` trains, such as "dr_grpo"


@dataclass
class Args:
    steps: int = 2
    """Rollout batches."""
    prompts_per_step: int = 4
    """P: problems in a rollout batch."""
    responses_per_prompt: int = 4
    """G: responses to each."""
    update_epochs: int = 2
    """Passes over each rollout batch."""
    num_minibatches: int = 2
    """Minibatches of a pass, with one update each; P is a multiple of it."""
    max_grad_norm: float = 0.15
    """Gradients are scaled down to this norm."""
    clip_eps: float = 0.2
    """ε of GRPO's clip."""
    ddof: int = 1
    """The group's std divides by G - ddof."""
    tis_cap: float = 2.0
    """Cap of the TIS weight."""


def response_mask(lengths: Tensor) -> Tensor:
    return torch.arange(int(lengths.max())) < lengths[:, None]  # (B, T)


def collate(prompts: list[list[int]], responses: list[list[int]], logps: list[list[float]]) -> tuple[Tensor, Tensor]:
    T, S = max(map(len, responses)), max(len(p) + len(r) for p, r in zip(prompts, responses, strict=True))
    tokens, rollout_logp = torch.zeros(len(prompts), S, dtype=torch.long), torch.zeros(len(prompts), T)
    for row, (prompt, response, values) in enumerate(zip(prompts, responses, logps, strict=True)):
        tokens[row, : len(prompt) + len(response)] = torch.tensor(prompt + response)
        rollout_logp[row, : len(values)] = torch.tensor(values)
    return tokens, rollout_logp


def response_logps(logits: Tensor, tokens: Tensor, prompt_lengths: Tensor, mask: Tensor) -> Tensor:
    logp = logits[:, :-1].log_softmax(-1).gather(2, tokens[:, 1:, None])[..., 0]  # (B, S - 1)
    places = prompt_lengths[:, None] - 1 + torch.arange(mask.shape[1])  # (B, T)
    return logp.gather(1, places.clamp(max=logp.shape[1] - 1)).masked_fill(~mask, 0.0)


def exact_rewards(texts: list[str], answers: list[str], truncated: list[bool]) -> Tensor:
    boxes = [re.findall(r"\\boxed\{([^{}]*)\}", text) for text in texts]
    rows = zip(boxes, answers, truncated, strict=True)
    return torch.tensor([float(box[-1:] == [answer] and not cut) for box, answer, cut in rows])


def minibatches(order: Tensor, G: int, count: int) -> list[Tensor]:
    return [(prompts[:, None] * G + torch.arange(G)).flatten() for prompts in order.chunk(count)]


def train(policy: Any, engine: Any, data: Any, optimizer: torch.optim.Optimizer, args: Args) -> Tensor:
    P, G, curve = args.prompts_per_step, args.responses_per_prompt, []
    for step in range(1, args.steps + 1):
        engine.load_weights(policy)
        problems = data.sample(step)
        responses, logps, truncated = engine.generate(problems, G)
        prompts = [problem.prompt_ids for problem in problems for _ in range(G)]
        answers = [problem.answer for problem in problems for _ in range(G)]
        rewards = exact_rewards([data.text(ids) for ids in responses], answers, truncated)  # (B,)
        tokens, rollout_logp = collate(prompts, responses, logps)  # (B, S), (B, T)
        prompt_lengths = torch.tensor([len(ids) for ids in prompts])  # (B,)
        mask = response_mask(torch.tensor([len(ids) for ids in responses]))  # (B, T)
        with torch.no_grad():
            old_logp = response_logps(policy(tokens), tokens, prompt_lengths, mask)  # (B, T)
        advantages = compute_advantages(rewards.view(P, G), args).view(-1, 1).expand(mask.shape)  # (B, T)
        tis = tis_weight(old_logp, rollout_logp, args)  # (B, T)
        for _ in range(args.update_epochs):
            for rows in minibatches(torch.randperm(P), G, args.num_minibatches):  # (b,)
                logp = response_logps(policy(tokens[rows]), tokens[rows], prompt_lengths[rows], mask[rows])  # (b, T)
                loss, _ = policy_loss(logp, old_logp[rows], advantages[rows], args)  # (b, T)
                (token_weights(mask[rows]) * tis[rows] * loss).sum().backward()
                torch.nn.utils.clip_grad_norm_(policy.parameters(), args.max_grad_norm)
                optimizer.step()
                optimizer.zero_grad()
        curve.append(rewards.mean())
    return torch.stack(curve)  # (steps,)


def changed(policy: Any, engine: Any, data: Any, optimizer: torch.optim.Optimizer, args: Args) -> Tensor:
    return train(policy, engine, data, optimizer, args)
