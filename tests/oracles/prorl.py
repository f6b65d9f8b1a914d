from oracles import at_least, dapo


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
        {"renew_every": 0, "overlong_filter": True, "overlong_cache": 3, "tis_cap": 0.0},
        {"kl_beta": 0.0, "ratio_anchor": "engine", "tis_cap": 0.0, "overlong_cache": 4, "max_rounds": 1},
        {"num_minibatches": 1, "responses_per_prompt": 3, "overlong_cache": 3, "max_rounds": 2},
    ]
    RANGES = {**dapo.Oracle.RANGES, "renew_every": at_least(0)}
    DEFAULTS = {
        **dapo.Oracle.DEFAULTS,
        "renew_every": 10,
        "reset_optimizer": True,
        "clip_eps_high": 0.4,
        "kl_beta": 0.04,
    }

    def renews_reference(self, step):
        """Before a step; after n, 2n, ... of them."""
        n = self.args.renew_every
        return n > 0 and step - 1 in range(n, step, n)

    def restarts_optimizer(self, step):
        return self.args.reset_optimizer and self.renews_reference(step)
