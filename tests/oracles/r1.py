from oracles import at_least, grpo


class Oracle(grpo.Oracle):
    CASES = [*grpo.Oracle.CASES, {"renew_every": 2, "kl_beta": 0.3, "steps": 4}]
    # Settings of the supervised stages, which tests/steps/test_r1.py covers
    ELSEWHERE = {
        "stages", "cold_start", "cold_start_solutions", "rejection_prompts", "student",
        "sft_epochs", "sft_batch", "sft_lr",
    }  # fmt: skip
    RANGES = {
        **grpo.Oracle.RANGES,
        "renew_every": at_least(0),
        **dict.fromkeys(["cold_start_solutions", "rejection_prompts", "sft_epochs", "sft_batch"], at_least(1)),
        "sft_lr": lambda v: 0 < v <= 1,
    }
    DEFAULTS = {
        **grpo.Oracle.DEFAULTS,
        "renew_every": 0,
        "clip_eps": 10.0,
        "stages": ("rl",),
        "cold_start": None,
        "cold_start_solutions": 64,
        "rejection_prompts": 2048,
        "student": None,
        "sft_epochs": 4,
        "sft_batch": 32,
        "sft_lr": 1e-3,
    }

    def renews_reference(self, step, rows, responses):
        """After n, 2n, ... steps."""
        n = self.args.renew_every
        return n > 0 and step - 1 in range(n, step, n)
