"""``find_batch_size``: the largest batch that a training step has memory for, by planning alone.

Memory is known before anything runs, so that no batch has to fail to be found too large, and a GPU
that is not in this machine can be asked about. What is planned is the whole training step, with its
backward pass and the optimizer's moments; running forward alone finds batches that do not train.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hotloop.base.messages import format_bytes
from hotloop.base.rules import whole
from hotloop.errors import ConfigError, OutOfMemoryError
from hotloop.tools.planning import is_described, plan

if TYPE_CHECKING:
    from hotloop.data.module import DataModule
    from hotloop.nn.module import Module
    from hotloop.training.config import TrainingConfig

__all__ = ["find_batch_size"]


def find_batch_size(
    model: Module,
    datamodule: DataModule | Any,
    training_config: TrainingConfig | None = None,
    *,
    device: Any = None,
    at_most: int = 1024,
    **overrides: Any,
) -> int:
    """The largest batch whose training step fits into memory; nothing is run.

    Parameters
    ----------
    model : Module
        Left as it is.
    datamodule, training_config, **overrides
        As for :func:`hotloop.train`. ``memory_limit`` says how much memory there is; without it a
        GPU's is taken. Nothing is recomputed unless ``recompute`` says so. On a device of this
        machine ``precision="auto"`` counts as float32, which takes the most, and is not measured.
    device : str or torch.device, optional
        As for :func:`hotloop.plan`: also the name of a GPU that need not be in this machine, "T4".
    at_most : int
        Where the search ends; at the number of training rows at the latest.

    Returns
    -------
    int
        Rows of a batch, for ``datamodule.with_batch_size(n)``.

    Raises
    ------
    ConfigError
        If nothing says how much memory there is: on a CPU without ``memory_limit``.
    OutOfMemoryError
        If not even a batch of one row fits.
    ConfigError, ShapeError, DataError, TraceError
        As ``train`` would.

    Examples
    --------
    >>> X, y = hl.load_digits()
    >>> net = nn.Sequential(nn.Linear(64, 16384), nn.ReLU(), nn.Linear(16384, 10))
    >>> data = hl.DataModule.from_arrays(X, y)
    >>> n = hl.find_batch_size(net, data, memory_limit="128 MB", accelerator="cpu")
    >>> 100 < n < 1000, data.with_batch_size(n).batch_size == n
    (True, True)
    """
    from hotloop.data.shorthand import as_datamodule
    from hotloop.training.config import TrainingConfig

    config = TrainingConfig.resolve(training_config, overrides).replace(on_oom="raise")
    if config.recompute == "auto":
        config = config.replace(recompute=False)
    if config.precision == "auto" and not is_described(device, overrides):
        config = config.replace(precision="32-true")
    data = as_datamodule(datamodule)
    most = min(whole(1)("at_most", at_most), len(data.rows("train")))

    def fits(n: int) -> bool:
        try:
            report = plan(model, data.with_batch_size(n), config, device=device)
        except OutOfMemoryError:
            return False
        if report.fits is None and config.memory_limit is None:
            raise ConfigError(
                "find_batch_size: memory_limit must say how much memory a step may take on "
                f"{report.device}, got None; write memory_limit='4 GB', or device='T4' for a GPU "
                "that is not here"
            )
        return report.fits is not False

    fitting, too_large = 0, most + 1
    step = 2  # batch norm needs two rows
    while fitting + 1 < too_large:  # doubled until one is too large, then halved between the two
        n = min(fitting + step, too_large - 1)
        if fits(n):
            fitting, step = n, n if too_large > most else (too_large - n) // 2
        else:
            too_large, step = n, (n - fitting) // 2
    if not fitting:
        limit = config.memory_limit
        room = f"memory_limit={format_bytes(limit)}" if limit else f"{device or 'the GPU'}"
        raise OutOfMemoryError(
            f"out of memory: not even one row fits into {room}; write recompute=True, a smaller "
            "model or a larger limit"
        )
    return fitting
