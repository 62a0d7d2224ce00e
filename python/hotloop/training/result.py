"""TrainResult: what ``train`` returns, however it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hotloop.errors import ConfigError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    import pandas as pd

    from hotloop.nn.module import Module
    from hotloop.training.config import TrainingConfig

__all__ = ["History", "TrainResult"]


class History(dict[str, list[float]]):
    """Values by name, one entry per epoch: ``history["val_accuracy"][-1]``.

    The last epoch may be one that ``max_steps`` or ``max_time`` cut short. An epoch without a value
    (validation every few epochs) holds NaN, so that all lists have the same length.
    """

    def append(self, row: dict[str, float]) -> None:
        """Adds an epoch's values."""
        length = max((len(column) for column in self.values()), default=0)
        for name in {**dict.fromkeys(self), **row}:
            column = self.setdefault(name, [float("nan")] * length)
            column.append(row.get(name, float("nan")))

    def rows(self) -> Iterator[dict[str, float]]:
        """One dict per epoch."""
        for i in range(len(self.get("epoch", ()))):
            yield {name: column[i] for name, column in self.items()}


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


class TrainResult:
    """The trained model and how training went.

    Attributes
    ----------
    model : Module
        With its best weights where ``restore_best`` asks for them, else its last.
    history : History
        ``loss``, ``val_loss``, metrics (``val_accuracy``), ``lr``, ``epoch``, by epoch.
    monitor : str or None
        What decided which weights are best: "val_loss".
    best_score : float or None
        Its best value.
    best_epoch : int or None
        Epoch (from 1) that reached it.
    best_path, last_path : str or None
        Checkpoints, where any were written.
    stop_reason : str
        "completed", "early_stopping", "max_time", "max_steps", "interrupted" or "nan".
    epochs : int
        Epochs in the history; the last one may be cut short by ``max_steps`` or ``max_time``.
    steps : int
        Applied steps in this call.
    skipped_steps : int
        Steps that changed nothing, because a loss or gradient was not finite.
    seconds : float
        Wall time of the call.
    timings : dict of str to float
        Seconds spent in "plan", "train", "validate" and "other".
    samples_per_second : float
        Training samples by the seconds spent in training.
    peak_bytes : int
        Most memory that the core held at once between plan and return; on a GPU of its memory,
        without the context and libraries.
    predicted_peak_bytes : int
        What was said before the first step.
    device : str
        Where it ran.
    config : TrainingConfig
        With every "auto" resolved: it reproduces the run.
    """

    def __init__(
        self,
        *,
        model: Module,
        history: History,
        config: TrainingConfig,
        device: str,
        state: Any,
        **facts: Any,
    ) -> None:
        self.model = model
        self.history = history
        self.config = config
        self.device = device
        self.monitor: str | None = facts["monitor"]
        self.best_score: float | None = facts["best_score"]
        self.best_epoch: int | None = facts["best_epoch"]
        self.best_path: str | None = None
        self.last_path: str | None = None
        self.stop_reason: str = facts["stop_reason"]
        self.epochs: int = facts["epochs"]
        self.steps: int = facts["steps"]
        self.skipped_steps: int = facts["skipped_steps"]
        self.seconds: float = facts["seconds"]
        self.timings: dict[str, float] = facts["timings"]
        self.samples_per_second: float = facts["samples_per_second"]
        self.peak_bytes: int = facts["peak_bytes"]
        self.predicted_peak_bytes: int = facts["predicted_peak_bytes"]
        self._state = state

    def __repr__(self) -> str:
        best = ""
        if self.best_score is not None:
            best = f", best {self.monitor} {self.best_score:.4g} in epoch {self.best_epoch}"
        return (
            f"TrainResult({self.stop_reason} after {_count(self.epochs, 'epoch')}, "
            f"{_count(self.steps, 'step')}, {self.seconds:.2f} s on {self.device}{best})"
        )

    def to_pandas(self) -> pd.DataFrame:
        """The history as a DataFrame, one row per epoch.

        Raises
        ------
        ConfigError
            If pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise ConfigError(
                "to_pandas: needs pandas, got none installed; pip install pandas"
            ) from error
        return pandas.DataFrame(dict(self.history))

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draws losses and metrics over epochs.

        Parameters
        ----------
        path : path-like, optional
            Where to save the plot as well.

        Returns
        -------
        matplotlib.figure.Figure
            Shown by a notebook as the cell's value.

        Raises
        ------
        ConfigError
            If matplotlib is not installed.
        """
        from hotloop.training.plotting import draw_history

        return draw_history(self.history, path)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model with all that :func:`hotloop.load` needs, as a safetensors file.

        Parameters
        ----------
        path : path-like
            An existing file is replaced as a whole or not at all.

        Raises
        ------
        CheckpointError
            If the file cannot be written; the old one is then as it was.
        """
        from hotloop.training.saving import save

        save(self.model, path)
