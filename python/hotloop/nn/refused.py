"""What torch.nn.Module has and hotloop's cannot have: each raises and names what to use instead.

Hooks: forward is traced once and then run from C, so a hook would run once and not once per batch.
Other dtypes of parameters: they are float32, and the configuration's precision decides what is
computed in. Where nothing is left to do, nothing is done.
"""

from __future__ import annotations

from typing import Any, NoReturn, Self

from hotloop.errors import ConfigError
from hotloop.graph import dtypes

__all__ = ["Refused"]


class Refused:
    """The methods that raise or do nothing."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Does nothing: gradients belong to the training step, which clears them itself."""

    def float(self) -> Self:
        """Itself: parameters are float32."""
        return self

    def double(self) -> NoReturn:
        """Refused; ``precision="64-true"`` computes in float64."""
        self._refuse_dtype(dtypes.float64)

    def half(self) -> NoReturn:
        """Refused; ``precision="16-mixed"`` computes in float16."""
        self._refuse_dtype(dtypes.float16)

    def bfloat16(self) -> NoReturn:
        """Refused; ``precision="bf16-mixed"`` computes in bfloat16."""
        self._refuse_dtype(dtypes.bfloat16)

    def _refuse_dtype(self, dtype: dtypes.DType) -> NoReturn:
        precision = {"float64": "64-true", "float16": "16-mixed", "bfloat16": "bf16-mixed"}
        advice = precision.get(dtype)
        raise ConfigError(
            f"{type(self).__name__}: parameters must be float32, got {dtype}"
            + (f'; use precision="{advice}" in the configuration' if advice else "")
        )

    def _refuse_hook(self, what: str, instead: str) -> NoReturn:
        raise ConfigError(
            f"{what}: hooks are not run (forward is recorded once and then runs from C); {instead}"
        )

    def register_forward_hook(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: forward runs once per shape, not once per batch."""
        self._refuse_hook(
            "register_forward_hook", 'use hl.predict(..., outputs="name") for inner outputs'
        )

    def register_forward_pre_hook(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: forward runs once per shape, not once per batch."""
        self._refuse_hook("register_forward_pre_hook", "change the input in forward")

    def register_full_backward_hook(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: gradients exist only inside the training step."""
        self._refuse_hook("register_full_backward_hook", "use the configuration's clipping")

    def register_backward_hook(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: gradients exist only inside the training step."""
        self._refuse_hook("register_backward_hook", "use the configuration's clipping")

    def register_full_backward_pre_hook(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: gradients exist only inside the training step."""
        self._refuse_hook("register_full_backward_pre_hook", "use the configuration's clipping")

    def register_state_dict_pre_hook(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused."""
        self._refuse_hook("register_state_dict_pre_hook", "rename keys before load_state_dict")

    def register_load_state_dict_pre_hook(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused."""
        self._refuse_hook("register_load_state_dict_pre_hook", "rename keys before it")

    def register_state_dict_post_hook(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused."""
        self._refuse_hook("register_state_dict_post_hook", "change what state_dict() returns")

    def register_load_state_dict_post_hook(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused."""
        self._refuse_hook("register_load_state_dict_post_hook", "write it after load_state_dict")
