"""The answers of reports/claims.md: what people argue about, with the claims that say something about it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Question:
    """A question that people argue about: a short answer, its conditions, and claims; the first one is pictured."""

    title: str
    answer: str
    conditions: str
    claims: tuple[str, ...]


QUESTIONS = (
    Question(
        "What do the group's baseline, size and standard deviation do?",
        "Dividing by the group's standard deviation gives prompts that are nearly never or nearly always solved more "
        "weight: with 64 responses per prompt, one that is solved 1% of the time has 3.39 times the weight of one that "
        "is solved half of the time, with 8 responses 1.41 times. With equal numbers of responses, groups of 2 do as "
        "well as groups of 8, GRPO does as well as PPO with its default critic or better, and replacing groups without "
        "signal is not worth the extra responses.",
        "With 2 or 3 responses per prompt, the group's standard deviation gives no prompt more weight. With 16, the "
        "standard deviation of the batch gives three prompts of different difficulty nearly the same weight "
        "(batch_std_weighs_prompts_alike). On one prompt, groups of 2 have twice the variance of groups of 64 at equal "
        "responses; in training they are spread over more prompts. Groups without signal were replaced in rounds of 8 "
        "prompts. Over equal responses that lowers the mean accuracy by 0.026 ± 0.011 on sums and 0.038 ± 0.018 on "
        "search, where the same arm with other seeds differs by +0.003 ± 0.012 and -0.016 ± 0.016.",
        (
            "std_favors_extremes",
            "small_groups_are_noisier",
            "small_groups_suffice",
            "critic_is_unnecessary",
            "dynamic_sampling_pays",
        ),
    ),
    Question(
        "What does the clip do?",
        "It stops the gradient of a token that has moved past the bounds in the direction of its advantage, but it "
        "does not keep the token inside: after 16 updates from a fresh optimizer 8% of the tokens are outside. At the "
        "best learning rates only dropping the upper bound on search certainly costs accuracy, 0.081 ± 0.022; on sums "
        "that costs 0.022 ± 0.028, and dropping the lower one costs 0.022 ± 0.024 on sums and 0.006 ± 0.034 on search.",
        "All with 16 updates from each batch. A loss of 0.05 would be worth naming; for new problems too, neither "
        "bound's interval on sums excludes it. At those rates the clip acts on at most 1% of the loss on sums and 0.1% "
        "on search; we do not know why clipping so little matters so much there. Dropping both costs 0.013 ± 0.021 on "
        "sums; on search this was not tried. At 1e-4, three times the best rate on sums, the mean of two seeds is 50% "
        "with both bounds, 14% with the lower one alone, 25% with the upper one alone, and 4% with none; at 3e-4 all "
        "collapse. On sums GSPO, with 61.1% of the loss clipped, ends as high as GRPO (-0.003 ± 0.017). With a fresh "
        "optimizer, nearly all that the clip silences are tokens where a response forks (clip_silences_the_forks). "
        "With both bounds, four passes over a batch instead of one change accuracy by +0.023 ± 0.022 on sums and "
        "-0.019 ± 0.022 on search. In the tables, *lower alone* has no upper bound, and *upper alone* no lower one.",
        (
            "clip_needs_both_bounds",
            "clip_on_search_needs_both_bounds",
            "clip_keeps_ratios_within_its_bounds",
            "reusing_responses_pays",
            "gspo_clips_more_and_learns_as_well",
        ),
    ),
    Question(
        "How old may rollouts be?",
        "With TIS, the default, GRPO's rollouts may be 8 batches old at a cost of 0.026 ± 0.021 of accuracy on sums "
        "and 0.082 ± 0.029 on search. With nothing to correct for their age the cost is 0.189 ± 0.040 and 0.217 ± "
        "0.024, and with the log-probs of the weights that sampled, in ratio and clip, 0.082 ± 0.020 and 0.105 ± "
        "0.023.",
        "Only fresh rollouts and ages of 8 batches were compared. Each arm has its best learning rate, and makes four "
        "updates from each batch; stale arms get 8 batches more, because their first batches are the base model's: 27% "
        "more responses on sums and 20% on search. The two claims of harmlessness are about the log-probs of the "
        "weights that sampled; with TIS, the same rule would say reproduced on sums and contradicted on search. On the "
        "[stress page](stress.md), where all but DPPO have TIS, only REINFORCE and GMPO lose significantly (six "
        "seeds).",
        (
            "stale_rollouts_are_harmless",
            "importance_sampling_helps_stale_rollouts",
            "stale_search_is_harmless",
        ),
    ),
    Question(
        "How exact must the engine's log-probs be?",
        "With 4-bit weights in the engine, log-probs that the learner recomputes work better: GRPO without TIS then "
        "reaches 0.734 on sums and 0.745 on search, but 0.600 and 0.531 with the engine's log-probs in the ratio. "
        "Rounding changes the log-probs of rare tokens most, and FP16 leaves an eighth of BF16's mismatch.",
        "Each arm with 4-bit weights has its best learning rate. With an engine in full precision GRPO reaches 0.743 "
        "and 0.837 (critic_is_unnecessary). The engine's log-probs in the ratio help where the engine is merely old. "
        "With a 4-bit engine, TIS per token costs 0.039 ± 0.022 on sums and gains 0.055 ± 0.026 on search (0.039 ± "
        "0.054 at equal tokens), where accuracy reaches 0.800. tis_repairs_the_gradient is contradicted because it is "
        "about the bias of a single gradient, in a small exact example: weights of tokens remove 16% of it, weights of "
        "whole responses 86%. The runs measure accuracy at the end.",
        (
            "fp16_removes_the_mismatch",
            "tis_repairs_the_gradient",
            "sampler_anchor_suits_a_quantized_sampler",
            "sampler_anchor_on_quantized_search",
        ),
    ),
    Question(
        "What makes responses long?",
        "True rewards do: after 30 steps responses on sums are 17.6 ± 2.8 tokens longer than with the same rewards "
        "shuffled in each group. GRPO's mean over each response may lengthen incorrect answers too, by 1.9 ± 1.3 "
        "tokens on sums with filler text and by 10.1 ± 8.4, or 5%, on search, where the same arm with other seeds "
        "differs by 6.2 ± 7.6.",
        "The lengthening on sums is below the smallest effect worth naming, and neither effect is significant once "
        "adjusted for all comparisons, so the two worlds leave that claim open. The expected gradient has this bias. "
        "Without the division by the standard deviation the lengthening is 4.6 ± 1.3 tokens on sums, the only effect "
        "of that mean in training that is significant after the adjustment; there the best learning rates of each pair "
        "differ, which may change lengths too. True and shuffled rewards were compared at one learning rate.",
        (
            "thinking_lengthens_because_it_pays",
            "token_mean_removes_length_bias",
            "response_mean_lengthens_wrong_answers",
            "response_mean_lengthens_search",
        ),
    ),
    Question(
        "Does reinforcement learning teach anything new?",
        "In the two settings where it was tested, nothing that more samples from the base model, or from random "
        "expressions, would not give: on sums of 5 to 8 terms pass@1 rises from 0.081 to 0.327 and pass@32 stays "
        "(+0.010 ± 0.014), and on the hardest search problems pass@16 rises from 7% to 41%, but 16 random expressions "
        "reach 62%. What is gained depends on the base model: one with all habits of search rises from 0.234 to 0.833 "
        "on search, one that only guesses stays at 0.131, which is chance (0.138).",
        "At three times the best learning rate pass@32 of the sums fell in five early seeds on the same problems; with "
        "later scripts the same seeds gave -0.047 ± 0.053, which is inconclusive. k above 32 was not tested there. The "
        "7% was measured on 128 other problems ([search](../worlds/search/README.md)). A base model that was taught to "
        "box incorrect answers, whatever its search finds, ends at 0.138. Incorrect responses alone give most of the "
        "gain, but end 0.051 ± 0.022 (sums) and 0.112 ± 0.025 (search) below all responses; at equal tokens, 0.029 ± "
        "0.026 and 0.127 ± 0.026 below. MaxRL, which weighs hard prompts more, has a higher pass@64 than GRPO in an "
        "exact example (maxrl_keeps_pass_at_k: 0.699 and 0.635 at the same pass@1); in training it changes pass@16 by "
        "+0.025 ± 0.025 on the hardest search problems and pass@32 by -0.008 ± 0.021 on sums of 5 to 8 terms. Rewards "
        "that are coin flips did not help: they change accuracy by -0.002 ± 0.003 on sums and -0.002 ± 0.014 on search "
        "at the learning rate that suits them best, on sums the lowest that was tried; in the sweep, at 1e-4 and "
        "above, accuracy falls far below the base model's. The paper attributes the gain to clipping, and here almost "
        "nothing was clipped.",
        (
            "habits_decide_what_rl_gains",
            "negatives_suffice",
            "rl_trades_pass_at_k_for_pass_at_1",
            "maxrl_keeps_pass_at_k_in_training",
            "maxrl_keeps_pass_at_k_on_search",
            "random_rewards_teach",
        ),
    ),
)
IDENTITIES = {  # what follows from the formulas of the scripts, by its former name as a claim; tests compute it
    "leave_one_out_with_std": "RLOO's leave-one-out baseline with GRPO's standard deviation is no method of its own: "
    "advantages are GRPO's times G / (G - 1).",
    "loss_constants_are_a_learning_rate": "With AdamW a constant factor of the loss changes nothing, as long as no "
    "gradient is clipped; with plain gradient descent it is a learning rate.",
    "maxrl_weighs_by_one_over_p": "MaxRL with N responses follows the gradient of log p, cut off after N - 1 terms, "
    "which gives a prompt the weight (1 - (1 - p)^(N - 1)) / p (2602.02710, App. D, Theorem 5).",
    "one_response_gives_nothing": "A group of one response has an advantage of 0; with the sample's standard deviation "
    "it is undefined. Some libraries take the reward instead.",
    "own_reward_in_the_baseline_biases": "A baseline that holds the response's own reward, as GRPO's group mean does, "
    "shortens the expected gradient to (G - 1) / G and does not turn it (2503.20783, App. A).",
    "ppo_is_a_mask": "PPO's clipped objective has the gradient of M r A, with M = 0 once the ratio has left 1 ± ε in "
    "the direction of the advantage; the values of the loss differ.",
    "ppo_without_discount_is_reinforce": "With γ = λ = 1, on-policy and not whitened, PPO is REINFORCE with a learned "
    "baseline (1506.02438, Eq. 16).",
    "rewards_of_plus_minus_one_matter": "Rewards of 1 and -1, as in DAPO, give the same advantages as 1 and 0, or all "
    "of them twice as large.",
    "std_cancels_the_reward_scale": "Divided by the group's standard deviation, GRPO's advantages do not depend on the "
    "scale and offset of rewards (2402.03300, Sec. 4.1.2).",
}
