"""Verifiers without a model, for tests."""

from types import SimpleNamespace

from common.verification import Verifier


class Decoder:
    """A stand-in tokenizer whose token ids are character codes."""

    def batch_decode(self, rows, skip_special_tokens):
        return ["".join(map(chr, row)) for row in rows]


def make_verifier(*problems, answer_format="boxed", tolerance=0.0):
    settings = {"answer_format": answer_format, "tolerance": tolerance, "reward": (), "reward_workers": 2}
    return Verifier(SimpleNamespace(**settings), Decoder(), problems)


def is_correct(verifier, response, gold, truncated=False):
    return verifier.judge([response], [gold], [truncated])[0] == 1
