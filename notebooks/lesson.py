"""What the lessons share: the path to the scripts, one look for all pictures, and rollouts of the embedded model.

Nothing of any method stands here: the lessons call the functions of the scripts themselves.
"""

import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore", "IProgress not found")
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from common.batch import Batch, collate
from common.data import load_problems, sample_problems
from common.engines import TransformersEngine, prompt_seeds
from common.models import load_model
from common.plots import method_style
from common.records import Problem, Rollouts
from common.verify import Verifier

import matplotlib.pyplot as plt
import torch
from IPython.display import Markdown, display
from torch import Tensor

torch.set_printoptions(precision=4, sci_mode=False)
plt.rcParams |= {"figure.dpi": 75, "axes.grid": True, "grid.alpha": 0.3, "axes.titlesize": "medium"}


def style(method: str, **more: Any) -> dict[str, Any]:
    """How a method is drawn, the same in every picture of this repository."""
    color, line = method_style(method)
    return {"color": color, "linestyle": line, "label": f"{method}.py"} | more


def show(figure: Any, caption: str) -> None:
    """A picture with a caption that says what to see."""
    if figure.get_layout_engine() is None:
        figure.tight_layout()
    plt.show()
    display(Markdown(f"*{' '.join(textwrap.dedent(caption).split())}*"))


def table(header: list[str], rows: list[list[Any]]) -> None:
    """A table; numbers with four significant digits."""
    cells = [[f"{x:.4g}" if isinstance(x, float) else str(x) for x in row] for row in [header, *rows]]
    cells = [[cell.replace("|", "\\|") for cell in row] for row in cells]
    lines = [" | ".join(row) for row in [cells[0], ["---"] * len(header), *cells[1:]]]
    display(Markdown("\n".join(f"| {line} |" for line in lines)))


class Lab:
    """The embedded model with its problems, an engine and a verifier."""

    def __init__(self, args: Any) -> None:
        self.args = args
        self.model, self.tokenizer = load_model(args)
        self.train, self.held_out = load_problems(args, self.model, self.tokenizer)
        self.verifier = Verifier(self.tokenizer, self.train + self.held_out)

    def sample(
        self, P: int, G: int, seed: int = 1, start: int = 0, temperature: float = 1.0, precision: str = "fp32"
    ) -> tuple[list[Problem], Rollouts, Batch, Tensor]:
        """G responses to each of P training problems: problems, rollouts, tensors, and which are correct (P, G)."""
        engine = TransformersEngine(self.model, self.tokenizer, precision=precision)
        engine.load_weights(self.model.named_parameters())
        problems = sample_problems(self.train, seed, start, P)
        prompts = [problem.prompt_ids for problem in problems]
        rollouts = engine.generate(prompts, G, self.args.max_response_tokens, temperature, prompt_seeds(P, seed, start))
        right = torch.tensor(self.verifier(problems, rollouts)).float().view(P, G)  # (P, G)
        return problems, rollouts, collate(prompts, rollouts, self.model.device), right

    def text(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(tokens, skip_special_tokens=True)
