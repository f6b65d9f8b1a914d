from oracles import grpo


class Oracle(grpo.Oracle):
    CASES = [{name: v for name, v in case.items() if name != "ddof"} for case in grpo.Oracle.CASES]
    RANGES = {name: ok for name, ok in grpo.Oracle.RANGES.items() if name != "ddof"}
    DEFAULTS = {name: value for name, value in grpo.Oracle.DEFAULTS.items() if name != "ddof"}

    def advantages(self, rewards):
        return [[r - sum(row) / len(row) for r in row] for row in rewards]

    def weight(self, lengths, i):
        return 1 / (len(lengths) * self.args.max_response_tokens)
