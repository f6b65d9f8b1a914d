"""What the claims share: policies that can be enumerated, verdicts, and stored results.

A claim is a file of this folder. Its docstring gives the claim, its source, the test and the decision rule; `compute`
returns a dict of numbers, `verdict` and `effect` judge and summarize it, `draw` makes one picture.
"""

import copy
import hashlib
import importlib
import importlib.metadata
import json
import statistics
from collections.abc import Iterable
from contextlib import closing
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import grpo
import worlds
from claims.register import PARTS, judged_by, not_testable, versions
from common.batch import Batch, collate, minibatches
from common.cli import fail
from common.data import load_problems, sample_problems
from common.engines import rounded_to_fp8
from common.logprobs import batch_logps, token_logps
from common.models import load_model
from common.transformers_engine import TransformersEngine
from common.verification import Verifier
from tools.plots import panel
from tools.reports import REPORTS, today
from tools.scripts import ROOT, call, docstring
from worlds.search import problems

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import binom
from torch import Tensor

HERE = Path(__file__).parent
RESULTS = REPORTS / "claims"
VERDICTS = REPRODUCED, CONTRADICTED, INCONCLUSIVE, VOID, NOT_TESTABLE = (
    "reproduced", "contradicted", "inconclusive", "void", "not testable here",
)  # fmt: skip
KINDS = ("exact", "model", "runs")  # by enumeration, on the embedded model, by training runs


# Verdicts


def judge(effect: float, half: float, smallest: float) -> str:
    """The verdict on a mean effect ± half, positive in the claimed direction; `smallest` is the least worth naming.

    Reproduced: the interval lies above 0 and the mean is worth naming. Contradicted: it does not, and
    excludes every effect worth naming. Else inconclusive, which includes an effect that is certain but too small.
    """
    if effect - half > 0:
        return REPRODUCED if effect >= smallest else INCONCLUSIVE
    return CONTRADICTED if effect + half < smallest else INCONCLUSIVE


def judge_lossless(loss: float, half: float, smallest: float) -> str:
    """The verdict on a claim that nothing is lost, given a mean loss ± half and the least loss worth naming.

    Reproduced: the interval excludes a loss worth naming. Contradicted: it excludes 0, and the mean is such a loss.
    """
    if loss + half < smallest:
        return REPRODUCED
    return CONTRADICTED if loss - half > 0 and loss >= smallest else INCONCLUSIVE


def judge_all(*verdicts: str) -> str:
    """The verdict on a claim of several parts: that of the part which fares worst."""
    return next(word for word in (CONTRADICTED, INCONCLUSIVE, REPRODUCED) if word in verdicts)


def decide(holds: bool) -> str:
    """The verdict on a statement about exact numbers."""
    return REPRODUCED if holds else CONTRADICTED


# Files


@cache
def names() -> list[str]:
    """All claims: the files of this folder whose docstring has a rule."""
    return sorted(path.stem for path in HERE.glob("*.py") if f"\n{PARTS[-1]}" in docstring(path))


def load(name: str) -> ModuleType:
    if name not in names():
        fail(f"{name} is not a claim: python -m claims lists them.")
    return importlib.import_module(f"claims.{name}")


def statement(name: str) -> str:
    """The claim in one sentence, the first line of its docstring."""
    return docstring(HERE / f"{name}.py").splitlines()[0]


def rounded(value: Any) -> Any:
    """Numbers with six significant digits, in whatever holds them."""
    if isinstance(value, dict):
        return {str(key): rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def record(name: str) -> dict[str, Any] | None:
    """What the last run of a claim left: its verdict, its effect in words, and the numbers behind them."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def software() -> dict[str, str]:
    """What made a result, besides the scripts: versions of the libraries, and a hash of the files of common/."""
    text = b"".join(path.read_bytes() for path in sorted((ROOT / "common").rglob("*.py")))
    libraries = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "numpy")}
    return libraries | {"common": hashlib.sha256(text).hexdigest()[:16]}


def store(name: str, result: dict[str, Any], **about: Any) -> dict[str, Any]:
    """Judge a result by the claim's last version, and store it; `about` says when and how it was made."""
    claim, before = load(name), record(name)
    about |= {"version": len(versions()[name]), "judged_by": judged_by(name)}
    if before and before["version"] == about["version"] and before["judged_by"] != about["judged_by"]:
        fail(f"{name} was judged by another rule or code: say why it changed in a line of claims/register.jsonl.")
    verdict = NOT_TESTABLE if not_testable(name) else claim.verdict(result)
    judged = {"verdict": verdict, "effect": claim.effect(result), **about, "result": result}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(judged, indent=1, ensure_ascii=False) + "\n")
    return judged


