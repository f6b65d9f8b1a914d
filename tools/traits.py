"""What distinguishes the scripts, in words derived from the curves of their functions."""

import inspect
import math
from types import ModuleType

from tools.fingerprint import GROUP, LENGTH, TOKENS, advantages, ask, attempt, bounds, factors, verdicts
from tools.scripts import load

import torch

UNKNOWN = "not computed"  # the function is missing, or needs values that are not known here


def close(a: list[float], b: list[float]) -> bool:
    return torch.allclose(torch.tensor(a), torch.tensor(b), rtol=1e-3, atol=1e-5)


def baseline(script: ModuleType) -> str:
    """What a reward is compared with and divided by, found by comparing the advantages with those of known formulas."""
    found, why = attempt(advantages, script)
    if found is None:
        return "no reward" if "rewards play no part" in why else UNKNOWN
    mixed = range(1, GROUP)
    mine = [found[kind][k] for kind in ("correct", "incorrect") for k in mixed]
    p = torch.tensor([[k / GROUP for k in mixed]] * 2, dtype=torch.double)
    reward = torch.tensor([[1.0], [0.0]], dtype=torch.double).expand(p.shape)
    centered = reward - p
    known = {
        "none": [reward, 2 * reward - 1],
        "batch mean": [reward - verdicts(GROUP).mean()],
        "mean of the others": [centered * GROUP / (GROUP - 1)],
        "group mean": [centered],
        "group mean, over the group's mean": [centered / p],
        "group mean, over the group's std": [centered / (p * (1 - p) * GROUP / (GROUP - 1)).sqrt()],
    }
    whose = "critic" if hasattr(script, "value_loss") else "sampled values" if hasattr(script, "split_steps") else ""
    if "scores" in inspect.signature(script.compute_advantages).parameters:
        whose = "pairs within the group"
    for name, formulas in known.items():
        if not whose and any(close(mine, formula.flatten().tolist()) for formula in formulas):
            return name
    for name in ("group mean", "batch mean", "group mean, over the group's std"):
        formula = known[name][0].flatten().tolist()
        if close([x * formula[0] / mine[0] for x in mine], formula):
            return whose or (name if "std" in name else f"{name}, scaled over the batch")
    return whose or "its own"


def clips_single_tokens(script: ModuleType) -> bool:
    """Whether a single token beyond the bound loses its gradient, while its response's other tokens keep theirs."""
    old = torch.full((1, TOKENS), 0.1, dtype=torch.double).log()
    moved = torch.tensor([[2.0] + [0.0] * (TOKENS - 1)], dtype=torch.double)  # the first token's ratio is e²
    logp = (old + moved).requires_grad_()
    values = {"old_logp": old, "rollout_logp": old, "mask": torch.ones_like(old).bool(), "args": script.Args()}
    loss, _ = ask(script, "policy_loss", logp=logp, advantages=torch.ones_like(old), **values)
    slopes = torch.autograd.grad(loss.sum(), logp)[0][0]
    return slopes[0].item() == 0 and bool((slopes[1:] != 0).all())


def ratio_level(script: ModuleType) -> str:
    """Whether a factor depends on a token's own ratio, on its response's, or on none."""
    old = torch.full((1, 2), 0.1, dtype=torch.double).log()
    logp = (old + torch.tensor([[2e-4, 0.0]], dtype=torch.double)).requires_grad_()  # within every bound
    values = {"old_logp": old, "rollout_logp": old, "mask": torch.ones_like(old).bool(), "args": script.Args()}
    loss, _ = ask(script, "policy_loss", logp=logp, advantages=torch.ones_like(old), **values)
    own, other = torch.autograd.grad(loss.sum(), logp)[0][0].neg().tolist()
    if abs(own - 1) < 1e-9:
        return "none"
    return "token" if abs(other - 1) < 1e-9 else "response"


def stops(script: ModuleType) -> str:
    """What happens to the gradient when the ratio leaves 1, in words."""
    if ratio_level(script) == "none":
        return "nothing"
    below, above = bounds(script)
    if below or above < math.inf:
        found = [f"below {below:.5g}" if below else "", f"above {above:.5g}" if above < math.inf else ""]
        alone = ratio_level(script) == "response" and clips_single_tokens(script)
        return "no gradient " + ", ".join(filter(None, found)) + ", each token alone" * alone
    ratios = [1.0, 2.0, 4.0, 8.0, 16.0]
    found = factors(script, 1.0, True, ratios)
    if close(found, ratios):
        return "nothing"
    return f"weight is capped at {found[-1]:.5g}" if found == sorted(found) else "fades"


def average(script: ModuleType) -> str:
    """What `token_weights` divides by, found from a minibatch of two groups with different lengths."""
    lengths = torch.tensor([2, 4] + [6] * (GROUP - 2) + [8] * GROUP)
    mask = (torch.arange(8) < lengths[:, None]).double()
    found = ask(script, "token_weights", mask=mask, args=script.Args())  # (B, T)
    first = found[:, 0].tolist()
    per_response, groups = (found.sum(1)).tolist(), found.sum(1).view(2, GROUP).sum(1).tolist()
    if close(per_response, [per_response[0]] * len(first)):
        return "mean per response" if close([sum(per_response)], [1.0]) else "mean per response, responses summed"
    if not close(first, [first[0]] * len(first)):
        return "mean per prompt" if close(groups, [groups[0]] * 2) else "its own"
    if close([first[0] * mask.sum().item()], [1.0]):
        return "all tokens alike"
    per_row = first[0] * len(first)
    return "sum per response" if close([per_row], [1.0]) or first[0] == 1 else "sum over a constant"


def updates(script: ModuleType) -> str:
    """How far the policy is from the rollout policy, at the default settings."""
    args = script.Args()
    count = args.num_minibatches * args.update_epochs if hasattr(args, "num_minibatches") else 1
    if args.staleness:
        return f"off-policy, {args.staleness} batches old"
    return "on-policy" if count == 1 else f"off-policy, {count} updates per batch"


def weight_in_long(script: ModuleType) -> str:
    """The weight of a token in a response of twice the length, relative to the others in its group."""
    ends = torch.tensor([2 * LENGTH] + [LENGTH] * (GROUP - 1))
    mask = (torch.arange(2 * LENGTH) < ends[:, None]).double()  # (G, T)
    found = ask(script, "token_weights", mask=mask, args=script.Args())  # (G, T)
    return f"{(found[0, 0] / found[1, 0]).item():.2f}"


def traits(name: str) -> dict[str, str]:
    """What distinguishes a script, in words; long: `weight_in_long`."""
    script = load(name)
    found = {"baseline": baseline, "ratio": ratio_level, "stops": stops, "averages": average, "long": weight_in_long}
    words = {key: attempt(compute, script)[0] or UNKNOWN for key, compute in found.items()}
    return words | {"updates": updates(script), "critic": "yes" if hasattr(script, "value_loss") else "no"}
