from oracles import ENGINE_ANCHOR, ONE_UPDATE, at_least, sdpo, spin, without
from oracles.sdpo import tokenizer


class Oracle(sdpo.Oracle):
    CASES = [
        {"kl_beta": 0.3, "teacher_rate": 0.3, "grpo_weight": 0.25, "tis_cap": 1.1, "steps": 3},
        {"kl": "sampled", "teacher_rate": 1.0, "tis_cap": 0.0},
        {"kl": "sampled", "grpo_weight": 0.5, "feedback": " ({solution})"} | ENGINE_ANCHOR,
        {"model": "the one of the tests", "dataset": "theirs"} | ONE_UPDATE | {"responses_per_prompt": 1},
    ]
    RANGES = sdpo.Oracle.RANGES | {"responses_per_prompt": at_least(1)}
    DEFAULTS = without(sdpo.Oracle.DEFAULTS, "reward_feedback") | {
        "feedback": " right {solution}",
        "solution_column": "solution",
    }
    ELSEWHERE = {"solution_column"}
    LEARNS_WITHOUT_REWARDS = True

    def teacher_prompts(self, responses):
        """Each question is followed by its solution."""
        self.own, prompts = [True] * len(responses), []
        for response in responses:
            tokens, *_ = spin.solution(response.prompt)
            text = self.args.feedback.replace("{solution}", tokenizer().decode(tokens, skip_special_tokens=True))
            question = tokenizer().decode(response.prompt).removesuffix("\n")
            prompts.append(tokenizer()(f"{question}{text}\n")["input_ids"])
        return prompts

    def step_numbers(self, rounds, groups, rows):
        return {}
