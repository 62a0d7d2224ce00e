"""Module: torch.nn.Module's interface over parameters that live on the host.

The idea: a module is a tree of names. It holds no device memory and computes nothing; called with
tensors it adds to the running trace, called with arrays it predicts one batch. Names are paths
from the outermost module (each module knows its parent, weakly), because they seed the initial
values and appear in messages.

What torch's modules have and these cannot have is in ``refused``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from hotloop.base.scalars import plain
from hotloop.base.suggest import did_you_mean, missing_attribute
from hotloop.errors import ConfigError, HotloopError, TraceError
from hotloop.graph import dtypes
from hotloop.graph import trace as tracing
from hotloop.graph.symbolic import Tensor
from hotloop.nn.calling import bind, explain, kind_of, locate
from hotloop.nn.edits import Registry, next_edit
from hotloop.nn.extras import Extras
from hotloop.nn.functional.arguments import Checked
from hotloop.nn.holders import Holders
from hotloop.nn.parameter import Buffer, Parameter, Variable
from hotloop.nn.placement import is_place, reachable
from hotloop.nn.recipes import Array
from hotloop.nn.state import IncompatibleKeys, load_state, state_of

__all__ = ["Module"]

M = TypeVar("M", bound="Module")


class Module(Checked, Extras):
    """Base class of all layers and models.

    A subclass makes its layers in ``__init__`` (after ``super().__init__()``) and says in
    ``forward`` how they are applied. Attributes that are parameters, buffers or modules are
    registered under their names.

    Called with symbolic tensors (inside another module's forward) it is traced; called with
    arrays it predicts one batch and returns arrays; what is no array is a constant then.
    """

    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Buffer | None]
    _modules: dict[str, Module | None]
    _training: bool | None  # None: as it was made, which counts as True
    _edit: int
    _holders: Holders
    _placement: str | None
    _fitted: Any  # what training learnt of its data; hotloop.training writes and reads it

    def __init__(self) -> None:
        for name, value in (
            ("_parameters", Registry()),
            ("_buffers", Registry()),
            ("_modules", Registry()),
            ("_edit", 0),
            ("_holders", Holders(self)),
            *((name, None) for name in ("_training", "_placement", "_fitted")),
        ):
            object.__setattr__(self, name, value)
        self._call_super_init()

    # ---- calling

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; subclasses define it."""
        raise TraceError(f"{type(self).__name__}: must define forward(self, ...), found none")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        trace = tracing.active()
        if trace is None:
            return self._predict(args, kwargs)
        with trace.scope(self.path), trace.recomputing(self):
            try:
                result = self.forward(*args, **kwargs)
            except HotloopError as error:
                locate(self, error)
                raise
            except RecursionError:
                raise TraceError(
                    f"{type(self).__name__}: forward must come to an end, got a module that calls "
                    "itself again and again"
                ) from None
            except (AttributeError, TypeError) as error:
                explain(self, args, kwargs, error)
                raise
        trace.saw(self, args, result)
        return result

    def _predict(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = [value for value in (*args, *kwargs.values()) if not isinstance(value, Variable)]
        if any(isinstance(value, Tensor) for value in given):
            tracing.current(f"{type(self).__name__}(tensor)")  # raises
        from hotloop.training.inference import run_batch  # here, for it imports this module

        if not kwargs:
            return run_batch(self, args)
        bound = bind(self, args, kwargs)  # what can go by position is found by position
        return run_batch(self, bound.args, bound.kwargs)

    def log(
        self,
        name: str,
        value: Any,
        *,
        prog_bar: bool = True,
        logger: bool = True,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
    ) -> None:
        """In ``training_step`` or ``forward``: puts a number into the history of each epoch.

        Parameters
        ----------
        name : str
            As it stands in the history; that of validation is ``val_<name>``.
        value : Tensor or number
            One number of each batch; the history has the mean over the rows.
        prog_bar, logger, on_epoch
            Taken for code that comes from other trainers: all shows and logs have all values.
        on_step : bool, optional
            Must not be True: values are logged once an epoch.

        Raises
        ------
        TraceError
            Outside of a step.
        ConfigError
            For a name that was logged already, and ``on_step=True``.
        """
        trace = tracing.current("log")
        if on_step:
            raise ConfigError(
                f"log {name!r}: values are logged once for each epoch, got on_step=True; leave it "
                "out, or use hl.stepper for a loop of your own"
            )
        if name in trace.logged:
            raise ConfigError(f"log {name!r}: a name must be logged once in a step, got it twice")
        trace.logged[name] = value

    def log_dict(self, values: Mapping[str, Any], **options: Any) -> None:
        """:meth:`log` of each name and value.

        Parameters
        ----------
        values : mapping of str to Tensor
            What is logged, by name.
        **options
            Those of :meth:`log`.
        """
        for name, value in values.items():
            self.log(name, value, **options)

    @property
    def path(self) -> str:
        """The names from the outermost module to this one, joined by dots; ``""`` outermost."""
        names: list[str] = []
        module, seen = self, {id(self)}
        while (place := module._holders.first()) is not None and id(place[0]) not in seen:
            module, name = place
            names.append(name)
            seen.add(id(module))
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
        """Adds a parameter; assigning an ``nn.Parameter`` to an attribute does the same.

        Parameters
        ----------
        name : str
            The attribute's name, without dots.
        param : Parameter or None
            None keeps the place for one.

        Raises
        ------
        ConfigError
            If it is no parameter, or the name is taken.
        """
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
            The attribute's name, without dots.
        tensor : array, Buffer or None
            The initial value; None keeps the place for one.
        persistent : bool
            Whether ``state_dict`` has it.

        Raises
        ------
        ConfigError
            If the name is taken.
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
        """Adds a child module; assigning a module to an attribute does the same.

        Parameters
        ----------
        name : str
            The attribute's name, without dots.
        module : Module or None
            None keeps the place for one.

        Raises
        ------
        ConfigError
            If it is no module, contains this one, or the name is taken.
        """
        self._check_name(name, getattr(self, "_modules", {}), "module")
        if module is not None and not isinstance(module, Module):
            raise ConfigError(f"module {name}: must be an nn.Module or None, got {kind_of(module)}")
        self._adopt(name, module)

    def register_module(self, name: str, module: Module | None) -> None:
        """The same as :meth:`add_module`.

        Parameters
        ----------
        name : str
            The attribute's name.
        module : Module or None
            What is added.
        """
        self.add_module(name, module)

    def _adopt(self, name: str, module: Module | None) -> None:
        if module is not None and any(inner is self for inner in module.modules()):
            raise ConfigError(
                f"module {name}: a module must not contain itself, got the "
                f"{type(self).__name__} it is put into"
            )
        self._modules[name] = module
        if module is not None:
            module._holders.add(self, name)

    def variable(self, name: str) -> Variable | None:
        """The parameter or buffer of this module under a name.

        Parameters
        ----------
        name : str
            The attribute's name.

        Returns
        -------
        Parameter, Buffer or None
            None where there is none.
        """
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
        if not isinstance(getattr(type(self), name, None), property):
            self._note_edit()

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
        raise missing_attribute(self, name)

    def __delattr__(self, name: str) -> None:
        for registry in (self._parameters, self._buffers, self._modules):
            if name in registry:
                del registry[name]
                return
        object.__delattr__(self, name)
        self._note_edit()

    def _note_edit(self) -> None:
        """What forward assigns is no edit: it does so in each recording, which are compared."""
        if tracing.active() is None:
            object.__setattr__(self, "_edit", next_edit())

    def __dir__(self) -> list[str]:
        names = {*super().__dir__(), *self._parameters, *self._buffers, *self._modules}
        return sorted(name for name in names if not name[:1].isdigit())

    # ---- the tree

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Direct children with their names.

        Returns
        -------
        iterator of (str, Module)
            Each module once.
        """
        seen: set[int] = set()
        for name, module in self._modules.items():
            if module is not None and id(module) not in seen:
                seen.add(id(module))
                yield name, module

    def children(self) -> Iterator[Module]:
        """Direct children.

        Returns
        -------
        iterator of Module
            Each module once.
        """
        for _, module in self.named_children():
            yield module

    def named_modules(
        self,
        memo: set[Module] | None = None,
        prefix: str = "",
        remove_duplicate: bool = True,
    ) -> Iterator[tuple[str, Module]]:
        """This module and all below it with their paths.

        Parameters
        ----------
        memo : set of Module, optional
            Modules to leave out; grows.
        prefix : str
            What paths begin with.
        remove_duplicate : bool
            Whether a module that stands in several places comes once.

        Returns
        -------
        iterator of (str, Module)
            This one first, under ``prefix``.
        """
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
        """This module and all below it.

        Returns
        -------
        iterator of Module
            Each module once, this one first.
        """
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
        """The parameters with their paths, the keys of ``state_dict``.

        Parameters
        ----------
        prefix : str
            What paths begin with.
        recurse : bool
            Whether those of the modules below are among them.
        remove_duplicate : bool
            Whether a shared one comes once.

        Returns
        -------
        iterator of (str, Parameter)
        """
        return self._named("_parameters", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """The parameters, shared ones once.

        Parameters
        ----------
        recurse : bool
            Whether those of the modules below are among them.

        Returns
        -------
        iterator of Parameter
        """
        for _, parameter in self.named_parameters(recurse=recurse):
            yield parameter

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Buffer]]:
        """The buffers with their paths, the keys of ``state_dict``.

        Parameters
        ----------
        prefix : str
            What paths begin with.
        recurse : bool
            Whether those of the modules below are among them.
        remove_duplicate : bool
            Whether a shared one comes once.

        Returns
        -------
        iterator of (str, Buffer)
        """
        return self._named("_buffers", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Buffer]:
        """The buffers, shared ones once.

        Parameters
        ----------
        recurse : bool
            Whether those of the modules below are among them.

        Returns
        -------
        iterator of Buffer
        """
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    def get_submodule(self, target: str) -> Module:
        """The module at a path.

        Parameters
        ----------
        target : str
            Such as ``"body.0"``; "" is this module.

        Returns
        -------
        Module

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
        """The parameter at a path.

        Parameters
        ----------
        target : str
            Such as ``"body.0.weight"``.

        Returns
        -------
        Parameter

        Raises
        ------
        AttributeError
            If there is none.
        """
        return self._get("_parameters", target, "parameter")  # type: ignore[no-any-return]

    def get_buffer(self, target: str) -> Buffer:
        """The buffer at a path.

        Parameters
        ----------
        target : str
            Such as ``"norm.running_mean"``.

        Returns
        -------
        Buffer

        Raises
        ------
        AttributeError
            If there is none.
        """
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
        """Initial values again; class names and transforms of training's data are forgotten too.

        Returns
        -------
        Module
            Itself.
        """
        values = (*self.parameters(), *self.buffers())
        for value in values:
            value.check_free()
        for module in self.modules():
            object.__setattr__(module, "_fitted", None)
        for value in values:
            if not value.is_lazy:
                value.reset()
        return self

    def state_dict(self, prefix: str = "") -> dict[str, Array]:
        """The values of all parameters and persistent buffers by their paths, torch's keys.

        Arrays are read-only and stay as they are when the model trains on: write
        ``state[key] = 0.5 * state[key]`` and ``load_state_dict``.

        Parameters
        ----------
        prefix : str
            What the keys begin with.

        Returns
        -------
        dict of str to ndarray
            What training found of the data goes with it to a module that takes all of its names.

        Examples
        --------
        >>> {name: value.shape for name, value in nn.Linear(3, 2).state_dict().items()}
        {'weight': (2, 3), 'bias': (2,)}
        """
        return state_of(self, prefix)

    def load_state_dict(
        self,
        state_dict: Mapping[str, Any],
        strict: bool = True,
        assign: bool = False,
        *,
        strip_prefix: str = "",
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
        strip_prefix : str
            Taken from the keys that begin with it: "module." of torch's DataParallel, "_orig_mod."
            of torch.compile, "model." of a model that was an attribute.

        Returns
        -------
        IncompatibleKeys
            ``missing_keys`` and ``unexpected_keys``.

        Raises
        ------
        ShapeError
            If a value has another shape.
        ConfigError
            With ``strict``, if keys are missing or unexpected; if a value is no array of numbers.
        BusyError
            While the model is being trained, which would overwrite what is loaded.
        """
        return load_state(self, state_dict, strict, strip_prefix)

    def before_load(self, state: dict[str, Any], prefix: str) -> None:
        """Called before ``load_state_dict`` looks at names: layers that others save with more or
        fewer values bring what they find into their own form here.

        Parameters
        ----------
        state : dict of str to array
            A copy of what is loaded, which may be changed.
        prefix : str
            What the names of this layer's values begin with.
        """

    def after_load(self) -> None:
        """Called after ``load_state_dict``; lazy layers learn their sizes here."""

    # ---- modes and places

    @property
    def training(self) -> bool:
        """Whether the module behaves as in training: dropout drops, batch statistics are used.

        In ``forward`` it is False while evaluating or predicting, whatever was set.
        """
        trace, is_set = tracing.active(), self._training is not False
        if trace is None or trace.training:
            return is_set
        trace.reads_mode |= is_set
        return False

    @training.setter
    def training(self, mode: bool) -> None:
        object.__setattr__(self, "_training", bool(mode))

    def train(self: M, mode: bool = True) -> M:
        """Sets training mode in this module and all below.

        ``hl.train`` trains and evaluates in the right mode by itself; ``model(array)`` evaluates,
        and warns after ``train()``. What this is for is a part that shall stay in evaluation mode
        while the rest trains: ``model.backbone.eval()``.

        Parameters
        ----------
        mode : bool
            False: evaluation mode, in which dropout does nothing and batch norm takes its running
            statistics.

        Returns
        -------
        Module
            Itself.
        """
        for module in self.modules():
            module.training = mode
        return self

    def eval(self: M) -> M:
        """Sets evaluation mode in this module and all below; see :meth:`train`.

        Returns
        -------
        Module
            Itself.
        """
        return self.train(False)

    def requires_grad_(self: M, requires_grad: bool = True) -> M:
        """Sets whether the parameters of this module and those below learn.

        Parameters
        ----------
        requires_grad : bool
            False: they keep their values in training.

        Returns
        -------
        Module
            Itself.
        """
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def apply(self: M, fn: Callable[[Module], Any]) -> M:
        """Calls a function with every module below and then with this one.

        Parameters
        ----------
        fn : callable
            Takes a module, for example to set initial weights.

        Returns
        -------
        Module
            Itself.

        Examples
        --------
        >>> def set_bias(module):
        ...     if isinstance(module, nn.Linear):
        ...         nn.init.zeros_(module.bias)
        >>> model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).apply(set_bias)
        >>> model[0].bias.tolist()
        [0.0, 0.0, 0.0, 0.0]
        """
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    def to(self: M, *args: Any, device: Any = None, dtype: Any = None, **kwargs: Any) -> M:
        """Sets where ``predict`` and ``model(array)`` run; the configuration says it for the rest.

        Parameters
        ----------
        *args
            A device or a dtype, as torch takes them.
        device : str or int, optional
            "cpu", "cuda", "cuda:1", 1, or "auto": a GPU where one can be used.
        dtype : dtype, optional
            float32, which parameters have.
        **kwargs
            Taken for torch's sake.

        Returns
        -------
        Module
            Itself.

        Raises
        ------
        ConfigError
            For another device than "cpu", "cuda", "cuda:1" or "auto", or another dtype than
            float32: the configuration's ``precision`` decides.
        DeviceError, OutOfMemoryError
            If there is no GPU that can be used; the model predicts where it did before.
        """
        for arg in map(plain, args):
            if is_place(arg):
                device = arg
            elif not isinstance(arg, bool | Tensor):
                dtype = arg
        if dtype is not None and dtypes.parse(dtype) != dtypes.float32:
            self._refuse_dtype(dtypes.parse(dtype))
        if device is not None:
            placement = reachable(device)
            for module in self.modules():
                object.__setattr__(module, "_placement", placement)
        return self

    def cuda(self: M, device: Any = None) -> M:
        """Lets ``predict`` and ``model(array)`` run on a GPU.

        Parameters
        ----------
        device : int or str, optional
            Which one; the first by default.

        Returns
        -------
        Module
            Itself.
        """
        return self.to("cuda" if device is None else device)

    def cpu(self: M) -> M:
        """Lets ``predict`` and ``model(array)`` run on the CPU.

        Returns
        -------
        Module
            Itself.
        """
        return self.to("cpu")

    # ---- copies and text

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: v for name, v in self.__dict__.items() if type(v) is not Tensor}
        del kept["_holders"]
        return kept  # without forward's tensors, which have no value to keep

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _holders=Holders(self))
        self._note_edit()
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
