import math

from oracles import at_least, dapo, not_negative


class Oracle(dapo.Oracle):
    CASES = [
        {
            "renew_every": 2,
            "clip_eps_low": 0.05,
            "clip_eps_high": 0.08,
            "overlong_cache": 4,
            "kl_beta": 0.3,
            "steps": 4,
        },
        {"renew_every": 1, "reset_optimizer": False, "ddof": 0, "overlong_cache": 0, "tis_cap": 1.1, "steps": 3},
        {
            "renew_every": 0,
            "renew_at_kl": 1e-3,
            "kl_beta": 0.3,
            "overlong_filter": True,
            "overlong_cache": 4,
            "steps": 4,
        },
        {"renew_every": 0, "overlong_filter": True, "overlong_cache": 3, "tis_cap": 0.0},
        {"kl_beta": 0.0, "ratio_anchor": "engine", "tis_cap": 0.0, "overlong_cache": 4, "max_rounds": 1},
        {"num_minibatches": 1, "responses_per_prompt": 3, "overlong_cache": 3, "max_rounds": 2},
    ]
    RANGES = {**dapo.Oracle.RANGES, "renew_every": at_least(0), "renew_at_kl": not_negative}
    DEFAULTS = {
        **dapo.Oracle.DEFAULTS,
        "renew_every": 10,
        "renew_at_kl": 0.0,
        "reset_optimizer": True,
        "clip_eps_high": 0.4,
        "kl_beta": 0.04,
    }

    def settings_fit(self):
        return super().settings_fit() and not (self.args.renew_at_kl > 0 and self.args.kl_beta == 0)

    def renews_reference(self, step, rows, responses):
        """After n, 2n, ... steps, or once the mean KL of the tokens in the loss has reached the limit."""
        n, limit = self.args.renew_every, self.args.renew_at_kl
        counted = [row for row, response in zip(rows, responses, strict=True) if self.counts(response)]
        gaps = [ref - old for row in counted for ref, old in zip(row.ref, row.old, strict=True)]
        kl = sum(math.exp(gap) - gap - 1 for gap in gaps) / max(1, len(gaps))
        return (n > 0 and step - 1 in range(n, step, n)) or 0 < limit <= kl

    def restarts_optimizer(self):
        return self.args.reset_optimizer
