"""The mutations of `python -m tools.mutate`, and the tests that must notice each of them."""

from dataclasses import dataclass

STEPS = "tests/steps/test_steps.py"
OBJECTIVES = "tests/objectives/test_objectives.py"
SCRIPTS = "tests/steps/test_scripts.py"
NO_SIGNAL = "tests/steps/test_no_signal.py"
CALCULATOR = "tests/steps/test_calculator.py"
OLMO3 = "tests/steps/test_olmo3.py"
SCALERL = "tests/steps/test_scalerl.py"
PIPELINE_RL = "tests/steps/test_pipeline_rl.py"
R1 = "tests/steps/test_r1.py"
CRITICS = "tests/objectives/test_critics.py"
ENTROPY = "tests/objectives/test_entropy.py"
ESTIMATORS = "tests/objectives/test_estimators.py"
PAIRS = "tests/objectives/test_pairs_and_teachers.py"
ENGINE = "tests/common/test_engine.py"
LOG_PROBS = "tests/common/test_log_probs.py"
PRECISION = "tests/common/test_precision.py"
REWARDS = "tests/common/test_rewards.py"
VERIFY = "tests/common/test_verify.py"
DATA = "tests/common/test_data.py"
TASKS = "tests/common/test_tasks.py"
DISTRIBUTED = "tests/common/test_distributed.py"
PARTS = "tests/common/test_parts.py"
INTERRUPTIONS = "tests/survival/test_interruptions.py"
RUN_FOLDERS = "tests/survival/test_run_folders.py"
SAFETY = "tests/survival/test_safety.py"
KILLS = "tests/survival/test_kills.py"
BAD_MODELS = "tests/survival/test_bad_models_and_data.py"
CHECKPOINTS = "tests/tools/test_checkpoints.py"
EXTENSION = "tests/tools/test_extension.py"
EVALUATE = "tests/tools/test_evaluate.py"
EVALUATION = "tests/common/test_evaluation.py"
DRAWS = "tests/steps/test_draws.py"
EVIDENCE = "tests/claims/test_evidence.py"
GGUF = "tests/tools/test_gguf.py"
CHAT = "tests/tools/test_chat.py"
PLOTS = "tests/tools/test_plots.py"
EXERCISES = "tests/course/test_exercises.py"
CHEATS = "tests/course/test_cheats.py"
GRADER = "tests/course/test_grader.py"
LEADERBOARD = "tests/course/test_leaderboard.py"
CLASS = "tests/course/test_class.py"
SIMILAR = "tests/course/test_similar.py"
GRADESCOPE = "tests/course/test_gradescope.py"
CLAIMS_BY_RUNS = "tests/claims/test_claims_by_runs.py"
RESUMED = f"{INTERRUPTIONS}::test_resumed_run_ends_as_the_uninterrupted_one"


@dataclass
class Mutation:
    """`old` becomes `new` in the file, or in every script that has it; `tests` (a file, or FILE::test) must fail.

    A mutation that was generated is at one place of its file, `start` bytes from its beginning.
    """

    what: str
    old: str
    new: str
    file: str | None = None
    tests: str = STEPS
    start: int = -1


