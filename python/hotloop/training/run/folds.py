"""``cross_validate``: one training for each fold, and predictions for the rows it did not see.

A fold is a DataModule, so that all that is fitted on training rows (standardisation, the columns of
a table, class weights "balanced") is fitted on the fold's. What is left of a fold when the next one
begins are its result and its predictions: plans, moments and the state for resuming go, so that
memory grows by the weights of the models that are kept and by nothing else.

Scores are computed by the final model on the fold's validation rows, and not taken from the
history: an average of weights, restored weights and validation every few epochs all count as they
are.

Rejected: a seed of its own for each fold. With one seed every fold begins with the same weights,
and what differs between folds is the data alone.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hotloop.base.messages import counted, once, show
from hotloop.base.rules import reject, whole
from hotloop.base.structure import flatten, unflatten
from hotloop.data.module import DataModule
from hotloop.data.shorthand import as_datamodule
from hotloop.errors import ConfigError, DataError, HotloopError, TrainingInterrupted
from hotloop.nn.module import Module
from hotloop.training.config import TrainingConfig
from hotloop.training.inference import drop_plans, evaluate, predict
from hotloop.training.loggers.loggers import of_fold
from hotloop.training.plans.fitted import fitted_of
from hotloop.training.result.folds import CrossValidation
from hotloop.training.result.result import TrainResult
from hotloop.training.run.fit import train
from hotloop.training.run.signals import is_interactive

__all__ = ["cross_validate"]

Rows = npt.NDArray[np.int64]
Seen = dict[int, weakref.ref[Any]]  # by id; a parameter's == is one of values


def cross_validate(
    make_model: Callable[[], Module],
    datamodule: Any,
    training_config: TrainingConfig | None = None,
    folds: int = 5,
    *,
    split: str | None = None,
    gap: int | None = None,
    predictions: bool = True,
    tta: str | None = None,
    keep_models: bool = True,
    **overrides: Any,
) -> CrossValidation:
    """Trains a model for each of several divisions of the data, and predicts every row once.

    Parameters
    ----------
    make_model : callable
        ``make_model()`` returns a new Module, for each fold once: a class, or ``lambda: Net(3)``.
    datamodule : DataModule, or a tuple (X, y)
        Training and validation rows together are divided anew; test rows are in no fold. How, is
        decided as for ``DataModule.fold``: of classes each fold has its share, groups go whole,
        data that was split by time is divided in its order, windows always.
    training_config : TrainingConfig, optional
        Of each fold's training. All have its seed, and so begin with the same weights; with
        ``seed=None`` one is drawn for all of them.
    folds : int
        How many.
    split, gap
        As for ``DataModule.fold``.
    predictions : bool
        Whether validation rows are predicted; False for models whose outputs are too large to be
        kept.
    tta : {"hflip", "vflip", "flips", "d4"}, optional
        Of these predictions, as for :func:`hotloop.predict`. Scores are without.
    keep_models : bool
        Whether the results keep their models, which are as much memory as so many times the
        weights. False: each is dropped when the next fold begins.
    **overrides
        Fields of the configuration, ``lr=3e-4``. Callbacks are the same objects in each fold.

    Returns
    -------
    CrossValidation
        Results and scores by fold, their mean and standard deviation, and the predictions.

    Raises
    ------
    ConfigError, DataError, ShapeError, TraceError, NotFiniteError, OutOfMemoryError
        As :func:`hotloop.train` and ``DataModule.fold`` do; the text names the fold.
    DataError
        If a fold would train without a class that other rows have; no fold is trained then. Where
        validation rows lack one, a DataWarning names it and the folds, as ``DataModule.fold``.
    ConfigError
        If make_model returns no Module, or one that was returned before.
    TrainingInterrupted
        On Ctrl-C in a script, where its ``result`` is that of the fold, and its ``folds`` what a
        notebook gets returned: those that were complete.

    Notes
    -----
    Where the best epoch's weights are restored (``restore_best``, early stopping), the rows that
    choose the epoch are those that are scored, and scores are a little too good. With
    ``restore_best=False`` and a fixed ``max_epochs`` nothing is chosen by them.

    Examples
    --------
    >>> X, y = hl.load_digits()
    >>> data = hl.DataModule.from_arrays(X, y, standardize=True)
    >>> found = hl.cross_validate(
    ...     lambda: nn.Linear(64, 10), data, folds=3, lr=1e-2, enable_progress_bar=False
    ... )
    >>> found.predictions.shape, len(found.scores["val_accuracy"])
    ((1797, 10), 3)
    >>> bool((found.labels == y[found.rows]).mean() > 0.5)
    True
    """
    if isinstance(make_model, Module) or not callable(make_model):
        reject(
            "cross_validate: make_model",
            "must be a function that makes a new model for each fold",
            make_model,
            "write lambda: Net(...), or the class",
        )
    n = whole(1)("folds", folds)
    is_module = isinstance(datamodule, DataModule)
    data = datamodule if is_module else as_datamodule(datamodule, val=None)
    config = TrainingConfig.resolve(training_config, overrides)
    seed = config.seed
    assert seed is not None  # resolve has drawn one
    shows = config.enable_progress_bar is not False
    made: list[TrainResult] = []
    scores: list[dict[str, float]] = []
    rows: list[Rows] = []
    found: list[Any] = []
    labels: list[Any] = []
    classes: Any = None
    seen: Seen = {}
    told: set[str] = set()
    steps = 0  # attempted in the folds before

    def divide(k: int) -> DataModule:
        with once(told):
            return data.fold(k, n, split=split, gap=gap)

    for k in range(n):
        with _naming(k, n):
            _check_classes(data, divide(k))

    def complete() -> CrossValidation:
        """Of the folds that have ended."""
        order = np.argsort(np.concatenate(rows), kind="stable") if rows else np.zeros(0, np.int64)
        return CrossValidation(
            results=made,
            scores=scores,
            rows=rows,
            predictions=_in_order(found, order),
            labels=_in_order(labels, order),
            classes=classes,
            seed=seed,
            data_seed=data.seed,
            n_folds=n,
            places=data.places,
        )

    for k in range(n):
        try:
            with _naming(k, n):
                fold = divide(k)
                model = _make(make_model, seen)
                if shows:
                    sizes = [counted(len(fold.rows(name)), "row") for name in ("train", "val")]
                    show(f"hotloop: fold {k + 1} of {n}: {sizes[0]} train, {sizes[1]} validate")
                config_of_fold = config.replace(
                    on_interrupt="raise",  # so that Ctrl-C is no reason of a callback's
                    enable_model_summary=config.enable_model_summary and k == 0,
                )
                with of_fold(k + 1, steps):
                    result = train(model, fold, config_of_fold)
                scores.append(_score(result, fold))
                rows.append(fold.rows("val"))
                if predictions:
                    has_link = _has_link(model)
                    found.append(predict(model, fold, split="val", proba=has_link, tta=tta))
                    if has_link:
                        labels.append(predict(model, fold, split="val", labels=True, tta=tta))
                classes = result.classes
                drop_plans(model)
                result._state = None
                result._again = functools.partial(_go_on, model, data, (k, n, split, gap), steps)
                steps += result.steps + result.skipped_steps
                result.config = result.config.replace(
                    on_interrupt=config.on_interrupt,
                    enable_model_summary=config.enable_model_summary,
                )
                if not keep_models:
                    result.drop_model()
                made.append(result)
                del fold, model, result
        except TrainingInterrupted as error:
            returns = config.on_interrupt == "return" or (
                config.on_interrupt == "auto" and is_interactive()
            )
            if not returns:
                error.args = (f"cross_validate: fold {k + 1} of {n}: {error}",)
                error.folds = complete()
                raise
            break
    return complete()


@contextlib.contextmanager
def _naming(k: int, n: int) -> Iterator[None]:
    """An error within names the fold."""
    try:
        yield
    except TrainingInterrupted:
        raise
    except HotloopError as error:
        error.args = (f"cross_validate: fold {k + 1} of {n}: {error}", *error.args[1:])
        raise
    except Exception as error:
        error.add_note(f"hotloop: in fold {k + 1} of {n} of cross_validate")
        raise


def _check_classes(data: DataModule, fold: DataModule) -> None:
    """Refuses a fold whose model would never have seen a class: its probability means nothing."""
    if lacking := data.untrained_classes(fold):
        raise DataError(
            f"training rows must be of every class, got none of {', '.join(map(str, lacking))}; "
            "make fewer folds, add rows of it, or leave out what is before the class occurs, or "
            "the class"
        )


def _make(make_model: Callable[[], Module], seen: Seen) -> Module:
    """A model that shares nothing that learns with those of earlier folds."""
    model = make_model()
    if not isinstance(model, Module):
        raise ConfigError(f"make_model: must return a Module, got {type(model).__name__}")
    fix = "make model and layers within the function"
    if _is_seen(model, seen):
        raise ConfigError(
            f"make_model: must return a new model for each fold, got that of an earlier one; {fix}"
        )
    learns = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for name, parameter in learns.items():
        if _is_seen(parameter, seen):
            raise ConfigError(
                f"make_model: {name} is also in the model of an earlier fold, which trained it; "
                f"{fix}"
            )
    seen.update((id(one), weakref.ref(one)) for one in (model, *learns.values()))
    return model


def _is_seen(one: object, seen: Seen) -> bool:
    found = seen.get(id(one))
    return found is not None and found() is one  # else it is gone, and its id was given again


def _go_on(
    model: Module, data: DataModule, wish: tuple[Any, ...], steps: int, **options: Any
) -> TrainResult:
    """What a fold's ``result.resume`` does; the fold's data are made again."""
    k, n, split, gap = wish
    fold = data.fold(k, n, split=split, gap=gap)
    with of_fold(k + 1, steps):
        return train(model, fold, **options)


def _score(result: TrainResult, fold: DataModule) -> dict[str, float]:
    """Loss and metrics of the final model, as the history names them."""
    values = evaluate(result.model, fold, "val", config=result.config)
    return {f"val_{name}": value for name, value in values.items() if not np.ndim(value)}


def _has_link(model: Module) -> bool:
    """Whether outputs become probabilities of classes."""
    fitted = fitted_of(model)
    link = None if fitted is None else fitted.link
    return any(link.values()) if isinstance(link, dict) else bool(link)


def _in_order(parts: Sequence[Any], order: Rows) -> Any:
    """The predictions of all folds in the order of the rows; None where there are none."""
    if not parts:
        return None
    if all(isinstance(part, list) for part in parts):  # an array for each sequence
        together = [one for part in parts for one in part]
        return [together[i] for i in order]
    leaves = [flatten(part) for part in parts]
    columns = zip(*(own for own, _ in leaves), strict=True)
    return unflatten([np.concatenate(column)[order] for column in columns], leaves[0][1])
