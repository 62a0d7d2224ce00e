"""hotloop trains neural networks from a notebook, fast by default.

>>> import hotloop as hl
>>> from hotloop import nn

Everything public is found here under one name and imported when it is first used, so that
``import hotloop`` stays quick and needs neither NumPy nor the compiled core.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hotloop._version import __version__

if TYPE_CHECKING:
    from hotloop import data, errors, nn
    from hotloop.data.digits import load_digits
    from hotloop.data.module import DataModule, GraphDataModule
    from hotloop.errors import (
        BusyError,
        CheckpointError,
        ConfigError,
        DataError,
        DeviceError,
        DeviceLostError,
        HotloopError,
        NotFiniteError,
        OutOfMemoryError,
        ShapeError,
        TraceError,
        TrainingInterrupted,
    )
    from hotloop.graph.dtypes import (
        bfloat16,
        float16,
        float32,
        float64,
        int8,
        int16,
        int32,
        int64,
        uint8,
    )
    from hotloop.graph.dtypes import bool_ as bool
    from hotloop.graph.dtypes import float16 as half
    from hotloop.graph.dtypes import float32 as float
    from hotloop.graph.dtypes import float64 as double
    from hotloop.graph.dtypes import int16 as short
    from hotloop.graph.dtypes import int32 as int
    from hotloop.graph.dtypes import int64 as long
    from hotloop.graph.symbolic import Tensor
    from hotloop.ops import (
        abs,
        add,
        addcmul,
        all,
        amax,
        amin,
        any,
        arange,
        argmax,
        argmin,
        as_tensor,
        baddbmm,
        bernoulli,
        bmm,
        broadcast_shapes,
        broadcast_tensors,
        broadcast_to,
        cat,
        ceil,
        chunk,
        clamp,
        clip,
        concat,
        cos,
        cosh,
        count_nonzero,
        cumsum,
        div,
        dot,
        einsum,
        empty,
        empty_like,
        eq,
        erf,
        erfc,
        exp,
        exp2,
        expand,
        expm1,
        eye,
        flatten,
        flip,
        floor,
        floor_divide,
        frac,
        from_numpy,
        full,
        full_like,
        gather,
        ge,
        gt,
        hstack,
        index_add,
        index_copy,
        index_fill,
        index_select,
        initial_seed,
        isclose,
        isfinite,
        isinf,
        isnan,
        le,
        lerp,
        linspace,
        log,
        log1p,
        log2,
        log10,
        log_softmax,
        logaddexp,
        logical_and,
        logical_not,
        logical_or,
        logical_xor,
        logit,
        logsumexp,
        lt,
        manual_seed,
        masked_fill,
        matmul,
        max,
        maximum,
        mean,
        median,
        min,
        minimum,
        mm,
        movedim,
        mul,
        mv,
        nan_to_num,
        narrow,
        ne,
        neg,
        no_grad,
        norm,
        one_hot,
        ones,
        ones_like,
        outer,
        permute,
        pow,
        prod,
        rand,
        rand_like,
        randint,
        randn,
        randn_like,
        randperm,
        ravel,
        reciprocal,
        relu,
        remainder,
        repeat,
        repeat_interleave,
        reshape,
        roll,
        round,
        rsqrt,
        scalar,
        scatter,
        scatter_add,
        select,
        sigmoid,
        sign,
        sin,
        sinh,
        softmax,
        split,
        sqrt,
        square,
        squeeze,
        stack,
        std,
        std_mean,
        sub,
        sum,
        t,
        take_along_dim,
        tan,
        tanh,
        tensor,
        tile,
        transpose,
        tril,
        triu,
        true_divide,
        trunc,
        unbind,
        unflatten,
        unsqueeze,
        var,
        var_mean,
        vstack,
        where,
        xlogy,
        zeros,
        zeros_like,
    )
    from hotloop.tools.devices import devices
    from hotloop.tools.machine import doctor
    from hotloop.tools.planning import plan
    from hotloop.tools.profiling import profile
    from hotloop.training.config import (
        EarlyStopping,
        EMAConfig,
        OptimizerConfig,
        ParamGroup,
        SchedulerConfig,
        TrainerConfig,
        TrainingConfig,
    )
    from hotloop.training.fit import (
        train,
    )
    from hotloop.training.inference import (
        empty_cache,
        evaluate,
        predict,
    )
    from hotloop.training.result import (
        TrainResult,
    )
    from hotloop.training.saving import (
        load,
        save,
    )
    from hotloop.training.stepping import stepper

__all__ = ["BusyError", "CheckpointError", "ConfigError", "DataError", "DataModule"]
__all__ += ["DeviceError", "DeviceLostError", "EMAConfig", "EarlyStopping", "GraphDataModule"]
__all__ += ["HotloopError", "NotFiniteError", "OptimizerConfig", "OutOfMemoryError", "ParamGroup"]
__all__ += ["SchedulerConfig", "ShapeError", "Tensor", "TraceError", "TrainResult"]
__all__ += ["TrainerConfig", "TrainingConfig", "TrainingInterrupted", "__version__", "abs", "add"]
__all__ += ["addcmul", "all", "amax", "amin", "any", "arange", "argmax", "argmin", "as_tensor"]
__all__ += ["baddbmm", "bernoulli", "bfloat16", "bmm", "broadcast_shapes"]
__all__ += ["broadcast_tensors", "broadcast_to", "cat", "ceil", "chunk", "clamp", "clip"]
__all__ += ["concat", "cos", "cosh", "count_nonzero", "cumsum", "data", "devices", "div"]
__all__ += ["doctor", "dot", "double"]
__all__ += ["einsum", "empty", "empty_cache", "empty_like", "eq", "erf", "erfc", "errors"]
__all__ += ["evaluate", "exp", "exp2", "expand", "expm1", "eye", "flatten", "flip", "float"]
__all__ += ["float16", "float32", "float64", "floor", "floor_divide", "frac", "from_numpy"]
__all__ += ["full", "full_like", "gather", "ge", "gt", "half", "hstack", "index_add"]
__all__ += ["index_copy", "index_fill", "index_select", "initial_seed", "int16", "int32"]
__all__ += ["int64", "int8", "isclose", "isfinite", "isinf", "isnan", "le", "lerp", "linspace"]
__all__ += ["load", "load_digits", "plan", "stepper"]
__all__ += ["log", "log10", "log1p", "log2", "log_softmax", "logaddexp", "logical_and"]
__all__ += ["logical_not", "logical_or", "logical_xor", "logit", "logsumexp", "long", "lt"]
__all__ += ["profile"]
__all__ += ["manual_seed", "masked_fill", "matmul", "max", "maximum", "mean", "median", "min"]
__all__ += ["minimum", "mm", "movedim", "mul", "mv", "nan_to_num", "narrow", "ne", "neg", "nn"]
__all__ += ["no_grad", "norm", "one_hot", "ones", "ones_like", "outer", "permute", "pow", "predict"]
__all__ += ["prod", "rand", "rand_like", "randint", "randn", "randn_like", "randperm", "ravel"]
__all__ += ["reciprocal", "relu", "remainder", "repeat", "repeat_interleave", "reshape", "roll"]
__all__ += ["round", "rsqrt", "save", "scalar", "scatter", "scatter_add", "select", "short"]
__all__ += ["sigmoid", "sign", "sin", "sinh", "softmax", "split", "sqrt", "square", "squeeze"]
__all__ += ["stack", "std", "std_mean", "sub", "sum", "t", "take_along_dim", "tan", "tanh"]
__all__ += ["tensor", "tile", "train", "transpose", "tril", "triu", "true_divide", "trunc"]
__all__ += ["uint8", "unbind", "unflatten", "unsqueeze", "var", "var_mean", "vstack", "where"]
__all__ += ["xlogy", "zeros", "zeros_like"]

# Name to the module that defines it; a name that stands here as a module is the module itself.
_MODULES = ("data", "errors", "graph", "nn", "ops", "training")
_HOMES = {
    "load_digits": "hotloop.data.digits",
    "DataModule": "hotloop.data.module",
    "GraphDataModule": "hotloop.data.module",
    "Tensor": "hotloop.graph.symbolic",
    "devices": "hotloop.tools.devices",
    "doctor": "hotloop.tools.machine",
    "plan": "hotloop.tools.planning",
    "profile": "hotloop.tools.profiling",
    "EMAConfig": "hotloop.training.config",
    "EarlyStopping": "hotloop.training.config",
    "OptimizerConfig": "hotloop.training.config",
    "ParamGroup": "hotloop.training.config",
    "SchedulerConfig": "hotloop.training.config",
    "TrainerConfig": "hotloop.training.config",
    "TrainingConfig": "hotloop.training.config",
    "train": "hotloop.training.fit",
    "empty_cache": "hotloop.training.inference",
    "evaluate": "hotloop.training.inference",
    "predict": "hotloop.training.inference",
    "load": "hotloop.training.saving",
    "save": "hotloop.training.saving",
    "TrainResult": "hotloop.training.result",
    "stepper": "hotloop.training.stepping",
}
# bool, float and int are not in __all__: a star import would hide the builtins.
_DTYPES = {
    "bfloat16": "bfloat16",
    "float16": "float16",
    "float32": "float32",
    "float64": "float64",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "int8": "int8",
    "uint8": "uint8",
    "bool": "bool_",
    "double": "float64",
    "float": "float32",
    "half": "float16",
    "int": "int32",
    "long": "int64",
    "short": "int16",
}
# Names of torch's that a ported script asks for, and what is here in their place.
_INSTEAD = {
    "optim": ": optimizers and schedules are settings, TrainingConfig(optimizer='adam', lr=1e-3)",
    "utils": ": data goes into hl.DataModule.from_arrays(X, y, batch_size=64)",
    "cuda": ": TrainingConfig(accelerator=...) chooses the device",
    "device": ": TrainingConfig(accelerator=...) chooses the device",
    "compile": ": hl.train and hl.predict plan every model",
    "autograd": ": hl.train and hl.stepper compute gradients",
}


if not TYPE_CHECKING:  # else type checkers would take every misspelt name for Any

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            value: Any = importlib.import_module(f"hotloop.{name}")
        elif name in _DTYPES:
            value = getattr(importlib.import_module("hotloop.graph.dtypes"), _DTYPES[name])
        elif name in _HOMES:
            value = getattr(importlib.import_module(_HOMES[name]), name)
        elif name.startswith("_") or name not in __all__:
            from hotloop._suggest import did_you_mean

            hint = "" if name.startswith("_") else did_you_mean(name, __all__)
            hint = _INSTEAD.get(name, hint)
            raise AttributeError(f"module 'hotloop' has no attribute {name!r}{hint}")
        elif name.endswith(("Error", "Interrupted")):
            value = getattr(importlib.import_module("hotloop.errors"), name)
        else:
            value = getattr(importlib.import_module("hotloop.ops"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
