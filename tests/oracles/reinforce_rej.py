from oracles import Row, grpo


class Oracle(grpo.Oracle):
    CASES = [
        {},
        {"keep": "right", "clip_eps": 0.05},
        {"keep": "right", "loss": "log-prob", "kl_beta": 0.3, "tis_cap": 0.0},
        {"loss": "log-prob", "keep": "all"},
        {"ratio_anchor": "sampler", "tis_cap": 0.0, "keep": "all"},
        {"tis_cap": 1.1, "num_minibatches": 1, "update_epochs": 1, "responses_per_prompt": 3},
    ]
    RANGES = {name: ok for name, ok in grpo.Oracle.RANGES.items() if name != "ddof"}
    DEFAULTS = {
        **{name: value for name, value in grpo.Oracle.DEFAULTS.items() if name != "ddof"},
        "keep": "mixed",
        "loss": "clip",
    }

    def rewards(self, groups, kl):
        return [[1.0 if r.correct else -1.0 for r in group] for group in groups]

    def advantages(self, rewards):
        def kept(reward, group):
            if self.args.keep == "right":
                return reward == 1
            return self.args.keep == "all" or len(set(group)) > 1

        return [[r if kept(r, group) else 0.0 for r in group] for group in rewards]

    def row(self, row: Row):
        if self.args.loss == "clip":
            return super().row(row)
        slopes = [-w * a for w, a in zip(self.tis(row), row.advantages, strict=True)]
        return [slope * new for slope, new in zip(slopes, row.new, strict=True)], slopes
