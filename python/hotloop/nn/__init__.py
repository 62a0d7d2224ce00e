"""torch.nn's names over hotloop's graph: layers, containers, losses, parameters.

Reading order: ``parameter`` and ``recipes``, ``module``, ``layout`` (where values lie), then the
layers. ``functional`` has the formulas, ``init`` the initialisation schemes.
"""

from typing import TYPE_CHECKING, Any

from hotloop.nn import (
    activation,
    attention,
    cache,
    checkpointing,
    containers,
    conv,
    deformable,
    dropout,
    folding,
    image_norm,
    linear,
    loss,
    module,
    norm,
    parameter,
    pool,
    positions,
    recurrent,
    rnn,
    shape,
    sparse,
    special_pool,
    transformer,
    uninitialized,
    upsampling,
    vocabularies,
)
from hotloop.nn import functional as functional
from hotloop.nn import init as init
from hotloop.nn import utils as utils
from hotloop.nn.activation import *
from hotloop.nn.attention import *
from hotloop.nn.cache import *
from hotloop.nn.checkpointing import *
from hotloop.nn.containers import *
from hotloop.nn.conv import *
from hotloop.nn.deformable import *
from hotloop.nn.dropout import *
from hotloop.nn.folding import *
from hotloop.nn.image_norm import *
from hotloop.nn.linear import *
from hotloop.nn.loss import *
from hotloop.nn.module import *
from hotloop.nn.norm import *
from hotloop.nn.parameter import *
from hotloop.nn.pool import *
from hotloop.nn.positions import *
from hotloop.nn.recurrent import *
from hotloop.nn.rnn import *
from hotloop.nn.shape import *
from hotloop.nn.sparse import *
from hotloop.nn.special_pool import *
from hotloop.nn.transformer import *
from hotloop.nn.uninitialized import *
from hotloop.nn.upsampling import *
from hotloop.nn.vocabularies import *

if not TYPE_CHECKING:  # type checkers see what is imported, and read no list made of lists
    __all__ = [
        "functional",
        "init",
        *activation.__all__,
        *attention.__all__,
        *cache.__all__,
        *checkpointing.__all__,
        *containers.__all__,
        *conv.__all__,
        *deformable.__all__,
        *dropout.__all__,
        *folding.__all__,
        *image_norm.__all__,
        *linear.__all__,
        *loss.__all__,
        *module.__all__,
        *norm.__all__,
        *parameter.__all__,
        *pool.__all__,
        *positions.__all__,
        *recurrent.__all__,
        *rnn.__all__,
        *shape.__all__,
        *sparse.__all__,
        *special_pool.__all__,
        *transformer.__all__,
        *uninitialized.__all__,
        *upsampling.__all__,
        *vocabularies.__all__,
    ]

# Names of torch.nn's that are none of layers, and what is here in their place.
_INSTEAD = {
    "DataParallel": "one device in this version",
    "parallel": "one device in this version",
}

if not TYPE_CHECKING:  # else type checkers would take every misspelt name for Any

    def __getattr__(name: str) -> Any:
        from hotloop.base.suggest import did_you_mean

        hint = "" if name.startswith("_") else did_you_mean(name, __all__)
        if name in _INSTEAD:
            hint = f": {_INSTEAD[name]}"
        raise AttributeError(f"module 'hotloop.nn' has no attribute {name!r}{hint}")
