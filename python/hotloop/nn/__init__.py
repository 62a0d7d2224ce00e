"""torch.nn's names over hotloop's graph: layers, containers, losses, parameters.

Reading order: ``parameter`` and ``recipes``, ``module``, ``layout`` (where values lie), then the
layers. ``functional`` has the formulas, ``init`` the initialisation schemes.
"""

from typing import TYPE_CHECKING, Any

from hotloop.nn import functional, init
from hotloop.nn.activation import (
    CELU,
    ELU,
    GELU,
    GLU,
    SELU,
    Hardshrink,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU,
    ReLU6,
    RReLU,
    Sigmoid,
    SiLU,
    Softmax,
    Softmax2d,
    Softmin,
    Softplus,
    Softshrink,
    Softsign,
    Tanh,
    Tanhshrink,
    Threshold,
)
from hotloop.nn.containers import (
    ModuleDict,
    ModuleList,
    ParameterDict,
    ParameterList,
    Sequential,
)
from hotloop.nn.dropout import (
    AlphaDropout,
    Dropout,
    Dropout1d,
)
from hotloop.nn.linear import (
    Bilinear,
    LazyLinear,
    Linear,
)
from hotloop.nn.loss import (
    BCELoss,
    BCEWithLogitsLoss,
    CosineEmbeddingLoss,
    CrossEntropyLoss,
    GaussianNLLLoss,
    HingeEmbeddingLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MarginRankingLoss,
    MSELoss,
    MultiLabelMarginLoss,
    MultiLabelSoftMarginLoss,
    MultiMarginLoss,
    NLLLoss,
    PoissonNLLLoss,
    SmoothL1Loss,
    SoftMarginLoss,
    TripletMarginLoss,
    TripletMarginWithDistanceLoss,
)
from hotloop.nn.module import (
    Module,
)
from hotloop.nn.norm import (
    BatchNorm1d,
    LayerNorm,
    RMSNorm,
)
from hotloop.nn.parameter import (
    Buffer,
    Parameter,
)
from hotloop.nn.shape import (
    CircularPad1d,
    CircularPad2d,
    CircularPad3d,
    ConstantPad1d,
    ConstantPad2d,
    ConstantPad3d,
    CosineSimilarity,
    Flatten,
    Identity,
    PairwiseDistance,
    ReflectionPad1d,
    ReflectionPad2d,
    ReflectionPad3d,
    ReplicationPad1d,
    ReplicationPad2d,
    ReplicationPad3d,
    Unflatten,
    ZeroPad1d,
    ZeroPad2d,
    ZeroPad3d,
)
from hotloop.nn.sparse import (
    Embedding,
)

__all__ = ["AlphaDropout", "BCELoss", "BCEWithLogitsLoss", "BatchNorm1d", "Bilinear", "Buffer"]
__all__ += ["CELU", "CircularPad1d", "CircularPad2d", "CircularPad3d", "ConstantPad1d"]
__all__ += ["ConstantPad2d", "ConstantPad3d", "CosineEmbeddingLoss", "CosineSimilarity"]
__all__ += ["CrossEntropyLoss", "Dropout", "Dropout1d", "ELU", "Embedding", "Flatten", "GELU"]
__all__ += ["GLU", "GaussianNLLLoss", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh"]
__all__ += ["HingeEmbeddingLoss", "HuberLoss", "Identity", "KLDivLoss", "L1Loss", "LayerNorm"]
__all__ += ["LazyLinear", "LeakyReLU", "Linear", "LogSigmoid", "LogSoftmax", "MSELoss"]
__all__ += ["MarginRankingLoss", "Mish", "Module", "ModuleDict", "ModuleList"]
__all__ += ["MultiLabelMarginLoss", "MultiLabelSoftMarginLoss", "MultiMarginLoss", "NLLLoss"]
__all__ += ["PReLU", "PairwiseDistance", "Parameter", "ParameterDict", "ParameterList"]
__all__ += ["PoissonNLLLoss", "RMSNorm", "RReLU", "ReLU", "ReLU6", "ReflectionPad1d"]
__all__ += ["ReflectionPad2d", "ReflectionPad3d", "ReplicationPad1d", "ReplicationPad2d"]
__all__ += ["ReplicationPad3d", "SELU", "Sequential", "SiLU", "Sigmoid", "SmoothL1Loss"]
__all__ += ["SoftMarginLoss", "Softmax", "Softmax2d", "Softmin", "Softplus", "Softshrink"]
__all__ += ["Softsign", "Tanh", "Tanhshrink", "Threshold", "TripletMarginLoss"]
__all__ += ["TripletMarginWithDistanceLoss", "Unflatten", "ZeroPad1d", "ZeroPad2d", "ZeroPad3d"]
__all__ += ["functional", "init"]

_NOT_HERE = {
    "Conv": "convolution",
    "MaxPool": "pooling",
    "AvgPool": "pooling",
    "Adaptive": "pooling",
    "BatchNorm2d": "convolution",
    "RNN": "recurrent layers",
    "LSTM": "recurrent layers",
    "GRU": "recurrent layers",
    "MultiheadAttention": "attention layers",
    "Transformer": "attention layers",
}

if not TYPE_CHECKING:  # else type checkers would take every misspelt name for Any

    def __getattr__(name: str) -> Any:
        from hotloop._suggest import did_you_mean

        kind = next((kind for start, kind in _NOT_HERE.items() if name.startswith(start)), None)
        hint = "" if name.startswith("_") else did_you_mean(name, __all__)
        if kind is not None:
            hint = f": {kind} not in this version"
        raise AttributeError(f"module 'hotloop.nn' has no attribute {name!r}{hint}")
