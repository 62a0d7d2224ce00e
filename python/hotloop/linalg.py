"""Linear algebra, by the names of torch.linalg: ``hl.linalg.cholesky``.

What there is works on tensors in ``forward`` and on arrays outside of it.
"""

from hotloop.graph.factorization import cholesky as cholesky
from hotloop.graph.factorization import solve_triangular as solve_triangular

__all__ = ["cholesky", "solve_triangular"]
