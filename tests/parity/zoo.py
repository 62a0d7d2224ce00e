"""torchvision and timm without what they need to run on a GPU or to download."""

from typing import Any

import numpy as np
from needs import take_library

torch = take_library("torch")

_library = torch.library.Library("torchvision", "FRAGMENT")


def take_torchvision() -> Any:
    """Its models are pure Python; ops of its extension, which a CPU build of torch cannot load, are
    declared so that importing them does no harm."""
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return take_library("torchvision")


def take_timm() -> Any:
    take_torchvision()
    return take_library("timm")


def random_state(twin: Any, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Values for every key that let the signal through at about its size."""
    rng = np.random.default_rng(seed)
    state = {}
    for name, value in twin.state_dict().items():
        shape = tuple(value.shape)
        if name.endswith("num_batches_tracked"):
            array = np.zeros(shape, np.int64)
        elif name.endswith("running_var"):
            array = rng.uniform(0.8, 1.2, shape)
        elif len(shape) > 1:
            array = rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        elif name.endswith("gamma"):
            array = rng.uniform(0.2, 0.4, shape)
        else:
            array = rng.uniform(-0.1, 0.1, shape) + name.endswith("weight")
        state[name] = np.asarray(array).astype(np.int64 if array.dtype == np.int64 else np.float32)
    return state
