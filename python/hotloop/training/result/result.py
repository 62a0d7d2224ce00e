"""TrainResult: what ``train`` returns, however it ended."""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING, Any, cast

from hotloop import _core
from hotloop.base.messages import counted
from hotloop.base.suggest import did_you_mean, function_for
from hotloop.errors import ConfigError
from hotloop.training.plans.fitted import check_kept, fitted_of
from hotloop.training.result.history import History
from hotloop.training.result.page import make_page
from hotloop.training.result.plotting import draw_history
from hotloop.training.result.report import describe_result
from hotloop.training.result.saving import save

if TYPE_CHECKING:
    import pandas as pd

    from hotloop.nn.module import Module
    from hotloop.training.config import TrainingConfig

__all__ = ["TrainResult"]


class TrainResult:
    """The trained model and how training went.

    Attributes
    ----------
    model : Module
        With its best weights where ``restore_best`` asks for them, else its last.
    history : History
        ``loss``, ``val_loss``, metrics (``val_accuracy``), ``lr``, ``epoch``, by epoch; with
        ``val_check_interval`` by validation.
    confusion_matrix : ndarray (C, C), dict of them, or None
        How often validation had which class (rows) and the model said which (columns), in the order
        of the model's outputs and of ``classes``: integers, or sums of sample weights. It is that
        of the model's weights: of the best epoch where those were restored, else of the last
        validation. Of several targets a dict from those of classes. None without validation, or
        without a metric of classes; beyond 256 classes and of float targets it is counted where
        ``metrics`` has "confusion_matrix".
    monitor : str or None
        The value that decided which weights are best, such as "val_loss".
    best_score : float or None
        Its best value.
    best_epoch : int or float or None
        Epoch (from 1) that reached it; 2.25 is a validation within the third.
    best_path : str or None
        File of the model of its best epoch, where one was written: :func:`hotloop.load` reads it.
    last_path : str or None
        The latest checkpoint, where one was written: ``train(..., resume=path)`` goes on from it.
    log_path : str or None
        The log, ``metrics.csv``, else ``metrics.jsonl``, where one was written.
    stop_reason : str
        "completed", "early_stopping", "max_time", "max_steps", "interrupted" or "nan".
    epochs : int
        Epochs that ended; the last one may be cut short by ``max_steps`` or ``max_time``.
    steps : int
        Optimizer steps of the run, those before it was resumed among them.
    skipped_steps : int
        Of the run: steps that changed nothing, because a loss or gradient was not finite.
    not_finite : str or None
        What was not finite, at which step and which node made it so, of the step that ended
        training or was the first to be left out for it; None where all steps were finite.
    schedule_by : str
        "time" where the learning rate's schedule went by the share of ``max_time``, else "steps".
    seconds : float
        Wall time of the call.
    timings : dict of str to float
        Seconds spent in "plan", "statistics" (looking through the data before that), "train",
        "validate", "checkpoint" (taking copies of what is saved; writing goes on beside training)
        and "other"; their sum is ``seconds``.
    data_wait : float
        Seconds of training in which the step waited for its batch.
    samples_per_second : float
        Training samples by the seconds spent in training.
    peak_bytes : int
        Most memory that the core held at once between plan and return; on a GPU of its memory,
        without the context and libraries.
    predicted_peak_bytes : int
        The prediction printed before the first step.
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
        self.confusion_matrix: Any = facts["confusion_matrix"]
        self.monitor: str | None = facts["monitor"]
        self.best_score: float | None = facts["best_score"]
        self.best_epoch: int | float | None = facts["best_epoch"]
        self.best_path: str | None = facts["best_path"]
        self.last_path: str | None = facts["last_path"]
        self.log_path: str | None = facts["log_path"]
        self.stop_reason: str = facts["stop_reason"]
        self.epochs: int = facts["epochs"]
        self.steps: int = facts["steps"]
        self.skipped_steps: int = facts["skipped_steps"]
        self.not_finite: str | None = facts["not_finite"]
        self.schedule_by: str = facts["schedule_by"]
        self.seconds: float = facts["seconds"]
        self.timings: dict[str, float] = facts["timings"]
        self.data_wait: float = facts["data_wait"]
        self.samples_per_second: float = facts["samples_per_second"]
        self.peak_bytes: int = facts["peak_bytes"]
        self.predicted_peak_bytes: int = facts["predicted_peak_bytes"]
        self._state = state
        self._n_averaged: int = facts["n_averaged"]  # epochs in the average of swa
        self._plan: str = facts["plan"]  # the text of the training step's
        self._asked: Any = None  # the configuration as it was given
        self._written: tuple[Any, ...] = facts["written"]  # by which its checkpoint is known again
        self._again: Any = None  # train with the model and the data
        self._fitted: Any = None  # what is known of a model that was dropped
        self._shown = ("", "")  # its class and its text

    def __repr__(self) -> str:
        best = ""
        if self.best_score is not None:
            best = f", best {self.monitor} {self.best_score:.4g} in epoch {self.best_epoch:g}"
        return (
            f"TrainResult({self.stop_reason} after {counted(self.epochs, 'epoch')}, "
            f"{counted(self.steps, 'step')}, {self.seconds:.2f} s on {self.device}{best})"
        )

    if not TYPE_CHECKING:  # a type checker should still see that an attribute is wrong

        def __getattr__(self, name: str) -> Any:
            near = did_you_mean(name, dir(type(self)))
            raise AttributeError(f"TrainResult has no {name!r}{function_for(name) or near}")

    @property
    def classes(self) -> list[Any] | dict[str, Any] | None:
        """Names by class id, of several targets a dict; None where classes had no names."""
        model: Module | None = self.model
        fitted = self._fitted if model is None else fitted_of(model)
        return copy.copy(fitted.classes) if fitted is not None else None

    def resume(self, **overrides: Any) -> TrainResult:
        """Goes on with the run, on its data, from where it ended.

        Parameters
        ----------
        **overrides
            Fields of the configuration, such as a larger ``max_epochs``, by which a schedule has
            its rates; as for ``train(..., resume=result)``.

        Returns
        -------
        TrainResult
            Of the whole run.

        Raises
        ------
        ConfigError, CheckpointError
            As ``train(..., resume=result)`` does; if the model was dropped.

        Examples
        --------
        >>> X, y = hl.load_digits()
        >>> config = hl.TrainingConfig(max_epochs=3, enable_progress_bar=False)
        >>> result = hl.train(nn.Linear(64, 10), (X, y), config)
        >>> result.resume(max_epochs=5).epochs
        5
        """
        check_kept("resume", self)
        return cast("TrainResult", self._again(resume=self, **overrides))

    def drop_model(self) -> None:
        """Lets go of the model and of what belongs to it; history and report stay."""
        self._fitted, self._shown = fitted_of(self.model), self._describe_model()
        self.model = self._state = self._again = None  # type: ignore[assignment]

    def _describe_model(self) -> tuple[str, str]:
        """The class and the text of the model, also of one that was dropped."""
        model: Module | None = self.model
        return self._shown if model is None else (type(model).__name__, repr(model))

    def to_pandas(self) -> pd.DataFrame:
        """The history as a DataFrame, one row per epoch.

        Returns
        -------
        pandas.DataFrame
            A column for each value of the history.

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
        """Draws losses, metrics, learning rate, samples per second and memory over epochs.

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
        return draw_history(self.history, path)

    def report(self, path: str | os.PathLike[str] | None = None) -> str:
        """The result as text, for ``print``, and as a page of HTML.

        Parameters
        ----------
        path : path-like, optional
            Where to write the page, such as "run.html": one file that needs no other and no
            network, with curves, values, classes, configuration, model, plan and machine. An
            existing file is replaced as a whole or not at all.

        Returns
        -------
        str
            How training ended; of each value in the history the first, the best epoch's and the
            last; of classes precision, recall, f1 and rows, and the confusion matrix.

        Raises
        ------
        ConfigError
            If a page is asked for and matplotlib, which draws its curves, is not installed.
        CheckpointError
            If the page cannot be written.
        """
        if path is not None:
            _core.write_file(
                os.fspath(path), [make_page(self, *self._describe_model(), self._plan).encode()]
            )
        return describe_result(self)

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
        ConfigError
            If the model was dropped.
        """
        save(self, path)
