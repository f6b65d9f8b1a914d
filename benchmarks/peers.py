"""Gradients of our losses against those of TRL, verl and SkyRL, at random off-policy points in float64.

Each peer has its own environment, and nothing of it is needed here. verl and SkyRL pin versions of packages that their
losses do not need, so both are installed without dependencies:

    python3 -m venv .trl && .trl/bin/pip install torch==2.13.0 transformers==5.19.0 datasets==5.2.0 trl==1.16.0
    python3 -m venv .peers && .peers/bin/pip install torch==2.13.0 transformers==5.19.0 datasets==5.2.0 accelerate \\
        tensordict ray hydra-core codetiming loguru jaxtyping pandas torchdata pybase64 peft orjson \\
        cachetools fastapi uvicorn pillow
    .peers/bin/pip install --no-deps verl==0.9.1 skyrl==0.3.0 skyrl-gym==0.4.0

    python -m benchmarks.peers --trl .trl/bin/python --verl .peers/bin/python --skyrl .peers/bin/python
    python -m benchmarks.peers --redraw      # only the table, from peers.json

A point is a batch of responses of different lengths, their rewards, and log-probs under the learner, the old policy,
the engine, and a reference. Our side is the script's own `main` (peers_loop.py), including TIS. Both sides start from
the rewards if the peer has the advantage as a function. TRL computes advantages and TIS weights inside its trainer, so
the worker passes it our advantages and computes the weights itself. The result is the largest difference between the
gradients of the minibatch's loss by every log-prob, as a fraction of the largest entry. All rows of the given peers are
recomputed.
"""

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers_loop import loop_gradient
from common.cli import fail
from tools.reports import REPORTS, heading, read_report, write_report
from tools.scripts import ROOT, load

import torch
import tyro
from torch import Tensor

PACKAGES = {"trl": "trl", "verl": "verl", "skyrl": "skyrl"}
NAMES = {"trl": "TRL", "verl": "verl", "skyrl": "SkyRL"}
SEEDS, P, G, T, L = range(3), 6, 5, 9, 50  # seeds, prompts, responses to each, longest response, constant of Dr. GRPO
WITHIN = 1e-6


@dataclass
class Args:
    trl: Path | None = None
    """Python of the environment with TRL."""
    verl: Path | None = None
    """Python of the environment with verl."""
    skyrl: Path | None = None
    """Python of the environment with SkyRL."""
    redraw: bool = False
    """Only write the table again."""


@dataclass
class Row:
    """Our loss and the peer's; `remark` says what the peer does differently and how that was removed."""

    method: str
    peer: str
    kind: str  # the peer's name for the loss
    ours: dict[str, Any] = field(default_factory=dict)  # settings
    theirs: dict[str, Any] = field(default_factory=dict)
    remark: str = ""
    what: str = "policy"
    on_policy: bool = False
    up_to_scale: bool = False
    one_length: bool = False  # all responses have the same length

    @property
    def name(self) -> str:
        return " ".join([self.method, *(f"{k}={v}" for k, v in self.ours.items()), self.what, self.peer, self.kind])