MUTATIONS = [
    # The loop, in every script
    Mutation("anchor of the ratio recomputed in each minibatch", "policy_loss(logp, old_logp[rows]", "policy_loss(logp, logp.detach()"),
    Mutation("the ratio's anchor is always the learner's", 'learner_logp if args.ratio_anchor == "learner" else rollout_logp', "learner_logp"),
    Mutation("weights of the whole rollout batch", "token_weights(mask[minibatch])", "token_weights(mask)[minibatch]"),
    Mutation("no gradient clipping", "(model.parameters(), args.max_grad_norm)", "(model.parameters(), 1e9)"),
    Mutation("the reference is the learner", "load_model(args)[0] if args.kl_beta > 0", "model if args.kl_beta > 0"),
    Mutation("KL detached in the loss", 'args.kl_beta * metrics["kl"]', 'args.kl_beta * metrics["kl"].detach()'),
    Mutation("the last token dropped from the mask", "mask, rollout_logp = batch.response_mask, batch", "mask, rollout_logp = batch.response_mask & (batch.response_mask.cumsum(1) < batch.response_mask.sum(1, keepdim=True)), batch"),
    Mutation("inserted tokens have a loss", "mask, rollout_logp = batch.response_mask,", "mask, rollout_logp = batch.token_mask,"),
    Mutation("TIS not applied", "loss = tis[rows] * loss", "loss = loss"),
    Mutation("TIS of other rows", "loss = tis[rows] * loss", "loss = tis[rows.flip(0)] * loss"),
    Mutation("TIS without a cap", ".clamp(max=args.tis_cap)  # (B, T)", "  # (B, T)", tests=OBJECTIVES),
    Mutation("TIS upside down", "torch.exp(old_logp - rollout_logp).clamp", "torch.exp(rollout_logp - old_logp).clamp", tests=OBJECTIVES),
    Mutation("gradients of all minibatches add up", "optimizer.zero_grad()", "pass"),
    Mutation("half of the micro-batches", "loss.backward()", "rows[0] % 2 or loss.backward()"),
    Mutation("weight decay forgotten", "weight_decay=args.weight_decay, fused=True)\n        reference", "weight_decay=0.0, fused=True)\n        reference"),
    Mutation("the engine gets new weights in the first step only", "engine.load_weights(model)", "step > 1 or engine.load_weights(model)"),
    Mutation("staleness ignored", "engine.load_weights(model)", "engine.update((name, weight) for name, weight in model.named_parameters())"),
    Mutation("advantages of other rows", "old_logp[rows], advantages[rows]", "old_logp[rows], advantages[rows.flip(0)]"),
    Mutation("the same prompts in every step", "sample_problems(train, P, step, args)", "sample_problems(train, P, 1, args)"),
    Mutation("one minibatch is skipped", "for minibatch in minibatches(P, G, args):", "for minibatch in list(minibatches(P, G, args))[1:] or minibatches(P, G, args):"),
    Mutation("rewards transposed", "rewards = verifier(problems, rollouts)  # (P, G)", "rewards = verifier(problems, rollouts).T.reshape(P, G)"),
    Mutation("an optimizer that never steps", "                optimizer.step()\n", ""),
    Mutation("a micro-batch's weights sum to 1", "loss = (w * loss).sum()", "loss = (w * loss).sum() / w.sum()"),
    # Functions of several scripts
    Mutation("ddof 0 by default", "ddof: Literal[0, 1] = 1", "ddof: Literal[0, 1] = 0", tests=OBJECTIVES),
    Mutation("sign of the loss", "loss = -", "loss = ", tests=OBJECTIVES),
    Mutation("clip bound flipped", "ratio.clamp(1 - args.clip_eps, 1 + args.clip_eps)", "ratio.clamp(1 + args.clip_eps, 1 - args.clip_eps)", tests=OBJECTIVES),
    Mutation("the clip acts on both sides", "-torch.min(ratio * advantages, clipped_ratio * advantages)", "-(clipped_ratio * advantages)", tests=OBJECTIVES),
    Mutation("no std", "/ (std + 1e-6)", "/ (0 * std + 1)", tests=OBJECTIVES),
    Mutation("the mean over tokens divides by padding too", "mask / mask.sum().clamp(min=1)", "mask / mask.numel()", tests=OBJECTIVES),
    Mutation("k3 with the other sign", "torch.exp(ref_logp - logp) - (ref_logp - logp) - 1", "torch.exp(logp - ref_logp) - (logp - ref_logp) - 1"),
    Mutation("sign of k1 in the reward", "rewards - args.kl_beta * kl.sum(1)", "rewards + args.kl_beta * kl.sum(1)"),
    # Single scripts
    Mutation("EMA updated before use", 'ema = run.state["ema"]', 'ema = args.ema_decay * run.state["ema"] + (1 - args.ema_decay) * rewards.mean().item()', "reinforce.py"),
    Mutation("EMA never updated", 'run.state["ema"] = args.ema_decay * ema', "ema = args.ema_decay * ema", "reinforce.py"),
    Mutation("sign of k1 in the token rewards", "token_rewards = -args.kl_beta * kl", "token_rewards = args.kl_beta * kl", "ppo.py"),
    Mutation("returns from whitened advantages", "advantages = whiten(advantages, mask)  # (B, T)", "advantages = whiten(advantages, mask)\n            returns = advantages + old_values", "ppo.py"),
    Mutation("the reward one token early", "batch.token_mask.sum(1) - 1", "(batch.token_mask.sum(1) - 2).clamp(min=0)", "ppo.py"),
    Mutation("a critic that sees the token", "self.head(hidden.float())", "self.head(hidden.float().roll(-1, 0))", "ppo.py"),
    Mutation("whitening per minibatch", "                weights = token_weights(mask[minibatch])  # (b, T)", "                advantages = advantages.clone()\n                advantages[minibatch] = whiten(advantages[minibatch], mask[minibatch])\n                weights = token_weights(mask[minibatch])", "ppo.py"),
    Mutation("no value clip", "torch.max((values - returns) ** 2, (clipped - returns) ** 2)", "(values - returns) ** 2", "ppo.py"),
    Mutation("critic's gradients not clipped", "(critic.parameters(), args.max_grad_norm)", "(critic.parameters(), 1e9)", "ppo.py"),
    Mutation("rewards of 0 and 1", "2 * rewards - 1 + overlong", "rewards + overlong", "dapo.py"),
    Mutation("overlong filter ignored", "if args.overlong_filter:", "if False:", "dapo.py"),
    Mutation("groups without signal train on their lengths", "(compute_advantages(rewards, args) * mixed)", "compute_advantages(rewards, args)", "dapo.py"),
    Mutation("filter on the length", "(kept if 0 < sum(group.correct) < G else spare)", "(kept if len({len(t) for t in group.tokens}) > 1 else spare)", "dapo.py"),
    Mutation("one round too many", "while len(kept) < P and rounds", "while len(kept) <= P and rounds", "dapo.py"),
    Mutation("the engine's top-K on both sides", "(top_logps(model, batch, rows, args), batch", "(batch.top_logp[rows], batch", "dppo.py"),
    Mutation("no condition on the direction", "(advantages > 0) & (ratio > 1) & outside", "(advantages > 0) & outside", "dppo.py", OBJECTIVES),
    Mutation("the weight is not detached", "ratio.clamp(max=args.ratio_cap).detach()", "ratio.clamp(max=args.ratio_cap)", "cispo.py", OBJECTIVES),
    Mutation("arithmetic instead of geometric mean", "torch.exp(mean) * advantages", "torch.exp(clipped) * advantages", "gmpo.py", OBJECTIVES),
    Mutation("a product instead of a geometric mean", "((logp - old_logp) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)", "((logp - old_logp) * mask).sum(1, keepdim=True)", "gspo.py", OBJECTIVES),
    Mutation("groups without a correct answer are not dropped", "mean.clamp(min=1 / rewards.shape[1])", "(mean + 0.5)", "maxrl.py", OBJECTIVES),
    Mutation("MaxRL takes any reward", 'require_binary(rewards, "MaxRL divides by a success rate")', "pass", "maxrl.py", f"{REWARDS}::test_filters_and_binary_methods"),
    Mutation("a baseline with its own reward", "(rewards.shape[1] - 1)", "rewards.shape[1]", "rloo.py", OBJECTIVES),
    Mutation("the mean over responses' lengths", "(len(mask) * args.max_response_tokens)", "mask.sum()", "dr_grpo.py", OBJECTIVES),
    Mutation("one τ for both signs", "args.tau_neg).masked_fill", "args.tau_pos).masked_fill", "methods/sapo.py", OBJECTIVES),
    Mutation("correct responses are left out", "(advantages < 0) & (distance", "(advantages > 0) & (distance", "methods/sequence_masking.py", OBJECTIVES),
    Mutation("left out by the policy of the rollout", "rollout_logp - logp.detach()", "rollout_logp - old_logp", "methods/sequence_masking.py", OBJECTIVES),
    Mutation("likely tokens first", "(unlikely, mask & ~unlikely)", "(mask & ~unlikely, unlikely)", "methods/lopti.py"),
    Mutation("one pass over all tokens", "token_weights(mask[minibatch]) * part[minibatch]", "token_weights(mask[minibatch])", "methods/lopti.py"),
    Mutation("|o| of the tokens in the pass", "token_weights(mask[minibatch]) * part[minibatch]", "token_weights(part[minibatch]).nan_to_num()", "methods/lopti.py"),
    Mutation("unlikely tokens count more", "args.alpha * old_logp.exp() + 1 - args.alpha", "1 - args.alpha * old_logp.exp()", "methods/advantage_reweighting.py"),
    Mutation("no visit is remembered", "n, mean, var = seen.get(prompt, (0, 0.0, 0.0))", "n, mean, var = 0, 0.0, 0.0", "methods/dcpo.py"),
    Mutation("variance without the shift of the mean", "n / (n + 1) * shift**2", "0", "methods/dcpo.py"),
    Mutation("the blend farther from 0", "smooth_new.abs() < smooth_all.abs()", "smooth_new.abs() > smooth_all.abs()", "methods/dcpo.py"),
    Mutation("the same bounds for every token", "torch.exp(-old_logp)", "torch.ones_like(old_logp)", "methods/dcpo.py", OBJECTIVES),
    Mutation("no dual clip", "ratio.clamp(max=args.ratio_cap) * advantages", "ratio * advantages", "methods/dcpo.py"),
    Mutation("averaged over responses", "mask * args.responses_per_prompt", "mask", "methods/dcpo.py", OBJECTIVES),
    Mutation("what was seen is not in the checkpoint", 'remember(run.state["seen"],', 'remember(run.__dict__.setdefault("seen", {}),', "methods/dcpo.py", f"{RESUMED}[dcpo]"),
    Mutation("rewards of 0 and 1", "rewards = 2 * rewards - 1  # (P, G), Reinforce-Rej", "pass", "methods/reinforce_rej.py"),
    Mutation("no group is rejected", "rewards * mixed", "rewards", "methods/reinforce_rej.py", OBJECTIVES),
    Mutation("RAFT learns from incorrect answers", "(rewards > 0)", "(rewards <= 0)", "methods/raft.py", OBJECTIVES),
    Mutation("RAFT with a ratio", "loss = -advantages * logp", "loss = -advantages * torch.exp(logp - old_logp)", "methods/raft.py", OBJECTIVES),
    Mutation("RAFT++ learns from incorrect answers", "(rewards > 0)", "(rewards <= 0)", "methods/raft_pp.py", OBJECTIVES),
    Mutation("sign of the entropy bonus", "loss - args.entropy_coef * now", "loss + args.entropy_coef * now", "methods/entropy_bonus.py"),
    Mutation("a bonus without a gradient", "args, entropy_gradient=True)", "args)", "methods/entropy_bonus.py"),
    Mutation("a bonus without a gradient", "args, entropy_gradient=True)", "args)", "methods/adaptive_entropy.py"),
    Mutation("the adaptive bonus begins anew", 'adapt(run.state["coef"],', "adapt(0.0,", "methods/adaptive_entropy.py"),
    Mutation("the adaptive bonus pays at any entropy", "return 0.0, max", "return coef, max", "methods/adaptive_entropy.py", ENTROPY),
    Mutation("the smallest covariances", "(old_logp - old_logp[mask].mean())", "(old_logp[mask].mean() - old_logp)", "methods/clip_cov.py"),
    Mutation("covariances not centered", "(old_logp - old_logp[mask].mean())", "old_logp", "methods/kl_cov.py"),
    Mutation("the other direction of the KL", "kl_penalty(old_logp[rows], logp)", "kl_penalty(logp, old_logp[rows])", "methods/kl_cov.py"),
    Mutation("tokens without a gradient do not count in the mean", "token_weights(mask[minibatch])", "token_weights((mask & ~chosen)[minibatch])", "methods/clip_cov.py"),
    Mutation("forking tokens alone count in the mean", "token_weights(mask[minibatch])", "token_weights((mask & chosen)[minibatch])", "methods/forking_tokens.py"),
    Mutation("the tokens of low entropy", "entropy >= threshold", "entropy <= threshold", "methods/forking_tokens.py", ENTROPY),
    Mutation("long responses are paid", "correct - args.alpha * (budgets", "correct + args.alpha * (budgets", "methods/lcpo.py"),
    Mutation("the shorter, the less", "(args.alpha * (budgets - lengths) + args.delta)", "(args.alpha * (lengths - budgets) + args.delta)", "methods/lcpo_max.py"),
    Mutation("the budget of another question", "budget(p.question, args)]", "budget(p.prompt, args)]", "methods/lcpo.py"),
    Mutation("short incorrect answers are paid", "bonus.clamp(max=0)", "bonus", "methods/kimi_length.py"),
    Mutation("truncated responses keep their reward", ".where(lengths < args.max_response_tokens, -10.0)", "", "methods/cosine_length.py"),
    Mutation("the KL from the start to a token", "kl.flip(1).cumsum(1).flip(1)", "kl.cumsum(1)", "methods/reinforce_pp.py"),
    Mutation("k2 without the square", "0.5 * (logp - ref_logp) ** 2", "0.5 * (logp - ref_logp).abs()", "methods/reinforce_pp_baseline.py"),
    Mutation("the group's std", "rewards.std()", "rewards.std(1, keepdim=True)", "methods/lite_ppo.py", OBJECTIVES),
    Mutation("the policy does not wait for its critic", "if step > args.value_pretraining * args.steps:", "if True:", "methods/vapo.py"),
    Mutation("incorrect responses are imitated", "(mask & correct)[minibatch]", "mask[minibatch]", "methods/vapo.py"),
    Mutation("targets with the policy's λ", "returns[:, t] = gae, target", "returns[:, t] = gae, (gae + values[:, t]) * mask[:, t]", "methods/vapo.py"),
    Mutation("one λ for all", "(args.gae_alpha * mask.sum(1))", "(args.gae_alpha * mask.sum(1).float().mean().expand(len(mask)))", "methods/vapo.py"),
    Mutation("a step's loss is its gain", "then - v if", "v - then if", "methods/vineppo.py"),
    Mutation("continuations begin one token early", "*tokens[:t]) for t in", "*tokens[: max(0, t - 1)]) for t in", "methods/vineppo.py"),
    Mutation("values of other states", "rewards.mean(1).tolist()", "rewards.mean(1).flip(0).tolist()", "methods/vineppo.py"),
    Mutation("continuations counted by states", "len(ended.tokens)", "len(states)", "methods/vineppo.py", CRITICS),
    Mutation("not whitened", "advantages = whiten(advantages, mask)  # (B, T)", "pass", "methods/vineppo.py"),
    Mutation("the margin of the first update for all", "now = batch_logps(model, batch, args, minibatch)[0]", "now = old_logp", "methods/dpo.py"),
    Mutation("losers pull winners down", "pull.sum(2) - pull.sum(1)", "pull.sum(1) - pull.sum(2)", "methods/dpo.py", OBJECTIVES),
    Mutation("no reference", "((now - ref_logp) * mask)", "(now * mask)", "methods/dpo.py"),
    Mutation("solutions have no loss", "mask = mask | (batch.token_mask & is_solution[:, None])", "pass", "methods/spin.py"),
    Mutation("SPIN prefers correct responses", "is_solution.float()[minibatch]", "torch.cat([rewards, rewards[:, :1]], 1).flatten()[minibatch]", "methods/spin.py"),
    Mutation("SPIN's reference is the engine's", "ref_logp = old_logp  # (B, T)", "ref_logp = rollout_logp  # (B, T)", "methods/spin.py"),
    Mutation("solutions without an end", "[*tokens, tokenizer.eos_token_id] for problem", "[*tokens] for problem", "methods/spin.py"),
    Mutation("what followed a call stays", "begun = rollouts.splice(calls, limit)", "begun = rollouts.splice({row: (len(rollouts.tokens[row]), result) for row, (_, result) in calls.items()}, limit)", "methods/calculator.py", CALCULATOR),
    Mutation("the engine samples beyond a call", 'stop: tuple[str, ...] = (">>",)', "stop: tuple[str, ...] = ()", "methods/calculator.py", CALCULATOR),
    Mutation("turns share their random numbers", "row % n, turn)", "row % n)", "methods/calculator.py", CALCULATOR),
    Mutation("the student teaches", "return teacher_logp - old_logp", "return old_logp - teacher_logp", "methods/opd.py"),
    Mutation("rewards of what comes after", "compute_advantages(teacher_logp, old_logp)", "compute_advantages(teacher_logp, old_logp).flip(1).cumsum(1).flip(1)", "methods/opd.py"),
    Mutation("the forward KL", "(logp.exp() * (logp - teacher_logp))", "(teacher_logp.exp() * (teacher_logp - logp))", "methods/opd.py"),
    # Recipes
    Mutation("groups beyond the batch are thrown away", "in kept[P:]]", "in kept[:0]]", "recipes/olmo3.py"),
    Mutation("the newest groups first", "zip(*(kept + spare)[:P]", "zip(*(kept[::-1] + spare)[:P]", "recipes/olmo3.py"),
    Mutation("groups without signal count in the mean", "if args.filter_groups:", "if False:", "recipes/olmo3.py"),
    Mutation("a mean over all responses", "mask.any(1).sum()", "len(mask)", "recipes/olmo3.py"),
    Mutation("responses with an answer are interrupted too", " and args.thinking_end not in tokenizer.decode(tokens[:budget])", "", "recipes/scalerl.py"),
    Mutation("all are interrupted at the same place", "random.randint(first, last)", "last", "recipes/scalerl.py", SCALERL),
    Mutation("an interrupted response stays as it was", "return rollouts.replace(cuts, engine.continue_responses(problems, begun, step, 1))", "return rollouts", "recipes/scalerl.py"),
    Mutation("groups without signal count in the std", "centered[has_signal] if args.filter_groups else centered", "centered", "recipes/scalerl.py", OBJECTIVES),
    Mutation("groups without signal count in the mean", "if args.filter_groups:  # ScaleRL", "if False:  # ScaleRL", "recipes/scalerl.py"),
    Mutation("prompts that were left out count in the mean", "(tokens > 0).sum()", "len(tokens)", "recipes/scalerl.py"),
    Mutation("each response counts the same", 'args.responses_per_prompt if args.average == "prompt" else 1', "1", "recipes/scalerl.py"),
    Mutation("solved prompts come again", " if p.prompt not in solved]", "]", "recipes/scalerl.py"),
    Mutation("the stream of problems begins anew", 'draw_problems(train, solved, run.state["drawn"], args)', "draw_problems(train, solved, 0, args)", "recipes/scalerl.py"),
    Mutation("an average over solutions", "return mask / mask.sum()", "return mask / (len(mask) * mask.sum(1, keepdim=True))", "recipes/r1.py", R1),
    Mutation("solutions without an end", '["input_ids"], tokenizer.eos_token_id]', '["input_ids"]]', "recipes/r1.py", R1),
    Mutation("held-out questions in SFT", 'if (question := row["question"]) in asked:', 'if not (question := row["question"]):', "recipes/r1.py", R1),
    Mutation("incorrect responses are kept", "                if correct:", "                if not correct:", "recipes/r1.py", R1),
    Mutation("SFT continues from RL", '{"rl": model, "distill": student}', '{"rl": model, "rejection": model, "distill": student}', "recipes/r1.py", R1),
    Mutation("an unfinished stage counts as done", "if steps in found else None", "if 0 in found else None", "recipes/r1.py", R1),
    Mutation("each process looks for itself how far a stage is", "outcome(folder) is not None))[0]", "outcome(folder) is not None))[-1]", "recipes/r1.py", f"{DISTRIBUTED}::test_the_first_process_decides_how_far_a_stage_is"),
    Mutation("the newest weights from the first token on", "engine.update(versions[0])", "engine.update(versions[-1])", "recipes/pipeline_rl.py"),
    Mutation("weights never change in flight", "if args.in_flight_every else None", "if False else None", "recipes/pipeline_rl.py"),
    Mutation("keys and values are always kept", 'args.kv == "keep"', "True", "recipes/pipeline_rl.py"),
    Mutation("sequence-mask of tokens", 'args.correction.startswith("sequence")', 'args.correction == "sequence-tis"', "recipes/pipeline_rl.py", OBJECTIVES),
    Mutation("icepop without the weight", "return rho.where(", "return torch.ones_like(rho).where(", "recipes/pipeline_rl.py", OBJECTIVES),
    Mutation("the product, not the geometric mean", "torch.exp(log_whole / mask.sum(1, keepdim=True))", "torch.exp(log_whole)", "recipes/pipeline_rl.py", OBJECTIVES),
    Mutation("padding in the product", "(old_logp - rollout_logp) * mask", "old_logp - rollout_logp", "recipes/pipeline_rl.py", OBJECTIVES),
    Mutation("weights are not recorded", "engine.history.record(model)  # PipelineRL", "pass", "recipes/pipeline_rl.py"),
    Mutation("the generator takes the newest weights there are", "return self.ring[version]", "return self.ring[self.newest]", "recipes/overlap.py", PIPELINE_RL),
    Mutation("the generator does not wait", "while self.newest < version:", "while self.newest < 1:", "recipes/overlap.py", PIPELINE_RL),
    Mutation("what the learner did is lost with the generator", "if step > self.first:", "if False:", "recipes/overlap.py", f"{PIPELINE_RL}::TestOverlap::test_a_generator_that_is_killed"),
    Mutation("the generator outlives the learner", "parent_process().join()", "time.sleep(1e9)", "recipes/overlap.py", f"{PIPELINE_RL}::TestOverlap::test_a_learner_that_is_killed"),
    # The run
    Mutation("no warm-up", "self.set_learning_rates(step)", "pass", "common/run.py", f"{STEPS}::test_every_update"),
    Mutation("a critic at the policy's rate", 'rate * optimizer.defaults["lr"] / self.args.lr', "rate", "common/run.py", f"{STEPS}::test_every_update"),
    Mutation("seed not set before a step", "seed_step(self.args.seed, step)", "pass", "common/run.py", f"{INTERRUPTIONS}::test_interrupted_run_saves_and_can_be_resumed"),
    Mutation("the seed plays no part", "np.random.SeedSequence(seed, spawn_key=(step,))", "np.random.SeedSequence(0, spawn_key=(step,))", "common/run.py", f"{PARTS}::test_a_step_has_the_seed_of_its_number"),
    Mutation("a checkpoint before the weights are checked", "            self.log_step(step)\n            every = self.args.save_every", "            self.save(step)\n            self.log_step(step)\n            every = self.args.save_every", "common/run.py", f"{INTERRUPTIONS}::test_weights_broken_by_the_last_update_are_not_saved"),
    Mutation("no checkpoint after the last step", "last = step == self.args.steps or", "last =", "common/run.py", f"{INTERRUPTIONS}::test_interrupted_run_saves_and_can_be_resumed"),
    Mutation("no evaluation after a step", "                break\n            self.evaluate(step)", "                break", "common/run.py", f"{INTERRUPTIONS}::test_second_ctrl_c_stops_at_once"),
    Mutation("evaluation before the checkpoint", "            self.log_step(step)\n", "            self.log_step(step)\n            self.evaluate(step)\n", "common/run.py", f"{INTERRUPTIONS}::test_second_ctrl_c_stops_at_once"),
    Mutation("no evaluation before the first step", "        self.evaluate(start_step)\n", "", "common/run.py", f"{INTERRUPTIONS}::test_interrupted_run_saves_and_can_be_resumed"),
    Mutation("state not restored", "self.state |= state", "pass", "common/run.py", f"{PARTS}::test_a_resumed_run_has_its_state"),
    Mutation("a resumed run repeats a step", "range(start_step + 1, self.args.steps + 1)", "range(max(1, start_step), self.args.steps + 1)", "common/run.py", f"{RESUMED}[grpo]"),
    Mutation("an interrupted run goes on", "            if self.interrupted:\n                break", "            if False:\n                break", "common/run.py", f"{INTERRUPTIONS}::test_interrupted_run_saves_and_can_be_resumed"),
    Mutation("history not in the checkpoint", "optimizer, history=engine.history, **objects", "optimizer, **objects", "common/run.py", f"{SCRIPTS}::test_staleness_is_a_ring_of_weights"),
    Mutation("rows after the checkpoint stay", 'if row["step"] <= step]', "]", "common/run.py", f"{PARTS}::test_a_resumed_run_has_its_state"),
    Mutation("a loss that is not finite reaches the weights", "self.require_finite(loss=self.metrics.loss, **values)", "pass", "common/run.py", f"{INTERRUPTIONS}::test_nothing_that_is_not_finite_reaches_the_weights"),
    Mutation("log-probs of the engine are not checked", "self.require_finite(rollout_logp=rollout_logp,", "self.require_finite(", "common/run.py", f"{INTERRUPTIONS}::test_nothing_that_is_not_finite_reaches_the_weights"),
    Mutation("broken weights are saved", "        self.require_finite_weights()\n", "", "common/run.py", f"{INTERRUPTIONS}::test_weights_broken_by_the_last_update_are_not_saved"),
    Mutation("an extended run forgets its length", "if rank() == 0 and self.changed:", "if False:", "common/run.py", EXTENSION),
    Mutation("a run that is cut short keeps its small evaluation", 'self.evaluations.get(step, {"eval/n": 0})["eval/n"] >= n', "step in self.evaluations", "common/run.py", EXTENSION),
    Mutation("a falling learning rate is extended", '("lr_schedule", "constant")', '("lr_schedule", args.lr_schedule)', "common/run.py", EXTENSION),
    Mutation("the worst weights are the best", 'metrics["eval/avg"] > best', 'metrics["eval/avg"] < best', "common/run.py", f"{INTERRUPTIONS}::test_the_best_weights_are_kept_and_a_collapse_is_named"),
    Mutation("the cosine is a line", "0.5 * (1.0 + math.cos(math.pi * progress))", "1.0 - progress", "common/schedule.py", f"{SCRIPTS}::test_learning_rate_schedules_are_those_of_transformers"),
    Mutation("only the last micro-batch's loss is logged", "self.loss += loss.item()", "self.loss = loss.item()", "common/metrics.py", f"{SCRIPTS}::test_metrics_are_those_of_the_loss"),
    Mutation("an inner clock counts twice", "    if stopwatch.stage is not None:\n        yield\n        return\n", "", "common/clock.py", f"{PARTS}::test_stages_are_timed_once"),
    Mutation("the stages are in training's time", " - sum(self.seconds.values())", "", "common/clock.py", f"{PARTS}::test_stages_are_timed_once"),
    Mutation("a step keeps the seconds before it", "self.seconds: dict[str, float] = defaultdict(float)", 'self.seconds: dict[str, float] = getattr(self, "seconds", defaultdict(float))', "common/clock.py", f"{PARTS}::test_stages_are_timed_once"),
    Mutation("after an error the stage stays", "    finally:\n", "    except ZeroDivisionError:\n        raise\n    else:\n", "common/clock.py", f"{PARTS}::test_stages_are_timed_once"),
    Mutation("a folder is registered before it is locked", "        lock.acquire()  #", "        stack.callback(remove_if_empty, folder)\n        lock.acquire()  #", "common/folders.py", f"{PARTS}::test_a_refused_start_leaves_the_folder"),
    Mutation("folders are not locked", "        lock.acquire()  #", "        pass  #", "common/folders.py", f"{RUN_FOLDERS}::test_a_folder_in_use"),
    Mutation("a folder with files is overwritten", "if args.resume is None and any(", "if False and any(", "common/folders.py", f"{RUN_FOLDERS}::test_nothing_is_overwritten"),
    Mutation("a second run of the same second shares the folder", 'folder = Path(stem if number == 1 else f"{stem}-{number}")\n                with suppress(FileExistsError):\n                    folder.mkdir(parents=True)', 'folder = Path(stem if number == 1 else f"{stem}-{number}")\n                with suppress(FileExistsError):\n                    folder.mkdir(parents=True, exist_ok=True)', "common/folders.py", f"{RUN_FOLDERS}::test_runs_of_one_second_have_folders_of_their_own"),
    Mutation("an evaluation is merged into its step's row", "    rows = []\n    for line", "    rows = []\n    return read_metrics(run_dir)\n    for line", "common/metrics.py", RESUMED),
    Mutation("the log is not flushed", '            flush(self.dir / "metrics.jsonl")', "            pass", "common/run.py", f"{INTERRUPTIONS}::test_a_checkpoint_is_never_newer_than_the_log"),
    Mutation("checkpoints are not flushed", "        flush(file)", "        pass", "common/checkpoints.py", f"{INTERRUPTIONS}::test_a_checkpoint_is_never_newer_than_the_log"),
    Mutation("a third checkpoint stays", "            drop_old(self.dir, start_step)", "            pass", "common/run.py", f"{INTERRUPTIONS}::test_a_third_checkpoint_is_deleted_when_a_run_is_resumed"),
    Mutation("broken checkpoints displace new ones", "if step_of(folder) <= step][:-keep]", "][:-keep]", "common/checkpoints.py", f"{INTERRUPTIONS}::test_broken_checkpoints_do_not_displace_new_ones"),
    Mutation("a damaged log is not named", "or 0 not in self.evaluations):", "and False):", "common/run.py", f"{INTERRUPTIONS}::test_a_damaged_log_is_named_and_the_run_goes_on"),
    Mutation("a step without a number", 'type(row.get("step")) is int and', "", "common/metrics.py", f"{INTERRUPTIONS}::test_a_damaged_log_is_named_and_the_run_goes_on"),
    Mutation("the log is cut in place", "    partial.replace(path)", "    path.write_text(text)", "common/folders.py", f"{KILLS}::test_killed_at_some_file_events"),
    Mutation("a killed start blocks its folder", '(LOCK, "config.json.partial")', "(LOCK,)", "common/folders.py", f"{KILLS}::test_killed_at_some_file_events"),
    Mutation("samples of lost steps stay", 'removeprefix("step-")) > step:', 'removeprefix("step-")) > step + 9:', "common/run.py", f"{INTERRUPTIONS}::test_a_whole_log_is_not_called_damaged"),
    Mutation("files without a checksum are read", "if name not in sums:", "if False:", "common/checkpoints.py", f"{SAFETY}::test_a_file_without_a_checksum_is_not_read"),
    Mutation("other files beside shards", 'file.suffix != ".safetensors"', "False", "common/checkpoints.py", f"{SAFETY}::test_pickled_shards_are_refused"),
    Mutation("shards begin at the first row", "part[max(0, first - at)", "part[0", "common/checkpoints.py", f"{CHECKPOINTS}::test_rows_of_several_files"),
    Mutation("moments are not in the shards", "        moments[int(of)][name] =", "        parameters[int(of)].grad =", "common/checkpoints.py", f"{CHECKPOINTS}::test_a_sharded_run_of_one_process"),
    Mutation("a folder's rewards run unasked", "    require_trust(folder, saved.reward)\n", "", "common/folders.py", f"{SAFETY}::test_the_reward_of_a_run_folder_is_not_run_unasked"),
    Mutation("any answer is a yes", 'in ("y", "yes")', "is not None", "common/folders.py", f"{SAFETY}::test_a_person_is_asked"),
    Mutation("a start that meets another one's end fails", "return open_folder(args, name, stack)", "raise", "common/folders.py", f"{RUN_FOLDERS}::test_a_start_that_ends_while_another_one_starts"),
    Mutation("a data folder reads what is beside it", "            require_inside(path, given)", "            pass", "common/data.py", f"{BAD_MODELS}::test_a_data_folder_reads_nothing_else"),
    Mutation("a kernel that a config names", "config._attn_implementation = config._experts_implementation = None", "pass", "common/models.py", f"{BAD_MODELS}::test_what_a_config_names_is_ignored"),
    Mutation("Ctrl-C is lost while the generator starts", "signal.pthread_sigmask(signal.SIG_SETMASK, blocked)", "signal.sigpending() and signal.sigwait(SIGNALS), signal.pthread_sigmask(signal.SIG_SETMASK, blocked)", "recipes/overlap.py", f"{PIPELINE_RL}::TestOverlap::test_ctrl_c_while_the_generator_starts"),
    Mutation("Ctrl-C ends the generator that starts", "blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)", "blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])", "recipes/overlap.py", f"{PIPELINE_RL}::TestOverlap::test_ctrl_c_while_the_generator_starts"),
    Mutation("flags contradict the run to resume", "if name not in may_change:", "if False:", "common/folders.py", f"{RUN_FOLDERS}::test_resume"),
    Mutation("the help groups stand in another order", "GROUPS.index(title) if title in GROUPS else -1", "-GROUPS.index(title) if title in GROUPS else -9", "common/help.py", f"{PARTS}::test_the_help_has_groups_with_the_methods_own_first"),
    Mutation("all settings stand in one group", "if field.name in inspect.get_annotations(owner))\n        groups", "if field.name in inspect.get_annotations(owners[-1]) or owner)\n        groups", "common/help.py", f"{PARTS}::test_the_help_has_groups_with_the_methods_own_first"),
    Mutation("the help of another setting", "help_of.get(field.name, '')", "list(help_of.values())[0]", "common/help.py", f"{PARTS}::test_the_help_has_groups_with_the_methods_own_first"),
    # Batches, log-probs and rollouts
    Mutation("log-probs at temperature 1", "(logits.float() / temperature)", "logits.float()", "common/logprobs.py", f"{LOG_PROBS}::test_log_probs_against_a_plain_computation_in_float64"),
    Mutation("log-probs one token late", "batch.prompt_lengths[rows][row] + t - 1", "batch.prompt_lengths[rows][row] + t", "common/logprobs.py", f"{LOG_PROBS}::test_engine_log_probs_are_the_learners"),
    Mutation("log-probs of one's own rows only", "return sum_over_processes(results)", "return results", "common/logprobs.py", f"{DISTRIBUTED}::test_two_processes_end_as_one"),
    Mutation("a micro-batch loses its last row", "yield rows[start:]", "yield rows[start : max(start + 1, len(rows) - 1)]", "common/batch.py", f"{LOG_PROBS}::test_micro_batches_hold_every_row_once"),
    Mutation("groups are torn apart", "(groups[:, None] * G + torch.arange(G)).flatten()", "torch.randperm(P * G)[: len(groups) * G]", "common/batch.py", f"{LOG_PROBS}::test_minibatches_hold_whole_groups"),
    Mutation("token weights of other rows", "yield rows, of_all[rows]", "yield rows, of_all[rows.flip(0)]", "common/batch.py", f"{PARTS}::test_micro_batches_have_the_weights_of_their_rows"),
    Mutation("token weights as if rows stood in order", "of_all[minibatch] = weights", "of_all[: len(weights)] = weights", "common/batch.py", f"{PARTS}::test_micro_batches_have_the_weights_of_their_rows"),
    Mutation("each micro-batch has a mean of its own", "yield rows, of_all[rows]", "yield rows, of_all[rows] / of_all[rows].sum()", "common/batch.py", f"{PARTS}::test_micro_batches_have_the_weights_of_their_rows"),
    Mutation("every process has all rows", "parts(rows[i::N], batch", "parts(rows, batch", "common/batch.py", f"{DISTRIBUTED}::test_rows_are_dealt_once"),
    Mutation("the mask stays on the CPU", "response_mask=response_mask.to(device)", "response_mask=response_mask", "common/batch.py", "tests/common/test_devices.py"),
    Mutation("inserted tokens are in the response mask", "response_mask[token_mask] = torch.tensor([was_sampled for", "response_mask[token_mask] = torch.tensor([True for", "common/batch.py", f"{PARTS}::test_inserted_tokens_are_not_in_the_response_mask"),
    Mutation("inserted tokens count as sampled", "[False] * (len(tokens) - end)", "[True] * (len(tokens) - end)", "common/records.py", f"{PARTS}::test_splice_and_replace"),
    Mutation("what stood behind a cut stays", "(self.tokens[row][:end] + inserted)[:limit]", "(self.tokens[row] + inserted)[:limit]", "common/records.py", f"{PARTS}::test_splice_and_replace"),
    Mutation("inserted tokens beyond the limit", "(self.tokens[row][:end] + inserted)[:limit]", "self.tokens[row][:end] + inserted", "common/records.py", f"{PARTS}::test_splice_and_replace"),
    Mutation("responses replace other rows", "for number, row in enumerate(rows)}", "for number, row in enumerate(reversed(list(rows)))}", "common/records.py", f"{PARTS}::test_splice_and_replace"),
    Mutation("nothing is replaced", "source.get(row, row)", "row", "common/records.py", f"{PARTS}::test_splice_and_replace"),
    Mutation("parts joined in another order", "[part for part in parts if", "[part for part in reversed(list(parts)) if", "common/records.py", f"{PARTS}::test_splice_and_replace"),
    Mutation("verdicts of some rows only", "if all(columns):", "if any(columns):", "common/records.py", f"{PARTS}::test_replace_drops_verdicts_that_only_one_side_has"),
    Mutation("stale weights are not recorded", "            self.history.record(model)\n", "", "common/engines.py"),
    # Engines
    Mutation("the engine at temperature 1", "limits, args.temperature, seeds, top_k, in_flight))", "limits, 1.0, seeds, top_k, in_flight))", "common/engines.py", f"{STEPS}::test_every_update"),
    Mutation("every step has the same random numbers", "prompt_seeds(len(problems), args.seed, *key)\n        limits", "prompt_seeds(len(problems), args.seed)\n        limits", "common/engines.py", f"{PARTS}::test_a_steps_responses_depend_on_its_number"),
    Mutation("continuations with the same random numbers", "prompt_seeds(len(problems), args.seed, *key)\n        with", "[args.seed] * len(problems)\n        with", "common/engines.py", CRITICS),
    Mutation("a continuation loses what it continues", "[a + b for a, b in zip(begun.logps", "[b for a, b in zip(begun.logps", "common/engines.py", f"{ENGINE}::test_responses_go_on_from_given_tokens"),
    Mutation("one seed for all", "for i in range(count)]", "for i in [0] * count]", "common/engines.py", f"{ENGINE}::test_prompt_seeds_do_not_meet"),
    Mutation("every process the same prompts", "replace(self, prompts=self.prompts[rows]", "replace(self, prompts=self.prompts[: len(self.prompts[rows])]", "common/engines.py", f"{DISTRIBUTED}::test_two_processes_end_as_one"),
    Mutation("a version too many", "del self.snapshots[: -self.staleness]", "del self.snapshots[: -self.staleness - 1]", "common/engines.py", f"{SCRIPTS}::test_staleness_is_a_ring_of_weights"),
    Mutation("snapshots follow the weights", "weight.detach().clone() for", "weight.detach() for", "common/engines.py", f"{SCRIPTS}::test_staleness_is_a_ring_of_weights"),
    Mutation("one scale for a whole row of 4-bit weights", "INT4_GROUP = 128", "INT4_GROUP = 1 << 20", "common/engines.py", f"{PRECISION}::test_rounding_to_int4"),
    Mutation("31 levels instead of 16", "/ 7.5 for group", "/ 15.5 for group", "common/engines.py", f"{PRECISION}::test_rounding_to_int4"),
    Mutation("an int4 engine keeps its weights", "if inner and precision in ROUNDING", 'if inner and precision == "fp8"', "common/engines.py", f"{PRECISION}::test_int4_sampler_of_the_embedded_model"),
    Mutation("the first weights to the end", "return self.versions[version] if", "return self.versions[0] if", "common/engines.py", f"{ENGINE}::test_in_flight_each_token_has_its_weights"),
    Mutation("new weights one token late", "if rest == 0 and version <", "if rest == version and version <", "common/engines.py", f"{ENGINE}::test_in_flight_each_token_has_its_weights"),
    Mutation("the new weights read other tokens", "responses.tokens[rows.numbers, :t]], 1)", "responses.tokens[rows.numbers, :t] * 0], 1)", "common/transformers_engine.py", f"{ENGINE}::test_in_flight_each_token_has_its_weights"),
    Mutation("one random number for all rows", "generator=torch.Generator().manual_seed(seed)", "generator=torch.Generator().manual_seed(seeds[0])", "common/transformers_engine.py", f"{ENGINE}::test_a_prompts_samples_are_its_own"),
    Mutation("a stop string is looked for in one token", "self.end = text[-self.longest :]", 'self.end = ""', "common/transformers_engine.py", f"{TASKS}::test_a_stop_string_ends_a_response"),
    Mutation("a response that ends at a stop string is truncated", "(~self.finished).tolist(),", "(self.lengths == self.limits).tolist(),", "common/transformers_engine.py", f"{ENGINE}::test_ends_and_truncation"),
    Mutation("dropped rows keep other rows' cache", "close_gaps(self.values, *which)", "self.values[: which[2]]", "common/transformers_engine.py", f"{ENGINE}::test_cache_grows_moves_and_drops_rows"),
    Mutation("engines get weights without adapters", "weight.float() + model", "weight.float() + 0 * model", "common/lora.py", "tests/common/test_lora.py"),
    Mutation("gradients are means of processes", "divide_factor(1.0)", "divide_factor(float(world_size()))", "common/distributed.py", f"{DISTRIBUTED}::test_two_processes_end_as_one"),
    # The verifier and rewards
    Mutation("the rewards of the batch before", "return torch.tensor(rewards, dtype=torch.float, device=device()).view(len(problems), G)", 'new = torch.tensor(rewards, dtype=torch.float, device=device()).view(len(problems), G)\n            self.before, new = new, getattr(self, "before", new)\n            return new', "common/verification/verifier.py", f"{PARTS}::test_rewards_belong_to_their_responses"),
    Mutation("rewards transposed", ".view(len(problems), G)", ".view(G, len(problems)).T", "common/verification/verifier.py", f"{PARTS}::test_rewards_belong_to_their_responses"),
    Mutation("verdicts of the batch before", "rollouts.correct = [", "rollouts.correct = rollouts.correct or [", "common/verification/verifier.py", f"{PARTS}::test_rewards_belong_to_their_responses"),
    Mutation("every response has the first problem's answer", "[problems[row // G] for row in rows]", "[problems[0] for row in rows]", "common/verification/verifier.py", f"{VERIFY}::test_groups_get_their_own_answers"),
    Mutation("words that change a number are units", "not (MULTIPLIES | HEDGES).isdisjoint(words)", "False", "common/verification/answers.py", VERIFY),
    Mutation("part of a term is the last number", " and not BEFORE.search(text[: run.start()])", "", "common/verification/answers.py", VERIFY),
    Mutation("coordinates in any order", " or not fits(name, other)", "", "common/verification/comparison.py", VERIFY),
    Mutation("an unreadable answer is a string", "any(not isinstance(value, str) for value in gold)", "bool(gold)", "common/verification/equality.py", VERIFY),
    Mutation("only the first unreadable answer is named", "unread[:MAX_NAMED]", "unread[:1]", "common/verification/verifier.py", VERIFY),
    Mutation("what is printed steers the terminal", "print(printable(text, keep)", "print(text", "common/cli.py", "tests/survival/test_terminals.py"),
    Mutation("a student steers the teacher's terminal", "self.reason = printable(self.reason)", "pass", "notebooks/exercises/grade.py", "tests/course/test_grader.py"),
    Mutation("the login comes after the first evaluation", "self.package.login()", "pass", "common/trackers.py", "tests/survival/test_errors.py"),
    Mutation("truncated responses are judged", "answer = None if cut else self.find_answer(response)", "answer = self.find_answer(response)", "common/verification/verifier.py", f"{VERIFY}::test_truncated_responses_are_incorrect"),
    Mutation("a partial score is correct", "[score >= 1 for score in scores]", "[score > 0 for score in scores]", "common/verification/verifier.py", f"{VERIFY}::test_scorers"),
    Mutation("reward functions never reach the loss", "for _, rewards in parts for reward in rewards]", "for rewards, _ in parts for reward in rewards]", "common/verification/verifier.py", REWARDS),
    Mutation("an answer that could not be judged is correct", "0.0 if reply.failed else reply.value[0]", "1.0 if reply.failed else reply.value[0]", "common/verification/verifier.py", f"{VERIFY}::test_hostile_answers_end_and_are_counted"),
    Mutation("failures are not counted", "self.failures[failed[0]] += 1", "pass", "common/verification/verifier.py", f"{VERIFY}::test_hostile_answers_end_and_are_counted"),
    Mutation("reward functions without their weights", "sum(w * values[name][i]", "sum(values[name][i]", "common/verification/rewards.py", REWARDS),
    Mutation("a late reward is 1", "rewards = [None] * len(part)", "rewards = [1.0] * len(part)", "common/verification/rewards.py", f"{REWARDS}::test_what_hangs_is_killed_and_counted"),
    Mutation("late rewards are not counted", 'self.failures["late"] += len(part)', "pass", "common/verification/rewards.py", f"{REWARDS}::test_what_hangs_is_killed_and_counted"),
    Mutation("what always hangs never ends the run", "reply.late and num_late < MAX_LATE", "reply.late", "common/verification/rewards.py", f"{REWARDS}::test_what_always_hangs_ends_the_run"),
    Mutation("rewards that are not finite are taken", "if value is not None and not math.isfinite(value):", "if False:", "common/verification/rewards.py", f"{REWARDS}::test_a_mistake_ends_the_run_with_a_sentence"),
    Mutation("children of a reward function live on", "os.killpg(self.process.pid, signal.SIGKILL)", "self.process.kill()", "common/verification/workers.py", REWARDS),
    Mutation("a late worker is not killed", '        self.end()\n        return Reply(failed=f"no answer', '        self.process = None\n        return Reply(failed=f"no answer', "common/verification/workers.py", f"{REWARDS}::test_what_hangs_is_killed_and_counted"),
    Mutation("a late reply is no late one", 'seconds", late=True)', 'seconds")', "common/verification/workers.py", f"{REWARDS}::test_what_hangs_is_killed_and_counted"),
    Mutation("a closed worker starts", "            if self.closed:\n", "            if False:\n", "common/verification/workers.py", f"{REWARDS}::test_a_closed_worker_does_not_start"),
    Mutation("replies in another order", "return self.threads.map(lambda question: self.ask(*question), questions)", "return iter(list(self.threads.map(lambda question: self.ask(*question), questions))[::-1])", "common/verification/workers.py", VERIFY),
    Mutation("a worker that died stays", "            if not received:\n                self.end()", "            if not received:\n                pass", "common/verification/workers.py", f"{VERIFY}::test_worker_that_dies_is_replaced"),
    Mutation("processor time has no limit", "signal.setitimer(signal.ITIMER_PROF, seconds)", "pass", "common/verification/worker.py", f"{VERIFY}::test_hostile_answers_end_and_are_counted"),
    # Data
    Mutation("mixing weights ignored", "p=weights)", "p=None)", "common/data.py", f"{TASKS}::test_a_mix_has_its_weights_and_can_start_anywhere"),
    Mutation("each data set begins anew in every step", "int((chosen[:start] == i).sum())", "0", "common/data.py", f"{TASKS}::test_a_mix_has_its_weights_and_can_start_anywhere"),
    Mutation("held out of one data set, trained on in another", "for _, held_out in pairs for", "for _, held_out in pairs[1:] or pairs for", "common/data.py", f"{TASKS}::test_two_data_sets_are_held_out_from_each_other"),
    Mutation("examples are problems too", "if str(pair[0]) not in shown]", "]", "common/data.py", f"{TASKS}::test_an_example_is_neither_trained_on_nor_evaluated"),
    Mutation("the order of sets in a task", '{"PYTHONHASHSEED": "0"}', "{}", "worlds/reasoning_gym/problems.py", TASKS),
    Mutation("numbers of a countdown may be left over", "sorted(numbers) == sorted(self.numbers)", "not set(numbers) - set(self.numbers)", "worlds/countdown/problems.py", DATA),
    Mutation("countdown in binary fractions", "return Fraction(number)", "return float(number)", "worlds/countdown/problems.py", DATA),
    # Tools
    Mutation("every chunk has the seeds of the first", "seeds[part])", "seeds[: len(problems)])", "tools/evaluate.py", EVALUATE),
    Mutation("half a chunk is kept", "lines = lines[: len(lines) // self.chunk * self.chunk]", "pass", "tools/evaluate.py", EVALUATE),
    Mutation("as many values as problems", "len(values) * mean * (1 - mean) / variance", "len(values)", "tools/stats.py", EVALUATE),
    Mutation("each piece of a response has the same random numbers", "prompt_seeds(1, *key, end)", "prompt_seeds(1, *key)", "tools/chat.py", CHAT),
    Mutation("a response steers the terminal", r'say(text[shown:ready], keep="\n\t", end="")', 'print(text[shown:ready], end="")', "tools/chat.py", CHAT),
    Mutation("the band begins at the mean", "(statistics.mean, min, max)", "(statistics.mean, statistics.mean, max)", "tools/plots.py", PLOTS),
    Mutation("the BOS that a file asks for is left out", "{bos[0]} $A", "$A", "tools/gguf.py", "tests/tools/test_gguf.py"),
    # The leaderboard
    Mutation("groups that were thrown away cost nothing", 'row.get("sampled_prompts", P) * G + row', "P * G + row", "notebooks/leaderboard.py", LEADERBOARD),
    Mutation("hidden problems from the data set", "if question not in known:", "if True:", "notebooks/leaderboard.py", LEADERBOARD),
    Mutation("the untrained model is judged", "accuracy(run.checkpoint, pairs", 'accuracy("sums", pairs', "notebooks/leaderboard.py", LEADERBOARD),
    Mutation("changed checkpoints are taken", "if changed or ", "if ", "notebooks/leaderboard.py", LEADERBOARD),
    Mutation("each entry has a place of its own", 'other["mean"] - (other["half"] or 0) > e["mean"] + (e["half"] or 0)', 'other["mean"] > e["mean"]', "notebooks/leaderboard.py", LEADERBOARD),
    Mutation("any seed in the first round", "!= [first_round]:", '== []:', "notebooks/leaderboard.py", LEADERBOARD),
    Mutation("both rounds in one table", '"max_response_tokens", "first_round")', '"max_response_tokens")', "notebooks/leaderboard.py", LEADERBOARD),
    # A class
    Mutation("changed files keep their marks", '.get("fingerprint") == prints[f]', '.get("fingerprint")', "notebooks/exercises/grade_class.py", CLASS),
    Mutation("the record comes at the end", 'write_whole(args.out / RECORD, json.dumps({"seed"', 'len(done) == len(folders) and write_whole(args.out / RECORD, json.dumps({"seed"', "notebooks/exercises/grade_class.py", CLASS),
    Mutation("a class is graded without a sandbox", "    need_a_sandbox()\n", "", "notebooks/exercises/grade_class.py", CLASS),
    Mutation("a resumed grading has a new seed", "secrets.randbits(32) if seed is None else seed", "secrets.randbits(32)", "notebooks/exercises/grade_class.py", CLASS),
    Mutation("a folder's name steers the terminal", 'lines = [f"# {printable(name)}"', 'lines = [f"# {name}"', "notebooks/exercises/grade_class.py", CLASS),
    Mutation("a name is a formula", '("=", "+", "-", "@")', '("+", "-", "@")', "notebooks/exercises/canvas.py", CLASS),
    Mutation("a login in another case is not found", "self.students.get(login.casefold())", "self.students.get(login)", "notebooks/exercises/canvas.py", CLASS),
    Mutation("a copy with other names is not found", 'hash("a local variable" if value.id in own else value.id)', "hash(value.id)", "notebooks/exercises/similar.py", SIMILAR),
    Mutation("a copy in another order is not found", "sorted(map(digest, value)) if statements else map(digest, value)", "map(digest, value)", "notebooks/exercises/similar.py", SIMILAR),
    Mutation("pairs that the script explains", "if alike > min(known[name], known[other]):", "if True:", "notebooks/exercises/similar.py", SIMILAR),
    Mutation("setup.sh installs any version", "(line.split(\"#\")[0].strip() for line in lines)", "(line.split(\"=\")[0].strip() for line in lines)", "notebooks/exercises/gradescope.py", GRADESCOPE),
    # The exercises
    Mutation("a submission may open files", '"brk": 12,', '"brk": 12, "openat": 257,', "notebooks/exercises/sandbox.py", GRADER),
    Mutation("a submission may use the network", '"brk": 12,', '"brk": 12, "socket": 41,', "notebooks/exercises/sandbox.py", GRADER),
    Mutation("hidden cases vary no setting", 'plain["args"] = known | setting', 'plain["args"] = dict(known)', "notebooks/exercises/cases.py", EXERCISES),
    Mutation("an error without a message passes", 'or "it gives no result."', "or None", "notebooks/exercises/verdict.py", CHEATS),
    Mutation("a byte-order mark is refused", "utf-8-sig", "utf-8", "notebooks/exercises/files.py", CHEATS),
    # Verdicts
    Mutation("differences between other seeds", "zip(values[a], values[b], strict=True)", "zip(values[a], values[b][::-1], strict=True)", "claims/runs.py", CLAIMS_BY_RUNS),
    Mutation("a run without an end keeps its accuracy", """ if self.ended else 0.0""", "", "claims/runs.py", CLAIMS_BY_RUNS),
    Mutation("nothing is void", ">= CLIPPED else VOID", ">= 0 else VOID", "claims/runs.py", CLAIMS_BY_RUNS),
    Mutation("kept runs are run again", """if not (folder / "done").exists():""", "if True:", "claims/runs.py", CLAIMS_BY_RUNS),
    Mutation("the wrong half of the mask", """masked["clip_pos"] = torch.zeros_like(mask)""", """masked["clip_neg"] = torch.zeros_like(mask)""", "claims/variant.py", CLAIMS_BY_RUNS),
    # What is logged and shown
    Mutation("lengths of correct and incorrect swapped", "lengths[is_correct].mean()", "lengths[~is_correct].mean()", "common/metrics.py", f"{STEPS}::test_every_update"),
    Mutation("mismatch over padding", "(old_logp.exp() - rollout_logp.exp()).abs()[mask]", "(old_logp.exp() - rollout_logp.exp()).abs()", "common/metrics.py", f"{STEPS}::test_every_update"),
    Mutation("every micro-batch counts the same in the log", "self.weights[name] += weights.sum().item()", "self.weights[name] += 1.0", "common/metrics.py", f"{STEPS}::test_every_update"),
    Mutation("clip_neg on the wrong bound", "(ratio < 1 - args.clip_eps)).float()", "(ratio < 1 + args.clip_eps)).float()"),
    Mutation("clip_pos and clip_neg swapped", '"clip_pos": ((advantages > 0)', '"clip_pos": ((advantages < 0)'),
    Mutation("explained variance inverted", "(returns - old_values)[mask].var() / returns[mask].var().clamp(min=1e-8)", "returns[mask].var() / (returns - old_values)[mask].var().clamp(min=1e-8)"),
    Mutation("the bonus of the next step is logged", "bonus=alpha)", 'bonus=run.state["coef"])', "methods/adaptive_entropy.py"),
    Mutation("lengths without those that are off", "(lengths - budgets).abs()", "(lengths - budgets)", "methods/lcpo.py"),
    Mutation("a standard error too small by the root of n", "math.sqrt(variance / len(counts))", "math.sqrt(variance / (n * len(counts)))", "common/evaluation.py", EVALUATION),
    Mutation("lengths swapped in evaluations", "mean([x for x, ok in lengths if ok])", "mean([x for x, ok in lengths if not ok])", "common/evaluation.py", EVALUATION),
    Mutation("the greedy accuracy is that of a sample", "for outcome in greedy])", "for outcome in sampled])", "common/evaluation.py", EVALUATION),
    Mutation("curves of lengths swapped", '("length_correct", "correct", GREEN), ("length_incorrect", "incorrect", RED)', '("length_correct", "incorrect", GREEN), ("length_incorrect", "correct", RED)', "tools/plots.py", PLOTS),
    # What is drawn by chance, and state over steps
    Mutation("neighboring steps share problems", "(step - 1) * args.max_rounds + rounds + 1", "step + rounds", "dapo.py", DRAWS),
    Mutation("neighboring steps share problems", "(step - 1) * args.max_rounds + rounds + 1", "step + rounds", "recipes/olmo3.py", DRAWS),
    Mutation("rounds share random numbers", "engine.generate(problems, G, step, rounds)", "engine.generate(problems, G, step)", "dapo.py"),
    Mutation("every pass has the same minibatches", "    for _ in range(args.update_epochs):\n        for groups in torch.randperm(P)", "    order = torch.randperm(P)\n    for _ in range(args.update_epochs):\n        for groups in order", "common/batch.py", f"{STEPS}::test_every_update"),
    Mutation("held-out problems depend on the seed", "random.Random(2026).shuffle(train)", "random.Random(args.seed).shuffle(train)", "common/data.py", DRAWS),
    Mutation("evaluations depend on the seed", "seeds = prompt_seeds(len(problems), 0)", "seeds = prompt_seeds(len(problems), args.seed)", "common/evaluation.py", DRAWS),
    Mutation("the moving average without the KL", "(1 - args.ema_decay) * rewards.mean().item()", "(1 - args.ema_decay) * (rewards + args.kl_beta * kl.sum(1).view(P, G)).mean().item()", "reinforce.py"),
    Mutation("the entropy over padding", "entropy[mask].mean().item()", "entropy.mean().item()", "methods/adaptive_entropy.py"),
    # Limits, budgets, precisions, files
    Mutation("a response beyond its own limit", "(self.lengths[rows] < self.limits[rows])", "(self.lengths[rows] < self.limits.max())", "common/transformers_engine.py", ENGINE),
    Mutation("a row beyond the token budget", "(end + 1 - start) * longest > max_tokens", "(end - start) * longest > max_tokens", "common/batch.py", LOG_PROBS),
    Mutation("a rounded head", ' and "lm_head" not in name', "", "common/engines.py", PRECISION),
    Mutation("a GGUF model keeps its initial weights", "    model.load_state_dict(quantized.state_dict())\n", "", "tools/gguf.py", GGUF),
    Mutation("text is split as transformers does", "tokenizer.backend_tokenizer.pre_tokenizer = CUTS[cut]", "pass", "tools/gguf.py", GGUF),
    Mutation("a GGUF model in half precision", "dtype=torch.float32, **where", "dtype=torch.bfloat16, **where", "tools/gguf.py", GGUF),
    # The grader and the evidence
    Mutation("hidden cases are those of the handout", "hidden = answers(exercise, seed)", "hidden = answers(exercise, 7)", "notebooks/exercises/grade.py", GRADER),
    Mutation("every grading has the same cases", "secrets.randbits(32) if args.seed is None", "7 if args.seed is None", "notebooks/exercises/grade.py", GRADER),
    Mutation("another arm than was run", '"fresh": "grpo --lr 1.5e-4', '"fresh": "dr_grpo --lr 1.5e-4', "claims/stale_rollouts_are_harmless.py", EVIDENCE),
    Mutation("another regime than was run", "--staleness 8 --lr 1.5e-4", "--staleness 4 --lr 1.5e-4", "claims/runs.py", EVIDENCE),
    Mutation("a threshold moved after the runs", "smallest=0.05", "smallest=0.04", "claims/stale_rollouts_are_harmless.py", EVIDENCE),
    Mutation("pass@1 in place of pass@32", 't.last("eval/pass@32")', "t.last()", "claims/maxrl_keeps_pass_at_k_in_training.py", EVIDENCE),
    Mutation("runs of older code are kept", "[*words(arm, seed), *code(script)]", "words(arm, seed)", "claims/runs.py", EVIDENCE),
    Mutation("k1 with the other sign", "logp - ref_logp", "ref_logp - logp", "claims/variant.py", EVIDENCE),
    Mutation("a stress test without staleness", "--staleness {k} ", "", "benchmarks/stress.py", EVIDENCE),
]  # fmt: skip
