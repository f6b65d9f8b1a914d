"""Known mistakes, for the checks to name: each is a change of a script's own source, and what to tell the student.

(script, function, the line as it is, the line with the mistake, message)
"""

NO_MINIMUM = (
    "the clip ends the gradient in both directions. The minimum is missing: a token that moved the wrong way must "
    "always have its gradient."
)
INVERTED = (
    "for A < 0 the clip is the wrong way round: the gradient is kept exactly where it must vanish (a ratio below "
    "1 - ε) and vanishes where it is needed."
)
TIS_INVERTED = "the TIS weight is upside down: it is π_old / π_sampler, the learner's probability over the sampler's."
TIS_UNCAPPED = "the TIS weight is not capped at tis_cap: one token of the sampler's tail could outweigh the batch."
MINUS = "the sign is wrong: the loss is minus the objective, and descending on yours makes right answers rarer."
BATCH_SUM = "the weights are summed over responses, not averaged: they must be divided by the number of rows B too."
TOKEN_MEAN = "all tokens weigh alike, so long responses count more: this is DAPO's mean, not {}'s mean per response."
PADDED = "the weights depend on the padded width T of the mask: the same batch with more padding has another loss."
NO_STD = "the advantages are not divided by the group's standard deviation: these are Dr. GRPO's."
WITH_STD = "the advantages are still divided by the group's standard deviation: this is GRPO's, not {}'s."
PER_RESPONSE = "a token's weight depends on the length of its response: this is GRPO's mean, not {}'s."

GRPO_LOSS = "loss = -torch.min(ratio * advantages, clipped_ratio * advantages)  # (B, T)"
TIS = "old_logp - rollout_logp"
TOKEN_RATIO = "ratio = torch.exp(logp - old_logp)  # (B, T)"
SEQUENCE_MEAN = "((logp - old_logp) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)"
Z_SCORE = "return (rewards - mean) / (std + 1e-6)"
STD = "std = rewards.std(1, correction=args.ddof, keepdim=True)  # (P, 1)"
ROW_MEAN = "return mask / (len(mask) * mask.sum(1, keepdim=True))"
ALL_TOKENS = "return mask / mask.sum().clamp(min=1)"
CONSTANT = "return mask / (len(mask) * args.max_response_tokens)"

