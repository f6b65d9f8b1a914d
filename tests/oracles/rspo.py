import math

from oracles import ENGINE_ANCHOR, ONE_UPDATE, Row, fraction, gmpo


class Oracle(gmpo.Oracle):
    CASES = [
        {"clip_log_eps": 0.05, "router_floor": 0.97, "kl_beta": 0.3, "tis_cap": 1.1},
        {"router_floor": 0.0, "ddof": 0, "kl_beta": 0.3, "tis_cap": 0.0},
        ENGINE_ANCHOR,
        ONE_UPDATE,
    ]
    RANGES = {**gmpo.Oracle.RANGES, "router_floor": fraction}
    DEFAULTS = {**gmpo.Oracle.DEFAULTS, "model": "sums-experts", "router_floor": 0.8}

    def gammas(self, row: Row):
        """The factor on each token's ratio, from the two likeliest experts of each layer at the rollout weights."""
        found = []
        for now, before in zip(row.routers, row.old_routers, strict=True):
            layers = []
            for new, old in zip(now.tolist(), before.tolist(), strict=True):
                first, second = sorted(range(len(old)), key=old.__getitem__)[-2:]
                layers.append((abs(new[first] - old[first]) + abs(new[second] - old[second])) / 2)
            found.append(max(self.args.router_floor, math.exp(-sum(layers) / len(layers))))
        return found or [1.0] * len(row.new)

    def anchor(self, row: Row):
        """Multiplying the ratio by γ is the same as dividing π_old by γ."""
        anchors = zip(super().anchor(row), self.gammas(row), strict=True)
        return [anchor - math.log(gamma) for anchor, gamma in anchors]

    def token_numbers(self, row: Row):
        return super().token_numbers(row) | {"router_ratio": self.gammas(row)}
