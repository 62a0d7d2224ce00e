"""The functions of ``hl``: torch's names over symbolic tensors.

They are defined by family in :mod:`hotloop.graph` and gathered here; most are Tensor methods too.
"""

from hotloop.graph.contraction import (
    baddbmm,
    bmm,
    dot,
    einsum,
    matmul,
    mm,
    mv,
    outer,
)
from hotloop.graph.creation import (
    arange,
    as_tensor,
    bernoulli,
    empty,
    empty_like,
    eye,
    from_numpy,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    rand,
    rand_like,
    randint,
    randn,
    randn_like,
    randperm,
    scalar,
    tensor,
    zeros,
    zeros_like,
)
from hotloop.graph.indexing import (
    gather,
    index_add,
    index_copy,
    index_fill,
    index_select,
    one_hot,
    scatter,
    scatter_add,
    take_along_dim,
    tril,
    triu,
)
from hotloop.graph.pointwise import (
    abs,
    add,
    addcmul,
    ceil,
    clamp,
    clip,
    cos,
    cosh,
    div,
    eq,
    erf,
    erfc,
    exp,
    exp2,
    expm1,
    floor,
    floor_divide,
    frac,
    ge,
    gt,
    isclose,
    isfinite,
    isinf,
    isnan,
    le,
    lerp,
    log,
    log1p,
    log2,
    log10,
    logaddexp,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    logit,
    lt,
    masked_fill,
    maximum,
    minimum,
    mul,
    nan_to_num,
    ne,
    neg,
    pow,
    reciprocal,
    relu,
    remainder,
    round,
    rsqrt,
    sigmoid,
    sign,
    sin,
    sinh,
    sqrt,
    square,
    sub,
    tan,
    tanh,
    true_divide,
    trunc,
    where,
    xlogy,
)
from hotloop.graph.reduction import (
    all,
    amax,
    amin,
    any,
    argmax,
    argmin,
    count_nonzero,
    cumsum,
    log_softmax,
    logsumexp,
    max,
    mean,
    median,
    min,
    norm,
    prod,
    softmax,
    std,
    std_mean,
    sum,
    var,
    var_mean,
)
from hotloop.graph.seeds import initial_seed, manual_seed
from hotloop.graph.trace import no_grad
from hotloop.graph.views import (
    broadcast_shapes,
    broadcast_tensors,
    broadcast_to,
    cat,
    chunk,
    concat,
    expand,
    flatten,
    flip,
    hstack,
    movedim,
    narrow,
    permute,
    ravel,
    repeat,
    repeat_interleave,
    reshape,
    roll,
    select,
    split,
    squeeze,
    stack,
    t,
    tile,
    transpose,
    unbind,
    unflatten,
    unsqueeze,
    vstack,
)

__all__ = ["abs", "add", "addcmul", "all", "amax", "amin", "any", "arange", "argmax", "argmin"]
__all__ += ["as_tensor", "baddbmm", "bernoulli", "bmm", "broadcast_shapes", "broadcast_tensors"]
__all__ += ["broadcast_to", "cat", "ceil", "chunk", "clamp", "clip", "concat", "cos", "cosh"]
__all__ += ["count_nonzero", "cumsum", "div", "dot", "einsum", "empty", "empty_like", "eq", "erf"]
__all__ += ["erfc", "exp", "exp2", "expand", "expm1", "eye", "flatten", "flip", "floor"]
__all__ += ["floor_divide", "frac", "from_numpy", "full", "full_like", "gather", "ge", "gt"]
__all__ += ["hstack", "index_add", "index_copy", "index_fill", "index_select", "initial_seed"]
__all__ += ["isclose", "isfinite", "isinf", "isnan", "le", "lerp", "linspace", "log", "log10"]
__all__ += ["log1p", "log2", "log_softmax", "logaddexp", "logical_and", "logical_not"]
__all__ += ["logical_or", "logical_xor", "logit", "logsumexp", "lt", "manual_seed", "masked_fill"]
__all__ += ["matmul", "max", "maximum", "mean", "median", "min", "minimum", "mm", "movedim"]
__all__ += ["mul", "mv", "nan_to_num", "narrow", "ne", "neg", "no_grad", "norm", "one_hot", "ones"]
__all__ += ["ones_like", "outer", "permute", "pow", "prod", "rand", "rand_like", "randint"]
__all__ += ["randn", "randn_like", "randperm", "ravel", "reciprocal", "relu", "remainder"]
__all__ += ["repeat", "repeat_interleave", "reshape", "roll", "round", "rsqrt", "scalar"]
__all__ += ["scatter", "scatter_add", "select", "sigmoid", "sign", "sin", "sinh", "softmax"]
__all__ += ["split", "sqrt", "square", "squeeze", "stack", "std", "std_mean", "sub", "sum", "t"]
__all__ += ["take_along_dim", "tan", "tanh", "tensor", "tile", "transpose", "tril", "triu"]
__all__ += ["true_divide", "trunc", "unbind", "unflatten", "unsqueeze", "var", "var_mean"]
__all__ += ["vstack", "where", "xlogy", "zeros", "zeros_like"]
