"""What torch.nn.Module has besides, seldom used: other state, other devices, other bases."""

from __future__ import annotations

from typing import Any, NoReturn, Self, TypeVar

from hotloop.base.suggest import did_you_mean
from hotloop.errors import ConfigError
from hotloop.nn.refused import Refused

__all__ = ["Extras"]

_OF_TORCH_COMPILE = {"backend", "disable", "dynamic", "fullgraph", "mode", "options"}


class Extras(Refused):
    """Methods that modules inherit; they stand on those of :class:`hotloop.nn.Module`."""

    T_destination = TypeVar("T_destination", bound=dict[str, Any])
    call_super_init: bool = False  # whether Module.__init__ calls that of the next base
    dump_patches: bool = False  # torch reads it no more

    def _call_super_init(self) -> None:
        if self.call_super_init:
            super(Refused, self).__init__()

    # ---- state

    def get_extra_state(self) -> Any:
        """State beside parameters and buffers; a subclass that has some defines it.

        ``state_dict`` has it under ``"_extra_state"`` behind the module's path, and
        ``load_state_dict`` gives it to :meth:`set_extra_state`. A saved file takes an array or a
        number of it.

        Returns
        -------
        object
            Any.
        """
        raise ConfigError(f"{type(self).__name__}: must define get_extra_state, found none")

    def set_extra_state(self, state: Any) -> None:
        """Takes what :meth:`get_extra_state` gave; a subclass that has some defines it.

        Parameters
        ----------
        state : object
            Of ``load_state_dict``.
        """
        raise ConfigError(f"{type(self).__name__}: must define set_extra_state, found none")

    def set_submodule(self, target: str, module: Any, strict: bool = False) -> None:
        """Puts a module at a path.

        Parameters
        ----------
        target : str
            Such as ``"body.0"``.
        module : Module
            What stands there afterwards.
        strict : bool
            Whether there must be one already.

        Raises
        ------
        ConfigError
            For an empty path, or if it is no module.
        AttributeError
            If its parent, or with ``strict`` the module itself, is not there, or the place is taken
            by another attribute.
        """
        if not target or not isinstance(module, Extras):
            raise ConfigError(
                "set_submodule: must be given a path and a module, got "
                f"{target!r} and {type(module).__name__}"
            )
        path, _, name = target.rpartition(".")
        parent: Any = self.get_submodule(path)  # type: ignore[attr-defined]
        known = parent._modules
        if name not in known and (strict or hasattr(parent, name)):
            raise AttributeError(
                f"{type(parent).__name__} has no module {name!r}{did_you_mean(name, known)}"
            )
        setattr(parent, name, module)

    # ---- devices

    def to_empty(self, *, device: Any, recurse: bool = True) -> Self:
        """As ``to``: values, which torch leaves undefined, stay as they are.

        Parameters
        ----------
        device : str or int
            As of ``to``.
        recurse : bool
            Whether modules below go there too; here they always do.

        Returns
        -------
        Module
            Itself.
        """
        return self._place(device)

    def type(self, dst_type: Any) -> Self:
        """As ``to`` of a dtype: parameters are float32.

        Parameters
        ----------
        dst_type : dtype
            float32.

        Returns
        -------
        Module
            Itself.

        Raises
        ------
        ConfigError
            For another dtype: the configuration's ``precision`` decides.
        """
        return self.to(dtype=dst_type)  # type: ignore[attr-defined, no-any-return]

    def xpu(self, device: Any = None) -> Self:
        """Refused: there is no such device here."""
        return self._place("xpu")

    def ipu(self, device: Any = None) -> Self:
        """Refused: there is no such device here."""
        return self._place("ipu")

    def mtia(self, device: Any = None) -> Self:
        """Refused: there is no such device here."""
        return self._place("mtia")

    def _place(self, device: Any) -> Self:
        return self.to(device=device)  # type: ignore[attr-defined, no-any-return]

    def share_memory(self) -> NoReturn:
        """Refused: values are replaced as a whole, so that no memory of theirs can be shared."""
        raise ConfigError(
            f"{type(self).__name__}.share_memory: values must stay in one process, got a call; "
            "give the other process state_dict() and let it call load_state_dict"
        )

    def compile(self, **kwargs: Any) -> None:
        """Does nothing: every model is planned as a whole before it runs.

        Parameters
        ----------
        **kwargs
            Those of ``torch.compile``, taken for torch's sake.

        Raises
        ------
        ConfigError
            For others, such as Keras's ``optimizer`` and ``loss``.
        """
        others = sorted(set(kwargs) - _OF_TORCH_COMPILE)
        if others:
            raise ConfigError(
                f"compile: takes what torch.compile takes, got {', '.join(others)}; optimizer, loss"
                " and metrics go to hl.train(model, data, TrainingConfig(...))"
            )
