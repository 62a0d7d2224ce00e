"""hotloop trains neural networks from a notebook, fast by default.

>>> import hotloop as hl
>>> from hotloop import nn
>>> X, y = hl.load_digits()
>>> model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
>>> result = hl.train(model, (X, y), max_epochs=1, enable_progress_bar=False)

Everything public is found here under one name and imported when it is first used, so that
``import hotloop`` stays quick and needs neither NumPy nor the compiled core. The names are those of
:mod:`hotloop.public`.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from hotloop._version import __version__ as __version__

if "t" in sys.abiflags:  # the extension needs the GIL, and its stable ABI is not of this Python
    raise ImportError(
        "hotloop: a Python with the GIL is needed, got a free-threaded one "
        f"({sys.executable}); install hotloop for python{sys.version_info[0]}.{sys.version_info[1]}"
    )

if TYPE_CHECKING:
    from hotloop import data as data
    from hotloop import errors as errors
    from hotloop import linalg as linalg
    from hotloop import models as models
    from hotloop import nn as nn
    from hotloop import stats as stats
    from hotloop.data import augment as augment
    from hotloop.public import *

_MODULES = {
    name: f"hotloop.{name}"
    for name in ("data", "errors", "graph", "linalg", "models", "nn", "ops", "stats", "training")
} | {"augment": "hotloop.data.augment"}
# A star import would hide these builtins.
_NOT_STARRED = {"bool", "float", "int"}
# Names of torch's that a ported script asks for, and what is here in their place.
_INSTEAD = {
    "optim": ": optimizers and schedules are settings, TrainingConfig(optimizer='adam', lr=1e-3)",
    **dict.fromkeys(
        ("utils", "DataLoader", "Dataset", "TensorDataset"),
        ": data goes into hl.DataModule.from_arrays(X, y, batch_size=64)",
    ),
    "fit": ": write hl.train(model, (X, y), lr=...)",
    "Trainer": ": write hl.train(model, data, TrainingConfig(max_epochs=...))",
    "summary": ": hl.train prints layers with their shapes, hl.plan(model, data) what a step takes",
    "seed_everything": ": write TrainingConfig(seed=...), or hl.manual_seed(seed)",
    "set_num_threads": ": set HOTLOOP_NUM_THREADS in the environment, before the import",
    **dict.fromkeys(
        ("enable_grad", "inference_mode", "set_grad_enabled"),
        ": model(X) and hl.predict compute no gradients",
    ),
    "backends": ": write TrainingConfig(benchmark=..., deterministic=..., precision=...)",
    **dict.fromkeys(
        ("amp", "autocast", "GradScaler"), ": write TrainingConfig(precision='bf16-mixed')"
    ),
    "functional": ": write from hotloop.nn import functional as F",
    "cuda": ": TrainingConfig(accelerator=...) chooses the device",
    "device": ": TrainingConfig(accelerator=...) chooses the device",
    "compile": ": hl.train and hl.predict plan every model",
    "autograd": ": hl.train and hl.stepper compute gradients",
}


def _public() -> dict[str, Any]:
    """What is public, by name."""
    found = vars(importlib.import_module("hotloop.public"))
    return {name: value for name, value in found.items() if not name.startswith("_")}


if not TYPE_CHECKING:  # else type checkers would take every misspelt name for Any

    def __getattr__(name: str) -> Any:
        if name == "__all__":
            modules = ("augment", "data", "errors", "linalg", "models", "nn", "stats")
            value: Any = sorted({"__version__", *modules, *_public()} - _NOT_STARRED)
        elif name.startswith("_"):
            raise AttributeError(f"module 'hotloop' has no attribute {name!r}")
        elif name in _MODULES:
            value = importlib.import_module(_MODULES[name])
        else:
            found = _public()
            if name not in found:
                from hotloop.base.suggest import did_you_mean, not_here

                hint = _INSTEAD.get(name) or not_here(name) or did_you_mean(name, found)
                raise AttributeError(f"module 'hotloop' has no attribute {name!r}{hint}")
            value = found[name]
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_public()})
