"""Notes for the user when rewards give no learning signal: why, and what to do."""

from collections.abc import Iterable
from typing import Any

from common.records import Sample
from common.settings import Settings
from common.verification.verifier import Verifier

MOST = 0.9  # more than this fraction of the responses counts as nearly all
FLAT_STEPS = 5  # steps without signal


class Notes:
    """Watches the first evaluation and the steps."""

    def __init__(self, args: Settings, verifier: Verifier) -> None:
        self.args, self.verifier = args, verifier
        self.boxed = 1.0  # fraction of the responses of the first evaluation in which an answer was found
        self.without_signal = 0  # consecutive steps

    def of_first_evaluation(self, metrics: dict[str, Any], samples: Iterable[Sample]) -> str:
        """The note after the first evaluation, with one sample of each problem; "" if there is something to learn."""
        if self.verifier.judges:
            found = [reward > 0 or self.verifier.find_answer(text) is not None for _, text, reward in samples]
            self.boxed = sum(found) / len(found)
            flat = metrics[f"eval/pass@{metrics['eval/n']}"] == 0 or metrics["eval/avg"] == 1
        else:  # the user's own rewards may teach without a correct response
            flat = not any(value for name, value in metrics.items() if name.endswith("/std"))
        if metrics["eval/truncated"] > MOST or self.boxed < 1 - MOST or flat:
            return "note: " + self.cause(metrics["eval/truncated"], metrics["eval/avg"])
        return ""

    def of_step(self, numbers: dict[str, Any]) -> str:
        """The note after FLAT_STEPS steps without signal; a gradient that is not the KL's counts as signal."""
        moved = numbers["grad_norm"] > 1e-6 and "kl" not in numbers
        flat = numbers.get("zero_std_groups") == 1 and not moved
        if flat and self.args.responses_per_prompt == 1:  # a group of one is always uniform: look at all prompts
            flat = self.verifier.judges and numbers["accuracy"] in (0, 1)
        self.without_signal = self.without_signal + 1 if flat else 0
        if self.without_signal != FLAT_STEPS:
            return ""
        why = self.cause(numbers["truncated"], numbers["accuracy"])
        return (
            f"note: for {FLAT_STEPS} steps, all responses to a prompt had equal rewards, so nothing is learned: {why}"
        )

    def cause(self, truncated: float, accuracy: float) -> str:
        """The likeliest reason why rewards are equal, and what to do."""
        if truncated > MOST:
            limit = self.args.max_response_tokens
            return f"{truncated:.0%} of the responses are cut off. Raise --max-response-tokens ({limit} now)."
        if self.boxed < 1 - MOST:
            form = "\\boxed{}" if self.args.answer_format == "boxed" else "a last number"
            return (
                f"{1 - self.boxed:.0%} of the responses have no answer in the form that the verifier reads ({form}). "
                f"Ask for it with --prompt, or see --answer-format."
            )
        if not self.verifier.judges:
            return "the reward functions give all of them the same. Look at the responses in samples/."
        if accuracy == 0:
            return "no response is correct. Take easier problems or a stronger model."
        if accuracy == 1:
            return "all responses are correct. Take harder problems."
        return "look at the responses in samples/, and at the reward functions."
