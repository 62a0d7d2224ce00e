"""The symbolic side of hotloop: tensors without values, and the trace that turns them into a graph.

``forward`` runs once per input shape. Every function here adds nodes to the running trace's
``_core.Graph``; shapes and dtypes are inferred by the core. Reading order, in which each imports
those before it: ``dtypes``, ``value``, ``trace``, ``outputs``, ``eager``, ``build``, then the
families (``comparison``, ``pointwise``, ``elementary``, ``reduction``, ``views``, ``ordering``,
``indexing``, ``contraction``, ``creation``) and last ``symbolic``, the Tensor that has them as
methods.
"""

from hotloop.graph import symbolic  # tells the trace what a tensor is
