"""Without signal, entropy ends lower under PPO's upper bound than under its lower one, and a higher one keeps it up.

Said by: "Clip-Low Increases Entropy and Clip-High Decreases Entropy", 2509.26114 (clipping above lowers entropy and
clipping below raises it, shown with random rewards); DAPO, 2503.14476, Sec. 3.1, raises the upper bound to 0.28 against
the collapse of entropy.

Tested: recipes/olmo3.py without its components, which is grpo.py with a bound for each side, for 25 steps of 64
responses with 16 updates each, a learning rate of 1e-4 and a coin flip for every reward: bounds 0.2 and 0.2, 0.2 and
0.28, only the upper, only the lower. The entropy after training is measured on fixed text, 64 responses of the base
model, because on a model's own responses it would change with their length and style.

Rule: 95 % intervals of the paired differences. Reproduced if the entropy with the upper bound alone is lower than with
the lower alone, and 0.28 keeps more of it than 0.2, both intervals excluding 0; contradicted if one of them is the
other way round with an interval that excludes 0. Void where no arm clips 1 %.
"""

from functools import cache

import grpo
from claims.court import CONTRADICTED, INCONCLUSIVE, REPRODUCED, embedded
from claims.runs import REUSE, compare, draw_arms, judged_by_clip, summarize
from common.logprobs import batch_logps
from common.models import load_model

KIND = "runs"
ARM = f"olmo3+coin {REUSE} --no-filter-groups --max-rounds 1 --average response --std group"
ARMS = {
    "0.2 and 0.2": f"{ARM} --clip-eps-high 0.2",
    "0.2 and 0.28": f"{ARM} --clip-eps-high 0.28",
    "upper alone": f"{ARM} --clip-eps-low 1e6 --clip-eps-high 0.2",
    "lower alone": f"{ARM} --clip-eps-high 1e6",
}


@cache
def fixed_text():
    """64 responses of the base model."""
    return embedded(64, 1, grpo.Args())[1]


def entropy(t):
    """Entropy of the trained model, in nats per token of the fixed text."""
    args = grpo.Args(model=str(t.weights))
    batch = fixed_text()
    return batch_logps(load_model(args)[0], batch, args)[1][batch.response_mask].mean().item()


def compute(seeds):
    pairs = [("0.2 and 0.2", "0.2 and 0.28"), ("upper alone", "lower alone")]
    base = (
        batch_logps(load_model(grpo.Args())[0], fixed_text(), grpo.Args())[1][fixed_text().response_mask].mean().item()
    )
    return compare(ARMS, pairs, seeds, entropy, "entropy") | {"base": base}


def verdict(result):
    signs = [(mean > 0) - (mean < 0) if abs(mean) > half else 0 for mean, half, _ in result["differences"].values()]
    found = CONTRADICTED if min(signs) < 0 else REPRODUCED if min(signs) > 0 else INCONCLUSIVE
    return judged_by_clip(result, found)


def effect(result):
    return f"{summarize(result, 'entropy on fixed text')}; of the base model {result['base']:.3f}"


def draw(result):
    title = "Rewards by coin: bounds of the clip and the entropy"
    return draw_arms(result, title, "entropy of own responses", "entropy on fixed text (nats)")
