"""What each method is for, in one number: with the method and without it, on three seeds or more.

    python -m benchmarks.effects                     # what is missing or by earlier scripts, two runs at a time
    python -m benchmarks.effects --seeds 8 pope      # some methods, on further seeds
    python -m benchmarks.effects --redraw            # only the page

Runs have 8 prompts x 8 responses per step and a learning rate of 1e-4, and are made like those of the claims. The page
reports/effects.md also names the claims about the other scripts.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from claims.court import load, record
from claims.fair import WORLDS
from claims.runs import Trial, code_hash, difference, trial, trials
from common.cli import fail
from common.help import parse_args
from tools.reports import REPORTS, heading, read_report, today, write_report
from tools.scripts import ROOT, parents, script_path

import tyro

SEARCH, HARD = f" {WORLDS['search']}", f" {WORLDS['search-hard']}"
STALE = f"{SEARCH} --staleness 8 --steps 48"
SUMS = " --steps 40 --eval-problems 256"
EXPERTS = f" --model sums-experts{SUMS} --update-epochs 4"
REUSED = " --update-epochs 4"
GAME = " --steps 40 --eval-problems 256 --eval-samples 2"
LIBRARY = f" --environment retrieval --model retrieval --dataset retrieval{GAME}"
PYTHON = f" --environment python --model python --dataset python --reward docs/rewards/code_tests.py:passes_tests{GAME}"
SHORT = f"{SEARCH} --max-response-tokens 120"  # a little more than responses have when accuracy is high
BUDGET = " --budget-prompt ' within {n} tokens' --min-budget 0.125 --max-response-tokens 160"  # budgets from 20 to 160
TOKEN_MEAN = "grpo+dapo.token_weights"
MEAN_SUMS = TOKEN_MEAN + SUMS
TWO = " --reward correct docs/rewards/format.py:short=0.2"
MISTAKE = " --reward correct worlds/search/feedback.py:first_mistake=0"
MEAN_BUDGET = 90  # tokens
BASE = "base model"  # the model before training, instead of a run without the method


def at_end(name: str) -> Callable[[Trial], float]:
    return lambda run: run.last(name)


def mean_of(name: str) -> Callable[[Trial], float]:
    """The mean over the last ten steps."""
    return lambda run: run.mean(name, 10)


ACCURACY = "held-out accuracy"
METRICS: dict[str, tuple[Callable[[Trial], float], str]] = {  # with the number's format
    ACCURACY: (at_end("eval/avg"), ".3f"),
    "pass@16": (at_end("eval/pass@16"), ".3f"),
    "maj@8": (mean_of("majority_correct"), ".3f"),  # fraction of groups of 8 whose most frequent answer is correct
    "groups without signal": (mean_of("zero_std_groups"), ".2f"),
    "entropy": (mean_of("entropy"), ".3f"),
    "% away from the budget": (lambda run: run.mean("off_budget", 10) / MEAN_BUDGET * 100, ".0f"),
    "beyond the limit": (mean_of("over_budget"), ".2f"),
    "tokens of correct responses": (mean_of("length_correct"), ".0f"),
    "truncated": (mean_of("truncated"), ".3f"),
}


class Effect(NamedTuple):
    """What a method does, runs with and without it (as in claims' arms), and what is measured.

    If `first` is given, both runs start from its final weights.
    """

    aim: str
    runs: str
    without: str
    metric: str = ACCURACY
    first: str = ""


EFFECTS = {
    "pope": Effect("hints where no response is correct", f"pope{HARD}", f"grpo{HARD}", "groups without signal"),
    "pope on held-out problems": Effect("the same, on held-out problems", f"pope{HARD}", f"grpo{HARD}", "pass@16"),
    "luffy": Effect("solutions among the responses", f"luffy{HARD}", f"grpo{HARD}", "pass@16"),
    "replay": Effect(
        "keeps correct responses to hard prompts", f"replay{HARD}", f"grpo{HARD}", "groups without signal"
    ),
    "replay on held-out problems": Effect("the same, on held-out problems", f"replay{HARD}", f"grpo{HARD}", "pass@16"),
    "curriculum": Effect(
        "draws prompts with signal",
        f"curriculum{HARD} --pool 32",
        f"curriculum{HARD} --pool 32 --uniform",
        "groups without signal",
    ),
    "adaptive_entropy": Effect(
        "moves the entropy toward 0.1", f"adaptive_entropy{SEARCH} --target-entropy 0.1", f"grpo{SEARCH}", "entropy"
    ),
    "entropy_bonus": Effect(
        "keeps the entropy up", f"entropy_bonus{SEARCH} --entropy-coef 0.1", f"grpo{SEARCH}", "entropy"
    ),
    "entropy_bonus weaker": Effect(
        "the same with a third of it", f"entropy_bonus{SEARCH} --entropy-coef 0.03", f"grpo{SEARCH}", "entropy"
    ),
    "adaptive_entropy by default": Effect(
        "moves the entropy toward 0.2", f"adaptive_entropy{SUMS}", f"grpo{SUMS}", "entropy"
    ),
    "entropy_bonus by default": Effect("keeps the entropy up", f"entropy_bonus{SUMS}", f"grpo{SUMS}", "entropy"),
    "entropy_bonus stronger": Effect(
        "ten times as strong, against the token mean", f"entropy_bonus{SUMS} --entropy-coef 0.05", MEAN_SUMS, "entropy"
    ),
    "kl_cov by default": Effect("restrains tokens that lower the entropy", f"kl_cov{SUMS}", MEAN_SUMS, "entropy"),
    "kl_cov stronger": Effect(
        "10 times the tokens and weight", f"kl_cov{SUMS} --cov-fraction 0.02 --kl-cov-coef 10", MEAN_SUMS, "entropy"
    ),
    "lcpo": Effect(
        "uses a budget",
        f"lcpo{HARD}{BUDGET} --alpha 0.01",
        f"lcpo{HARD}{BUDGET} --alpha 0",
        "% away from the budget",
    ),
    "lcpo on search": Effect(
        "uses a budget, at some accuracy",
        f"lcpo{SEARCH}{BUDGET}",
        f"lcpo{SEARCH}{BUDGET} --alpha 0",
        "% away from the budget",
    ),
    "lcpo_max": Effect(
        "keeps a limit, after lcpo.py as in the paper",
        f"lcpo_max{SEARCH}{BUDGET} --alpha 0.1",
        f"lcpo_max{SEARCH}{BUDGET} --alpha 0",
        "beyond the limit",
        f"lcpo{HARD}{BUDGET} --alpha 0.01",
    ),
    "kimi_length": Effect(
        "short responses, after grpo.py as in the paper",
        f"kimi_length{SEARCH}",
        f"grpo{SEARCH}",
        "tokens of correct responses",
        f"grpo{SEARCH}",
    ),
    "cosine_length": Effect(
        "keeps responses within a limit that binds", f"cosine_length{SHORT}", f"grpo{SHORT}", "truncated"
    ),
    "rloo": Effect("has the mean of the other responses as its baseline", f"rloo{SEARCH}", f"reinforce{SEARCH}"),
    "vineppo": Effect("samples values instead of training a critic", f"vineppo{SEARCH}", f"ppo{SEARCH}"),
    "process_rewards": Effect("credit for single attempts", f"process_rewards{SEARCH}", f"grpo{SEARCH}"),
    "gigpo": Effect("credit for single turns", f"gigpo{GAME}", f"agent{GAME}"),
    "agent": Effect("learns from episodes", f"agent{GAME}", BASE),
    "agent in a library": Effect("learns to search in a corpus", f"agent{LIBRARY}", BASE),
    "agent with Python": Effect("learns to test its functions", f"agent{PYTHON}", BASE),
    "calculator": Effect("learns to call a tool", f"calculator{GAME}", BASE),
    "raft": Effect("learns from correct responses alone", f"raft{SEARCH}", BASE),
    "raft_pp": Effect("learns from correct responses alone", f"raft_pp{SEARCH}", f"grpo{SEARCH}", "entropy"),
    "raft_pp with reuse": Effect(
        "has a ratio and a clip, for several updates", f"raft_pp{SEARCH}{REUSED}", f"raft{SEARCH}{REUSED}"
    ),
    "reinforce_rej": Effect("learns from incorrect responses too", f"reinforce_rej{SEARCH}", f"raft_pp{SEARCH}"),
    "sequence_masking": Effect("masks what is far off-policy", f"sequence_masking{STALE}", f"grpo{STALE}"),
    "lopti": Effect("updates unlikely tokens first", f"lopti{SEARCH}", f"grpo{SEARCH}"),
    "advantage_reweighting": Effect("weighs unlikely tokens less", f"advantage_reweighting{SEARCH}", f"grpo{SEARCH}"),
    # Without means a learning rate that leaves the base model unchanged.
    "ttrl": Effect("learns from majorities, without answers", f"ttrl{SUMS}", f"ttrl{SUMS} --lr 1e-9", "maj@8"),
    "spin": Effect("learns from solutions, without rewards", f"spin{SUMS}", BASE),
    "rubrics": Effect("learns from criteria (patterns), without answers", f"rubrics{SUMS}", BASE),
    "prorl": Effect("renews the reference", f"prorl{SEARCH}", f"prorl{SEARCH} --renew-every 0"),
    "r1": Effect("renews the reference", f"r1{SEARCH} --kl-beta 0.04 --renew-every 10", f"r1{SEARCH} --kl-beta 0.04"),
    "self_reward": Effect("judges its own responses", f"self_reward{SEARCH}", BASE),
    "sdpo": Effect("is taught by itself, told how long to search", f"sdpo{SEARCH}", BASE),
    "opsd": Effect("is taught by itself, told the solution", f"opsd{SEARCH}", BASE),
    "rspo": Effect("trusts ratios less where routers have moved", f"rspo{EXPERTS}", f"gmpo{EXPERTS}"),
    "sdpo with answers": Effect(
        "is taught by itself, told the answer", f"sdpo{SEARCH} --feedback ' right {{answer}}'", BASE
    ),
    "sdpo with mistakes": Effect("the same, told its first mistake", f"sdpo{HARD}{MISTAKE}", f"sdpo{HARD}", "pass@16"),
    "trpo": Effect("steps as large as a KL of 0.001 allows", f"trpo{SEARCH}", f"reinforce{SEARCH}"),
    "trpo as published": Effect(
        "default δ and damping instead of the published ones",
        f"trpo{SEARCH}",
        f"trpo{SEARCH} --delta 0.01 --damping 1e-3",
    ),
    "kl_cov": Effect(
        "restrains tokens that lower the entropy",
        f"kl_cov{SEARCH} --cov-fraction 0.02",
        f"{TOKEN_MEAN}{SEARCH}",
        "entropy",
    ),
    "clip_cov": Effect(
        "restrains tokens that lower the entropy", f"clip_cov{SEARCH}", f"{TOKEN_MEAN}{SEARCH}", "entropy"
    ),
    "gdpo": Effect("normalizes each of two rewards", f"gdpo{SEARCH}{TWO}", f"grpo{SEARCH}{TWO}"),
}
CLAIMS: dict[str, tuple[str, ...]] = {  # about what is special in a method, or what it is based on
    "reinforce": ("baseline_lowers_variance",),
    "ppo": ("critic_is_unnecessary",),
    "grpo": ("clip_needs_both_bounds",),
    "dr_grpo": ("response_mean_lengthens_search",),
    "dapo": ("dynamic_sampling_pays", "clip_higher_keeps_entropy"),
    "cispo": ("cispo_is_twice_as_fast",),
    "gspo": ("gspo_clips_more_and_learns_as_well",),
    "gmpo": ("outliers_move_gmpo_less",),
    "dppo": ("ratios_of_rare_tokens_are_noise",),
    "maxrl": ("maxrl_keeps_pass_at_k", "maxrl_keeps_pass_at_k_in_training", "maxrl_keeps_pass_at_k_on_search"),
    "reinforce_pp": ("reinforce_pp_advantages_have_mean_zero",),
    "reinforce_pp_baseline": ("batch_std_weighs_prompts_alike",),
    "lite_ppo": ("batch_std_weighs_prompts_alike",),
    "sapo": ("sapo_is_a_softer_clip",),
    "dcpo": ("dcpo_lets_rare_tokens_grow",),
    "forking_tokens": ("forking_tokens_suffice",),
    "gigpo": ("same_state_turns_get_truer_credit", "same_state_turns_learn_faster"),
    "vineppo": ("sampled_values_beat_a_critic", "sampled_values_credit_each_step"),
    "process_rewards": ("process_rewards_credit_each_step",),
    "pass_at_k": ("pass_at_k_training_keeps_pass_at_k", "maxrl_keeps_pass_at_k_on_search"),
    "lopti": ("rare_tokens_dominate_the_gradient",),
    "advantage_reweighting": ("rare_tokens_dominate_the_gradient",),
    "gdpo": ("std_merges_different_rewards",),
}
ABOUT = """
Runs have 40 steps of 8 prompts x 8 responses (48 where rollouts are stale); the learning rate of 1e-4 is not tuned.
`reports/effects.json` has each command's flags. *Without* is the run without the method, the method or flags that it is
compared with, or the base model before training. Means over the seeds, with Welch's 95 % interval of the difference; it
is *seen* if the interval excludes 0; † marks runs of earlier scripts or flags (changes of `common/` alone give none);
where a script has changed since, the first seed of today's gave the same figures. Where something else was measured,
the last column is held-out accuracy, without and with the method, and the difference. Three seeds show only large
effects, and a run without the method may do better at its own best learning rate; [claims](claims.md) decide with more
seeds and rates. The curriculum and its control draw from the same 32 problems. An entropy bonus that raises the entropy
costs accuracy here; for KL-Cov a cost is not certain. Both keep the values of 2505.22617 as defaults, which show
nothing on sums. LCPO's mean deviation is below 15 % of the mean budget only where responses solve nothing: on `search`
a solution ends the search before the budget. With 300 steps of 256 responses, it falls to 7 % (`python methods/lcpo.py
--steps 300 --max-response-tokens 160 --alpha 0.015 --lr 3e-4`, one seed), and accuracy falls from 0.25 to 0.06: the
policy learns to falsify results and to repeat failed attempts. SDPO told its mistakes collapses in longer runs.

"""


@dataclass
class Args:
    methods: tyro.conf.Positional[tuple[str, ...]] = ()
    """Names of rows, mostly those of scripts; by default all that reports/effects.json lacks or has by other code."""
    seeds: int = 3
    """Seeds from 1 on; those that reports/effects.json has with the same flags and code are not run again."""
    redraw: bool = False
    """Only write the page again."""


def code(effect: Effect) -> list[str]:
    """Hashes of the scripts that make its runs."""
    return [code_hash(arm) for arm in (effect.runs, effect.without, effect.first) if arm not in (BASE, "")]


def settings(effect: Effect) -> dict[str, Any]:
    """What decides its figures: flags, metric and scripts."""
    found = {"runs": effect.runs, "without_runs": effect.without, "metric": effect.metric, "code": code(effect)}
    return found | ({"first": effect.first} if effect.first else {})


def by_todays(effect: Effect, known: dict[str, Any]) -> bool:
    return all(known.get(name) == value for name, value in settings(effect).items())


def repeated(effect: Effect, known: dict[str, Any]) -> bool:
    """Whether today's code gives the figures of the first seed that are known for the same flags."""
    if any(known.get(name) != value for name, value in settings(effect).items() if name != "code"):
        return False
    first = measured(effect, 1, {})
    figures = first.keys() - settings(effect).keys() - {"date"}
    return all(known.get(name, [])[:1] == first[name] for name in figures)


def measured(effect: Effect, seeds: int, known: dict[str, Any]) -> dict[str, Any]:
    """The metric per seed with the method and without it; `known` has earlier seeds, with their flags and code.

    Seeds by other code count if the first one gives the same figures by today's.
    """
    if known and not by_todays(effect, known):
        known = known if repeated(effect, known) else {}
    first_seed = 1 + len(known.get("with", []))
    arms = {"with": effect.runs} | ({} if effect.without == BASE else {"without": effect.without})
    if effect.first:
        models = [run.weights for run in trials({"first": effect.first}, seeds, first_seed)["first"]]
        done = {
            name: [trial(f"{arm} --model {model}", seed) for seed, model in enumerate(models, first_seed)]
            for name, arm in arms.items()
        }
    else:
        done = trials(arms, seeds, first_seed)
    values = {name: [METRICS[effect.metric][0](run) for run in of_arm] for name, of_arm in done.items()}
    if effect.without == BASE:
        values["without"] = [run.rows[0]["eval/avg"] for run in done["with"]]
    if effect.metric != ACCURACY:
        values |= {f"accuracy {name}": [METRICS[ACCURACY][0](run) for run in of_arm] for name, of_arm in done.items()}
    return settings(effect) | {name: known.get(name, []) + new for name, new in values.items()} | {"date": today()}


def accuracies(one: dict[str, Any]) -> str:
    """Held-out accuracy without and with a method, and the difference."""
    without, with_it = one["accuracy without"], one["accuracy with"]
    change = difference(without, with_it, paired=False)
    means = f"{statistics.mean(without):.3f}, {statistics.mean(with_it):.3f}"
    return f"{means}: {change.mean:+.3f} ± {change.half:.3f}"


def page(found: dict[str, dict[str, Any]]) -> str:
    lines = [
        heading("What each method is for", "python -m benchmarks.effects", [one["date"] for one in found.values()]),
        ABOUT.lstrip("\n"),
        "| script | what it does | measured | seeds | without | with | difference | seen | accuracy |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, effect in EFFECTS.items():
        if one := found.get(name):
            form = METRICS[effect.metric][1]
            change = difference(one["without"], one["with"], paired=False)
            script = script_path(name.split()[0]).relative_to(ROOT)
            cells = [f"`{script}`", effect.aim, effect.metric, str(len(one["with"]))]
            cells += [f"{statistics.mean(one[key]):{form}}" for key in ("without", "with")]
            cells.append(f"{change.mean:+{form}} ± {change.half:{form}}")
            cells.append("yes" if abs(change.mean) > change.half else "no")
            cells[-1] += "" if by_todays(effect, one) else " †"
            cells.append(accuracies(one) if "accuracy with" in one else "")
            lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "What is special in others, or what they rest on, is the subject of a claim:", ""]
    lines += ["| script | claim | verdict |", "|---|---|---|"]
    for name, claim in [(name, claim) for name, claims in CLAIMS.items() for claim in claims]:
        sentence, result = load(claim).__doc__.split("\n")[0], record(claim)
        verdict = result["verdict"] if result else "not run yet"
        lines.append(f"| `{script_path(name).relative_to(ROOT)}` | [{sentence}](../claims/{claim}.py) | {verdict} |")
    shown = {*CLAIMS, *(name.split()[0] for name in found)}
    rest = [name for name in parents() if name not in shown]
    in_methods = [name for name in rest if f"| {name} |" in (REPORTS / "methods.md").read_text()]
    lines += ["", f"In the tables of [methods](methods.md): {', '.join(in_methods)}."]
    if missing := sorted({*rest} - {*in_methods}):
        lines += ["", f"Not measured yet: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"


def main(args: Args) -> None:
    found = read_report("effects", {})
    if unknown := [name for name in args.methods if name not in EFFECTS]:
        fail(f"{unknown[0]} is not measured here: name others of {', '.join(EFFECTS)}.")
    old = [name for name, effect in EFFECTS.items() if not by_todays(effect, found.get(name, {}))]
    todo = [] if args.redraw else args.methods or old
    for name in todo:
        known = found.get(name, {})
        found[name] = measured(EFFECTS[name], max(args.seeds, len(known.get("with", []))), known)
        write_report("effects", found)
        print(f"{name}: {found[name]}", flush=True)
    (REPORTS / "effects.md").write_text(page(found))


if __name__ == "__main__":
    main(parse_args(Args, __doc__))
