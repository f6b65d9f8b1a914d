"""Verification: which answers are correct, and the rewards of a rollout batch."""

from common.verification.rewards import require_binary
from common.verification.verifier import Verifier

__all__ = ["Verifier", "require_binary"]
