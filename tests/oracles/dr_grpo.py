from oracles import grpo, without


class Oracle(grpo.Oracle):
    CASES = [without(case, "ddof") for case in grpo.Oracle.CASES]
    RANGES = without(grpo.Oracle.RANGES, "ddof")
    DEFAULTS = without(grpo.Oracle.DEFAULTS, "ddof")

    def advantages(self, rewards):
        return [[r - sum(row) / len(row) for r in row] for row in rewards]

    def weight(self, lengths, i):
        return 1 / (len(lengths) * self.args.max_response_tokens)
