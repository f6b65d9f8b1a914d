"""The responses of a step in a file, `rollouts/step-000012.jsonl.gz`: one line of JSON for each.

datasets.load_dataset("json", data_files="RUN/rollouts/*.jsonl.gz")
"""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common.distributed import rank, sum_over_processes
from common.folders import write_whole
from common.records import Problem, Rollouts
from common.settings import Settings

import torch
from torch import Tensor


class SavedRollouts:
    """The responses of one step and what the step computes for them, until they are written."""

    def __init__(self, step: int, args: Settings) -> None:
        self.step, self.args = step, args
        self.problems: list[Problem] = []  # none, if this step is not saved
        self.sums: dict[str, Tensor] = {}  # of each token, over the updates that used it, (B, T)

    def add_rollouts(
        self, problems: list[Problem], rollouts: Rollouts, rewards: Tensor, values: dict[str, Tensor | None]
    ) -> None:
        """P problems, G responses to each, rewards (P, G), and per-token values (B, T) or None."""
        if self.args.save_rollouts > 0 and self.step % self.args.save_rollouts == 0:
            self.problems, self.rollouts, self.rewards = problems, rollouts, rewards
            self.values = {name: value for name, value in values.items() if value is not None}
            self.passes = torch.zeros_like(values["old_logp"][:, :1])  # (B, 1) updates that used a row

    def add_tokens(self, values: dict[str, Tensor]) -> None:
        """Add per-token values (B, T)."""
        if self.problems:
            self.values |= values

    def add_update(self, values: dict[str, Tensor], rows: Tensor) -> None:
        """Per-token values (m, T) of a micro-batch, and its rows (m,) of the rollout batch."""
        if self.problems and self.args.save_tokens:
            for name, value in values.items():
                self.sums.setdefault(name, torch.zeros_like(self.values["old_logp"]))[rows] += value.detach()
            self.passes[rows] += 1

    def write(self, run_dir: Path, tokenizer: Any) -> None:
        """Write the file in the first process, with the mean of each value over the updates of all processes."""
        if not self.problems:
            return
        passes = sum_over_processes(self.passes).clamp(min=1)  # (B, 1)
        values = self.values | {name: sum_over_processes(total) / passes for name, total in self.sums.items()}
        if rank() == 0:
            lines = "".join(json.dumps(row) + "\n" for row in self.rows(tokenizer, values))
            folder = run_dir / "rollouts"
            folder.mkdir(exist_ok=True)
            # The header holds no time, so that a resumed run writes the same bytes.
            write_whole(folder / f"step-{self.step:06d}.jsonl.gz", gzip.compress(lines.encode(), 6, mtime=0))

    def rows(self, tokenizer: Any, values: dict[str, Tensor]) -> Iterator[dict[str, Any]]:
        """What is saved for each response, group by group."""
        rollouts, rewards, P = self.rollouts, self.rewards.flatten().tolist(), len(self.problems)
        G = len(rollouts.tokens) // P
        # In SPIN, each group of the batch begins with a solution, which is not a response.
        values = {name: value.view(P, -1, value.shape[1])[:, -G:].flatten(0, 1).cpu() for name, value in values.items()}
        texts = tokenizer.batch_decode(rollouts.tokens, skip_special_tokens=True)
        for i, (text, ids) in enumerate(zip(texts, rollouts.tokens, strict=True)):
            own = {name: value[i, : len(ids)] for name, value in values.items()}
            row = {
                "step": self.step,
                "group": i // G,
                "prompt": self.problems[i // G].prompt,
                "answer": str(self.problems[i // G].answer),
                "text": text,
                "correct": rollouts.correct[i],
                "reward": rewards[i],
                "advantage": own["advantage"].mean().item() if "advantage" in own else None,
                "length": len(ids),
                "truncated": rollouts.truncated[i],
            }
            if rollouts.rewards:
                row["rewards"] = rollouts.rewards[i]
            if rollouts.feedback and rollouts.feedback[i]:
                row["feedback"] = rollouts.feedback[i]
            if self.args.save_tokens:
                row["tokens"] = {"text": tokenizer.batch_decode([[number] for number in ids])}
                for name, value in own.items():  # four digits; JSON has no numbers that are not finite
                    finite = torch.nan_to_num(value.float()).tolist()
                    row["tokens"][name] = [float(f"{number:.4g}") for number in finite]
            yield row
