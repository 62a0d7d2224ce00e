"""torch.nn.functional for hotloop's ops: the same names, arguments and formulas.

All of them are compositions of the op table's ops on the tensors of a running trace; nothing here
computes with numbers. Outside of one they compute on arrays: :mod:`hotloop.graph.eager`.
"""

from typing import TYPE_CHECKING

from hotloop.graph.elementary import sigmoid as sigmoid
from hotloop.graph.elementary import tanh as tanh
from hotloop.graph.indexing import one_hot as one_hot
from hotloop.nn.functional import (
    activations,
    attention,
    class_losses,
    convolutions,
    deformable,
    distances,
    embeddings,
    folding,
    grids,
    groups,
    image_norms,
    in_place,
    linears,
    max_pooling,
    multi_head,
    noise,
    norms,
    paddings,
    pooling,
    positions,
    resampling,
    sequence_losses,
    value_losses,
    vocabularies,
)
from hotloop.nn.functional.activations import *
from hotloop.nn.functional.attention import *
from hotloop.nn.functional.class_losses import *
from hotloop.nn.functional.convolutions import *
from hotloop.nn.functional.deformable import *
from hotloop.nn.functional.distances import *
from hotloop.nn.functional.embeddings import *
from hotloop.nn.functional.folding import *
from hotloop.nn.functional.grids import *
from hotloop.nn.functional.groups import *
from hotloop.nn.functional.image_norms import *
from hotloop.nn.functional.in_place import *
from hotloop.nn.functional.linears import *
from hotloop.nn.functional.max_pooling import *
from hotloop.nn.functional.multi_head import *
from hotloop.nn.functional.noise import *
from hotloop.nn.functional.norms import *
from hotloop.nn.functional.paddings import *
from hotloop.nn.functional.pooling import *
from hotloop.nn.functional.positions import *
from hotloop.nn.functional.resampling import *
from hotloop.nn.functional.sequence_losses import *
from hotloop.nn.functional.value_losses import *
from hotloop.nn.functional.vocabularies import *

if not TYPE_CHECKING:  # type checkers see what is imported, and read no list made of lists
    __all__ = [
        "one_hot",
        "sigmoid",
        "tanh",
        *activations.__all__,
        *attention.__all__,
        *class_losses.__all__,
        *convolutions.__all__,
        *deformable.__all__,
        *distances.__all__,
        *embeddings.__all__,
        *folding.__all__,
        *grids.__all__,
        *groups.__all__,
        *image_norms.__all__,
        *in_place.__all__,
        *linears.__all__,
        *max_pooling.__all__,
        *multi_head.__all__,
        *noise.__all__,
        *norms.__all__,
        *paddings.__all__,
        *pooling.__all__,
        *positions.__all__,
        *resampling.__all__,
        *sequence_losses.__all__,
        *value_losses.__all__,
        *vocabularies.__all__,
    ]

    def __getattr__(name: str) -> object:
        from hotloop.base.suggest import did_you_mean

        hint = "" if name.startswith("_") else did_you_mean(name, __all__)
        raise AttributeError(f"module 'hotloop.nn.functional' has no attribute {name!r}{hint}")
