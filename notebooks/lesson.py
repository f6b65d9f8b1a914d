"""Shared code of the lessons: the path to the scripts, one plot style, and the policies that they use.

The policies are the embedded model, and models so small that all responses can be listed, so that expectations are
sums. Methods are not defined here: the lessons call the scripts' functions.
"""

import contextlib
import io
import itertools
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

warnings.filterwarnings("ignore", "IProgress not found")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common.batch import Batch, collate
from common.data import load_problems, sample_problems
from common.logprobs import token_logps
from common.models import load_model
from common.records import Problem, Rollouts
from common.transformers_engine import TransformersEngine
from common.verification import Verifier
from tools.plots import BLUE, GRAY, GREEN, ORANGE, PURPLE, RED, method_style
from tools.scripts import call, parents  # noqa: F401 (the lessons use `call`)

import matplotlib.pyplot as plt
import torch
from IPython.display import Markdown, display
from torch import Tensor

torch.set_printoptions(precision=4, sci_mode=False)
COLORS = (BLUE, ORANGE, GREEN, RED, PURPLE, GRAY)
plt.rcParams |= {"figure.dpi": 75, "axes.grid": True, "grid.alpha": 0.3, "axes.titlesize": "medium"}


def style(method: str, **more: Any) -> dict[str, Any]:
    """The plot style of a method, the same in every picture of this repository."""
    color, line, _ = method_style(method)
    return {"color": color, "linestyle": line, "label": f"{method}.py"} | more


def show(figure: Any, caption: str) -> None:
    """Show a picture with a caption that says what to look for."""
    if figure.get_layout_engine() is None:
        figure.tight_layout()
    plt.show()
    display(Markdown(f"*{' '.join(textwrap.dedent(caption).split())}*"))


