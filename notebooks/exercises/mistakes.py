"""Known mistakes that the checks can name: each one changes a script's source and has a message for the student.

(exercise, correct line, line with the mistake, message). The checks also find what is not listed here: another method's
function, ignored settings and masks, hard-coded shapes. `runner.py` finds results of the wrong kind: nothing, a scalar,
NumPy, an input changed in place, no gradient.
"""

GRPO_LOSS = "loss = -torch.min(ratio * advantages, clipped_ratio * advantages)  # (m, T)"
INVERTED_LOSS = (
    "loss = -torch.where(advantages > 0, torch.min(ratio * advantages, clipped_ratio * advantages), "
    "torch.max(ratio * advantages, clipped_ratio * advantages))"
)
GROUP_MEAN, GROUP_STD = "rewards.mean(1, keepdim=True)", "rewards.std(1, correction=args.ddof, keepdim=True)"
ROW_MEAN = "return mask / (len(mask) * mask.sum(1, keepdim=True))"
CONSTANT = "return mask / (len(mask) * args.max_response_tokens)"
ALL_TOKENS = "return mask / mask.sum().clamp(min=1)"
TOKEN_RATIO = "ratio = torch.exp(logp - old_logp)  # (m, T)"
SEQUENCE_MEAN = "((logp - old_logp) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)"
MOVED = "torch.min(moved, moved.clamp(-args.clip_log_eps, args.clip_log_eps))"

# What each method's function computes, for the message if it is used in place of another's.
WHAT = {
    "reinforce.compute_advantages": "the reward minus the mean of the whole batch",
    "rloo.compute_advantages": "the reward minus the mean of the others",
    "grpo.compute_advantages": "divided by the standard deviation of the group",
    "dr_grpo.compute_advantages": "the reward minus the group's mean, without a division",
    "maxrl.compute_advantages": "the reward minus the group's mean, divided by that mean",
    "reinforce.token_weights": "the sum over the tokens of a response",
    "grpo.token_weights": "the mean over the tokens of each response",
    "dr_grpo.token_weights": "the sum over tokens divided by a constant",
    "dapo.token_weights": "the mean over all tokens, in which long responses count more",
    "reinforce.policy_loss": "log π times the advantage, without a ratio",
    "grpo.policy_loss": "each token's ratio, clipped symmetrically",
    "cispo.policy_loss": "log π with a capped, detached weight",
    "gspo.policy_loss": "one ratio for the whole response",
    "gmpo.policy_loss": "the geometric mean of clipped ratios",
    "grpo.tis_weight": "a weight for each token",
    "gmpo.tis_weight": "one weight for the whole response",
}

MINUS = "the sign is wrong: the loss is minus the objective. Minimizing yours makes correct answers rarer."
SWAPPED = "min and max are swapped: the objective is the smaller of the two terms, and the loss is minus that."
NO_MINIMUM = (
    "the clip zeroes the gradient in both directions. The minimum is missing: a token that moved the wrong way must "
    "keep its gradient."
)
UNCLIPPED = "nothing is clipped: without a trust region, several updates on one batch move the policy too far."
INVERTED = (
    "the clip is inverted for A < 0: the gradient is kept where it must be 0 (a ratio below 1 - ε) and is 0 where it is "
    "needed."
)
ON_LOG = "the clip is on the log ratio, at ±ε. Clip the ratio: exp(-ε) and exp(ε) are not 1 - ε and 1 + ε."
UPSIDE_DOWN = "the ratio is inverted: it is the policy's current probability over the old one."
TIS_INVERTED = "the TIS weight is inverted: it is π_old / π_engine, the learner's probability over the engine's."
TIS_UNCAPPED = "the TIS weight is not capped at tis_cap: one token that is rare in the engine could outweigh the batch."
TIS_OF_0 = "a tis_cap of 0 disables TIS: all weights must be 1. Yours are 0, so nothing is learned."
BATCH_SUM = "the weights are summed over responses, not averaged: also divide by the number of rows B."
PADDED = "the weights depend on the padded width T of the mask: more padding changes the loss."
ARITHMETIC = (
    "the mean of the ratios is arithmetic, as in GRPO. GMPO's mean is geometric: the exp of the mean log ratio."
)
WHOLE_BATCH = "the mean is over the whole batch: take it over the G responses to the same prompt."
ACROSS = "the mean is over the prompts, dimension 0: take it over the G responses to the same prompt, dimension 1."
SIGN_A = "the sign is wrong: a response better than its baseline has a positive advantage."


