"""Checkpoints in ``forward``: parts that are computed again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from hotloop.errors import ConfigError
from hotloop.graph import trace as tracing

__all__ = ["checkpoint"]

T = TypeVar("T")


def checkpoint(
    function: Callable[..., T],
    *args: Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    context_fn: Any = None,
    **kwargs: Any,
) -> T:
    """Calls a module or function so that its inside is computed again in the backward pass.

    As ``torch.utils.checkpoint.checkpoint``: what the call reads, and what is read of its results,
    is kept in memory until the backward pass, and nothing in between (Chen et al. 2016, "Training
    deep nets with sublinear memory cost"). Weights come out the same, bit for bit: dropout drops
    the same elements, and statistics and ``assign`` count once. Checkpoints within one another are
    computed again one by one. In evaluation, and outside of ``forward``, it is a plain call.

    Without a line in the model, ``TrainingConfig(recompute=...)`` does the same for modules by
    their names, and ``memory_limit`` for as much as is needed.

    Parameters
    ----------
    function : Module or callable
        What is called.
    *args, **kwargs
        What it is called with.
    use_reentrant, preserve_rng_state, determinism_check, debug, early_stop
        Taken for code that comes from torch: there is one way, and it repeats exactly.
    context_fn : None
        Taken for torch's sake; selective checkpoints are ``TrainingConfig(recompute=0.5)``.

    Returns
    -------
    object
        What ``function`` returns.

    Raises
    ------
    ConfigError
        If ``context_fn`` is given.

    Examples
    --------
    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.blocks = nn.ModuleList(nn.Linear(64, 64) for _ in range(8))
    ...         self.head = nn.Linear(64, 10)
    ...     def forward(self, x):
    ...         for block in self.blocks:
    ...             x = nn.checkpoint(lambda x: block(x).relu(), x)
    ...         return self.head(x)
    >>> X, y = hl.load_digits()
    >>> hl.train(Net(), (X, y), max_epochs=1, enable_progress_bar=False).steps
    23
    """
    if context_fn is not None:
        raise ConfigError(
            f"checkpoint: context_fn must be None, got {context_fn!r}; to keep some of the values "
            "write TrainingConfig(recompute=0.5), which keeps those that cost most"
        )
    trace = tracing.active()
    if trace is None:
        return function(*args, **kwargs)
    with trace.checkpoint():
        return function(*args, **kwargs)