NO_TIS = {"tis_cap": 0.0}
KL, KL_IN_REWARD, CONSTANT = {"kl_beta": 0.3}, {"kl_in_reward": 0.3}, {"max_response_tokens": L}
CLIP, HIGHER, OLMO, OFF = (
    {"low": low, "high": high} for low, high in ((0.2, 0.2), (0.2, 0.28), (0.2, 0.272), (1e9, 1e9))
)
GRPO, PLAIN = {"advantage": "grpo"}, {"advantage": "grpo", "std": False}
VERL_MEAN, SKYRL_MEAN = {"average": "seq-mean-token-mean"}, {"average": "sequence_mean"}
VERL_SUM, VERL_CONSTANT = ({"average": f"seq-mean-token-sum{end}"} for end in ("", "-norm"))
VERL_CONSTANT |= {"length": L}
SKYRL_CONSTANT = {"average": "seq_mean_token_sum_norm", "length": L}
BOUNDS = {"low": 0.03, "high": 0.04}  # some responses are clipped and some are not
GSPO = {"clip_eps_low": 0.03, "clip_eps_high": 0.04}
CISPO, CAP = {"ratio_cap": 1.2}, {"low": 1.0, "high": 0.2}
TV, BINARY_KL = CONSTANT | {"delta": 0.1}, CONSTANT | {"delta": 0.05, "divergence": "binary-kl"}
DELTA_TV, DELTA_KL = ({"low": delta, "high": delta, "anchor": "rollout_logp"} for delta in (0.1, 0.05))
MAXRL = {"advantage": "maxrl", "epsilon": 0.0, "average": "seq_mean_token_sum_norm", "length": 1}
SIGNED = {"signed": True}  # rewards of ±1
GAE = {"advantage": "gae", "gamma": 1.0, "lam": 0.95}
TAU = {"tau": (1.0, 1.05)}
WINDOW = {"cov_fraction": 1.0, "cov_low": 0.1, "cov_high": 1.0}
CLIP_COV = {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.1, "clip_cov_ub": 1.0}
KL_COV = {"kl_cov_ratio": 0.2, "ppo_kl_coef": 0.0}
CLIPS_RESPONSES = "it clips the ratio of a response: compared on-policy"
TOKEN_FORM = "it is GSPO-token, where a TIS weight acts on one token's gradient alone: compared without TIS"
DUAL = "its dual clip is off"
SAMPLE_STD = "it divides by the sample std of the tokens, ours by the population's: compared up to a factor"
FULL_KL = {"mode": "full_logits"}
TWO_TOKENS = "over a vocabulary of two tokens"
NO_RATIO = "its factor for rollouts that are used again is off"
OF_ENGINE = "old log-probs are the engine's; its cap on the ratio is off"
ROWS = [
    Row("reinforce", "verl", "reinforce", {"baseline": "none"}, VERL_SUM, "given our advantages"),
    Row("ppo", "verl", "vanilla", {}, GAE | CLIP, DUAL),
    Row("ppo", "verl", "vanilla", KL, GAE | CLIP | KL_IN_REWARD, DUAL),
    Row("ppo", "verl", "value", {}, GAE | {"clip": 0.2}, what="critic"),
    Row("ppo", "skyrl", "regular", {}, GAE | CLIP, "values of the padding must be 0"),
    Row("grpo", "trl", "grpo", KL, CLIP | {"beta": 0.3}, "use_bias_correction_kl is off: k3 without the ratio"),
    Row("grpo", "verl", "vanilla", KL, GRPO | VERL_MEAN | CLIP | {"kl": 0.3, "kl_type": "k3"}, DUAL),
    Row("grpo", "skyrl", "regular", {}, GRPO | SKYRL_MEAN | CLIP),
    Row("rloo", "verl", "reinforce", {}, {"advantage": "rloo"} | VERL_SUM),
    Row("rloo", "verl", "reinforce", KL, {"advantage": "rloo"} | VERL_SUM | KL_IN_REWARD),
    Row("rloo", "trl", "rloo", NO_TIS, CLIP, f"{CLIPS_RESPONSES}; it has no TIS", on_policy=True),
    Row("dr_grpo", "trl", "dr_grpo", CONSTANT, CLIP | {"length": L}),
    Row("dr_grpo", "verl", "vanilla", CONSTANT, PLAIN | VERL_CONSTANT | CLIP, DUAL),
    Row("dr_grpo", "skyrl", "regular", CONSTANT, PLAIN | SKYRL_CONSTANT | CLIP),
    Row("dapo", "trl", "dapo", {}, HIGHER),
    Row("dapo", "verl", "vanilla", {}, GRPO | HIGHER | SIGNED, DUAL),
    Row("dapo", "skyrl", "regular", {}, GRPO | HIGHER | SIGNED),
    Row("cispo", "trl", "cispo", CISPO, {"high": 1.2}),
    Row("cispo", "verl", "cispo", CISPO, GRPO | CAP, "its bound is our cap less 1"),
    Row("cispo", "skyrl", "cispo", CISPO, GRPO | CAP, "its bound is our cap less 1"),
    Row("gspo", "trl", "grpo", GSPO, BOUNDS | {"level": "sequence"}),
    Row("gspo", "verl", "gspo", GSPO | NO_TIS, GRPO | VERL_MEAN | BOUNDS, TOKEN_FORM),
    Row("gspo", "skyrl", "gspo", GSPO | NO_TIS, GRPO | SKYRL_MEAN | BOUNDS, TOKEN_FORM),
    Row("gmpo", "trl", "gmpo", NO_TIS, {"low": 0.4, "high": 0.4}, "it has no TIS"),
    Row("gmpo", "verl", "geo_mean", NO_TIS, GRPO | {"low": 0.4, "high": 0.4}, "its TIS weight is a response's mean"),
    Row("dppo", "verl", "dppo_tv", TV, PLAIN | VERL_CONSTANT | DELTA_TV, OF_ENGINE),
    Row("dppo", "verl", "dppo_kl", BINARY_KL, PLAIN | VERL_CONSTANT | DELTA_KL, OF_ENGINE),
    Row("dppo", "skyrl", "dppo", TV, PLAIN | SKYRL_CONSTANT | DELTA_TV | {"divergence": "binary_tv"}),
    Row("dppo", "skyrl", "dppo", BINARY_KL, PLAIN | SKYRL_CONSTANT | DELTA_KL | {"divergence": "binary_kl"}),
    Row("maxrl", "skyrl", "regular", {}, MAXRL | CLIP, "ε of its advantage is 0, and the constant it divides by 1"),
    Row("sapo", "trl", "sapo", {}, TAU, "its τ are rounded to float32"),
    Row("sapo", "verl", "sapo", {}, GRPO | TAU),
    Row("sapo", "skyrl", "sapo", {}, GRPO | SKYRL_MEAN | TAU),
    Row(
        "reinforce_pp", "verl", "vanilla", {},
        {"advantage": "reinforce_plus_plus"} | VERL_MEAN | CLIP, f"{DUAL}; {SAMPLE_STD}", up_to_scale=True,
    ),
    Row(
        "reinforce_pp", "verl", "vanilla", KL,
        {"advantage": "reinforce_plus_plus"} | VERL_MEAN | CLIP | KL_IN_REWARD, f"{DUAL}; {SAMPLE_STD}",
        up_to_scale=True,
    ),
    Row(
        "reinforce_pp_baseline", "verl", "vanilla", {},
        {"advantage": "reinforce_plus_plus_baseline"} | VERL_MEAN | CLIP, f"{DUAL}; {SAMPLE_STD}", up_to_scale=True,
    ),
    Row(
        "reinforce_pp", "skyrl", "regular", {},
        {"advantage": "reinforce++"} | SKYRL_MEAN | CLIP, SAMPLE_STD, up_to_scale=True,
    ),
    Row(
        "clip_cov", "verl", "clip_cov", WINDOW, GRPO | OFF | {"policy_loss": CLIP_COV},
        "its PPO clip is off; all tokens between the bounds, not some at random; it takes covariances at the current "
        "log-probs: compared on-policy", on_policy=True,
    ),
    Row(
        "kl_cov", "verl", "kl_cov", {"kl_cov_coef": 0.0}, GRPO | {"policy_loss": KL_COV},
        "its penalty is abs(log π - log π_old), ours an estimate of the KL: compared without either",
    ),
    Row("olmo3", "verl", "vanilla", {"filter_groups": False}, PLAIN | OLMO, DUAL),
    Row("olmo3", "skyrl", "regular", {"filter_groups": False}, PLAIN | OLMO),
    Row("opd", "skyrl", "importance_sampling", NO_TIS, SKYRL_MEAN, "given our advantages; it has no TIS"),
    Row(
        "gdpo", "verl", "vanilla", {}, {"advantage": "gdpo"} | VERL_MEAN | CLIP,
        f"two reward functions; {DUAL}; it normalizes over tokens: responses of one length, compared up to a factor",
        up_to_scale=True, one_length=True,
    ),
    Row("sdpo", "trl", "sdpo", {}, FULL_KL, f"{TWO_TOKENS}; {NO_RATIO}"),
    Row(
        "sdpo", "trl", "sdpo", {"kl": "sampled"} | NO_TIS, {"mode": "sampled_token"},
        "it has no ratio: compared on-policy", on_policy=True,
    ),
    Row(
        "sdpo", "trl", "sdpo", {"grpo_weight": 0.25} | NO_TIS, FULL_KL | {"weight": 0.75},
        f"{TWO_TOKENS}; {NO_RATIO}; its PPO clip is off",
    ),
    Row("opsd", "trl", "sdft", {}, FULL_KL, f"{TWO_TOKENS}; {NO_RATIO}"),
    Row("dpo", "trl", "dpo", {"kl_beta": 0.5}, {"beta": 0.5}, "given all pairs of a correct and an incorrect response"),
]  # fmt: skip


