"""What losses and metrics by name read: the modules of the model, as they ran for a batch."""

from __future__ import annotations

import abc
import contextlib
import contextvars
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from hotloop.base.suggest import did_you_mean
from hotloop.errors import ConfigError
from hotloop.graph.trace import Call, Trace
from hotloop.nn.module import Module
from hotloop.stats.node import cube_or_input

__all__ = ["Called", "Calls", "ModuleLoss", "ModuleMetric", "running_calls"]


class Called(NamedTuple):
    """A module that ran.

    Attributes
    ----------
    module : Module
    input : Tensor, or structure of them
        Its first one; of a dict with a "cube" that.
    output : Tensor, or structure of them
    """

    module: Any
    input: Any
    output: Any


_running: contextvars.ContextVar[Calls | None] = contextvars.ContextVar("calls", default=None)


def running_calls() -> Calls:
    """Those of the batch whose losses are computed."""
    calls = _running.get()
    assert calls is not None  # a step that has losses of modules opens them
    return calls


class Calls:
    """The modules of a model that ran for a batch: ``calls["pca1"].output``.

    Attributes
    ----------
    output : Tensor, or structure of them
        The model's.
    batch : dict
        With "x" and, where there are any, "y" and "weight".
    """

    def __init__(self, model: Module, trace: Trace) -> None:
        self._modules = dict(model.named_modules())
        self._seen: dict[str, list[Call]] = {
            name: trace.watch(module) for name, module in self._modules.items()
        }
        self.output: Any = None
        self.batch: Mapping[str, Any] = {}

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """In the block ``running_calls`` returns these."""
        token = _running.set(self)
        try:
            yield
        finally:
            _running.reset(token)

    def __getitem__(self, name: str) -> Called:
        """The last call of the module of that name, as ``named_modules()`` has it.

        Raises
        ------
        ConfigError
            If there is no such module, or it did not run.
        """
        if name not in self._modules:
            names = [each for each in self._modules if each]
            if not names:
                raise ConfigError(
                    f"there is no module {name!r}, as the model has none at all; of a model that "
                    "was loaded build the module anew and write "
                    "load_state_dict(loaded.state_dict())"
                )
            raise ConfigError(
                f"there is no module {name!r} in the model{did_you_mean(name, names)}; it has "
                f"{', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
            )
        if not self._seen[name]:
            raise ConfigError(
                f"the module {name!r} was not reached: forward does not call it; leave out what "
                "reads it, or call it"
            )
        call = self._seen[name][-1]
        given = cube_or_input(call.inputs[0]) if call.inputs else None
        return Called(self._modules[name], given, call.output)

    def module(self, name: str, kind: type[Any]) -> Any:
        """The module of that name, which must be of a kind.

        Raises
        ------
        ConfigError
        """
        found = self[name].module
        if not isinstance(found, kind):
            raise ConfigError(f"{name!r} must be a {kind.__name__}, got a {type(found).__name__}")
        return found

    @property
    def target(self) -> Any:
        """The batch's target.

        Raises
        ------
        ConfigError
            If the data has none.
        """
        if "y" not in self.batch:
            raise ConfigError("a target is needed, and the data has none; give masks or labels")
        return self.batch["y"]


class ModuleLoss(Module, abc.ABC):
    """A loss that reads modules of the model: an entry of ``losses=``.

    A subclass defines ``compute``. Its parameters are trained with the model's.

    Parameters
    ----------
    name : str
        In the history.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    @abc.abstractmethod
    def compute(self, calls: Calls) -> Any:
        """The loss of a batch: a tensor of rank 0.

        Parameters
        ----------
        calls : Calls
        """


class ModuleMetric(abc.ABC):
    """A metric that reads modules of the model: an entry of ``metrics=``.

    A subclass defines ``compute``; where what is to be seen is no mean, ``finish`` too.

    Parameters
    ----------
    name : str
        In the history.
    mode : {"max", "min"}
        Whether a larger or a smaller value is better.
    """

    def __init__(self, name: str, mode: str = "max") -> None:
        self.name, self.mode = name, mode

    @abc.abstractmethod
    def compute(self, calls: Calls) -> Mapping[str, Any]:
        """Values of a batch, by their names: tensors of rank 0.

        A pair of tensors is a quotient, whose parts are each summed over all batches.

        Parameters
        ----------
        calls : Calls
        """

    def finish(self, values: Mapping[str, float]) -> Mapping[str, float]:
        """What is shown, from the values over all batches."""
        return values
