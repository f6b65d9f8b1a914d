"""Values measured by sampling a few continuations are far closer to the truth than those of a trained critic.

Said by: VinePPO, 2410.01679, Abstract at ICML 2025 (value networks "often produce poor estimate of expected return and
barely outperform a random baseline when comparing alternative steps") and Sec. 7: its Monte Carlo values from 9
continuations are near the truth.

Tested: the embedded model before training, kept fixed, which is easier for a critic than PPO's changing policy.
ppo.py's critic learns from 40 rollout batches of 256 responses with four updates each, by ppo.py's value loss. Then the
mean squared error of methods/vineppo.py's values and of the critic's at the start of each line of 128 new responses to
held-out problems. The truth is the mean reward of 64 other continuations, whose own variance is subtracted. The
variance of the truth is the error of a constant prediction. There is one seed.

Rule: reproduced if the error with 9 continuations is at most half of the critic's; else contradicted.
"""

from contextlib import closing

import ppo
from claims.court import axes, bars, decide
from common.batch import collate, micro_batches, minibatches
from common.data import load_problems, sample_problems
from common.engines import Request, prompt_seeds
from common.logprobs import in_micro_batches
from common.models import load_model
from common.transformers_engine import TransformersEngine
from common.verification import Verifier
from methods import vineppo
from tools.plots import BLUE, GRAY, GREEN, ORANGE, PURPLE

import torch

KIND = "model"
BATCHES, PROBLEMS, TRUE_SAMPLES, SAMPLES = 40, 64, 64, (1, 3, 9)


def train_critic(model, engine, verifier, problems, args):
    """ppo.py's critic after BATCHES rollout batches from a fixed policy."""
    critic = ppo.Critic(load_model(args)[0])
    optimizer = torch.optim.AdamW(critic.parameters(), lr=args.critic_lr)
    P, G = args.prompts_per_step, args.responses_per_prompt
    for step in range(1, BATCHES + 1):
        asked = sample_problems(problems, P, step, args)
        rollouts = engine.generate(asked, G, step)
        rewards = verifier(asked, rollouts)  # (P, G)
        batch = collate(asked, rollouts, model.device)
        old_values = in_micro_batches(critic, batch, args)  # (B, T)
        returns = rewards.view(-1, 1) * batch.response_mask  # (B, T), as γ and λ are 1
        for minibatch in minibatches(P, G, args):
            weights = ppo.token_weights(batch.response_mask[minibatch])  # (b, T)
            for rows, w in micro_batches(minibatch, weights, batch, args):  # (m,), (m, T)
                loss = ppo.value_loss(critic(batch, rows, args), old_values[rows], returns[rows], args)  # (m, T)
                (w * loss).sum().backward()
            torch.nn.utils.clip_grad_norm_(critic.parameters(), args.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
    return critic


def compute():
    torch.manual_seed(0)
    args, vine = ppo.Args(), vineppo.Args(responses_per_prompt=2)
    model, tokenizer = load_model(args)
    train, held_out = load_problems(args, model, tokenizer)
    engine, problems = TransformersEngine(args, model, tokenizer), held_out[:PROBLEMS]
    with closing(Verifier(args, tokenizer, train + held_out)) as verifier:
        critic = train_critic(model, engine, verifier, train, args)
        prompts, limits = [problem.prompt_ids for problem in problems], [args.max_response_tokens] * PROBLEMS
        rollouts = engine.sample_shards(Request(prompts, 2, limits, args.temperature, prompt_seeds(PROBLEMS, 0)))
        line_end = {i for i in range(len(tokenizer)) if tokenizer.decode([i]) == "\n"}
        steps = [vineppo.split_steps(tokens, line_end, vine) for tokens in rollouts.tokens]

        def sampled(K, seed):
            """Values (N,) at the starts of all lines, estimated from K continuations."""
            vine.value_samples = K
            values, _ = vineppo.estimate_values(problems, rollouts, steps, engine, verifier, seed, vine)
            return torch.tensor([v for row in values for v in row])

        truth = sampled(TRUE_SAMPLES, 1)  # (N,)
        values = {f"{K} continuation{'s' * (K > 1)}": sampled(K, 1 + K) for K in SAMPLES}
    of_critic = in_micro_batches(critic, collate(problems, rollouts, model.device), args)  # (B, T)
    starts = [(i, t) for i, ends in enumerate(steps) for t in [0, *ends[:-1]]]
    values |= {"the critic": of_critic[tuple(zip(*starts, strict=True))], "a constant": truth.mean().expand(len(truth))}
    noise = truth * (1 - truth) / (TRUE_SAMPLES - 1)  # (N,), variance of the estimated truth
    return {"states": len(truth), "error": {k: ((v - truth) ** 2 - noise).mean().item() for k, v in values.items()}}


def verdict(result):
    return decide(result["error"]["9 continuations"] <= result["error"]["the critic"] / 2)


def effect(result):
    errors = ", ".join(f"{error:.4f} ({name})" for name, error in result["error"].items())
    return f"mean squared error at {result['states']} starts of lines: {errors}"


def draw(result):
    panel = axes("Values at the start of a line: error by who estimates them", "", "mean squared error")
    bars(panel, result["error"], (BLUE, GREEN, PURPLE, ORANGE, GRAY))
    return panel.figure
