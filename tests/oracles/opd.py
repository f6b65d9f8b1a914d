from oracles import ENGINE_ANCHOR, at_least, grpo, without


class Oracle(grpo.Oracle):
    LEARNS_WITHOUT_REWARDS = LEARNS_WHEN_ALL_IS_CORRECT = True
    CASES = [
        {"kl": "full", "kl_beta": 0.3},
        {"teacher": "the one of the tests", "tis_cap": 0.0, "kl_beta": 0.3},
        ENGINE_ANCHOR,
        {"tis_cap": 1.1, "num_minibatches": 1, "update_epochs": 1, "responses_per_prompt": 1},
    ]
    RANGES = {
        **without(grpo.Oracle.RANGES, "clip_eps", "ddof"),
        "responses_per_prompt": at_least(1),
    }
    DEFAULTS = {
        **without(grpo.Oracle.DEFAULTS, "clip_eps", "ddof"),
        "teacher": None,
        "kl": "sampled",
    }

    def token_advantages(self, responses):
        return [[0.0] * len(response.tokens) for response in responses]  # `prepare` sets them

    def prepare(self, rows):
        for row in rows:
            said = [every[token].item() for every, token in zip(row.teacher, row.tokens, strict=True)]
            row.advantages = [t - own for t, own in zip(said, self.anchor(row), strict=True)]

    def bounds(self):
        return 0.0, float("inf")

    def with_kl(self, row):
        losses, slopes = super().with_kl(row)
        if self.args.kl == "full":
            without, their_slopes = self.row(row)
            losses = [a - b for a, b in zip(losses, without, strict=True)]
            slopes = [a - b for a, b in zip(slopes, their_slopes, strict=True)]
        return losses, slopes

    def distribution_loss(self, row, every):
        """The KL at each token as a sum over the vocabulary."""
        if self.args.kl == "sampled":
            return 0.0
        return sum(
            sum(p.exp() * (p - q) for p, q in zip(mine, theirs, strict=True))
            for mine, theirs in zip(every, row.teacher, strict=True)
        )

    def token_numbers(self, row):
        return self.kl_numbers(row)
