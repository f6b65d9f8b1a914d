"""Known mistakes, for the checks to name: each is a change of a script's own source, and what to tell the student.

(exercise, the line as it is, the line with the mistake, message). Another method's function in place of the right one,
settings and masks that are ignored and hard-coded shapes are found without being listed; `runner.py` finds what has the
wrong kind: nothing, a scalar, NumPy, an input changed in place, no gradient.
"""

GRPO_LOSS = "loss = -torch.min(ratio * advantages, clipped_ratio * advantages)  # (B, T)"
INVERTED_LOSS = (
    "loss = -torch.where(advantages > 0, torch.min(ratio * advantages, clipped_ratio * advantages), "
    "torch.max(ratio * advantages, clipped_ratio * advantages))"
)
ROW_MEAN = "return mask / (len(mask) * mask.sum(1, keepdim=True))"
CONSTANT = "return mask / (len(mask) * args.max_response_tokens)"
ALL_TOKENS = "return mask / mask.sum().clamp(min=1)"
TOKEN_RATIO = "ratio = torch.exp(logp - old_logp)  # (B, T)"
SEQUENCE_MEAN = "((logp - old_logp) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)"
TOWARDS = "torch.min(towards, towards.clamp(-args.clip_log_eps, args.clip_log_eps))"

# What each method's function is, to name it where it stands in place of another's.
WHAT = {
    "reinforce.compute_advantages": "the reward less the mean of the whole batch",
    "rloo.compute_advantages": "the reward less the mean of the others",
    "grpo.compute_advantages": "divided by the standard deviation of the group",
    "dr_grpo.compute_advantages": "the reward less the group's mean, not divided by anything",
    "maxrl.compute_advantages": "the reward less the group's mean, divided by that mean",
    "reinforce.token_weights": "the sum over the tokens of a response",
    "grpo.token_weights": "the mean over the tokens of each response",
    "dr_grpo.token_weights": "the sum over tokens divided by a constant",
    "dapo.token_weights": "the mean over all tokens, in which long responses count more",
    "reinforce.policy_loss": "log π times the advantage, without a ratio",
    "grpo.policy_loss": "the ratio of each token, clipped alike on both sides",
    "cispo.policy_loss": "log π with a capped, detached weight",
    "gspo.policy_loss": "one ratio for the whole response",
    "gmpo.policy_loss": "the geometric mean of clipped ratios",
    "grpo.tis_weight": "a weight for each token",
    "gmpo.tis_weight": "one weight for the whole response",
}

MINUS = "the sign is wrong: the loss is minus the objective, and descending on yours makes right answers rarer."
SWAPPED = "min and max are swapped: the objective is the smaller of the two terms, and the loss is minus that."
NO_MINIMUM = (
    "the clip ends the gradient in both directions. The minimum is missing: a token that moved the wrong way must "
    "always have its gradient."
)
UNCLIPPED = "nothing is ever clipped: without the trust region several updates on one batch go too far."
INVERTED = (
    "for A < 0 the clip is the wrong way round: the gradient is kept exactly where it must vanish (a ratio below "
    "1 - ε) and vanishes where it is needed."
)
ON_LOG = "the clip is on the log ratio, at ±ε. It belongs on the ratio: exp(-ε) and exp(ε) are not 1 - ε and 1 + ε."
UPSIDE_DOWN = "the ratio is upside down: it is the policy's probability now over that before."
SAMPLER = (
    "the ratio is taken to the sampler, and TIS corrects for the sampler once more: it is counted twice. The anchor of "
    "the ratio is old_logp."
)
TIS_INVERTED = "the TIS weight is upside down: it is π_old / π_sampler, the learner's probability over the sampler's."
TIS_UNCAPPED = "the TIS weight is not capped at tis_cap: one token of the sampler's tail could outweigh the batch."
TIS_OF_0 = "a tis_cap of 0 turns TIS off: all weights are 1. Yours are 0, and nothing is learned."
BATCH_SUM = "the weights are summed over responses, not averaged: they must be divided by the number of rows B too."
PADDED = "the weights depend on the padded width T of the mask: the same batch with more padding has another loss."
ARITHMETIC = (
    "the mean of the ratios is arithmetic, and that is GRPO's. GMPO's is geometric: the exp of the mean log ratio."
)
WHOLE_BATCH = "the mean is taken over the whole batch, not over the G responses to the same prompt."
SIGN_A = "the sign is wrong: a response better than its baseline has a positive advantage."


