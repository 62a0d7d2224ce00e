"""The generators of random numbers that all code of a process shares."""

from __future__ import annotations

import pickle
import random
import sys
from typing import Any

__all__ = ["random_states", "restore_random_states"]


def random_states() -> dict[str, Any]:
    """The states of Python's, NumPy's and PyTorch's shared generators, by module; equal if no
    number was drawn between two calls.
    """
    states: dict[str, Any] = {"random": random.getstate()}
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:
        states["np.random"] = pickle.dumps(numpy_random.get_state(legacy=False))
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "get_rng_state"):
        states["torch"] = bytes(torch.get_rng_state().tolist())
    return states


def restore_random_states(states: dict[str, Any]) -> None:
    """Goes back to what :func:`random_states` gave."""
    random.setstate(states["random"])
    if "np.random" in states:
        sys.modules["numpy.random"].set_state(pickle.loads(states["np.random"]))
    if "torch" in states:
        torch: Any = sys.modules["torch"]
        torch.set_rng_state(torch.tensor(list(states["torch"]), dtype=torch.uint8))