def clipped(script: str, low: str, high: str) -> list[tuple[str, str, str, str]]:
    """Mistakes that are possible in all clipped losses."""
    clip = f"ratio.clamp(1 - args.{low}, 1 + args.{high})  # (m, T)"
    return [
        (f"{script}.policy_loss", old, new, message)
        for old, new, message in (
            (GRPO_LOSS, GRPO_LOSS.replace("-torch", "torch"), MINUS),
            (GRPO_LOSS, GRPO_LOSS.replace("min", "max"), SWAPPED),
            (GRPO_LOSS, GRPO_LOSS.replace("-torch.min", "torch.max"), MINUS.replace(":", ", and min and max are swapped:")),
            (GRPO_LOSS, "loss = -ratio * advantages", UNCLIPPED),
            (GRPO_LOSS, "loss = -clipped_ratio * advantages", NO_MINIMUM),
            (GRPO_LOSS, INVERTED_LOSS, INVERTED),
            (clip, f"torch.exp(torch.log(ratio).clamp(-args.{low}, args.{high}))", ON_LOG),
        )
        if not (script == "gspo" and message == ON_LOG)  # at 3e-4 the two are the same
    ]  # fmt: skip


def token_ratio(script: str) -> list[tuple[str, str, str, str]]:
    """Mistakes in a per-token ratio."""
    return [
        (f"{script}.policy_loss", TOKEN_RATIO, new, message)
        for new, message in (
            ("ratio = torch.exp(old_logp - logp)", UPSIDE_DOWN),
            ("ratio = logp - old_logp + 1", "the exp is missing: the ratio is exp(logp - old_logp)."),
        )
    ]


