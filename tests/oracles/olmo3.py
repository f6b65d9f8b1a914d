from oracles import ENGINE_ANCHOR, dapo, grpo, without


class Oracle(dapo.Oracle):
    CASES = [
        {"steps": 3, "clip_eps_low": 0.05, "clip_eps_high": 0.08, "kl_beta": 0.3, "tis_cap": 1.1},
        {"clip_eps_low": 0.05, "clip_eps_high": 0.08, "std": "group", "ddof": 0},
        {"kl_beta": 0.3, "tis_cap": 0.0, "max_rounds": 1},
        {"average": "response", "max_rounds": 2} | ENGINE_ANCHOR,
        {"tis_cap": 1.1, "num_minibatches": 1, "average": "response", "max_rounds": 1, "responses_per_prompt": 3},
        {"filter_groups": False, "average": "response", "std": "group"},
    ]
    RANGES = without(dapo.Oracle.RANGES, "overlong_cache")
    DEFAULTS = {
        **without(dapo.Oracle.DEFAULTS, "overlong_cache", "overlong_filter"),
        "clip_eps_high": 0.272,
        "filter_groups": True,
        "average": "token",
        "std": "none",
    }

    def __init__(self, args):
        super().__init__(args)
        self.waiting, self.silent = [], set()  # groups for later steps; this step's responses without signal

    def settings_fit(self):
        return True

    def has_signal(self, group):
        return self.mixed(group) or not self.args.filter_groups

    def batch(self, rounds):
        P = self.args.prompts_per_step
        enough = [len(self.waiting)]  # groups with signal before each round and after the last
        for groups in rounds:
            enough.append(enough[-1] + sum(map(self.has_signal, groups)))
        assert enough[-1] >= P or len(rounds) == self.args.max_rounds, "it stopped too early"
        assert enough[-2] < P, "it went on with a full batch"
        groups = [group for groups in rounds for group in groups]
        queue = self.waiting + [group for group in groups if self.has_signal(group)]
        batch, self.waiting = queue[:P], queue[P:]
        batch += [group for group in groups if not self.has_signal(group)][: P - len(batch)]
        self.silent = {id(response) for group in batch if not self.has_signal(group) for response in group}
        return batch

    def counts(self, response):
        return id(response) not in self.silent

    def leaves_out(self):
        return self.args.filter_groups and self.args.max_rounds == 1

    def rewards(self, groups, kl):
        return grpo.Oracle.rewards(self, groups, kl)

    def advantages(self, rewards):
        if self.args.std == "group":
            return super().advantages(rewards)
        return [[r - sum(row) / len(row) for r in row] for row in rewards]

    def weight(self, lengths, i):
        parent = grpo if self.args.average == "response" else dapo
        return parent.Oracle.weight(self, lengths, i)

    def logged_rewards(self, groups, kl):
        return self.rewards(groups, kl)

    def step_numbers(self, rounds, groups, rows):
        return {"sampled_prompts": sum(map(len, rounds)), "kept_groups": sum(map(self.has_signal, groups))}
