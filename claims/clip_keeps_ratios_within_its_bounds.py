"""PPO's clip keeps the ratio of every token within 1 ± ε of the policy that sampled it.

Said by: write-ups that call the clip a trust region or a constraint, such as cruxible.dev, "PPO clipping": "For
positive advantage, clipping caps how much probability can increase".

Tested: the embedded model before and after 4 and 16 updates of grpo.py (ε = 0.2) on one batch of 32 prompts x 16
responses, with a fresh optimizer: the fraction of tokens whose ratio is outside 1 ± ε, the smallest and the largest
ratio.

Rule: reproduced if less than 0.1 % of the tokens are outside after 16 updates; else contradicted.
"""

import grpo
from claims.court import axes, decide, embedded, updates
from common.logprobs import batch_logps
from tools.plots import BLUE, GRAY, ORANGE

import numpy as np

KIND = "model"
P, G, EPOCHS = 32, 16, (1, 4)
EDGES = np.geomspace(0.25, 4, 41)


def compute():
    result = {}
    for epochs in EPOCHS:
        args = grpo.Args(prompts_per_step=P, responses_per_prompt=G, num_minibatches=4, update_epochs=epochs)
        model, batch, correct = embedded(P, G, args)
        advantages = grpo.compute_advantages(correct, args).view(-1, 1).expand(batch.response_mask.shape)  # (B, T)
        old_logp, _ = batch_logps(model, batch, args)
        updates(model, batch, advantages, args)
        ratio = (batch_logps(model, batch, args)[0] - old_logp)[batch.response_mask].exp()
        counts, _ = np.histogram(ratio.numpy(), EDGES)
        result[4 * epochs] = {
            "outside": ((ratio - 1).abs() > args.clip_eps).float().mean().item(),
            "smallest": ratio.min().item(),
            "largest": ratio.max().item(),
            "share by ratio": (counts / len(ratio)).tolist(),
        }
    return result


def verdict(result):
    return decide(result["16"]["outside"] < 0.001)


def effect(result):
    parts = [f"{r['outside']:.1%} after {n} ({r['smallest']:.2f} to {r['largest']:.2f})" for n, r in result.items()]
    return "tokens outside 1 ± 0.2: " + ", ".join(parts) + " updates"


def draw(result):
    panel = axes("Ratios leave the clip's bounds", "ratio of a token", "fraction of tokens", xscale="log", yscale="log")
    for (n, of_n), color in zip(result.items(), (ORANGE, BLUE), strict=True):
        panel.stairs(of_n["share by ratio"], EDGES, color=color, label=f"after {n} updates")
    panel.axvspan(0.8, 1.2, color=GRAY, alpha=0.15, label="1 ± ε")
    panel.set_xticks([0.25, 0.5, 0.8, 1.2, 2, 4], [0.25, 0.5, 0.8, 1.2, 2, 4])
    panel.minorticks_off()
    panel.legend()
    return panel.figure
