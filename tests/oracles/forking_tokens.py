import math

from oracles import ENGINE_ANCHOR, ONE_UPDATE, Row, fraction, grpo

ROUNDING = 1e-4  # rounding error of the scores that choose tokens


def check_largest(scores: list[float], chosen: list[bool], part: float) -> None:
    """The chosen tokens have the largest scores above 0; their number is this fraction of all, but at least one."""
    count = max(1, math.floor(part * len(scores)))
    threshold = sorted(scores)[-count]
    for t, (score, was) in enumerate(zip(scores, chosen, strict=True)):
        too_close = min(abs(score - threshold), abs(score)) < ROUNDING
        expected = score > threshold and score > 0
        assert too_close or was == expected, f"token {t} with score {score:.4f}: chosen {was}, expected {expected}"
    assert sum(chosen) >= count or threshold < ROUNDING, f"{sum(chosen)} tokens chosen, expected {count}"


class Oracle(grpo.Oracle):
    CHOOSES = "forking_tokens"
    CASES = [
        {"top_fraction": 0.4, "clip_eps": 0.05, "kl_beta": 0.3, "tis_cap": 1.1, "ddof": 0},
        {"top_fraction": 0.4, "tis_cap": 0.0},
        ENGINE_ANCHOR,
        ONE_UPDATE,
    ]
    RANGES = {**grpo.Oracle.RANGES, "top_fraction": fraction}
    DEFAULTS = {**grpo.Oracle.DEFAULTS, "top_fraction": 0.2}

    def prepare(self, rows):
        entropies = [h for row in rows for h in row.entropies]
        check_largest(entropies, [was for row in rows for was in row.chosen], self.args.top_fraction)

    def weight(self, lengths, i):
        return 1 / sum(lengths)

    def row(self, row: Row):
        """Tokens that are not chosen have no loss but count in the mean."""
        losses, slopes = super().row(row)
        for t, was in enumerate(row.chosen):
            if not was:
                losses[t] = slopes[t] = 0.0
        return losses, slopes

    def rollout_numbers(self, row: Row):
        return {**super().rollout_numbers(row), "chosen": row.chosen}