MISTAKES = [
    # REINFORCE
    ("reinforce.compute_advantages", "rewards.mean()", "rewards.mean(1, keepdim=True)",
     "the baseline is the group's mean: use the mean of the whole batch."),
    ("reinforce.compute_advantages", "return rewards - baseline", "return baseline - rewards", SIGN_A),
    ("reinforce.compute_advantages", '"ema": ema}', '"ema": args.ema_decay * ema + (1 - args.ema_decay) * rewards.mean()}',
     "`ema` is the moving average already: the loop updates it."),
    ("reinforce.token_weights", "return mask / len(mask)", "return mask * 1.0", BATCH_SUM),
    ("reinforce.token_weights", "return mask / len(mask)", "return mask / mask.sum(1, keepdim=True)",
     "it is the mean over a response's tokens and the sum over responses: take the sum over tokens and the mean over responses."),
    ("reinforce.token_weights", "return mask / len(mask)", "return torch.ones(mask.shape) / len(mask)",
     "padding has a weight: it must be 0 where the mask is."),
    ("reinforce.token_weights", "return mask / len(mask)", "return mask / mask.shape[1]",
     "it divides by the width T of the mask: divide by the number of rows B."),
    ("reinforce.policy_loss", "loss = -advantages * logp", "loss = advantages * logp", MINUS),
    ("reinforce.policy_loss", "loss = -advantages * logp", "loss = -advantages * logp.exp()",
     "it uses the probability: the policy gradient is that of log π, without exp."),
    ("reinforce.policy_loss", "loss = -advantages * logp", "loss = -advantages * logp.sum(1, keepdim=True)",
     "the log-probs are summed over the response: return the loss of each token. The loop sums them with token_weights."),
    ("reinforce.policy_loss", "loss = -advantages * logp", "loss = -advantages * torch.exp(logp - old_logp)",
     "it uses a ratio: the policy gradient is that of log π, and REINFORCE makes one update per batch."),
    # RLOO
    ("rloo.compute_advantages", "(rewards.shape[1] - 1)", "rewards.shape[1]",
     "the mean of the others divides by G: there are G - 1 others."),
    ("rloo.compute_advantages", "return rewards - others", "return rewards - rewards.mean(1, keepdim=True)",
     "the baseline contains the response itself: RLOO leaves it out, which makes the gradient exactly unbiased."),
    ("rloo.compute_advantages", "(rewards.sum(1, keepdim=True) - rewards)", "rewards.sum(1, keepdim=True)",
     "the sum contains the response itself: subtract it, then divide by G - 1."),
    ("rloo.compute_advantages", "return rewards - others", "return others - rewards", SIGN_A),
    # GRPO
    ("grpo.compute_advantages", "(rewards - mean)", "(mean - rewards)", SIGN_A),
    ("grpo.compute_advantages", GROUP_MEAN, "rewards.mean()", WHOLE_BATCH),
    ("grpo.compute_advantages", GROUP_STD, "rewards.std(correction=args.ddof)",
     "the standard deviation is over the whole batch: take it over the G responses to the same prompt."),
    ("grpo.compute_advantages", f"{GROUP_MEAN}  # (P, 1)\n    std = {GROUP_STD}",
     "rewards.mean()\n    std = rewards.std(correction=args.ddof)",
     "mean and standard deviation are over the whole batch: take them over the G responses to the same prompt."),
    ("grpo.compute_advantages", f"{GROUP_MEAN}  # (P, 1)\n    std = {GROUP_STD}",
     "rewards.mean(0)\n    std = rewards.std(0, correction=args.ddof)", ACROSS),
    ("grpo.compute_advantages", "(std + 1e-6)", "(std**2 + 1e-6)", "it divides by the variance: the root is missing."),
    ("grpo.compute_advantages", "(std + 1e-6)", "std", "a group without signal gives 0 / 0: add an ε to the std."),
    ("grpo.compute_advantages", "(std + 1e-6)", "(std + 0.1)", "the ε added to the std is too large: it changes the advantages."),
    ("grpo.token_weights", ROW_MEAN, "return mask / mask.sum(1, keepdim=True)", BATCH_SUM),
    ("grpo.token_weights", ROW_MEAN, "return mask / (len(mask) * mask.shape[1])", PADDED),
    *clipped("grpo", "clip_eps", "clip_eps"),
    *token_ratio("grpo"),
    ("grpo.tis_weight", "old_logp - rollout_logp", "rollout_logp - old_logp", TIS_INVERTED),
    ("grpo.tis_weight", ".clamp(max=args.tis_cap)", "", TIS_UNCAPPED),
    ("grpo.tis_weight", "weight if args.tis_cap > 0 else torch.ones_like(weight)", "weight", TIS_OF_0),
    ("grpo.tis_weight", "torch.exp(old_logp - rollout_logp)", "(old_logp - rollout_logp)",
     "the exp is missing: the weight is a ratio of probabilities, and these are their logs."),
    ("grpo.kl_penalty", "torch.exp(ref_logp - logp) - (ref_logp - logp) - 1",
     "torch.exp(logp - ref_logp) - (logp - ref_logp) - 1",
     "π_θ and π_ref are swapped: this is k3 of the reversed KL."),
    ("grpo.kl_penalty", "torch.exp(ref_logp - logp) - (ref_logp - logp) - 1", "logp - ref_logp",
     "this is k1: its value is unbiased, but its gradient in the loss is 0 on average."),
    ("grpo.kl_penalty", "torch.exp(ref_logp - logp) - (ref_logp - logp) - 1", "0.5 * (logp - ref_logp) ** 2",
     "this is k2, half the squared log ratio: use k3."),
    ("grpo.kl_penalty", "torch.exp(ref_logp - logp) - (ref_logp - logp) - 1",
     "1 + (ref_logp - logp) - torch.exp(ref_logp - logp)",
     "the sign is wrong: k3 is never negative, and yours rewards moving away from the reference."),
    # Dr. GRPO
    ("dr_grpo.compute_advantages", "rewards - rewards.mean(1, keepdim=True)", "rewards.mean(1, keepdim=True) - rewards", SIGN_A),
    ("dr_grpo.compute_advantages", GROUP_MEAN, "rewards.mean()", WHOLE_BATCH),
    ("dr_grpo.compute_advantages", GROUP_MEAN, "rewards.mean(0)", ACROSS),
    ("dr_grpo.compute_advantages", f"rewards - {GROUP_MEAN}",
     f"(rewards - {GROUP_MEAN}) / (rewards.std(1, keepdim=True) + 1e-6)",
     "this is GRPO's: Dr. GRPO does not divide by the standard deviation."),
    ("dr_grpo.token_weights", CONSTANT, ROW_MEAN,
     "your loss still depends on response length: this is GRPO's, not Dr. GRPO's."),
    ("dr_grpo.token_weights", CONSTANT, "return mask / (len(mask) * mask.shape[1])", PADDED),
    ("dr_grpo.token_weights", CONSTANT, "return mask / args.max_response_tokens", BATCH_SUM),
    # DAPO
    ("dapo.token_weights", ALL_TOKENS, "return mask / mask.numel()", PADDED),
    ("dapo.policy_loss", "1 + args.clip_eps_high)  # (m, T)", "1 + args.clip_eps_low)  # (m, T)",
     "both sides of the clip use ε_low. DAPO uses ε_high above, so that unlikely tokens keep their gradient longer."),
    ("dapo.policy_loss", "ratio.clamp(1 - args.clip_eps_low, 1 + args.clip_eps_high)",
     "ratio.clamp(1 - args.clip_eps_high, 1 + args.clip_eps_low)", "ε_low and ε_high are swapped."),
    *clipped("dapo", "clip_eps_low", "clip_eps_high"),
    *token_ratio("dapo"),
    ("dapo.has_signal", "(correct.mean(1) > 0) & (correct.mean(1) < 1)", "rewards.std(1) > 0",
     "it filters on the shaped rewards, so it keeps an all-correct group with different lengths. Filter on whether the "
     "answers are correct."),
    ("dapo.has_signal", "(correct.mean(1) > 0) & (correct.mean(1) < 1)", "correct.mean(1) > 0",
     "all-correct groups are kept, but their advantages are also 0."),
    ("dapo.has_signal", "(correct.mean(1) > 0) & (correct.mean(1) < 1)", "correct.mean(1) < 1",
     "all-incorrect groups are kept, but their advantages are also 0."),
    ("dapo.has_signal", "(correct.mean(1) > 0) & (correct.mean(1) < 1)", "~((correct.mean(1) > 0) & (correct.mean(1) < 1))",
     "it is inverted: True means that the group is kept."),
    # CISPO
    ("cispo.policy_loss", "ratio.clamp(max=args.ratio_cap).detach()", "ratio.clamp(max=args.ratio_cap)",
     "the weight is not detached: the gradient has to flow through log π only."),
    ("cispo.policy_loss", "loss = -weight * advantages * logp", "loss = -ratio.clamp(max=args.ratio_cap) * advantages",
     "tokens above the cap have no gradient, as with a clip. In CISPO every token keeps its gradient, with a capped weight "
     "on log π."),
    ("cispo.policy_loss", "ratio.clamp(max=args.ratio_cap)", "ratio.clamp(max=1 + args.ratio_cap)",
     "the cap is 1 + ratio_cap: use ratio_cap itself."),
    ("cispo.policy_loss", "ratio.clamp(max=args.ratio_cap)", "ratio.clamp(0.8, args.ratio_cap)",
     "the weight has a lower clip; CISPO has only the cap above."),
    ("cispo.policy_loss", "ratio.clamp(max=args.ratio_cap)", "ratio.clamp(1 / args.ratio_cap, args.ratio_cap)",
     "the weight has a lower clip; CISPO has only the cap above."),
    ("cispo.policy_loss", "ratio.clamp(max=args.ratio_cap)", "ratio", "the weight has no cap."),
    ("cispo.policy_loss", "loss = -weight", "loss = weight", MINUS),
    ("cispo.policy_loss", "loss = -weight * advantages * logp", "loss = -weight * advantages * ratio",
     "the weight multiplies the ratio instead of log π, so the ratio enters the gradient twice."),
    *token_ratio("cispo"),
    # GSPO
    *clipped("gspo", "clip_eps_low", "clip_eps_high"),
    ("gspo.policy_loss", SEQUENCE_MEAN, "((logp - old_logp) * mask).sum(1, keepdim=True)",
     "the ratio is the product of the tokens' ratios. GSPO takes its |o|-th root: the mean of the log-ratios, not their "
     "sum."),
    ("gspo.policy_loss", SEQUENCE_MEAN,
     "torch.log((torch.exp(logp - old_logp) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True))",
     "the mean of the ratios is arithmetic: GSPO's is geometric, the exp of the mean log ratio."),
    ("gspo.policy_loss", "ratio = torch.exp(log_ratio).expand(mask.shape)", "ratio = torch.exp(logp - old_logp)",
     "there is one ratio per token, as in GRPO. GSPO has one per response."),
    ("gspo.policy_loss", SEQUENCE_MEAN, SEQUENCE_MEAN.replace("logp - old_logp", "old_logp - logp"), UPSIDE_DOWN),
    ("gspo.policy_loss", "1 + args.clip_eps_high)  # (m, T)", "1 + args.clip_eps_low)  # (m, T)",
     "both sides of the clip use ε_low: GSPO has ε_high above."),
    # GMPO
    ("gmpo.policy_loss", f"sign * {MOVED}", "logp - old_logp", "the tokens' ratios are not clipped before the geometric mean."),
    ("gmpo.policy_loss", MOVED, "moved.clamp(-args.clip_log_eps, args.clip_log_eps)", NO_MINIMUM),
    ("gmpo.policy_loss", MOVED, MOVED.replace("min", "max", 1), SWAPPED),
    ("gmpo.policy_loss", "loss = -torch.exp(mean) * advantages", "loss = -torch.exp(clipped) * advantages", ARITHMETIC),
    ("gmpo.policy_loss", "mean = (clipped * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)",
     "mean = (clipped * mask).sum(1, keepdim=True)", "this is the product of the ratios: the |o|-th root is missing."),
    ("gmpo.policy_loss", "loss = -torch.exp(mean)", "loss = torch.exp(mean)", MINUS),
    ("gmpo.policy_loss", "clipped = sign * torch", "clipped = torch", "the clipped log ratio loses its sign for A < 0."),
    ("gmpo.policy_loss", MOVED,
     "torch.min(moved, sign * torch.log(torch.exp(logp - old_logp).clamp(1 - args.clip_log_eps, 1 + args.clip_log_eps)))",
     "the clip is on the ratio, at 1 ± ε. GMPO clips the log ratio, at ±ε."),
    ("gmpo.tis_weight", "old_logp - rollout_logp", "rollout_logp - old_logp", TIS_INVERTED),
    ("gmpo.tis_weight", ".clamp(max=args.tis_cap)", "", TIS_UNCAPPED),
    ("gmpo.tis_weight", "torch.exp((weight.log() * mask)", "((weight * mask)",
     "the mean of the weights is arithmetic: GMPO's is geometric, the exp of the mean log."),
    # DPPO
    ("dppo.policy_loss", TOKEN_RATIO, "ratio = torch.exp(old_logp - logp)", UPSIDE_DOWN),
    ("dppo.policy_loss", "(advantages > 0) & (ratio > 1) & outside", "(advantages > 0) & outside",
     "a token with A > 0 is masked whenever the divergence is large, even if its probability *fell*, so it cannot return "
     "to the trust region."),
    ("dppo.policy_loss", "& outside  # (m, T)\n    clip_neg", "# (m, T)\n    clip_neg",
     "a token with A > 0 is masked whenever its ratio exceeds 1, whatever the divergence."),
    ("dppo.policy_loss", "keep = ~(clip_pos | clip_neg)", "keep = ~outside",
     "a token is masked whenever the divergence is large, whichever way it moved, so it cannot return."),
    ("dppo.policy_loss", "loss = -(keep", "loss = (keep", MINUS),
    ("dppo.policy_loss", "ratio.clamp(max=args.ratio_cap).detach() * advantages * logp",
     "ratio.clamp(max=args.ratio_cap) * advantages * logp",
     "the weight is not detached: the gradient has to flow through log π only."),
    ("dppo.policy_loss", "outside = divergence(mu, pi, args.divergence) > args.delta", "outside = (mu - pi).abs()[..., 0] > 2",
     "no token is ever masked: there is no trust region."),
    ("dppo.policy_loss", "divergence(mu, pi, args.divergence)", "divergence(pi, mu, args.divergence)",
     "μ and π are swapped in the divergence: it is D(μ, π), and the KL is not symmetric."),
    ("dppo.policy_loss", "= top or (None, None, None)", "= (None, None, None)",
     "`top` is ignored: with a top-K divergence the distributions hold the K likeliest tokens too."),
    ("dppo.policy_loss", "policy_top, rollout_top, is_top = top", "rollout_top, policy_top, is_top = top",
     "the two parts of `top` are swapped: the policy's log-probs come first, then the engine's."),
    # PPO
    ("ppo.compute_advantages", "* next_value - values[:, t]", "* next_value",
     "δ lacks the value of the state itself: δ = r + γ V(next) - V."),
    ("ppo.compute_advantages", "args.gamma * args.gae_lambda * gae", "args.gae_lambda * gae",
     "the sum of the δ decays with λ only: it must decay with γ λ."),
    ("ppo.compute_advantages", "args.gamma * args.gae_lambda * gae", "args.gamma * gae",
     "λ is missing: this is the full discounted return minus the value."),
    ("ppo.compute_advantages", "return advantages, (advantages + values) * mask", "return advantages, advantages * mask",
     "the returns lack the values: returns = advantages + values."),
    ("ppo.compute_advantages", "next_value = values[:, t] * mask[:, t]", "next_value = values[:, t]",
     "the value on padding is used as the next value of a response's last token: after the end it must be 0."),
    ("ppo.compute_advantages", "reversed(range(values.shape[1]))", "range(values.shape[1])",
     "it goes forward through the response: GAE is a recursion from the end."),
    ("ppo.value_loss", "torch.max(", "torch.min(", SWAPPED.replace("objective", "loss").replace("smaller", "larger")
     .replace(", and the loss is minus that", "")),
    ("ppo.value_loss", "torch.max((values - returns) ** 2, (clipped - returns) ** 2)", "(values - returns) ** 2",
     "this is the plain squared error: the clip is missing."),
    ("ppo.value_loss", "torch.max((values - returns) ** 2, (clipped - returns) ** 2)", "(clipped - returns) ** 2",
     "this is only the clipped error: a value that moved the wrong way must keep its gradient."),
    ("ppo.value_loss", "0.5 * ", "", "the factor ½ is missing."),
    ("ppo.value_loss", "(values - old_values).clamp(-args.value_clip, args.value_clip)",
     "(values - returns).clamp(-args.value_clip, args.value_clip)",
     "the value is clipped to the return: clip it to the old value."),
    # MaxRL
    ("maxrl.compute_advantages", "/ mean.clamp(min=1 / rewards.shape[1])", "/ mean",
     "a group without a correct response gives 0 / 0."),
    ("maxrl.compute_advantages", "(rewards - mean)", "(mean - rewards)", SIGN_A),
    ("maxrl.compute_advantages", "mean.clamp(min=1 / rewards.shape[1])", "(rewards.std(1, keepdim=True) + 1e-6)",
     "this is GRPO's: MaxRL divides by the group's mean, not by the standard deviation."),
    ("maxrl.compute_advantages", "(rewards - mean) / mean.clamp(min=1 / rewards.shape[1])",
     "rewards / mean.clamp(min=1 / rewards.shape[1])", "the mean is not subtracted: an all-correct group also gets advantages."),
    # The loop
    ("loop.response_mask", "< lengths[:, None]", "< lengths[:, None] - 1",
     "the last token of a response, its EOS, is not in the mask: then no response learns to stop."),
    ("loop.collate", "tokens[row, : len(prompt) + len(response)]", "tokens[row, S - len(prompt) - len(response) :]",
     "the padding is on the left: prompt and response start at column 0."),
    ("loop.response_logps", "prompt_lengths[:, None] - 1 + torch", "prompt_lengths[:, None] + torch",
     "the log-probs are shifted by one: the logits behind token t are those of token t + 1."),
    ("loop.response_logps", ".log_softmax(-1)", "", "these are logits: log-probs are their log_softmax."),
    ("loop.response_logps", ".masked_fill(~mask, 0.0)", "", "the log-probs on padding are not 0."),
    ("loop.exact_rewards", "float(box[-1:] == [answer] and not cut)", "float(box[-1:] == [answer])",
     "a truncated response gets its reward: it must get 0."),
    ("loop.exact_rewards", "box[-1:]", "box[:1]", "it reads the first box: the last one counts."),
    ("loop.exact_rewards", "box[-1:] == [answer]", "answer in box", "it accepts the answer in any box: the last one counts."),
    ("loop.exact_rewards", "box[-1:] == [answer]", "answer in ''.join(box)", "it accepts an answer inside a longer one."),
    ("loop.minibatches", "order.chunk", "order.sort()[0].chunk", "the order of the problems is ignored."),
    ("loop.minibatches", "prompts[:, None] * G + torch.arange(G)", "prompts[:, None] + len(order) * torch.arange(G)",
     "the rows of a group are not together: row b answers problem b // G."),
    ("loop.train", "    engine.load_weights(policy)\n", "    step > 1 or engine.load_weights(policy)\n",
     "the engine keeps its first weights: load the policy's at the start of each step."),
    ("loop.train", "tis = tis_weight(old_logp, rollout_logp, args)", "tis = torch.ones_like(old_logp)",
     "the loss lacks the TIS weights."),
    ("loop.train", "policy_loss(logp, old_logp[rows]", "policy_loss(logp, logp.detach()",
     "the old log-probs change with each update, so every ratio is 1: compute them once, before the first update."),
    ("loop.train", "policy_loss(logp, old_logp[rows]", "policy_loss(logp, rollout_logp[rows]",
     "the old log-probs are the engine's: take the policy's."),
    ("loop.train", "optimizer.zero_grad()", "pass", "gradients add up over the updates: optimizer.zero_grad() is missing."),
    ("loop.train", "torch.nn.utils.clip_grad_norm_(policy.parameters(), args.max_grad_norm)", "pass",
     "the gradient is not clipped to args.max_grad_norm before the update."),
    ("loop.train", "token_weights(mask[rows])", "token_weights(mask)[rows]",
     "the weights are those of the whole rollout batch: take them for the minibatch."),
    ("loop.train", ".view(-1, 1).expand(mask.shape)", ".T.reshape(-1, 1).expand(mask.shape)",
     "the advantages are in the wrong rows: row b answers problem b // G."),
    ("loop.train", "* loss).sum().backward()", "* -loss).sum().backward()", MINUS),
]  # fmt: skip
