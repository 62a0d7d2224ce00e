"""The functions of ``hl``: torch's names over symbolic tensors, and outside of forward over arrays.

They are defined by family in :mod:`hotloop.graph`, whose ``__all__`` say which of them are public;
most are Tensor methods too.
"""

from hotloop.graph.comparison import *
from hotloop.graph.contraction import *
from hotloop.graph.creation import *
from hotloop.graph.einsum import *
from hotloop.graph.elementary import *
from hotloop.graph.factorization import *
from hotloop.graph.indexing import *
from hotloop.graph.ordering import *
from hotloop.graph.pointwise import *
from hotloop.graph.rearranging import *
from hotloop.graph.reduction import *
from hotloop.graph.seeds import initial_seed as initial_seed
from hotloop.graph.seeds import manual_seed as manual_seed
from hotloop.graph.trace import no_grad as no_grad
from hotloop.graph.views import *