def make_point(seed: int, on_policy: bool, one_length: bool = False) -> dict[str, Tensor]:
    """Random inputs for a loss, in float64; padding is 0."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    lengths = torch.randint(T if one_length else 1, T + 1, (P * G, 1), generator=generator)
    mask = (torch.arange(T) < lengths).double()  # (B, T)
    old = (-normal(P * G, T).abs() - 0.05) * mask  # (B, T)
    logp, rollout, ref = ((old + scale * normal(P * G, T)).clamp(max=-1e-3) * mask for scale in (0.4, 0.5, 0.4))
    rewards = (torch.rand(P, G, generator=generator) < 0.5).double()  # (P, G)
    rewards[:, 0], rewards[:-1, 1] = 1.0, 0.0  # each group has a correct one; all but the last an incorrect one
    values, new_values = normal(P * G, T) * mask, normal(P * G, T) * mask  # (B, T), (B, T)
    point = {"mask": mask, "old_logp": old, "rollout_logp": rollout, "ref": ref, "rewards": rewards}
    point |= {"values": values, "new_values": values + 0.3 * new_values, "returns": normal(P * G, T) * mask}
    teacher = (old + 0.5 * normal(P * G, T)).clamp(max=-1e-3) * mask  # (B, T)
    # Two reward functions: the verifier, and one with random values.
    point |= {"function_rewards": torch.stack([rewards, normal(P, G)]), "reward_weights": torch.tensor([1.0, 0.5])}
    return point | {"logp": old.clone() if on_policy else logp, "teacher": teacher}


class Peer:
    """A process in the peer's environment that computes gradients."""

    def __init__(self, name: str, python: Path) -> None:
        say = f"import importlib.metadata as m; print(m.version('{PACKAGES[name]}'), m.version('torch'))"
        found = subprocess.run([str(python), "-c", say], capture_output=True, text=True)
        if found.returncode:
            fail(
                f"--{name} {python} has no {NAMES[name]}: make the environment as the top of benchmarks/peers.py says."
            )
        self.version, self.torch = found.stdout.split()
        command = [
            str(python.absolute()),
            "-P",
            str(ROOT / "benchmarks" / "peers_worker.py"),
            name,
        ]  # -P keeps it from importing benchmarks/trl.py
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def answer(self) -> str:
        """The next line that the worker wrote, skipping lines of libraries."""
        while line := self.process.stdout.readline():
            if line.startswith(("ready", "done")) or "Error" in line.split(":")[0]:
                return line.strip()
        return "the worker has ended"

    def gradient(self, job: dict[str, Any], folder: Path) -> Tensor:
        torch.save(job, folder / "job.pt")
        self.process.stdin.write(f"{folder / 'job.pt'}\n")
        self.process.stdin.flush()
        while (reply := self.answer()) == "ready":
            pass
        if reply != "done":
            fail(f"the peer could not compute {job['kind']}: {reply}", code=1)
        return torch.load(folder / "job.pt.gradient")

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def compare(row: Row, peer: Peer, folder: Path) -> dict[str, Any]:
    """The largest difference between the two gradients over all points, as a fraction of the largest entry."""
    worst, factors = 0.0, []
    cap = row.ours.get("tis_cap", getattr(load(row.method).Args, "tis_cap", 0.0))
    tis = {"tis": cap} if cap > 0 and hasattr(load(row.method), "tis_weight") else {}
    for seed in SEEDS:
        point = make_point(seed, row.on_policy, row.one_length)
        mine, advantages = loop_gradient(row.method, row.ours, point, row.what)
        given = advantages if row.method == "opd" else advantages[:, 0]  # (B, T) or (B,)
        variable = "new_values" if row.what == "critic" else "logp"
        job = {"point": point | {"advantages": given}, "variable": variable, "kind": row.kind}
        theirs = peer.gradient(job | {"settings": row.theirs | tis}, folder) * point["mask"]
        factor = ((mine * theirs).sum() / (theirs * theirs).sum()).item() if row.up_to_scale else 1.0
        factors.append(factor)
        worst = max(worst, ((mine - factor * theirs).abs().max() / mine.abs().max()).item())
    result = {"name": row.name, "method": row.method, "ours": row.ours, "what": row.what, "peer": row.peer}
    result |= {"kind": row.kind, "version": peer.version, "torch": peer.torch, "difference": worst}
    result |= {"factors": factors if row.up_to_scale else None, "remark": row.remark}
    return result | {"date": time.strftime("%Y-%m-%d")}


