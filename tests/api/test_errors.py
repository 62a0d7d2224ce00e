"""The exceptions: what each of them is besides a HotloopError, and that they survive pickling."""

from __future__ import annotations

import pickle
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import errors

BUILTIN = {
    "ConfigError": (ValueError,),
    "ShapeError": (ValueError,),
    "DataError": (ValueError,),
    "TraceError": (TypeError,),
    "DeviceError": (RuntimeError,),
    "DeviceLostError": (RuntimeError, errors.DeviceError),
    "BusyError": (RuntimeError,),
    "OutOfMemoryError": (RuntimeError, MemoryError),
    "CheckpointError": (OSError,),
    "NotFiniteError": (ArithmeticError,),
    "TrainingInterrupted": (KeyboardInterrupt,),
}


def test_table_is_complete() -> None:
    raised = {name for name in errors.__all__ if not name.endswith("Warning")}
    assert raised == {"HotloopError", *BUILTIN}


def test_warnings_are_the_users() -> None:
    for name in set(errors.__all__) - {"HotloopError", *BUILTIN}:
        cls = getattr(errors, name)
        assert issubclass(cls, errors.HotloopWarning)
        assert issubclass(cls, UserWarning)


@pytest.mark.parametrize("name", BUILTIN)
def test_class(name: str) -> None:
    cls = getattr(errors, name)
    assert issubclass(cls, errors.HotloopError)
    assert all(issubclass(cls, base) for base in BUILTIN[name])
    assert cls.__doc__
    with pytest.raises(BUILTIN[name][0], match="the reason"):
        raise cls("the reason")


@pytest.mark.parametrize("name", errors.__all__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle(name: str, protocol: int) -> None:
    made = getattr(errors, name)("linear: shapes must fit, got (3, 4)")
    again = pickle.loads(pickle.dumps(made, protocol))
    assert type(again) is type(made)
    assert str(again) == str(made)
    assert again.args == made.args


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("arena: 3 GB are missing", "out of memory: arena: 3 GB are missing"),
        ("CUDA out of memory in arena", "CUDA out of memory in arena"),
        ("Out of memory", "Out of memory"),
        ("", "out of memory"),
    ],
)
def test_out_of_memory_says_so(message: str, shown: str) -> None:
    assert str(errors.OutOfMemoryError(message)) == shown
    assert "out of memory" in str(errors.OutOfMemoryError()).lower()


def test_interrupted_carries_the_result() -> None:
    made = errors.TrainingInterrupted("stopped at step 3", result={"steps": 3})
    again = pickle.loads(pickle.dumps(made))
    assert made.result == again.result == {"steps": 3}
    assert str(again) == "stopped at step 3"
    assert errors.TrainingInterrupted().result is None


def test_errors_name_the_function_that_was_called() -> None:
    """Not the one that it is made of."""
    from hotloop import nn
    from hotloop.nn import functional as F

    x, x4 = np.ones((2, 3), np.float32), np.ones((1, 1, 2, 2), np.float32)
    for name, call in {
        "mean": lambda: hl.mean(x, 9),
        "std": lambda: hl.std(x, 9),
        "normalize": lambda: F.normalize(x, dim=9),
        "max_unpool2d": lambda: F.max_unpool2d(x4, np.full((1, 1, 2, 2), 99), 2),
        "one_hot": lambda: F.one_hot(np.array([-1, 2])),
    }.items():
        with pytest.raises(hl.HotloopError, match=rf"^{name}: (dim|index) "):
            call()

    class Net(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.mean(9)

    with pytest.raises(hl.ShapeError, match=r"^Net\(\): mean: dim must be in"):
        Net()(x)
