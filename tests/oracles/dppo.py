import math

from oracles import Row, dr_grpo, positive


class Oracle(dr_grpo.Oracle):
    CASES = [
        {"divergence": "topk-tv", "delta": 0.02, "top_k": 3, "kl_beta": 0.3, "ratio_cap": 1.1},
        {"delta": 0.02},
        {"divergence": "binary-kl", "delta": 0.005, "ratio_cap": 1.1},
        {"divergence": "topk-kl", "delta": 0.005, "top_k": 5, "responses_per_prompt": 3},
        {"ratio_anchor": "learner", "delta": 0.01, "num_minibatches": 1, "update_epochs": 2},
    ]
    RANGES = {
        "kl_beta": dr_grpo.Oracle.RANGES["kl_beta"],
        "responses_per_prompt": dr_grpo.Oracle.RANGES["responses_per_prompt"],
        "delta": positive,
        "top_k": lambda v: v >= 1,
        "ratio_cap": lambda v: v > 0,
    }
    DEFAULTS = {
        "divergence": "binary-tv",
        "delta": 0.2,
        "top_k": 20,
        "ratio_cap": math.inf,
        "kl_beta": 0.0,
        "ratio_anchor": "engine",
        "num_minibatches": 4,
    }

    def settings_fit(self):
        return not (self.args.divergence.startswith("topk") and self.args.ratio_anchor == "learner")

    def divergence(self, row: Row, t: int, anchor: float) -> float:
        if self.args.divergence.startswith("topk"):
            chosen = sorted({*row.top_rollout[t], row.tokens[t]})
            mu = {**row.top_rollout[t], row.tokens[t]: row.rollout[t]}
            pi = {**row.top_new[t], row.tokens[t]: row.new[t]}
            p, q = [math.exp(mu[v]) for v in chosen], [math.exp(pi[v]) for v in chosen]
        else:
            p, q = [math.exp(anchor)], [math.exp(row.new[t])]
        p.append(max(0.0, 1 - sum(p)))
        q.append(max(0.0, 1 - sum(q)))
        if self.args.divergence.endswith("tv"):
            return sum(abs(x - y) for x, y in zip(p, q, strict=True)) / 2
        return sum(x * math.log((x + 1e-8) / (y + 1e-8)) for x, y in zip(p, q, strict=True))

    def row(self, row: Row):
        slopes = []
        for t, (new, anchor, a) in enumerate(zip(row.new, self.anchor(row), row.advantages, strict=True)):
            ratio = math.exp(new - anchor)
            away = (a > 0 and ratio > 1) or (a < 0 and ratio < 1)
            masked = away and self.divergence(row, t, anchor) > self.args.delta
            slopes.append(0.0 if masked else -min(ratio, self.args.ratio_cap) * a)
        return [slope * new for slope, new in zip(slopes, row.new, strict=True)], slopes

    def clipped(self, row: Row):
        return [slope == 0 for slope in self.row(row)[1]]

    def rollout_numbers(self, row: Row):
        return {}  # no TIS
