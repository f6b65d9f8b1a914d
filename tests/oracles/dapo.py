from oracles import grpo, positive, without


class Oracle(grpo.Oracle):
    CASES = [
        {"clip_eps_low": 0.05, "clip_eps_high": 0.08, "overlong_cache": 4, "kl_beta": 0.3, "tis_cap": 1.1},
        {"clip_eps_low": 0.05, "clip_eps_high": 0.08, "ddof": 0, "overlong_cache": 0},
        {"kl_beta": 0.3, "tis_cap": 0.0, "overlong_filter": True, "overlong_cache": 3},
        {"ratio_anchor": "engine", "tis_cap": 0.0, "overlong_cache": 4, "max_rounds": 1},
        {"tis_cap": 1.1, "num_minibatches": 1, "responses_per_prompt": 3, "overlong_cache": 3, "max_rounds": 2},
    ]
    RANGES = {
        **without(grpo.Oracle.RANGES, "clip_eps"),
        "clip_eps_low": positive,
        "clip_eps_high": positive,
        "max_rounds": lambda v: v >= 1,
        "overlong_cache": lambda v: v >= 0,
    }
    DEFAULTS = {
        **without(grpo.Oracle.DEFAULTS, "clip_eps"),
        "clip_eps_low": 0.2,
        "clip_eps_high": 0.28,
        "max_rounds": 10,
        "overlong_cache": 19,  # a fifth of the length limit, as in the paper
        "overlong_filter": False,
    }

    def settings_fit(self):
        return self.args.overlong_cache <= self.args.max_response_tokens

    def bounds(self):
        return 1 - self.args.clip_eps_low, 1 + self.args.clip_eps_high

    @staticmethod
    def mixed(group):
        return 0 < sum(r.correct for r in group) < len(group)

    def batch(self, rounds):
        groups = [group for groups in rounds for group in groups]
        P = self.args.prompts_per_step
        kept = [group for group in groups if self.mixed(group)]
        assert len(kept) >= P or len(rounds) == self.args.max_rounds, "it stopped too early"
        before_last = [group for groups in rounds[:-1] for group in groups if self.mixed(group)]
        assert len(before_last) < P, "it went on with a full batch"
        return (kept + [group for group in groups if not self.mixed(group)])[:P]

    def counts(self, response):
        return not (self.args.overlong_filter and response.truncated)

    def leaves_out(self):
        return self.args.overlong_filter

    def rewards(self, groups, kl):
        start, cache = self.args.max_response_tokens - self.args.overlong_cache, self.args.overlong_cache
        rewards = []
        for group in groups:
            # Lengths give no signal to a group without one: equal rewards have advantages of 0.
            penalty = [min(1.0, max(0.0, (len(r.tokens) - start) / cache)) if cache else 0.0 for r in group]
            rewards.append(
                [(1.0 if r.correct else -1.0) - p for r, p in zip(group, penalty, strict=True)]
                if self.mixed(group)
                else [0.0] * len(group)
            )
        return rewards

    def weight(self, lengths, i):
        return 1 / max(1, sum(lengths))

    def logged_rewards(self, groups, kl):
        """Rewards of all groups, including those without signal."""
        start, cache = self.args.max_response_tokens - self.args.overlong_cache, self.args.overlong_cache
        return [
            [
                (1.0 if r.correct else -1.0) - (min(1.0, max(0.0, len(r.tokens) - start) / cache) if cache else 0.0)
                for r in group
            ]
            for group in groups
        ]

    def step_numbers(self, rounds, groups, rows):
        return {
            "sampled_prompts": sum(map(len, rounds)),
            "kept_groups": sum(0 < sum(r.correct for r in group) < len(group) for group in groups),
        }
