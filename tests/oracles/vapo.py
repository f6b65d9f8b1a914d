from oracles import ENGINE_ANCHOR, not_negative, positive, ppo, without


class Oracle(ppo.Oracle):
    CASES = [
        {"value_pretraining": 0.5, "gae_alpha": 1.5, "gamma": 0.9, "value_clip": 0.01, "critic_lr": 0.3}
        | {"clip_eps_low": 0.05, "clip_eps_high": 0.08, "nll_weight": 3.0, "kl_beta": 0.3, "tis_cap": 1.1},
        {"value_pretraining": 0.0, "gae_alpha": 0.3},
        {"clip_eps_low": 0.05, "clip_eps_high": 0.08, "nll_weight": 3.0, "kl_beta": 0.3, "tis_cap": 0.0},
        {"nll_weight": 0.0} | ENGINE_ANCHOR,
        {"tis_cap": 1.1, "num_minibatches": 1, "update_epochs": 1, "responses_per_prompt": 1},
    ]
    RANGES = {
        **without(ppo.Oracle.RANGES, "clip_eps", "gae_lambda"),
        "clip_eps_low": positive,
        "clip_eps_high": positive,
        "value_pretraining": lambda v: 0 <= v <= 1,
        "nll_weight": not_negative,
        "gae_alpha": positive,
    }
    DEFAULTS = {
        **without(ppo.Oracle.DEFAULTS, "clip_eps", "gae_lambda"),
        "clip_eps_low": 0.2,
        "clip_eps_high": 0.28,
        "value_pretraining": 0.1,
        "nll_weight": 0.1,
        "gae_alpha": 0.5,
    }

    def bounds(self):
        return 1 - self.args.clip_eps_low, 1 + self.args.clip_eps_high

    def learns(self, step):
        return step > self.args.value_pretraining * self.args.steps

    def gae(self, rewards, values):
        """Advantages with the response's own λ, and targets that do not depend on values."""
        gamma, n = self.args.gamma, len(rewards)
        lam = max(0.0, 1 - 1 / (self.args.gae_alpha * n))
        after = [*values[1:], 0.0]
        delta = [rewards[t] + gamma * after[t] - values[t] for t in range(n)]
        advantages = [sum((gamma * lam) ** k * delta[t + k] for k in range(n - t)) for t in range(n)]
        return advantages, [sum(gamma**k * rewards[t + k] for k in range(n - t)) for t in range(n)]

    def slope_beside(self, responses, i):
        tokens = sum(sum(r.sampled) for r in responses if r.correct)
        return -self.args.nll_weight / tokens if responses[i].correct else 0.0