def clipped(script: str, low: str, high: str) -> list[tuple[str, str, str, str]]:
    """The mistakes that all clipped losses share."""
    clip = f"ratio.clamp(1 - args.{low}, 1 + args.{high})  # (B, T)"
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
    """The mistakes in a ratio per token."""
    return [
        (f"{script}.policy_loss", TOKEN_RATIO, new, message)
        for new, message in (
            ("ratio = torch.exp(old_logp - logp)", UPSIDE_DOWN),
            ("ratio = torch.exp(logp - rollout_logp)", SAMPLER),
            ("ratio = logp - old_logp + 1", "the exp is missing: the ratio is exp(logp - old_logp)."),
        )
    ]


MISTAKES = [
    # REINFORCE
    ("reinforce.compute_advantages", "rewards.mean()", "rewards.mean(1, keepdim=True)",
     "the baseline is the mean of the group; here it is the mean of the whole batch."),
    ("reinforce.compute_advantages", "return rewards - baseline", "return baseline - rewards", SIGN_A),
    ("reinforce.token_weights", "return mask / len(mask)", "return mask * 1.0", BATCH_SUM),
    ("reinforce.token_weights", "return mask / len(mask)", "return mask / mask.shape[1]",
     "it divides by the width T of the mask; the mean is over the B rows."),
    ("reinforce.policy_loss", "loss = -advantages * logp", "loss = advantages * logp", MINUS),
    ("reinforce.policy_loss", "loss = -advantages * logp", "loss = -advantages * logp.exp()",
     "it weights the probability; the policy gradient is that of log π: no exp."),
    # RLOO
    ("rloo.compute_advantages", "(rewards.shape[1] - 1)", "rewards.shape[1]",
     "the mean of the others divides by G; there are G - 1 others."),
    ("rloo.compute_advantages", "return rewards - others", "return rewards - rewards.mean(1, keepdim=True)",
     "the baseline contains the response itself: RLOO leaves it out, which makes the gradient exactly unbiased."),
    ("rloo.compute_advantages", "return rewards - others", "return others - rewards", SIGN_A),
    # GRPO
    ("grpo.compute_advantages", "(rewards - mean)", "(mean - rewards)", SIGN_A),
    ("grpo.compute_advantages", "rewards.mean(1, keepdim=True)", "rewards.mean()", WHOLE_BATCH),
    ("grpo.compute_advantages", "rewards.std(1, correction=args.ddof, keepdim=True)", "rewards.std(correction=args.ddof)",
     "the standard deviation is that of the whole batch, not of the G responses to the same prompt."),
    ("grpo.compute_advantages", "(std + 1e-6)", "(std**2 + 1e-6)", "it divides by the variance: the root is missing."),
    ("grpo.compute_advantages", "(std + 1e-6)", "std", "a group without signal becomes 0 / 0: put an ε beside the std."),
    ("grpo.compute_advantages", "(std + 1e-6)", "(std + 0.1)", "the ε beside the std is too large: it changes advantages."),
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
     "π_θ and π_ref are exchanged: this is k3 of the KL the other way round."),
    ("grpo.kl_penalty", "torch.exp(ref_logp - logp) - (ref_logp - logp) - 1", "logp - ref_logp",
     "this is k1: its value is right on average, its gradient in the loss is 0 on average."),
    ("grpo.kl_penalty", "torch.exp(ref_logp - logp) - (ref_logp - logp) - 1", "0.5 * (logp - ref_logp) ** 2",
     "this is k2, half the squared log ratio; k3 is wanted."),
    ("grpo.kl_penalty", "torch.exp(ref_logp - logp) - (ref_logp - logp) - 1",
     "1 + (ref_logp - logp) - torch.exp(ref_logp - logp)",
     "the sign is wrong: a KL estimate by k3 is never negative, and yours would reward drifting away."),
    # Dr. GRPO
    ("dr_grpo.compute_advantages", "rewards - rewards.mean(1, keepdim=True)", "rewards.mean(1, keepdim=True) - rewards", SIGN_A),
    ("dr_grpo.compute_advantages", "rewards.mean(1, keepdim=True)", "rewards.mean()", WHOLE_BATCH),
    ("dr_grpo.token_weights", CONSTANT, ROW_MEAN,
     "your loss still depends on response length: this is GRPO's, not Dr. GRPO's."),
    ("dr_grpo.token_weights", CONSTANT, "return mask / (len(mask) * mask.shape[1])", PADDED),
    ("dr_grpo.token_weights", CONSTANT, "return mask / args.max_response_tokens", BATCH_SUM),
    # DAPO
    ("dapo.token_weights", ALL_TOKENS, "return mask / mask.numel()", PADDED),
    ("dapo.policy_loss", "1 + args.clip_eps_high)  # (B, T)", "1 + args.clip_eps_low)  # (B, T)",
     "both sides of the clip use ε_low. Clip-higher is DAPO's point: unlikely tokens get more room to rise."),
    ("dapo.policy_loss", "ratio.clamp(1 - args.clip_eps_low, 1 + args.clip_eps_high)",
     "ratio.clamp(1 - args.clip_eps_high, 1 + args.clip_eps_low)", "ε_low and ε_high are exchanged."),
    *clipped("dapo", "clip_eps_low", "clip_eps_high"),
    *token_ratio("dapo"),
    ("dapo.has_signal", "(correct.mean(1) > 0) & (correct.mean(1) < 1)", "rewards.std(1) > 0",
     "it filters on the shaped rewards: a group that is all correct but of different lengths is kept. What counts is "
     "whether the answers are correct."),
    ("dapo.has_signal", "(correct.mean(1) > 0) & (correct.mean(1) < 1)", "correct.mean(1) > 0",
     "groups that are all correct are kept: their advantages are 0 too."),
    ("dapo.has_signal", "(correct.mean(1) > 0) & (correct.mean(1) < 1)", "correct.mean(1) < 1",
     "groups that are all wrong are kept: their advantages are 0 too."),
    ("dapo.has_signal", "(correct.mean(1) > 0) & (correct.mean(1) < 1)", "~((correct.mean(1) > 0) & (correct.mean(1) < 1))",
     "it is the wrong way round: True means that the group is kept."),
    # CISPO
    ("cispo.policy_loss", "ratio.clamp(max=args.ratio_cap).detach()", "ratio.clamp(max=args.ratio_cap)",
     "the weight is not detached: the gradient has to flow through log π only."),
    ("cispo.policy_loss", "loss = -weight * advantages * logp", "loss = -ratio.clamp(max=args.ratio_cap) * advantages",
     "tokens above the cap have no gradient. That is a clip; CISPO's point is that every token keeps its gradient, with "
     "a capped weight on log π."),
    ("cispo.policy_loss", "ratio.clamp(max=args.ratio_cap)", "ratio.clamp(max=1 + args.ratio_cap)",
     "the cap is 1 + ratio_cap; the setting is the cap itself."),
    ("cispo.policy_loss", "ratio.clamp(max=args.ratio_cap)", "ratio.clamp(0.8, args.ratio_cap)",
     "the weight has a lower clip; CISPO has only the cap above."),
    ("cispo.policy_loss", "ratio.clamp(max=args.ratio_cap)", "ratio.clamp(1 / args.ratio_cap, args.ratio_cap)",
     "the weight has a lower clip; CISPO has only the cap above."),
    ("cispo.policy_loss", "ratio.clamp(max=args.ratio_cap)", "ratio", "the weight has no cap."),
    ("cispo.policy_loss", "loss = -weight", "loss = weight", MINUS),
    ("cispo.policy_loss", "loss = -weight * advantages * logp", "loss = -weight * advantages * ratio",
     "the weight stands on the ratio, not on log π: the ratio is in the gradient twice."),
    *token_ratio("cispo"),
    # GSPO
    *clipped("gspo", "clip_eps_low", "clip_eps_high"),
    ("gspo.policy_loss", SEQUENCE_MEAN, "((logp - old_logp) * mask).sum(1, keepdim=True)",
     "the ratio is that of the whole response, Π of the tokens' ratios. GSPO takes its |o|-th root: the mean of the "
     "log-ratios, not their sum."),
    ("gspo.policy_loss", SEQUENCE_MEAN,
     "torch.log((torch.exp(logp - old_logp) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True))",
     "the mean of the ratios is arithmetic; GSPO's is geometric, the exp of the mean log ratio."),
    ("gspo.policy_loss", "ratio = torch.exp(log_ratio).expand(mask.shape)", "ratio = torch.exp(logp - old_logp)",
     "there is one ratio per token: that is GRPO's. GSPO has one per response."),
    ("gspo.policy_loss", SEQUENCE_MEAN, SEQUENCE_MEAN.replace("logp - old_logp", "old_logp - logp"), UPSIDE_DOWN),
    ("gspo.policy_loss", SEQUENCE_MEAN, SEQUENCE_MEAN.replace("old_logp", "rollout_logp"), SAMPLER),
    ("gspo.policy_loss", "1 + args.clip_eps_high)  # (B, T)", "1 + args.clip_eps_low)  # (B, T)",
     "both sides of the clip use ε_low; GSPO has ε_high above."),
    # GMPO
    ("gmpo.policy_loss", f"sign * {TOWARDS}", "logp - old_logp", "no token's ratio is clipped before the geometric mean."),
    ("gmpo.policy_loss", TOWARDS, "towards.clamp(-args.clip_log_eps, args.clip_log_eps)", NO_MINIMUM),
    ("gmpo.policy_loss", TOWARDS, TOWARDS.replace("min", "max", 1), SWAPPED),
    ("gmpo.policy_loss", "loss = -torch.exp(mean) * advantages", "loss = -torch.exp(clipped) * advantages", ARITHMETIC),
    ("gmpo.policy_loss", "mean = (clipped * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)",
     "mean = (clipped * mask).sum(1, keepdim=True)", "it is the product of the ratios; the |o|-th root is missing."),
    ("gmpo.policy_loss", "loss = -torch.exp(mean)", "loss = torch.exp(mean)", MINUS),
    ("gmpo.policy_loss", "clipped = sign * torch", "clipped = torch", "the clipped log ratio has lost its sign for A < 0."),
    ("gmpo.policy_loss", TOWARDS,
     "torch.min(towards, sign * torch.log(torch.exp(logp - old_logp).clamp(1 - args.clip_log_eps, 1 + args.clip_log_eps)))",
     "the clip is on the ratio, at 1 ± ε. GMPO's is on the log ratio, at ±ε."),
    ("gmpo.tis_weight", "old_logp - rollout_logp", "rollout_logp - old_logp", TIS_INVERTED),
    ("gmpo.tis_weight", ".clamp(max=args.tis_cap)", "", TIS_UNCAPPED),
    ("gmpo.tis_weight", "torch.exp((weight.log() * mask)", "((weight * mask)",
     "the mean of the weights is arithmetic; GMPO's is geometric, the exp of the mean log."),
    # DPPO
    ("dppo.policy_loss", "ratio = torch.exp(logp - rollout_logp)  # (B, T), to the sampler",
     "ratio = torch.exp(logp - old_logp)", "the ratio is taken to old_logp. DPPO's is anchored on the sampler."),
    ("dppo.policy_loss", "(advantages > 0) & (ratio > 1) & outside", "(advantages > 0) & outside",
     "a token with A > 0 is masked wherever the divergence is large, also where its probability *fell*: the way back "
     "into the trust region is closed."),
    ("dppo.policy_loss", "& outside  # (B, T)\n    clip_neg", "# (B, T)\n    clip_neg",
     "a token with A > 0 is masked as soon as its ratio exceeds 1, whatever the divergence."),
    ("dppo.policy_loss", "keep = ~(clip_pos | clip_neg)", "keep = ~outside",
     "a token is masked wherever the divergence is large, whichever way it moved: the way back is closed."),
    ("dppo.policy_loss", "loss = -(keep", "loss = (keep", MINUS),
    ("dppo.policy_loss", "ratio.clamp(max=args.ratio_cap).detach() * advantages * logp",
     "ratio.clamp(max=args.ratio_cap) * advantages * logp",
     "the weight is not detached: the gradient has to flow through log π only."),
    ("dppo.policy_loss", "outside = divergence(mu, pi, args.divergence) > args.delta", "outside = (mu - pi).abs()[..., 0] > 2",
     "no token is ever masked: there is no trust region."),
    # PPO
    ("ppo.compute_advantages", "* next_value - values[:, t]", "* next_value",
     "δ lacks the value of the state itself: δ = r + γ V(next) - V."),
    ("ppo.compute_advantages", "args.gamma * args.gae_lambda * gae", "args.gae_lambda * gae",
     "the sum of the δ decays with λ alone; it is γ λ."),
    ("ppo.compute_advantages", "args.gamma * args.gae_lambda * gae", "args.gamma * gae",
     "λ is missing: this is the whole discounted return less the value."),
    ("ppo.compute_advantages", "return advantages, (advantages + values) * mask", "return advantages, advantages * mask",
     "the returns lack the values: returns = advantages + values."),
    ("ppo.compute_advantages", "next_value = values[:, t] * mask[:, t]", "next_value = values[:, t]",
     "the value on padding is used as the next value of a response's last token; after the end it is 0."),
    ("ppo.compute_advantages", "reversed(range(values.shape[1]))", "range(values.shape[1])",
     "it goes forward through the response; GAE is a recursion from the end."),
    ("ppo.value_loss", "torch.max(", "torch.min(", SWAPPED.replace("objective", "loss").replace("smaller", "larger")
     .replace(", and the loss is minus that", "")),
    ("ppo.value_loss", "torch.max((values - returns) ** 2, (near - returns) ** 2)", "(values - returns) ** 2",
     "the plain squared error: the clip is missing."),
    ("ppo.value_loss", "torch.max((values - returns) ** 2, (near - returns) ** 2)", "(near - returns) ** 2",
     "only the clipped error: where the value moved the wrong way, it must still have its gradient."),
    ("ppo.value_loss", "0.5 * ", "", "the factor ½ is missing."),
    ("ppo.value_loss", "(values - old_values).clamp(-args.value_clip, args.value_clip)",
     "(values - returns).clamp(-args.value_clip, args.value_clip)",
     "the value is kept near the return; it is to be kept near the old value."),
    # MaxRL
    ("maxrl.compute_advantages", "/ mean.clamp(min=1 / rewards.shape[1])", "/ mean",
     "a group without a correct response becomes 0 / 0."),
    ("maxrl.compute_advantages", "(rewards - mean)", "(mean - rewards)", SIGN_A),
    ("maxrl.compute_advantages", "(rewards - mean) / mean.clamp(min=1 / rewards.shape[1])",
     "rewards / mean.clamp(min=1 / rewards.shape[1])", "the mean is not taken off: a group all correct has advantages too."),
]  # fmt: skip
