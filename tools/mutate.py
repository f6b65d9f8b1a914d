"""The scripts broken on purpose, one line at a time: each mutation must be noticed by a test.

    python tools/mutate.py                  # all, two at a time; about half an hour on two cores
    python tools/mutate.py --only grpo      # those of some scripts
    python tools/mutate.py --quick          # each mutation in one script only
    python tools/mutate.py --kept FILE      # goes on where an interrupted one ended

Not a part of the test suite: run it by hand when loops, oracles or `test_steps.py` change. The table goes to
reports/mutations.md.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tools.scripts import parents, script_path

STEPS = "tests/test_steps.py"
OBJECTIVES = "tests/test_objectives.py"
DISTRIBUTED = "tests/test_distributed.py"
RECIPES = "tests/test_recipes.py"
EXERCISES = "tests/test_exercises.py"
CLAIMS = "tests/test_claims.py"
LOOKING = "tests/test_looking.py"
EXTENSION = "tests/test_extension.py"
TASKS = "tests/test_tasks.py"


@dataclass
class Mutation:
    """`old` becomes `new` in the file, or in every script that has it; the tests that should notice."""

    what: str
    old: str
    new: str
    file: str | None = None
    tests: str = STEPS


MUTATIONS = [
    # The loop, in every script
    Mutation("anchor of the ratio recomputed in each minibatch", "logp, anchor_logp[rows]", "logp, logp.detach()"),
    Mutation(
        "weights over the whole rollout batch",
        "token_weights(mask[minibatch], args)",
        "token_weights(mask, args)[minibatch]",
    ),
    Mutation("no warm-up", 'group["lr"] = learning_rate(step, args)', 'group["lr"] = args.lr'),
    Mutation("no gradient clipping", "(model.parameters(), args.max_grad_norm)", "(model.parameters(), 1e9)"),
    Mutation("the reference is the learner", "load_model(args)[0] if args.kl_beta > 0", "model if args.kl_beta > 0"),
    Mutation("KL detached in the loss", 'args.kl_beta * values["kl"]', 'args.kl_beta * values["kl"].detach()'),
    Mutation(
        "the last token dropped from the mask",
        "mask, rollout_logp = batch.sampled, batch",
        "mask, rollout_logp = batch.sampled & (batch.sampled.cumsum(1) < batch.sampled.sum(1, keepdim=True)), batch",
    ),
    Mutation("tokens that were put in have a loss", "mask, rollout_logp = batch.sampled,", "mask, rollout_logp = batch.mask,"),
    Mutation("the sampler at temperature 1", "args.temperature, seeds", "1.0, seeds"),
    Mutation("TIS not applied", "loss = tis[rows] * loss", "loss = loss"),
    Mutation("TIS of other rows", "loss = tis[rows] * loss", "loss = tis[rows.flip(0)] * loss"),
    Mutation("gradients of all minibatches add up", "optimizer.zero_grad()", "pass"),
    Mutation("half of the micro-batches", "loss.backward()", "rows[0] % 2 or loss.backward()"),
    Mutation("weight decay forgotten", "weight_decay=args.weight_decay, fused", "weight_decay=0.0, fused"),
    Mutation("the engine never gets the new weights", "engine.load_weights(history.oldest())", "step > 1 or engine.load_weights(history.oldest(model))"),
    Mutation("staleness ignored", "engine.load_weights(history.oldest())", "engine.load_weights(model.named_parameters())"),
    Mutation("advantages of the wrong rows", "advantages[rows], mask[rows]", "advantages[rows.flip(0)], mask[rows]"),
    Mutation("the same prompts in every step", "(step - 1) * P, P)", "0, P)"),
    Mutation("one minibatch is skipped", "for minibatch in minibatches(P, G, args):", "for minibatch in list(minibatches(P, G, args))[1:] or minibatches(P, G, args):"),
    # One method
    Mutation("ddof 0 by default", "ddof: Literal[0, 1] = 1", "ddof: Literal[0, 1] = 0", tests=OBJECTIVES),
    Mutation("sign of the loss", "loss = -", "loss = ", tests=OBJECTIVES),
    Mutation("sign of k1 in the reward", "view(P, G) - args.kl_beta", "view(P, G) + args.kl_beta"),
    Mutation("EMA updated before use", "advantages = compute_advantages(rewards, ema, args)", "ema = args.ema_decay * ema + (1 - args.ema_decay) * rewards.mean().item()\n            advantages = compute_advantages(rewards, ema, args)", "reinforce.py"),
    Mutation("sign of k1 in the token rewards", "token_rewards = -args.kl_beta * kl", "token_rewards = args.kl_beta * kl", "ppo.py"),
    Mutation("returns from whitened advantages", "advantages = whiten(advantages, mask)  # (B, T)", "advantages = whiten(advantages, mask)\n            returns = advantages + old_values", "ppo.py"),
    Mutation("the reward one token early", "batch.mask.sum(1) - 1", "(batch.mask.sum(1) - 2).clamp(min=0)", "ppo.py"),
    Mutation("a critic that sees the token", "self.head(hidden.float())", "self.head(hidden.float().roll(-1, 0))", "ppo.py"),
    Mutation("whitening per minibatch", "weights = torch.zeros_like(old_logp)  # (B, T)", "advantages = advantages.clone()\n                    advantages[minibatch] = whiten(advantages[minibatch], mask[minibatch])\n                    weights = torch.zeros_like(old_logp)", "ppo.py"),
    Mutation("no value clip", "torch.max((values - returns) ** 2, (near - returns) ** 2)", "(values - returns) ** 2", "ppo.py"),
    Mutation("critic's gradients not clipped", "(critic.parameters(), args.max_grad_norm)", "(critic.parameters(), 1e9)", "ppo.py"),
    Mutation("critic at the policy's rate", "learning_rate(step, args) * args.critic_lr / args.lr", "learning_rate(step, args)", "ppo.py"),
    Mutation("rewards of 0 and 1", "2 * batch.rewards.view(P, G) - 1 +", "batch.rewards.view(P, G) +", "dapo.py"),
    Mutation("overlong filter ignored", "if args.overlong_filter:", "if False:", "dapo.py"),
    Mutation("groups without signal train on their lengths", "(compute_advantages(rewards, args) * mixed)", "compute_advantages(rewards, args)", "dapo.py"),
    Mutation("filter on the shaped reward", "(kept if 0 < row.mean() < 1 else spare)", "(kept if len({len(t) for t in group.tokens}) > 1 else spare)", "dapo.py"),
    Mutation("one round too many", "while len(kept) < P and rounds", "while len(kept) <= P and rounds", "dapo.py"),
    Mutation("the sampler's top-K on both sides", "(top_logps(model, batch, rows, args), batch", "(batch.top_logp[rows], batch", "dppo.py"),
    Mutation("anchored on the learner", "anchor_logp[rows], advantages", "old_logp[rows], advantages", "dppo.py"),
    Mutation("no condition on the direction", "(advantages > 0) & (ratio > 1) & outside", "(advantages > 0) & outside", "dppo.py", OBJECTIVES),
    Mutation("the weight is not detached", "ratio.clamp(max=args.ratio_cap).detach()  # (B, T)", "ratio.clamp(max=args.ratio_cap)", "cispo.py", OBJECTIVES),
    Mutation("arithmetic instead of geometric mean", "torch.exp(mean) * advantages", "torch.exp(clipped) * advantages", "gmpo.py", OBJECTIVES),
    Mutation("groups without a correct answer are not dropped", "mean.clamp(min=1 / rewards.shape[1])", "(mean + 0.5)", "maxrl.py", OBJECTIVES),
    Mutation("likely tokens first", "(unlikely, mask & ~unlikely)", "(mask & ~unlikely, unlikely)", "methods/lopti.py"),
    Mutation("one pass over all tokens", "args) * part[minibatch]", "args)", "methods/lopti.py"),
    Mutation("|o| of the tokens in the pass", "token_weights(mask[minibatch], args) * part[minibatch]", "token_weights(part[minibatch], args).nan_to_num()", "methods/lopti.py"),
    Mutation("unlikely tokens count more", "args.alpha * old_logp.exp() + 1 - args.alpha", "1 - args.alpha * old_logp.exp()", "methods/lopti.py"),
    Mutation("no visit is remembered", "n, mean, var = seen.get(prompt, (0, 0.0, 0.0))", "n, mean, var = 0, 0.0, 0.0", "methods/dcpo.py"),
    Mutation("what was seen is not in the checkpoint", 'run.saved("seen", {})', "{}", "methods/dcpo.py", "tests/test_scripts.py"),
    Mutation("variance without the shift of the mean", "n / (n + 1) * shift**2", "0", "methods/dcpo.py"),
    Mutation("the blend farther from 0", "smooth_new.abs() < smooth_all.abs()", "smooth_new.abs() > smooth_all.abs()", "methods/dcpo.py"),
    Mutation("the same bounds for every token", "torch.exp(-old_logp)", "torch.ones_like(old_logp)", "methods/dcpo.py", OBJECTIVES),
    Mutation("no dual clip", "ratio.clamp(max=args.ratio_cap) * advantages", "ratio * advantages", "methods/dcpo.py"),
    Mutation("averaged over responses", "mask * args.responses_per_prompt", "mask", "methods/dcpo.py", OBJECTIVES),
    Mutation("rewards of 0 and 1", "2 * batch.rewards.view(P, G) - 1", "batch.rewards.view(P, G)", "methods/reinforce_rej.py"),
    Mutation("no group is rejected", '"mixed": mixed', '"mixed": torch.ones_like(mixed)', "methods/reinforce_rej.py", OBJECTIVES),
    Mutation("RAFT learns from wrong answers", '"right": rewards > 0', '"right": rewards <= 0', "methods/reinforce_rej.py", OBJECTIVES),
    Mutation("RAFT with a ratio", "loss = -advantages * logp", "loss = -advantages * ratio", "methods/reinforce_rej.py", OBJECTIVES),
    Mutation("sign of the entropy bonus", "loss - bonus * entropy", "loss + bonus * entropy", "methods/entropy.py"),
    Mutation("a bonus without a gradient", "args, bonus > 0)", "args)", "methods/entropy.py"),
    Mutation("the adaptive bonus begins anew", 'run.saved("coef", 0.0)', "0.0", "methods/entropy.py", "tests/test_scripts.py"),
    Mutation("the adaptive bonus pays at any entropy", "return 0.0, max", "return coef, max", "methods/entropy.py", "tests/test_methods.py"),
    Mutation("the smallest covariances", "(old_logp - old_logp[mask].mean())", "(old_logp[mask].mean() - old_logp)", "methods/entropy.py"),
    Mutation("covariances not centered", "(old_logp - old_logp[mask].mean())", "old_logp", "methods/entropy.py"),
    Mutation("the other direction of the KL", "kl_penalty(old_logp, logp)", "kl_penalty(logp, old_logp)", "methods/entropy.py"),
    Mutation("what is dropped no longer counts in the mean", 'if args.control == "top-entropy" else mask', 'if args.control == "top-entropy" else mask & ~chosen', "methods/entropy.py"),
    Mutation("top-entropy counts all tokens in the mean", "token_weights(kept[minibatch], args)", "token_weights(mask[minibatch], args) * kept[minibatch]", "methods/entropy.py"),
    Mutation("PPO's clip beside Clip-Cov", "eps = math.inf if", "eps = args.clip_eps if", "methods/entropy.py", OBJECTIVES),
    Mutation("long responses are paid", "correct - args.alpha * (budgets", "correct + args.alpha * (budgets", "methods/lcpo.py"),
    Mutation("short wrong answers are paid", "bonus.clamp(max=0)", "bonus", "methods/lcpo.py"),
    Mutation("another budget than the prompt's", "budget(p.question, args)]", "budget(p.prompt, args)]", "methods/lcpo.py"),
    Mutation("the policy does not wait for its critic", "if step > args.value_pretraining * args.steps:", "if True:", "methods/vapo.py"),
    Mutation("wrong responses are imitated", "(mask & (correct.view(-1, 1) > 0))[minibatch]", "mask[minibatch]", "methods/vapo.py"),
    Mutation("targets with the policy's λ", "returns[:, t] = gae, target", "returns[:, t] = gae, (gae + values[:, t]) * mask[:, t]", "methods/vapo.py"),
    Mutation("one λ for all", "(args.gae_alpha * mask.sum(1))", "(args.gae_alpha * mask.sum(1).float().mean().expand(len(mask)))", "methods/vapo.py"),
    Mutation("a step's loss is its gain", "then - v if", "v - then if", "methods/vineppo.py"),
    Mutation("continuations go on from one token less", "*tokens[:t]) for t in", "*tokens[: max(0, t - 1)]) for t in", "methods/vineppo.py"),
    Mutation("a state's continuations are all the same", "prompt_seeds(len(begun), args.seed, step, 1)", "prompt_seeds(1, args.seed, step, 1) * len(begun)", "methods/vineppo.py", "tests/test_methods.py"),
    Mutation("a continuation per state is counted, whatever K", "in starts], len(begun)", "in starts], len(states)", "methods/vineppo.py", "tests/test_methods.py"),
    Mutation("not whitened", "advantages = whiten(advantages, mask)  # (B, T)", "pass", "methods/vineppo.py"),
    Mutation("the margin of the first update for all", "now = batch_logps(model, batch, args, minibatch)[0]", "now = old_logp", "methods/dpo.py"),
    Mutation("losers pull winners down", "pull.sum(2) - pull.sum(1)", "pull.sum(1) - pull.sum(2)", "methods/dpo.py", OBJECTIVES),
    Mutation("no reference", "((now - ref_logp) * mask)", "(now * mask)", "methods/dpo.py"),
    Mutation("solutions have no loss", "mask = mask | (batch.mask & is_solution[:, None])", "pass", "methods/dpo.py"),
    Mutation("SPIN asks for right answers", "preferred = is_solution.float().view(P, G)", "pass", "methods/dpo.py"),
    Mutation("SPIN's reference is the engine's", "if reference else old_logp", "if reference else rollout_logp", "methods/dpo.py"),
    Mutation("solutions without an end", "[*tokens, tokenizer.eos_token_id] for problem", "[*tokens] for problem", "methods/dpo.py"),
    Mutation("results have a loss", "[False] * put_in", "[True] * put_in", "methods/calculator.py"),
    Mutation("what followed a call stays", "rollouts.tokens[row][:end] + result", "rollouts.tokens[row] + result", "methods/calculator.py", "tests/test_calculator.py"),
    Mutation("turns share their random numbers", "row % n, turn)", "row % n)", "methods/calculator.py", "tests/test_calculator.py"),
    Mutation("engines get weights without adapters", "weight.float() + model", "weight.float() + 0 * model", "common/lora.py", "tests/test_lora.py"),
    Mutation("the student teaches", "return teacher_logp - old_logp", "return old_logp - teacher_logp", "methods/opd.py"),
    Mutation("rewards of what comes after", "compute_advantages(teacher_logp, anchor_logp)", "compute_advantages(teacher_logp, anchor_logp).flip(1).cumsum(1).flip(1)", "methods/opd.py"),
    Mutation("the forward KL", "(logp.exp() * (logp - teacher_logp))", "(teacher_logp.exp() * (teacher_logp - logp))", "methods/opd.py"),
    Mutation("groups beyond the batch are thrown away", "kept = kept[P:]", "kept = []", "recipes/olmo3.py"),
    Mutation("the newest groups first", "zip(*(kept + spare)[:P]", "zip(*(kept[::-1] + spare)[:P]", "recipes/olmo3.py"),
    Mutation("waiting groups are not in the checkpoint", 'run.saved("kept", [])', "[]", "recipes/olmo3.py", "tests/test_scripts.py"),
    Mutation("groups without signal count in the mean", "if args.filter_groups:", "if False:", "recipes/olmo3.py"),
    Mutation("a mean over all responses", "mask.any(1).sum()", "len(mask)", "recipes/olmo3.py"),
    Mutation("what was inserted has a loss", "[False] * len(inserted)", "[True] * len(inserted)", "recipes/scalerl.py"),
    Mutation("those who have an answer are told too", " and args.thinking_end not in tokenizer.decode(tokens[:budget])", "", "recipes/scalerl.py"),
    Mutation("everybody is told at the same place", "random.randint(first, last)", "last", "recipes/scalerl.py", "tests/test_recipes.py"),
    Mutation("an interrupted response stays as it was", "place.get(row, row)", "row", "recipes/scalerl.py"),
    Mutation("groups without signal count in the std", "centered[has_signal] if args.filter_groups else centered", "centered", "recipes/scalerl.py", OBJECTIVES),
    Mutation("groups without signal count in the mean", "if args.filter_groups:  # ScaleRL", "if False:  # ScaleRL", "recipes/scalerl.py"),
    Mutation("prompts that were left out count in the mean", "(tokens > 0).sum()", "len(tokens)", "recipes/scalerl.py"),
    Mutation("each response counts the same", 'args.responses_per_prompt if args.average == "prompt" else 1', "1", "recipes/scalerl.py"),
    Mutation("solved prompts come again", " if p.prompt not in solved]", "]", "recipes/scalerl.py"),
    Mutation("solved prompts are not in the checkpoint", 'set(run.saved("solved", []))', "set()", "recipes/scalerl.py", "tests/test_scripts.py"),
    Mutation("the stream of problems begins anew", 'run.saved("drawn", 0)', "0", "recipes/scalerl.py", "tests/test_scripts.py"),
    Mutation("an average over solutions", "return mask / mask.sum()", "return mask / (len(mask) * mask.sum(1, keepdim=True))", "recipes/r1.py", RECIPES),
    Mutation("solutions without an end", '["input_ids"], tokenizer.eos_token_id]', '["input_ids"]]', "recipes/r1.py", RECIPES),
    Mutation("held-out questions in SFT", 'if (question := row["question"]) in asked:', 'if not (question := row["question"]):', "recipes/r1.py", RECIPES),
    Mutation("wrong responses are kept", "                if right:", "                if not right:", "recipes/r1.py", RECIPES),
    Mutation("SFT goes on from RL", '{"rl": model, "distill": student}', '{"rl": model, "rejection": model, "distill": student}', "recipes/r1.py", RECIPES),
    Mutation("SFT without warm-up", 'group["lr"] = learning_rate(step, args)\n            with run', 'group["lr"] = args.lr\n            with run', "recipes/r1.py", RECIPES),
    Mutation("an unfinished stage counts as done", "if steps in evaluations else None", "if 0 in evaluations else None", "recipes/r1.py", RECIPES),
    Mutation("the newest weights from the first token on", "engine.load_weights(versions[0])", "engine.load_weights(versions[-1])", "recipes/pipeline_rl.py"),
    Mutation("weights never change in flight", "if args.in_flight_every else None", "if False else None", "recipes/pipeline_rl.py"),
    Mutation("keys and values are always kept", 'args.kv == "keep"', "True", "recipes/pipeline_rl.py"),
    Mutation("sequence-mask of tokens", 'args.correction.startswith("sequence")', 'args.correction == "sequence-tis"', "recipes/pipeline_rl.py", OBJECTIVES),
    Mutation("icepop without the weight", "return rho.where(", "return torch.ones_like(rho).where(", "recipes/pipeline_rl.py", OBJECTIVES),
    Mutation("the product, not the geometric mean", "torch.exp(log_whole / mask.sum(1, keepdim=True))", "torch.exp(log_whole)", "recipes/pipeline_rl.py", OBJECTIVES),
    Mutation("padding in the product", "(old_logp - rollout_logp) * mask", "old_logp - rollout_logp", "recipes/pipeline_rl.py", OBJECTIVES),
    Mutation("right responses are left out", "(advantages < 0) & (distance", "(advantages > 0) & (distance", "recipes/pipeline_rl.py", OBJECTIVES),
    Mutation("left out by the policy of the rollout", "rollout_logp - logp.detach()", "rollout_logp - old_logp", "recipes/pipeline_rl.py", OBJECTIVES),
    # What the scripts share
    Mutation("log-probs at temperature 1", "(logits.float() / temperature)", "logits.float()", "common/logprobs.py"),
    Mutation("log-probs one token late", "batch.prompt_lengths[rows][row] + t - 1", "batch.prompt_lengths[rows][row] + t", "common/logprobs.py"),
    Mutation("a micro-batch loses its last row", "yield rows[start:]", "yield rows[start : max(start + 1, len(rows) - 1)]", "common/batch.py"),
    Mutation("groups are torn apart", "(groups[:, None] * G + torch.arange(G)).flatten()", "torch.randperm(P * G)[: len(groups) * G]", "common/batch.py", "tests/test_engine.py"),
    Mutation("an extended run forgets its length", "if rank() == 0 and self.changed:", "if False:", "common/run.py", EXTENSION),
    Mutation("a run that is cut short keeps its small evaluation", 'self.evaluations.get(step, {"eval/n": 0})["eval/n"] >= n', "step in self.evaluations", "common/run.py", EXTENSION),
    Mutation("a falling learning rate is extended", '("lr_schedule", "constant")', '("lr_schedule", args.lr_schedule)', "common/run.py", EXTENSION),
    Mutation("every chunk has the seeds of the first", "seeds[part], args)", "seeds[: len(problems)], args)", "tools/evaluate.py", LOOKING),
    Mutation("half a chunk is kept", "lines = lines[: len(lines) // self.chunk * self.chunk]", "pass", "tools/evaluate.py", LOOKING),
    Mutation("as many values as problems", "len(values) * mean * (1 - mean) / variance", "len(values)", "tools/stats.py", LOOKING),
    Mutation("each piece of a response has the same random numbers", "prompt_seeds(1, *key, end)", "prompt_seeds(1, *key)", "tools/chat.py", LOOKING),
    Mutation("a response steers the terminal", "printable(text[shown:ready])", "text[shown:ready]", "tools/chat.py", LOOKING),
    Mutation("the band begins at the mean", "(statistics.mean, min, max)", "(statistics.mean, statistics.mean, max)", "tools/plots.py", LOOKING),
    Mutation("the cosine is a line", "0.5 * (1.0 + math.cos(math.pi * progress))", "1.0 - progress", "common/schedule.py"),
    Mutation("gradients are means of processes", "divide_factor(1.0)", "divide_factor(float(world_size()))", "common/distributed.py", DISTRIBUTED),
    Mutation("each process looks for itself how far a stage is", "outcome(folder) is not None))[0]", "outcome(folder) is not None))[-1]", "recipes/r1.py", DISTRIBUTED),
    Mutation("every process has all rows", "parts(rows[i::N], batch", "parts(rows, batch", "common/batch.py", DISTRIBUTED),
    Mutation("every process the same prompts", "some = prompt_ids[mine]", "some = prompt_ids[: len(prompt_ids[mine])]", "common/engines.py", DISTRIBUTED),
    Mutation("log-probs of one's own rows only", "return sum_over_processes(results)", "return results", "common/logprobs.py", DISTRIBUTED),
    Mutation("one scale for a whole row of 4-bit weights", "INT4_GROUP = 128", "INT4_GROUP = 1 << 20", "common/engines.py", "tests/test_engine.py"),
    Mutation("31 levels instead of 16", "/ 7.5 for group", "/ 15.5 for group", "common/engines.py", "tests/test_engine.py"),
    Mutation("an int4 engine keeps its weights", "if inner and precision in ROUNDING", 'if inner and precision == "fp8"', "common/engines.py", "tests/test_engine.py"),
    Mutation("the mask stays on the CPU", "mask=mask.to(device)", "mask=mask", "common/batch.py", "tests/test_devices.py"),
    Mutation("own rewards without their weights", "sum(w * values[name][i]", "sum(values[name][i]", "common/verification/rewards.py", "tests/test_rewards.py"),
    Mutation("children of a reward function live on", "os.killpg(self.process.pid, signal.SIGKILL)", "self.process.kill()", "common/verification/rewards.py", "tests/test_rewards.py"),
    Mutation("shares of a mix ignored", "p=shares)", "p=None)", "common/data.py", TASKS),
    Mutation("each data set begins anew in every step", "int((chosen[:start] == i).sum())", "0", "common/data.py", TASKS),
    Mutation("held out of one data set, trained on in another", "for _, held_out in pairs for", "for _, held_out in pairs[1:] or pairs for", "common/data.py", TASKS),
    Mutation("examples are problems too", "if str(pair[0]) not in shown]", "]", "common/data.py", TASKS),
    Mutation("a stop string is looked for in one token", "self.end = text[-self.longest :]", 'self.end = ""', "common/engines.py", TASKS),
    Mutation("what ends at a stop string counts as cut off", "(~finished).tolist(),", "[not bool(torch.isin(row[end - 1], self.eos)) for row, end in zip(sampled, ends, strict=True)],", "common/engines.py", TASKS),
    Mutation("a part of a score is right", "[score >= 1 for score in rewards]", "[score > 0 for score in rewards]", "common/verification/verifier.py", TASKS),
    Mutation("the order of sets in a task", """{"PYTHONHASHSEED": "0"}""", "{}", "worlds/reasoning_gym.py", TASKS),
    Mutation("the BOS that a file asks for is left out", "{bos[0]} $A", "$A", "tools/gguf.py", "tests/test_gguf.py"),
    Mutation("own rewards never reach the loss", "for _, part in parts for reward in part]", "for part, _ in parts for reward in part]", "common/verification/verifier.py", "tests/test_rewards.py"),
    Mutation("MaxRL takes any reward", 'require_binary(rewards, "MaxRL raises the chance of a right answer")', "pass", "maxrl.py", "tests/test_rewards.py"),
    Mutation("numbers of a countdown may be left over", "sorted(numbers) == sorted(self.numbers)", "not set(numbers) - set(self.numbers)", "worlds/countdown/problems.py", "tests/test_data.py"),
    Mutation("countdown in binary fractions", "return Fraction(number)", "return float(number)", "worlds/countdown/problems.py", "tests/test_data.py"),
    Mutation("the first weights to the end", "self.load_weights(in_flight.versions[t // in_flight.every])", "self.load_weights(in_flight.versions[0])", "common/engines.py", "tests/test_engine.py"),
    Mutation("new weights one token late", "if in_flight and t % in_flight.every == 0 and", "if in_flight and t % in_flight.every == t // in_flight.every and", "common/engines.py", "tests/test_engine.py"),
    Mutation("keys and values of the prompt alone computed again", "sampled[rows, :t]], 1)", "sampled[rows, :t] * 0], 1)", "common/engines.py", "tests/test_engine.py"),
    Mutation("a version too many", "del self.snapshots[: -self.staleness]", "del self.snapshots[: -self.staleness - 1]", "common/engines.py", "tests/test_engine.py"),
    Mutation("the generator takes the newest weights there are", "return self.ring[version]", "return self.ring[self.newest]", "recipes/overlap.py", "tests/test_recipes.py"),
    Mutation("the generator does not wait", "while self.newest < version:", "while self.newest < 1:", "recipes/overlap.py", "tests/test_recipes.py"),
    Mutation("what the learner did is lost with the generator", "if step > self.first:", "if False:", "recipes/overlap.py", "tests/test_recipes.py"),
    Mutation("the generator outlives the learner", "parent_process().join()", "time.sleep(1e9)", "recipes/overlap.py", "tests/test_recipes.py"),
    Mutation("one random number for all rows", "generator=torch.Generator().manual_seed(seed)", "generator=torch.Generator().manual_seed(seeds[0])", "common/engines.py", "tests/test_engine.py"),
    # The leaderboard
    Mutation("groups that were thrown away cost nothing", 'row.get("sampled_prompts", P) * G + row', "P * G + row", "notebooks/leaderboard.py", "tests/test_leaderboard.py"),
    Mutation("hidden problems from the data set", "if question not in known:", "if True:", "notebooks/leaderboard.py", "tests/test_leaderboard.py"),
    Mutation("the untrained model is judged", "accuracy(run.checkpoint, pairs", 'accuracy("sums", pairs', "notebooks/leaderboard.py", "tests/test_leaderboard.py"),
    Mutation("changed checkpoints are taken", "if changed or ", "if ", "notebooks/leaderboard.py", "tests/test_leaderboard.py"),
    Mutation("each entry has a place of its own", 'other["mean"] - other["half"] > e["mean"] + e["half"]', 'other["mean"] > e["mean"]', "notebooks/leaderboard.py", "tests/test_leaderboard.py"),
    # The exercises
    Mutation("a submission may open files", '"brk": 12,', '"brk": 12, "openat": 257,', "notebooks/exercises/sandbox.py", EXERCISES),
    Mutation("a submission may use the network", '"brk": 12,', '"brk": 12, "socket": 41,', "notebooks/exercises/sandbox.py", EXERCISES),
    Mutation("hidden cases vary no setting", 'plain["args"] = known | setting', 'plain["args"] = dict(known)', "notebooks/exercises/cases.py", EXERCISES),
    # Verdicts
    Mutation("differences between other seeds", "zip(values[a], values[b], strict=True)", "zip(values[a], values[b][::-1], strict=True)", "claims/runs.py", CLAIMS),
    Mutation("a run without an end keeps its accuracy", """ if self.ended else 0.0""", "", "claims/runs.py", CLAIMS),
    Mutation("nothing is void", ">= CLIPPED else VOID", ">= 0 else VOID", "claims/runs.py", CLAIMS),
    Mutation("kept runs are run again", """if not (folder / "done").exists():""", "if True:", "claims/runs.py", CLAIMS),
    Mutation("the wrong half of the mask", """masked["clip_pos"] = torch.zeros_like(mask)""", """masked["clip_neg"] = torch.zeros_like(mask)""", "claims/variant.py", CLAIMS),
]  # fmt: skip


def places(mutation: Mutation, only: list[str], quick: bool) -> list[str]:
    """The files that a mutation changes, one at a time."""
    if mutation.file:
        name = Path(mutation.file).stem
        return [mutation.file] if not only or name in only or mutation.file.startswith("common/") else []
    found = [
        str(script_path(name).relative_to(ROOT)) for name in parents() if mutation.old in script_path(name).read_text()
    ]
    assert found, f"no script has {mutation.old!r}"
    found = [file for file in found if not only or Path(file).stem in only]
    return found[:1] if quick else found


def survives(mutation: Mutation, file: str) -> bool:
    """Whether the tests pass with the mutation in one file."""
    with tempfile.TemporaryDirectory() as work:
        copy = Path(work) / "copy"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", "runs", ".venv*", "__pycache__", "*.png"))
        text = (copy / file).read_text()
        assert mutation.old in text, f"{file} has no {mutation.old!r}"
        (copy / file).write_text(text.replace(mutation.old, mutation.new))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", mutation.tests]
        if Path(file).stem in parents() and mutation.tests in (STEPS, OBJECTIVES, RECIPES):  # by script
            command += ["-k", Path(file).stem]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        result = subprocess.run(command, cwd=copy, capture_output=True, text=True, env=environment)
        # 2 to 5 are pytest's words for tests that did not run; a mutation that ends the process itself is noticed.
        assert result.returncode not in (2, 3, 4, 5), (
            f"{mutation.what}: {result.stdout[-2000:]} {result.stderr[-2000:]}"
        )
        return result.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--kept", type=Path, help="file of outcomes; what it has is not tried again")
    args = parser.parse_args()
    jobs = [(mutation, file) for mutation in MUTATIONS for file in places(mutation, args.only, args.quick)]
    kept = json.loads(args.kept.read_text()) if args.kept and args.kept.exists() else {}

    def outcome(job: tuple[Mutation, str]) -> bool:
        mutation, file = job
        key = f"{file}: {mutation.old} -> {mutation.new}"
        if key not in kept:
            kept[key] = survives(mutation, file)
            print(f"{'SURVIVED' if kept[key] else 'noticed'}: {mutation.what}, {file}", file=sys.stderr, flush=True)
            if args.kept:
                args.kept.write_text(json.dumps(kept, indent=1))
        return kept[key]

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(outcome, jobs))
    lines = ["| mutation | in | noticed by |", "|---|---|---|"]
    for mutation in MUTATIONS:
        mine = [(Path(file).stem, alive) for (m, file), alive in zip(jobs, outcomes, strict=True) if m is mutation]
        if mine:
            survivors = [name for name, alive in mine if alive]
            verdict = f"**survived in {', '.join(survivors)}**" if survivors else f"`{mutation.tests}`"
            what = mutation.what.replace("|", "\\|")
            lines.append(f"| {what} | {', '.join(name for name, _ in mine)} | {verdict} |")
    print("\n".join(lines))
    print(f"\n{len(jobs) - sum(outcomes)} of {len(jobs)} noticed")
    raise SystemExit(any(outcomes))


if __name__ == "__main__":
    main()