def run(name: str, seeds: int) -> dict[str, Any]:
    """Compute a claim, judge and store it; `seeds` is for claims by runs, and never fewer than the stored result's."""
    claim, before = load(name), record(name)
    if claim.KIND != "runs":
        return store(name, rounded(claim.compute()), date=today(), **software())
    if before and before["result"].get("seeds", 0) > seeds:  # a claim of another kind has none
        fail(f"{name} has a verdict by {before['result']['seeds']} seeds: pass at least --seeds with that number.")
    return store(name, rounded(claim.compute(seeds)), date=today())


def redraw(name: str) -> Path:
    """Judge the stored result of a claim again, and draw its picture."""
    stored = record(name)
    if stored is None:
        fail(f"{name} has no result to draw yet: run python -m claims {name} first.")
    store(name, **{key: value for key, value in stored.items() if key not in ("verdict", "effect")})
    path = RESULTS / f"{name}.png"
    load(name).draw(stored["result"]).savefig(path, dpi=80)
    return path


def axes(title: str, xlabel: str, ylabel: str, **more: Any) -> Axes:
    """The axes of a picture of its own; `title` says what is seen."""
    alone = Figure(figsize=(6.4, 3.9), layout="constrained").subplots()
    panel(alone, title, xlabel, ylabel, **more)
    return alone


def bars(panel: Axes, values: dict[str, float], colors: Iterable[str]) -> None:
    """One bar for each value, named in the legend."""
    for (name, value), color in zip(values.items(), colors, strict=True):
        panel.bar(name, value, color=color, width=0.6, label=name)
    panel.set_xticks([])
    panel.legend()


# Policies that can be enumerated


def tree(logits: Tensor, T: int) -> tuple[Tensor, Tensor, Tensor]:
    """All V^T = N responses of a policy with a row of `logits` (prefixes, V) for each prefix.

    Tokens (N, T), log-probs (N, T) and scores ∇log π (N, T, D) by the D = prefixes · V logits.
    """
    V = logits.shape[1]
    tokens = torch.cartesian_prod(*[torch.arange(V)] * T).view(-1, T)  # (N, T)
    rows = torch.zeros_like(tokens)  # (N, T) of the table; the prefixes that go on from row r are in r V + 1, ...
    for t in range(1, T):
        rows[:, t] = rows[:, t - 1] * V + 1 + tokens[:, t - 1]
    logps = logits.log_softmax(1)  # (prefixes, V)
    of_row = torch.eye(V, dtype=logits.dtype) - logps.exp()[:, None]  # (prefixes, V, V): e_v - π
    scores = torch.zeros(*tokens.shape, *logits.shape, dtype=logits.dtype)  # (N, T, prefixes, V)
    scores.scatter_(2, rows[..., None, None].expand(-1, -1, 1, V), of_row[rows, tokens].unsqueeze(2))
    return tokens, logps[rows, tokens], scores.flatten(2)


