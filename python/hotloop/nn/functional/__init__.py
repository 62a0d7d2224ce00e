"""torch.nn.functional for hotloop's ops: the same names, arguments and formulas.

All of them work on the tensors of a running trace and are compositions of the op table's ops;
nothing here computes with numbers.
"""

from hotloop.graph.indexing import one_hot
from hotloop.graph.pointwise import sigmoid, tanh
from hotloop.nn.functional.activations import (
    celu,
    elu,
    gelu,
    glu,
    gumbel_softmax,
    hardshrink,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    log_softmax,
    logsigmoid,
    mish,
    prelu,
    relu,
    relu6,
    rrelu,
    selu,
    silu,
    softmax,
    softmin,
    softplus,
    softshrink,
    softsign,
    tanhshrink,
    threshold,
)
from hotloop.nn.functional.class_losses import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    cross_entropy,
    multi_margin_loss,
    multilabel_margin_loss,
    multilabel_soft_margin_loss,
    nll_loss,
    soft_margin_loss,
)
from hotloop.nn.functional.distances import cosine_similarity, normalize, pairwise_distance
from hotloop.nn.functional.linears import bilinear, embedding, linear
from hotloop.nn.functional.noise import alpha_dropout, dropout, dropout1d
from hotloop.nn.functional.norms import batch_norm, layer_norm, rms_norm
from hotloop.nn.functional.paddings import pad
from hotloop.nn.functional.value_losses import (
    cosine_embedding_loss,
    gaussian_nll_loss,
    hinge_embedding_loss,
    huber_loss,
    kl_div,
    l1_loss,
    margin_ranking_loss,
    mse_loss,
    poisson_nll_loss,
    smooth_l1_loss,
    triplet_margin_loss,
    triplet_margin_with_distance_loss,
)

__all__ = ["alpha_dropout", "batch_norm", "bilinear", "binary_cross_entropy"]
__all__ += ["binary_cross_entropy_with_logits", "celu", "cosine_embedding_loss"]
__all__ += ["cosine_similarity", "cross_entropy", "dropout", "dropout1d", "elu", "embedding"]
__all__ += ["gaussian_nll_loss", "gelu", "glu", "gumbel_softmax", "hardshrink", "hardsigmoid"]
__all__ += ["hardswish", "hardtanh", "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss"]
__all__ += ["layer_norm", "leaky_relu", "linear", "log_softmax", "logsigmoid"]
__all__ += ["margin_ranking_loss", "mish", "mse_loss", "multi_margin_loss"]
__all__ += ["multilabel_margin_loss", "multilabel_soft_margin_loss", "nll_loss", "normalize"]
__all__ += ["one_hot", "pad", "pairwise_distance", "poisson_nll_loss", "prelu", "relu", "relu6"]
__all__ += ["rms_norm", "rrelu", "selu", "sigmoid", "silu", "smooth_l1_loss", "soft_margin_loss"]
__all__ += ["softmax", "softmin", "softplus", "softshrink", "softsign", "tanh", "tanhshrink"]
__all__ += ["threshold", "triplet_margin_loss", "triplet_margin_with_distance_loss"]
