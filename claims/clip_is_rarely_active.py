"""PPO's clip is active for less than 5 % of the tokens of a batch.

Said by: RLOO, 2402.14740, Sec. 3.2, on preference data, as a reason to drop it ("the loss is actually clipped on
average < 5% of the time per batch").

Tested: one rollout batch of the embedded model, 32 prompts x 16 responses, trained with grpo.py's loss and a fresh
optimizer for 4 updates (the default) and for 16 (4 minibatches, 4 passes); the fraction of the loss weight that is
clipped in each update. A fresh optimizer without warm-up takes large steps. In the training runs of
gspo_clips_more_and_learns_as_well.py, with five steps of warm-up and the best learning rate, 0.9% are clipped with 16
updates on average, and in those of grpo_against_itself.py 0.2% with 4.

Rule: reproduced if the mean over the updates is below 5 % with 4 and with 16 updates; else contradicted.

Not testable here: a fresh optimizer without warm-up takes larger steps than any run; the claim is about training.
"""

from statistics import mean

import grpo
from claims.court import axes, decide, embedded, updates
from tools.plots import BLUE, ORANGE

KIND = "model"
P, G, EPOCHS = 32, 16, (1, 4)


def compute():
    result = {}
    for epochs in EPOCHS:
        args = grpo.Args(prompts_per_step=P, responses_per_prompt=G, num_minibatches=4, update_epochs=epochs)
        model, batch, correct = embedded(P, G, args)
        advantages = grpo.compute_advantages(correct, args).view(-1, 1).expand(batch.response_mask.shape)  # (B, T)
        result[4 * epochs] = updates(model, batch, advantages, args)
    return result


def verdict(result):
    return decide(max(map(mean, result.values())) < 0.05)


def effect(result):
    parts = [f"{mean(shares):.1%} in {n} updates (the last one {shares[-1]:.1%})" for n, shares in result.items()]
    return "fraction of the loss weight clipped, fresh optimizer without warm-up: " + ", ".join(parts)


def draw(result):
    panel = axes(
        "The more updates a rollout batch serves, the more is clipped", "update", "fraction of the loss weight clipped"
    )
    for (n, shares), color, size in zip(result.items(), (ORANGE, BLUE), (10, 5), strict=True):
        panel.plot(range(1, len(shares) + 1), shares, "o-", color=color, markersize=size, label=f"{n} updates")
    panel.axhline(0.05, color="black", linestyle=":", label="5 %")
    panel.legend()
    return panel.figure