def draw(
    caption: str, *panels: dict[str, Any], rows: int = 1, size: tuple[float, float] = (7, 3.8), **grid: Any
) -> None:
    """Plot panels, with a caption that says what to look for.

    A panel's "lines" are `{label: (x, y)}` or `{label: (x, y, half the height of a band)}`. A script's name as label
    selects its style; "looks" overrides single lines. "marker" applies to all lines; the rest goes to `Axes.set`.
    """
    figure, every = plt.subplots(rows, len(panels) // rows, figsize=size, squeeze=False, layout="constrained", **grid)
    for axes, panel in zip(every.flat, panels, strict=True):
        looks, marker = panel.get("looks", {}), panel.get("marker")
        for k, (name, (x, y, *band)) in enumerate(panel["lines"].items()):
            look = style(name) if name in parents() else {"color": COLORS[k % len(COLORS)], "label": name}
            look |= looks.get(name, {})
            axes.plot(x, y, marker=marker, **look)
            if band:
                axes.fill_between(x, y - band[0], y + band[0], color=look["color"], alpha=0.15)
        axes.set(**{key: value for key, value in panel.items() if key not in ("lines", "looks", "marker")})
    every.flat[0].legend()
    show(figure, caption)


def bars(caption: str, groups: list[str], values: dict[str, list[float]], **labels: str) -> None:
    """Plot a bar for each script in each group."""
    figure, axes = plt.subplots(figsize=(8, 3.6))
    for k, (name, heights) in enumerate(values.items()):
        look = style(name)
        hatch = "//" if look.pop("linestyle") != "-" else None
        where = [x + (k - (len(values) - 1) / 2) * 0.8 / len(values) for x in range(len(groups))]
        axes.bar(where, heights, width=0.8 / len(values), hatch=hatch, **look)
    axes.set_xticks(range(len(groups)), groups)
    axes.set(**labels)
    axes.legend(ncol=len(values), loc="lower center", bbox_to_anchor=(0.5, 1), frameon=False)
    show(figure, caption)


def table(header: list[str], rows: list[list[Any]]) -> None:
    """Show a table, with floats rounded to four significant digits."""
    cells = [[f"{x:.4g}" if isinstance(x, float) else str(x) for x in row] for row in [header, *rows]]
    cells = [[cell.replace("|", "\\|") for cell in row] for row in cells]
    lines = [" | ".join(row) for row in [cells[0], ["---"] * len(header), *cells[1:]]]
    display(Markdown("\n".join(f"| {line} |" for line in lines)))


def gradient(x: Tensor, of: Tensor) -> Tensor:
    """The gradient of a scalar, as one vector."""
    return torch.autograd.grad(x, of, retain_graph=True)[0].flatten()


def two_tokens(tables: Tensor) -> Tensor:
    """Log-probs (V², 2) of both tokens in each of the V² responses of two tokens.

    `tables` (1 + V, V) are logits of the first token, then of the second token after each first one.
    """
    logp = tables.log_softmax(1)  # (1 + V, V)
    return torch.stack([logp[0].repeat_interleave(len(logp[0])), logp[1:].flatten()], 1)


class Bandit:
    """A softmax policy over K arms, and all groups of N choices with their probabilities."""

    def __init__(self, logits: list[float], rewards: list[float], N: int) -> None:
        logits = torch.tensor(logits, dtype=torch.double, requires_grad=True)
        p = logits.softmax(0)  # (K,)
        rewards = torch.tensor(rewards, dtype=torch.double)  # (K,)
        self.gradient = gradient((p * rewards).sum(), logits)  # (K,), of the expected reward
        self.p = p.detach()
        self.scores = torch.stack([gradient(log_p, logits) for log_p in p.log()])  # (K, K): ∇ log p of each arm
        groups = torch.tensor(list(itertools.product(range(len(p)), repeat=N)))  # (K^N, N)
        self.group_chance = self.p[groups].prod(1)  # (K^N,)
        self.group_rewards, self.group_scores = rewards[groups], self.scores[groups]  # (K^N, N), (K^N, N, K)

    def estimate(self, advantages: Tensor) -> tuple[Tensor, float]:
        """Expectation (K,) of the estimate Σ A ∇ log p / N from a group, and its variance summed over the logits."""
        estimates = (advantages[..., None] * self.group_scores).mean(1)  # (K^N, K)
        mean = self.group_chance @ estimates  # (K,)
        return mean, (self.group_chance @ (estimates - mean).pow(2).sum(1)).item()


@contextlib.contextmanager
def trained(script: ModuleType, **settings: Any) -> Iterator[Path]:
    """The folder of a short run of a script. The run prints nothing; the folder is deleted afterwards."""
    small = {"eval_every": 0, "save_every": 0, "engine": "transformers"} | settings
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.redirect_stdout(io.StringIO()):
            script.main(script.Args(run_dir=Path(folder) / "run", **small))
        yield Path(folder) / "run"


class Lab:
    """The embedded model with its problems, an engine and a verifier."""

    def __init__(self, args: Any) -> None:
        self.args = args
        self.model, self.tokenizer = load_model(args)
        self.train, self.held_out = load_problems(args, self.model, self.tokenizer)
        self.verifier = Verifier(args, self.tokenizer, self.train + self.held_out)

    def sample(self, P: int, G: int, held_out: bool = False) -> tuple[list[Problem], Rollouts, Batch, Tensor]:
        """G responses to each of P problems: problems, rollouts, batch, and 1.0 for each correct response (P, G)."""
        problems = sample_problems(self.held_out if held_out else self.train, P, 1, self.args)
        rollouts = TransformersEngine(self.args, self.model, self.tokenizer).generate(problems, G, 0)
        rewards = self.verifier(problems, rollouts)  # (P, G)
        return problems, rollouts, collate(problems, rollouts, self.model.device), rewards

    def logps(self, batch: Batch) -> Tensor:
        """The model's log-probs (B, T) of a batch, with gradient."""
        return token_logps(self.model, batch, torch.arange(len(batch.tokens)), self.args)

    def gradient(self, loss: Tensor) -> Tensor:
        """The gradient of a loss with respect to all of the model's parameters, as one vector."""
        gradients = torch.autograd.grad(loss, list(self.model.parameters()), retain_graph=True)
        return torch.cat([part.flatten() for part in gradients])

    def text(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True)
