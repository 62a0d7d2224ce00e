"""torch.nn.utils: what is about layers and is none."""

from typing import TYPE_CHECKING, Any

from hotloop.nn.utils import rnn as rnn

__all__ = ["rnn"]

_WEIGHTS = "forward may compute a weight of others and give it to a function: F.linear(x, w)"
_VECTOR = "state_dict() and load_state_dict() have all values by name, as arrays"
_FUSION = "prediction folds the factors of batch norms into the layer before them itself"
_HINTS = {
    **dict.fromkeys(("weight_norm", "remove_weight_norm", "parametrize"), _WEIGHTS),
    **dict.fromkeys(("spectral_norm", "remove_spectral_norm", "parametrizations"), _WEIGHTS),
    **dict.fromkeys(("parameters_to_vector", "vector_to_parameters"), _VECTOR),
    **dict.fromkeys(("fuse_conv_bn_eval", "fuse_conv_bn_weights", "fuse_linear_bn_eval"), _FUSION),
    "skip_init": "values are drawn when they are first needed, so build the layer itself",
}

if not TYPE_CHECKING:  # else type checkers would take every misspelt name for Any

    def __getattr__(name: str) -> Any:
        hint = _HINTS.get(name, "")
        if name.startswith("clip_grad"):
            kind = ", gradient_clip_algorithm='value'" * (name == "clip_grad_value_")
            hint = (
                f"clipping is part of the step, write TrainingConfig(gradient_clip_val=1.0{kind})"
            )
        hint = f": {hint}" * bool(hint)
        raise AttributeError(f"module 'hotloop.nn.utils' has no attribute {name!r}{hint}")
