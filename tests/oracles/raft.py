from oracles import ONE_UPDATE, Row, raft_pp, reinforce, without


class Oracle(raft_pp.Oracle):
    CASES = [{"kl_beta": 0.3, "tis_cap": 1.1}, {"tis_cap": 0.0}, ONE_UPDATE]
    RANGES = without(raft_pp.Oracle.RANGES, "clip_eps")
    DEFAULTS = without(raft_pp.Oracle.DEFAULTS, "clip_eps", "ratio_anchor")

    def row(self, row: Row):
        return reinforce.Oracle.row(self, row)

    def token_numbers(self, row: Row):
        return self.kl_numbers(row)
