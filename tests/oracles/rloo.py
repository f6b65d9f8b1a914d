from oracles import at_least, not_negative, reinforce


class Oracle(reinforce.Oracle):
    CASES = [
        {"kl_beta": 0.3, "tis_cap": 1.1, "num_minibatches": 2, "update_epochs": 2},
        {"kl_beta": 0.3, "tis_cap": 0.0},
        {"num_minibatches": 2, "update_epochs": 2, "max_grad_norm": 1e6},
    ]
    RANGES = {"kl_beta": not_negative, "tis_cap": not_negative, "responses_per_prompt": at_least(2)}
    DEFAULTS = {"kl_beta": 0.0, "tis_cap": 2.0, "num_minibatches": 1}

    def advantages(self, rewards):
        return [[r - (sum(row) - r) / (len(row) - 1) for r in row] for row in rewards]