def loss_of(
    script: ModuleType,
    logp: Tensor,
    advantages: Tensor,
    args: Any,
    old_logp: Tensor | None = None,
    rollout_logp: Tensor | None = None,
    mask: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """A script's per-token loss (B, T) and metrics, given only the (B, T) inputs that its function takes.

    Where old or rollout log-probs are left out, the policy is on-policy; without a mask all T tokens count.
    """
    old_logp = logp.detach() if old_logp is None else old_logp
    rollout_logp = old_logp if rollout_logp is None else rollout_logp
    mask = torch.ones_like(logp, dtype=torch.bool) if mask is None else mask
    inputs = {"old_logp": old_logp, "rollout_logp": rollout_logp, "advantages": advantages, "mask": mask}
    return call(script.policy_loss, logp=logp, args=args, **inputs)


def coefficients(
    script: ModuleType,
    logp: Tensor,
    advantages: Tensor,
    args: Any,
    old_logp: Tensor | None = None,
    rollout_logp: Tensor | None = None,
) -> Tensor:
    """What a script's loss multiplies each token's ∇log π with (B, T), ratio, clip and TIS included; no averaging.

    All inputs (B, T), responses of T tokens; where old or rollout log-probs are left out, the policy is on-policy.
    """
    old_logp = logp if old_logp is None else old_logp
    rollout_logp = old_logp if rollout_logp is None else rollout_logp
    logp = logp.detach().clone().requires_grad_()  # (B, T)
    loss, _ = loss_of(script, logp, advantages.expand(logp.shape), args, old_logp, rollout_logp)
    if hasattr(script, "tis_weight"):
        mask = torch.ones_like(logp, dtype=torch.bool)  # (B, T)
        loss = loss * call(script.tis_weight, old_logp=old_logp, rollout_logp=rollout_logp, mask=mask, args=args)
    return -torch.autograd.grad(loss.sum(), logp)[0]


def outcomes(G: int) -> Tensor:
    """Rewards (G + 1, G) of every group of G responses, by the number of correct responses: row K has K ones."""
    return torch.ones(G + 1, G, dtype=torch.float64).tril(-1)


def group_gradients(script: ModuleType, p: float, G: int, **settings: Any) -> tuple[Tensor, Tensor]:
    """Chance (G + 1,) and gradient (G + 1,) of each group with 0..G correct responses to a prompt solved with chance p.

    On-policy, in units of ∇p: every correct response has the score ∇p / p, every incorrect one -∇p / (1 - p).
    """
    args = script.Args(responses_per_prompt=G, max_response_tokens=1, **settings)
    rewards = outcomes(G)  # (G + 1, G)
    probability = torch.where(rewards > 0, p, 1 - p)  # (G + 1, G)
    advantages = call(script.compute_advantages, rewards=rewards, args=args).view(-1, 1)  # (B, 1)
    c = coefficients(script, probability.log().view(-1, 1), advantages, args).view(G + 1, G)
    mask = torch.ones(G, 1, dtype=torch.float64)
    weights = call(script.token_weights, mask=mask, args=args).view(G)  # (G,) of a group alone
    scores = torch.where(rewards > 0, 1, -1) / probability  # (G + 1, G)
    return torch.tensor(binom.pmf(range(G + 1), G, p)), (weights * c * scores).sum(1)


def prompt_weight(script: ModuleType, p: float, G: int, **settings: Any) -> float:
    """w(p): the expected gradient of a prompt solved with chance p is w(p) ∇p, over all groups of G responses."""
    chance, gradient = group_gradients(script, p, G, **settings)
    return (chance * gradient).sum().item()


# The embedded model, and its worlds


@cache
def chance(dataset: str, k: int = 1) -> float:
    """pass@k of random expressions on the 512 held-out problems of a data set of search."""
    return statistics.mean(problems.chance(check, k) for _, check in worlds.generated_problems(dataset, "eval"))


def embedded(P: int, G: int, args: Any) -> tuple[Any, Batch, Tensor]:
    """The embedded model, G responses of it to each of P training problems, and which are correct (P, G)."""
    model, tokenizer = load_model(args)
    train, held_out = load_problems(args, model, tokenizer)
    problems = sample_problems(train, P, 1, args)
    rollouts = TransformersEngine(args, model, tokenizer).generate(problems, G, 1)
    with closing(Verifier(args, tokenizer, train + held_out)) as verifier:
        correct = verifier(problems, rollouts)  # (P, G)
    return model, collate(problems, rollouts, model.device), correct


def scored(model: Any, batch: Batch, precision: str, args: Any) -> Tensor:
    """Log-probs (B, T) of the responses by the model in another precision; "fp8" is bf16 with 8-bit weights."""
    copied = copy.deepcopy(model)
    if precision == "fp8":
        with torch.no_grad():
            for name, weight in copied.named_parameters():
                if weight.ndim == 2 and "embed" not in name and "lm_head" not in name:  # as in the engine
                    weight.copy_(rounded_to_fp8(weight))
    copied.to({"fp32": torch.float32, "fp16": torch.float16}.get(precision, torch.bfloat16))
    return batch_logps(copied, batch, args)[0]


def updates(model: Any, batch: Batch, advantages: Tensor, args: Any) -> list[float]:
    """All updates of grpo.py on one rollout batch; the fraction of the loss weight that is clipped in each."""
    torch.manual_seed(args.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    old_logp, clipped = batch_logps(model, batch, args)[0], []
    P, G = args.prompts_per_step, args.responses_per_prompt
    for rows in minibatches(P, G, args):
        logp = token_logps(model, batch, rows, args)  # (b, T)
        loss, values = grpo.policy_loss(logp, old_logp[rows], advantages[rows], args)  # (b, T)
        weights = grpo.token_weights(batch.response_mask[rows])  # (b, T)
        clipped.append((weights * (values["clip_pos"] + values["clip_neg"])).sum().item())
        (weights * loss).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
    return clipped
