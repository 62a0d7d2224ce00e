"""torch.nn.utils: what is about layers and is none."""

from typing import TYPE_CHECKING, Any

from hotloop.nn.utils import rnn as rnn

__all__ = ["rnn"]

if not TYPE_CHECKING:  # else type checkers would take every misspelt name for Any

    def __getattr__(name: str) -> Any:
        hint = ""
        if name.startswith("clip_grad"):
            kind = ", gradient_clip_algorithm='value'" * (name == "clip_grad_value_")
            hint = (
                f": clipping is part of the step, write TrainingConfig(gradient_clip_val=1.0{kind})"
            )
        raise AttributeError(f"module 'hotloop.nn.utils' has no attribute {name!r}{hint}")
