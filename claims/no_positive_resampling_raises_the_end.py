"""Leaving out prompts that nearly all responses have solved raises the accuracy at which training ends.

Said by: ScaleRL, 2510.13786, Sec. 3.2 and Fig. 6b, where it is called No-Positive-Resampling and raises the asymptote.
The abstract says that a curriculum and other details "primarily modulate compute efficiency without materially shifting
the asymptote".

Tested: recipes/scalerl.py on sums for 80 steps of 64 responses, with 96 training problems (claims/sums_96.jsonl, the
first of the generator's), so that each would come about seven times: with its pass rate of 0.9, which with 8 responses
is reached when all are correct, and without it (1.01); a fair trial (claims/fair.py). Held-out problems are new ones.

Rule: by held-out accuracy, 95 % interval of the difference. Reproduced if leaving out gains 0.02 or more and the
interval excludes 0; contradicted if the interval excludes a gain of 0.02 and does not lie above 0; else inconclusive.
Groups without signal in the last 20 steps and the prompts that were left out at the end are reported.
"""

from claims import fair

KIND = "runs"
SMALLEST = 0.02
WORLDS = ("sums",)
SMALL_DATA = "scalerl --steps 80 --model sums --dataset claims/sums_96.jsonl --eval-dataset sums"
ARMS = {"all prompts": f"{SMALL_DATA} --no-resampling-pass-rate 1.01", "solved left out": SMALL_DATA}
PAIR = ("all prompts", "solved left out")


def compute(seeds):
    others = {"no signal": lambda t: t.mean("zero_std_groups", 20), "left out": lambda t: t.last("solved_prompts")}
    return fair.compute(ARMS, [PAIR], seeds, WORLDS, **others)


def of_worlds(result):
    return fair.in_each_world(result, PAIR, SMALLEST)


def verdict(result):
    return fair.of_both(of_worlds(result))


def effect(result):
    no_signal = ", ".join(f"{arm['no signal']:.3f}" for arm in result["arms"].values())
    left_out = result["arms"]["solved left out, sums"]["left out"]
    return f"{fair.effect(result, of_worlds(result))}; groups without signal {no_signal}; {left_out:.0f} of 96 left out"


def draw(result):
    return fair.draw(result, "96 problems: all of them, and those that were not solved yet")
