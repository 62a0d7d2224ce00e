"""The symbolic side of hotloop: tensors without values, and the trace that turns them into a graph.

``forward`` runs once per input shape. Every function here adds nodes to the running trace's
``_core.Graph``; shapes and dtypes are inferred by the core. Reading order: ``dtypes``, ``trace``,
``build``, then the families (``pointwise``, ``reduction``, ``views``, ``indexing``,
``contraction``, ``creation``) and last ``symbolic``, the Tensor that has all of them as methods.
"""
