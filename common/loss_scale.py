"""Dynamic loss scaling for a learner in fp16 (1710.03740), whose gradients below 6e-8 would be 0.

The scripts' loss is not scaled. Its gradient is multiplied by a power of two where it enters the model, and divided by
it where it reaches a weight, in fp32. An update whose gradients overflow is skipped.
"""

import math
from typing import Any

from torch import Tensor

FIRST, LARGEST = 2.0**16, 2.0**24
GROWS_AFTER = 200  # updates without an overflow


class LossScale:
    """The scale, doubled after many updates and halved at each overflow; part of every checkpoint."""

    def __init__(self, model: Any) -> None:
        self.value, self.num_good = FIRST, 0
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for parameter in self.parameters:
            parameter.register_hook(lambda gradient: gradient / self.value)

    def scale(self, tensor: Tensor) -> Tensor:
        """The same tensor, whose gradient is multiplied by the scale on its way into the model."""
        if tensor.requires_grad:
            tensor.register_hook(lambda gradient: gradient * self.value)
        return tensor

    def after_gradients(self, grad_norm: Tensor | float, **values: Tensor | float) -> dict[str, Tensor | float]:
        """What to log for an update; adjusts the scale, and drops gradients that are not finite."""
        is_finite = math.isfinite(float(grad_norm))
        self.num_good = self.num_good + 1 if is_finite else 0
        if not is_finite:
            self.value = max(1.0, self.value / 2)
            for parameter in self.parameters:
                parameter.grad = None  # so the optimizer leaves the weight and its moments alone
        elif self.num_good % GROWS_AFTER == 0:
            self.value = min(LARGEST, 2 * self.value)
        return values | {"grad_norm": grad_norm if is_finite else 0.0, "skipped_updates": float(not is_finite)}

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value, "num_good": self.num_good}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value, self.num_good = state["value"], state["num_good"]