MISTAKES = [
    # REINFORCE
    ("reinforce", "compute_advantages", "return rewards - baseline", "return rewards",
     "there is no baseline: the reward alone is unbiased too, but with more noise."),
    ("reinforce", "compute_advantages", "rewards.mean()", "rewards.mean(1, keepdim=True)",
     "the baseline is the mean of the group; here it is the mean of the whole batch."),
    ("reinforce", "token_weights", "return mask / len(mask)", ROW_MEAN,
     PER_RESPONSE.format("REINFORCE") + " The log-prob of a response is the *sum* over its tokens."),
    ("reinforce", "policy_loss", "loss = -advantages * logp", "loss = advantages * logp", MINUS),
    ("reinforce", "tis_weight", TIS, "rollout_logp - old_logp", TIS_INVERTED),
    # PPO
    ("ppo", "token_weights", ALL_TOKENS, ROW_MEAN, PER_RESPONSE.format("PPO")),
    ("ppo", "policy_loss", GRPO_LOSS, "loss = -clipped_ratio * advantages", NO_MINIMUM),
    # GRPO
    ("grpo", "compute_advantages", Z_SCORE, "return rewards - mean", NO_STD),
    ("grpo", "compute_advantages", "correction=args.ddof", "correction=0",
     "the standard deviation divides by G, but ddof asks for G - ddof."),
    ("grpo", "compute_advantages", "rewards.mean(1, keepdim=True)", "rewards.mean()",
     "the mean is taken over the whole batch, not over the G responses to the same prompt."),
    ("grpo", "token_weights", ROW_MEAN, ALL_TOKENS, TOKEN_MEAN.format("GRPO")),
    ("grpo", "token_weights", ROW_MEAN, "return mask / mask.sum(1, keepdim=True)", BATCH_SUM),
    ("grpo", "token_weights", ROW_MEAN, "return mask / (len(mask) * mask.shape[1])", PADDED),
    ("grpo", "policy_loss", GRPO_LOSS, "loss = -ratio * advantages",
     "nothing is ever clipped: without the trust region several updates on one batch go too far."),
    ("grpo", "policy_loss", GRPO_LOSS, "loss = -clipped_ratio * advantages", NO_MINIMUM),
    ("grpo", "policy_loss", GRPO_LOSS,
     "loss = -torch.where(advantages > 0, torch.min(ratio * advantages, clipped_ratio * advantages), "
     "torch.max(ratio * advantages, clipped_ratio * advantages))", INVERTED),
    ("grpo", "policy_loss", GRPO_LOSS, GRPO_LOSS.replace("-torch", "torch"), MINUS),
    ("grpo", "policy_loss", TOKEN_RATIO, f"ratio = torch.exp({SEQUENCE_MEAN}).expand(mask.shape)",
     "there is one ratio for the whole response: that is GSPO's. GRPO has one per token."),
    ("grpo", "policy_loss", TOKEN_RATIO, "ratio = torch.exp(logp - rollout_logp)",
     "the ratio is taken to the sampler, and TIS corrects for the sampler once more: it is counted twice. The anchor "
     "of the ratio is old_logp."),
    ("grpo", "policy_loss", TOKEN_RATIO, "ratio = torch.exp(logp - old_logp).detach()",
     "the ratio is detached, so the loss has no gradient at all."),
    ("grpo", "tis_weight", TIS, "rollout_logp - old_logp", TIS_INVERTED),
    ("grpo", "tis_weight", ".clamp(max=args.tis_cap)", "", TIS_UNCAPPED),
    # RLOO
    ("rloo", "compute_advantages", "return rewards - others", "return rewards - rewards.mean(1, keepdim=True)",
     "the baseline contains the response itself: RLOO leaves it out, which makes the gradient exactly unbiased."),
    ("rloo", "token_weights", "return mask / len(mask)", ROW_MEAN,
     PER_RESPONSE.format("RLOO") + " The log-prob of a response is the *sum* over its tokens."),
    ("rloo", "policy_loss", "loss = -advantages * logp", "loss = advantages * logp", MINUS),
    # Dr. GRPO
    ("dr_grpo", "compute_advantages", "return rewards - rewards.mean(1, keepdim=True)",
     "return (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)",
     WITH_STD.format("Dr. GRPO")),
    ("dr_grpo", "token_weights", CONSTANT, ROW_MEAN,
     "your loss still depends on response length: this is GRPO's, not Dr. GRPO's."),
    ("dr_grpo", "token_weights", CONSTANT, "return mask / (len(mask) * mask.shape[1])", PADDED),
    ("dr_grpo", "token_weights", CONSTANT, "return mask / args.max_response_tokens", BATCH_SUM),
    ("dr_grpo", "token_weights", CONSTANT, ALL_TOKENS,
     "every token is divided by the number of tokens in the batch: this is DAPO's mean. Dr. GRPO divides by a constant."),
    # DAPO
    ("dapo", "token_weights", ALL_TOKENS, ROW_MEAN, PER_RESPONSE.format("DAPO")),
    ("dapo", "policy_loss", "1 + args.clip_eps_high)  # (B, T)", "1 + args.clip_eps_low)  # (B, T)",
     "both sides of the clip use ε_low. Clip-higher is DAPO's point: unlikely tokens get more room to rise."),
    ("dapo", "policy_loss", GRPO_LOSS, "loss = -clipped_ratio * advantages", NO_MINIMUM),
    # CISPO
    ("cispo", "token_weights", ALL_TOKENS, ROW_MEAN, PER_RESPONSE.format("CISPO")),
    ("cispo", "policy_loss", "weight = ratio.clamp(max=args.ratio_cap).detach()", "weight = ratio.clamp(max=args.ratio_cap)",
     "the weight is not detached: the gradient has to flow through log π only."),
    ("cispo", "policy_loss", "loss = -weight * advantages * logp", "loss = -ratio.clamp(max=args.ratio_cap) * advantages",
     "tokens above the cap have no gradient. That is a clip; CISPO's point is that every token keeps its gradient, with "
     "a capped weight on log π."),
    ("cispo", "policy_loss", "ratio.clamp(max=args.ratio_cap)", "ratio.clamp(max=1 + args.ratio_cap)",
     "the cap is 1 + ratio_cap; the flag is the cap itself."),
    # GSPO
    ("gspo", "policy_loss", SEQUENCE_MEAN, "((logp - old_logp) * mask).sum(1, keepdim=True)",
     "the ratio is that of the whole response, Π of the tokens' ratios. GSPO takes its |o|-th root: the mean of the "
     "log-ratios, not their sum."),
    ("gspo", "policy_loss", "ratio = torch.exp(log_ratio).expand(mask.shape)", "ratio = torch.exp(logp - old_logp)",
     "there is one ratio per token: that is GRPO's. GSPO has one per response."),
    ("gspo", "policy_loss", "ratio = torch.exp(log_ratio).expand(mask.shape)",
     "ratio = torch.exp(log_ratio).expand(mask.shape).detach()",
     "the ratio is detached, so the loss has no gradient at all."),
    ("gspo", "policy_loss", SEQUENCE_MEAN, "(logp - old_logp).mean(1, keepdim=True)",
     "the mean runs over the padding too: the ratio depends on the padded width."),
    # GMPO
    ("gmpo", "policy_loss",
     "clipped = sign * torch.min(towards, towards.clamp(-args.clip_log_eps, args.clip_log_eps))  # (B, T)",
     "clipped = logp - old_logp", "no token's ratio is clipped before the geometric mean."),
    ("gmpo", "policy_loss", "torch.min(towards, towards.clamp(-args.clip_log_eps, args.clip_log_eps))",
     "towards.clamp(-args.clip_log_eps, args.clip_log_eps)", NO_MINIMUM),
    ("gmpo", "policy_loss", "loss = -torch.exp(mean) * advantages", "loss = -torch.exp(clipped) * advantages",
     "each token has its own ratio: the mean of those is GRPO's. GMPO's weight is the geometric mean over the response."),
    # DPPO
    ("dppo", "compute_advantages", "return rewards - rewards.mean(1, keepdim=True)",
     "return (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)", WITH_STD.format("DPPO")),
    ("dppo", "token_weights", CONSTANT, ROW_MEAN, PER_RESPONSE.format("DPPO")),
    ("dppo", "policy_loss", "ratio = torch.exp(logp - rollout_logp)  # (B, T), to the sampler",
     "ratio = torch.exp(logp - old_logp)", "the ratio is taken to old_logp. DPPO's is anchored on the sampler."),
    ("dppo", "policy_loss", "(advantages > 0) & (ratio > 1) & outside", "(advantages > 0) & outside",
     "a token with A > 0 is masked wherever the divergence is large, also where its probability *fell*: the way back "
     "into the trust region is closed."),
    ("dppo", "policy_loss", "& outside  # (B, T)\n    clip_neg", "# (B, T)\n    clip_neg",
     "a token with A > 0 is masked as soon as its ratio exceeds 1, whatever the divergence."),
    # MaxRL
    ("maxrl", "compute_advantages", "/ mean.clamp(min=1 / rewards.shape[1])", "/ (rewards.std(1, keepdim=True) + 1e-6)",
     "the advantages are divided by the standard deviation: this is GRPO's. MaxRL divides by the mean."),
    ("maxrl", "compute_advantages", "/ mean.clamp(min=1 / rewards.shape[1])", "",
     "the advantages are not divided by the group's mean: these are Dr. GRPO's."),
    ("maxrl", "token_weights", "return mask / len(mask)", ROW_MEAN, PER_RESPONSE.format("MaxRL")),
]  # fmt: skip