def table(results: list[dict[str, Any]]) -> str:
    """The page reports/peers.md."""
    versions = sorted({f"{NAMES[r['peer']]} {r['version']}" for r in results})
    worst = max(r["difference"] for r in results)
    page = heading("The same losses in other code", "python -m benchmarks.peers", (r["date"] for r in results))
    page += f"""
Gradients of our losses against those of {", ".join(versions)}, at {len(SEEDS)} random off-policy points each: {P * G}
responses of 1 to {T} tokens, in float64 (SkyRL computes ratios in float32). Our side is the script's own training loop,
with one minibatch and unclipped gradients. By default both sides multiply losses by TIS weights with a cap of 2. A KL
is in the loss or in the rewards, as in the method. The figure is the largest difference in the gradient of any
log-prob, as a fraction of the largest gradient; over all rows it is at most {worst:.0e}. The benchmark's docstring says
how to make the environments; the figures are in `reports/peers.json`. Where the other code differs, the last column
says how, and how the difference was removed.

| method | settings that are not the default | other code | difference | note |
|---|---|---|---|---|
"""
    order = {row.name: i for i, row in enumerate(ROWS)}
    for r in sorted(results, key=lambda r: order.get(r["name"], len(order))):
        flags = [f"--no-{key} " if value is False else f"--{key} {value}" for key, value in r["ours"].items()]
        settings = ", ".join(f"`{flag.strip().replace('_', '-')}`" for flag in flags)
        method = r["method"] + (" (critic)" if r["what"] == "critic" else "")
        remark = r["remark"] + (f" of {min(r['factors']):.4f} to {max(r['factors']):.4f}" if r["factors"] else "")
        difference = f"{r['difference']:.0e}" if r["difference"] else "0"
        other = f"{NAMES[r['peer']]} `{r['kind']}`"
        page += f"| {method} | {settings} | {other} | {difference} | {remark} |\n"
    return page


def main(args: Args) -> None:
    results = read_report("peers", [])
    given = {name: python for name in PACKAGES if (python := getattr(args, name))}
    if not given and not args.redraw:
        fail(f"name the Python of at least one of --{', --'.join(PACKAGES)}; --redraw only writes the table.")
    for name, python in given.items():
        peer = Peer(name, python)
        with tempfile.TemporaryDirectory() as folder:
            results = [r for r in results if r["peer"] != name]
            for row in [row for row in ROWS if row.peer == name]:
                results.append(compare(row, peer, Path(folder)))
                write_report("peers", results)
                print(f"{row.name}: {results[-1]['difference']:.1e}", flush=True)
        peer.close()
    if results:
        (REPORTS / "peers.md").write_text(table(results))
    if far := [r["name"] for r in results if r["difference"] > WITHIN]:
        print(f"not within {WITHIN}: {'; '.join(far)}", file=sys.stderr)
        raise SystemExit(1)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
