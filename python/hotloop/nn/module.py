"""Module: torch.nn.Module's interface over parameters that live on the host.

The idea: a module is a tree of names. It holds no device memory and computes nothing; called with
tensors it adds to the running trace, called with arrays it predicts one batch. Names are paths
from the outermost module (each module knows its parent, weakly), because they seed the initial
values and appear in messages.

Rejected: hooks. forward is traced once and then run from C, so a hook would run once and not once
per batch; the errors name what to use.
"""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn, TypeVar

from hotloop._suggest import did_you_mean
from hotloop.errors import ConfigError, HotloopError, ShapeError, TraceError
from hotloop.graph import dtypes
from hotloop.graph import trace as tracing
from hotloop.graph.symbolic import Tensor, is_device
from hotloop.nn.parameter import Buffer, Parameter, Variable, to_host
from hotloop.nn.recipes import Array

__all__ = ["IncompatibleKeys", "Module"]

M = TypeVar("M", bound="Module")


class IncompatibleKeys(NamedTuple):
    """What ``load_state_dict`` did not find in the state, and found but did not know."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Module:
    """Base class of all layers and models.

    A subclass makes its layers in ``__init__`` (after ``super().__init__()``) and says in
    ``forward`` how they are applied. Attributes that are parameters, buffers or modules are
    registered under their names.

    Called with symbolic tensors (inside another module's forward) it is traced; called with
    arrays it predicts one batch and returns arrays.
    """

    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Buffer | None]
    _modules: dict[str, Module | None]
    _training: bool
    _parent: weakref.ref[Module] | None
    _name: str
    _placement: str | None

    def __init__(self) -> None:
        for name, value in (
            ("_parameters", {}),
            ("_buffers", {}),
            ("_modules", {}),
            ("_training", True),
            ("_parent", None),
            ("_name", ""),
            ("_placement", None),
        ):
            object.__setattr__(self, name, value)

    # ---- calling

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; subclasses define it."""
        raise TraceError(f"{type(self).__name__}: must define forward(self, ...), found none")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        trace = tracing.active()
        if trace is None:
            return self._predict(args, kwargs)
        path = self.path
        with trace.scope(path):
            try:
                result = self.forward(*args, **kwargs)
            except HotloopError as error:
                self._locate(error)
                raise
            except RecursionError:
                raise TraceError(
                    f"{type(self).__name__}: forward must come to an end, got a module that calls "
                    "itself again and again"
                ) from None
            except (AttributeError, TypeError) as error:
                self._explain(args, kwargs, error)
                raise
        trace.saw(path, result)
        return result

    def _predict(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if any(isinstance(value, Tensor) for value in (*args, *kwargs.values())):
            tracing.current(f"{type(self).__name__}(tensor)")  # raises
        from hotloop.training.inference import run_batch  # here, for it imports this module

        if kwargs:
            bound = self._bind(args, kwargs)
            bound.apply_defaults()
            args = bound.args
        return run_batch(self, args)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
        """forward's arguments by name; TraceError where they do not fit."""
        try:
            return inspect.signature(self.forward).bind(*args, **kwargs)
        except TypeError as error:
            raise TraceError(
                f"{type(self).__name__}.forward: {error}, got {len(args) + len(kwargs)}"
            ) from None

    def _explain(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], error: AttributeError | TypeError
    ) -> None:
        """Raises a TraceError where inputs of the wrong number or kind made a layer stumble."""
        self._bind(args, kwargs)
        wrong = [value for value in args if value is None or isinstance(value, tuple | list | dict)]
        if wrong and type(self).__module__.startswith("hotloop."):
            refusal = TraceError(
                f"inputs must be tensors, got {type(wrong[0]).__name__}; take it apart in forward"
            )
            self._locate(refusal)
            raise refusal from error

    def _locate(self, error: HotloopError) -> None:
        """Puts the innermost module's path and repr before the error's text, once."""
        if getattr(error, "_located", False) or not isinstance(
            error, ShapeError | TraceError | ConfigError
        ):
            return
        title = type(self).__name__ if any(True for _ in self.children()) else repr(self)
        where = f"{self.path}, {title}" if self.path else title
        error.args = (f"{where}: {error}",)
        error.__dict__["_located"] = True

    @property
    def path(self) -> str:
        """The names from the outermost module to this one, joined by dots; ``""`` outermost."""
        names: list[str] = []
        module, seen = self, {id(self)}
        while module._parent is not None:
            parent = module._parent()
            if parent is None or parent._modules.get(module._name) is not module:
                break
            if id(parent) in seen:
                break
            names.append(module._name)
            seen.add(id(parent))
            module = parent
        return ".".join(reversed(names))

    # ---- registration

    def _registry(self, name: str, kind: str) -> None:
        if "_parameters" not in self.__dict__:
            raise TraceError(
                f"{type(self).__name__}.{name}: cannot assign a {kind} before "
                "super().__init__() was called"
            )

    def _check_name(self, name: str, registry: Mapping[str, Any], kind: str) -> None:
        self._registry(name, kind)
        if not isinstance(name, str) or not name or "." in name:
            raise ConfigError(f"{kind}: the name must be text without dots, got {name!r}")
        if hasattr(self, name) and name not in registry:
            raise ConfigError(f"{kind}: {type(self).__name__} has an attribute {name!r} already")

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Adds a parameter, or None as the place of one."""
        self._check_name(name, getattr(self, "_parameters", {}), "parameter")
        if param is not None and not isinstance(param, Parameter):
            raise ConfigError(
                f"parameter {name}: must be an nn.Parameter or None, got {type(param).__name__}"
            )
        self._parameters[name] = param
        if param is not None:
            param.attach(self, name)

    def register_buffer(self, name: str, tensor: Any, persistent: bool = True) -> None:
        """Adds a value that is kept but not trained.

        Parameters
        ----------
        name : str
            The attribute's name.
        tensor : array, Buffer or None
            The initial value.
        persistent : bool
            Whether ``state_dict`` has it.
        """
        self._check_name(name, getattr(self, "_buffers", {}), "buffer")
        if tensor is not None and not isinstance(tensor, Buffer):
            tensor = Buffer(tensor, persistent)
        elif tensor is not None:
            tensor.persistent = persistent and tensor.persistent
        self._buffers[name] = tensor
        if tensor is not None:
            tensor.attach(self, name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Adds a child module, or None as the place of one."""
        self._check_name(name, getattr(self, "_modules", {}), "module")
        if module is not None and not isinstance(module, Module):
            raise ConfigError(
                f"module {name}: must be an nn.Module or None, got {type(module).__name__}"
            )
        self._adopt(name, module)

    def register_module(self, name: str, module: Module | None) -> None:
        """The same as :meth:`add_module`."""
        self.add_module(name, module)

    def _adopt(self, name: str, module: Module | None) -> None:
        if module is not None and any(inner is self for inner in module.modules()):
            raise ConfigError(
                f"module {name}: a module must not contain itself, got the "
                f"{type(self).__name__} it is put into"
            )
        self._modules[name] = module
        if module is None:
            return
        parent = module._parent() if module._parent is not None else None
        if parent is None or parent._modules.get(module._name) is not module:
            object.__setattr__(module, "_parent", weakref.ref(self))
            object.__setattr__(module, "_name", name)

    def variable(self, name: str) -> Variable | None:
        """The parameter or buffer of this module under a name, or None."""
        found = self._parameters.get(name)
        return self._buffers.get(name) if found is None else found

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Parameter | Buffer | Module):
            self._registry(name, type(value).__name__)
            kinds = (Parameter, self._parameters), (Buffer, self._buffers), (Module, self._modules)
            for cls, registry in kinds:
                if not isinstance(value, cls):
                    registry.pop(name, None)  # of its own kind it keeps the place
            self.__dict__.pop(name, None)
            if isinstance(value, Parameter):
                self.register_parameter(name, value)
            elif isinstance(value, Buffer):
                self.register_buffer(name, value, value.persistent)
            else:
                self.add_module(name, value)
            return
        for held, kind in (("_parameters", "nn.Parameter"), ("_modules", "nn.Module")):
            registered = self.__dict__.get(held, {})
            if name in registered:
                if value is not None:
                    hint = "; use copy_(array) to set values" if held == "_parameters" else ""
                    raise ConfigError(
                        f"{type(self).__name__}.{name}: must be an {kind} or None, got "
                        f"{type(value).__name__}{hint}"
                    )
                registered[name] = None
                return
        buffers = self.__dict__.get("_buffers", {})
        if name in buffers:
            if value is None or buffers[name] is None:
                buffers[name] = None if value is None else Buffer(value)
            else:
                buffers[name].assign(value)
            return
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        for registry in ("_parameters", "_buffers", "_modules"):
            found = self.__dict__.get(registry)
            if found is not None and name in found:
                return found[name]
        if name.startswith("__"):
            raise AttributeError(name)
        if "_parameters" not in self.__dict__:
            raise AttributeError(
                f"{type(self).__name__} has no attribute {name!r} (was super().__init__() called?)"
            )
        raise AttributeError(
            f"{type(self).__name__} has no attribute {name!r}{did_you_mean(name, dir(self))}"
        )

    def __delattr__(self, name: str) -> None:
        for registry in (self._parameters, self._buffers, self._modules):
            if name in registry:
                del registry[name]
                return
        object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        names = {*super().__dir__(), *self._parameters, *self._buffers, *self._modules}
        return sorted(name for name in names if not name[:1].isdigit())

    # ---- the tree

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Name and module of each direct child, each module once."""
        seen: set[int] = set()
        for name, module in self._modules.items():
            if module is not None and id(module) not in seen:
                seen.add(id(module))
                yield name, module

    def children(self) -> Iterator[Module]:
        """Each direct child, once."""
        for _, module in self.named_children():
            yield module

    def named_modules(
        self,
        memo: set[Module] | None = None,
        prefix: str = "",
        remove_duplicate: bool = True,
    ) -> Iterator[tuple[str, Module]]:
        """Path and module of this module and all below it, each module once."""
        memo = set() if memo is None else memo
        if self in memo:
            return
        if remove_duplicate:
            memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                path = f"{prefix}.{name}" if prefix else name
                yield from module.named_modules(memo, path, remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        for _, module in self.named_modules():
            yield module

    def _named(
        self, registry: str, prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        modules = (
            self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate)
            if recurse
            else [(prefix, self)]
        )
        for path, module in modules:
            for name, value in module.__dict__[registry].items():
                if value is None or (remove_duplicate and id(value) in seen):
                    continue
                seen.add(id(value))
                yield (f"{path}.{name}" if path else name), value

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Path and parameter of this module and those below, tied ones once."""
        return self._named("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """The parameters of this module and those below, tied ones once."""
        for _, parameter in self.named_parameters(recurse=recurse):
            yield parameter

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Buffer]]:
        """Path and buffer of this module and those below."""
        return self._named("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Buffer]:
        """The buffers of this module and those below."""
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    def get_submodule(self, target: str) -> Module:
        """The module at a path, ``"body.0"``.

        Raises
        ------
        AttributeError
            If there is none.
        """
        module = self
        for name in target.split(".") if target else []:
            found = module._modules.get(name)
            if found is None:
                raise AttributeError(
                    f"{type(module).__name__} has no module {name!r}"
                    f"{did_you_mean(name, module._modules)}"
                )
            module = found
        return module

    def get_parameter(self, target: str) -> Parameter:
        """The parameter at a path, ``"body.0.weight"``; AttributeError if there is none."""
        return self._get("_parameters", target, "parameter")  # type: ignore[no-any-return]

    def get_buffer(self, target: str) -> Buffer:
        """The buffer at a path; AttributeError if there is none."""
        return self._get("_buffers", target, "buffer")  # type: ignore[no-any-return]

    def _get(self, registry: str, target: str, kind: str) -> Any:
        path, _, name = target.rpartition(".")
        module = self.get_submodule(path)
        found = module.__dict__[registry].get(name)
        if found is None:
            raise AttributeError(
                f"{type(module).__name__} has no {kind} {name!r}"
                f"{did_you_mean(name, module.__dict__[registry])}"
            )
        return found

    # ---- values

    def materialize(self, seed: int | None = None) -> None:
        """Draws every initial value that was not drawn yet.

        Parameters
        ----------
        seed : int, optional
            The configuration's; ``hl.manual_seed`` goes first, 42 is last.
        """
        for parameter in self.parameters():
            parameter.value(seed)

    def reset(self: M) -> M:
        """Forgets trained and loaded values: parameters and buffers get initial values again."""
        for value in (*self.parameters(), *self.buffers()):
            if not value.is_lazy:
                value.reset()
        return self

    def state_dict(self, prefix: str = "") -> dict[str, Array]:
        """Copies of all parameters and persistent buffers by their paths, torch's keys.

        Tied parameters stand under each of their names.
        """
        return {f"{prefix}{key}": value.numpy() for key, value in self._state_items()}

    def _state_items(self) -> Iterator[tuple[str, Variable]]:
        """torch's order: each module's parameters, then its buffers, then its children."""
        for path, module in self.named_modules(remove_duplicate=False):
            lead = f"{path}." if path else ""
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    yield lead + name, parameter
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.persistent:
                    yield lead + name, buffer

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> IncompatibleKeys:
        """Copies values into parameters and buffers, all of them or, on an error, none.

        Parameters
        ----------
        state_dict : mapping of str to array
            NumPy arrays, torch tensors, or anything with ``__array__``.
        strict : bool
            Whether every key must be in both. Shapes must agree in any case.
        assign : bool
            Taken for torch's sake: values are always copied.

        Returns
        -------
        IncompatibleKeys
            ``missing_keys`` and ``unexpected_keys``.

        Raises
        ------
        ShapeError
            If a value has another shape; all such keys are listed.
        ConfigError
            With ``strict``, if keys are missing or unexpected; all are listed.
        """
        _check_state(state_dict)
        own = dict(self._state_items())
        missing = [key for key in own if key not in state_dict]
        unexpected = [key for key in state_dict if key not in own]
        values = {key: to_host(state_dict[key]) for key in own if key in state_dict}
        wrong = [
            f"{key} must be {own[key].shape}, got {value.shape}"
            for key, value in values.items()
            if not own[key].is_lazy and own[key].shape != value.shape
        ]
        faults = [f"shapes differ: {'; '.join(wrong)}"] if wrong else []
        if strict and missing:
            faults.append(f"missing keys: {', '.join(missing)}")
        if strict and unexpected:
            names = [f"{key}{did_you_mean(key, missing)}" for key in unexpected]
            faults.append(f"unexpected keys: {', '.join(names)}")
        if faults:
            text = f"load_state_dict: the state must fit {type(self).__name__}, got "
            raise (ShapeError if wrong else ConfigError)(text + "; ".join(faults))
        for key, value in values.items():
            own[key].set_value(value)
        for module in self.modules():
            module.after_load()
        return IncompatibleKeys(missing, unexpected)

    def after_load(self) -> None:
        """Called after ``load_state_dict``; lazy layers learn their sizes here."""

    # ---- modes and places

    @property
    def training(self) -> bool:
        """Whether the module behaves as in training: dropout drops, batch statistics are used.

        In ``forward`` it is False while evaluating or predicting, whatever was set.
        """
        trace = tracing.active()
        return self._training and (trace is None or trace.training)

    @training.setter
    def training(self, mode: bool) -> None:
        object.__setattr__(self, "_training", bool(mode))

    def train(self: M, mode: bool = True) -> M:
        """Sets training mode in this module and all below.

        ``hl.train`` evaluates in evaluation mode by itself; what this is for is a part that shall
        stay in evaluation mode while the rest trains: ``model.backbone.eval()``.
        """
        for module in self.modules():
            module.training = mode
        return self

    def eval(self: M) -> M:
        """Sets evaluation mode in this module and all below."""
        return self.train(False)

    def requires_grad_(self: M, requires_grad: bool = True) -> M:
        """Sets whether the parameters of this module and those below learn."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Does nothing: gradients belong to the training step, which clears them itself."""

    def apply(self: M, fn: Callable[[Module], Any]) -> M:
        """Calls ``fn`` with every module below and then with this one."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    def to(self: M, *args: Any, device: Any = None, dtype: Any = None, **kwargs: Any) -> M:
        """Sets where ``predict`` and ``model(array)`` run; the configuration says it for the rest.

        Raises
        ------
        ConfigError
            For another device than "cpu", "cuda", "cuda:1" or "auto", or another dtype than
            float32: the configuration's ``precision`` decides.
        """
        from hotloop.training.accelerator import placement_of

        for arg in args:
            if is_device(arg) or (isinstance(arg, int) and not isinstance(arg, bool)):
                device = arg
            elif not isinstance(arg, bool | Tensor):
                dtype = arg
        if dtype is not None and dtypes.parse(dtype) != dtypes.float32:
            self._refuse_dtype(dtypes.parse(dtype))
        if device is not None:
            placement = placement_of(device)
            for module in self.modules():
                object.__setattr__(module, "_placement", placement)
        return self

    def cuda(self: M, device: Any = None) -> M:
        """Lets ``predict`` and ``model(array)`` run on a GPU, the first if no number is given."""
        return self.to("cuda" if device is None else device)

    def cpu(self: M) -> M:
        """Lets ``predict`` and ``model(array)`` run on the CPU."""
        return self.to("cpu")

    def float(self: M) -> M:
        """Itself: parameters are float32."""
        return self

    def double(self: M) -> M:
        """Refused; ``precision="64-true"`` computes in float64."""
        self._refuse_dtype(dtypes.float64)

    def half(self: M) -> M:
        """Refused; ``precision="16-mixed"`` computes in float16."""
        self._refuse_dtype(dtypes.float16)

    def bfloat16(self: M) -> M:
        """Refused; ``precision="bf16-mixed"`` computes in bfloat16."""
        self._refuse_dtype(dtypes.bfloat16)

    def _refuse_dtype(self, dtype: dtypes.DType) -> NoReturn:
        precision = {"float64": "64-true", "float16": "16-mixed", "bfloat16": "bf16-mixed"}
        advice = precision.get(dtype)
        raise ConfigError(
            f"{type(self).__name__}: parameters must be float32, got {dtype}"
            + (f'; use precision="{advice}" in the configuration' if advice else "")
        )

    # ---- hooks

    def _refuse_hook(self, what: str, instead: str) -> NoReturn:
        raise ConfigError(
            f"{what}: hooks are not run (forward is recorded once and then runs from C); {instead}"
        )

    def register_forward_hook(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: forward runs once per shape, not once per batch."""
        self._refuse_hook(
            "register_forward_hook", 'use hl.predict(..., outputs="name") for inner outputs'
        )

    def register_forward_pre_hook(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: forward runs once per shape, not once per batch."""
        self._refuse_hook("register_forward_pre_hook", "change the input in forward")

    def register_full_backward_hook(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: gradients exist only inside the training step."""
        self._refuse_hook("register_full_backward_hook", "use the configuration's clipping")

    def register_backward_hook(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: gradients exist only inside the training step."""
        self._refuse_hook("register_backward_hook", "use the configuration's clipping")

    def register_state_dict_pre_hook(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused."""
        self._refuse_hook("register_state_dict_pre_hook", "rename keys before load_state_dict")

    def register_load_state_dict_pre_hook(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused."""
        self._refuse_hook("register_load_state_dict_pre_hook", "rename keys before it")

    # ---- copies and text

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: v for name, v in self.__dict__.items() if type(v) is not Tensor}
        return {**kept, "_parent": None, "_name": ""}  # forward's tensors have no value to keep

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for name, module in self._modules.items():
            self._adopt(name, module)
        for registry in (self._parameters, self._buffers):
            for name, value in registry.items():
                if isinstance(value, Variable):
                    value.attach(self, name)

    def extra_repr(self) -> str:
        """What stands between the parentheses of the module's repr."""
        return ""

    def _get_name(self) -> str:
        return type(self).__name__

    def __repr__(self) -> str:
        extra = self.extra_repr().split("\n") if self.extra_repr() else []
        children = [
            f"({name}): " + repr(module).replace("\n", "\n  ")
            for name, module in self._modules.items()
        ]
        lines = extra + children
        if len(extra) == 1 and not children:
            return f"{self._get_name()}({extra[0]})"
        if not lines:
            return f"{self._get_name()}()"
        return f"{self._get_name()}(\n  " + "\n  ".join(lines) + "\n)"


def _check_state(state: object) -> None:
    if isinstance(state, Mapping):
        return
    fix = ""
    if isinstance(state, str | os.PathLike):
        fix = "; read the file first: safetensors.numpy.load_file(path), torch.load(path)"
    raise ConfigError(
        f"load_state_dict: must be a dict from names to arrays, got {type(state).__name__}{fix}"
    )
