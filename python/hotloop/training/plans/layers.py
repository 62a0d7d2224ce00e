"""Layers of a model from its input to its output, for learning rates that fall layer by layer.

The order is that in which modules were registered, since nothing else is known before the model is
traced, and it is what people who write such groups by hand go by. What one layer is, is a choice
with precedents: of a timm ``vit_*`` or a resnet the layers are those of timm's ``group_matcher``.
The order of use in a traced ``forward`` was rejected: branches have none, and a model whose forward
changes a little would train with other rates.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from hotloop.errors import ConfigError
from hotloop.nn.containers import ModuleList, Sequential
from hotloop.nn.module import Module
from hotloop.nn.parameter import Parameter
from hotloop.nn.sparse import Embedding

__all__ = ["Layer", "describe_layers", "layers_of", "scales_of_layers"]


class Layer(NamedTuple):
    """What has one rate.

    Attributes
    ----------
    name : str
        Of the first module in it that is more than a norm.
    parameters : dict of str to Parameter
        By their qualified names; a tied one is in the first layer that has it.
    """

    name: str
    parameters: dict[str, Parameter]


def layers_of(model: Module) -> list[Layer]:
    """The layers of a model, that of the input first.

    Parameters
    ----------
    model : Module
        Its lazy layers have their shapes.

    Returns
    -------
    list of Layer
        All that have parameters, frozen ones too, so that freezing changes no other layer's rate.

    Notes
    -----
    In the order of registration, the children of a model are a layer each, and so are the entries
    of a Sequential or ModuleList within it. A child that holds such a container of two layers or
    more is looked into in the same way. An entry of a container is one layer, unless it is a
    container itself or has one that holds blocks: two or more modules of one class that have
    modules within (in a model that is a Sequential, at any depth of its entries). What has vectors
    alone (norms) belongs to the layer before it in the same module, or, where there is none, to the
    one behind it; a module's own parameters (a token, positions) belong to its first layer, and
    tables of embeddings that follow one another are one.
    """
    name = ""
    while True:  # a model that only wraps another one
        children = [item for item in model.named_children() if _has_parameters(item[1])]
        if len(children) != 1 or isinstance(model, _STACKS) or _own(model):
            break
        child = children[0]
        if not any(_has_parameters(inner) for inner in child[1].children()):
            break
        name, model = _join(name, child[0]), child[1]
    return _layers_within(model, name, set(), is_outermost=True)


_STACKS = (Sequential, ModuleList)


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _has_parameters(module: Module) -> bool:
    return next(iter(module.parameters()), None) is not None


def _own(module: Module) -> list[tuple[str, Parameter]]:
    return list(module.named_parameters(recurse=False))


def _has_vectors_alone(module: Module) -> bool:
    return all(len(parameter.shape) < 2 for parameter in module.parameters())


def _is_opened(module: Module, *, in_stack: bool, is_outermost: bool) -> bool:
    """Whether a module is several layers."""
    if isinstance(module, _STACKS):
        return True
    if not in_stack or is_outermost:
        inner = [one for one in module.modules() if isinstance(one, _STACKS)]
        return any(map(_holds_blocks if in_stack else _holds_layers, inner))
    return any(isinstance(one, _STACKS) and _holds_blocks(one) for one in module.children())


def _holds_layers(stack: Module) -> bool:
    """Whether two entries are more than norms."""
    return sum(not _has_vectors_alone(one) for one in stack.children()) > 1


def _holds_blocks(stack: Module) -> bool:
    """Whether two entries are of one class of modules that have modules within."""
    blocks = [
        type(one)
        for one in stack.children()
        if not isinstance(one, _STACKS) and next(iter(one.children()), None) is not None
    ]
    return len(blocks) > len(set(blocks))


def _layers_within(
    module: Module, prefix: str, seen: set[int], *, is_outermost: bool = False
) -> list[Layer]:
    """The layers of a module that is looked into; ``seen`` has the parameters of earlier ones."""
    layers: list[Layer] = []
    waiting = _unseen(_own(module), prefix, seen)  # for the first layer
    follows_table = False
    in_stack = isinstance(module, _STACKS)
    for name, child in module.named_children():
        path = _join(prefix, name)
        if _is_opened(child, in_stack=in_stack, is_outermost=is_outermost):
            found = _layers_within(child, path, seen)
        else:
            own = _unseen(child.named_parameters(), path, seen)
            found = [Layer(path, own)] if own else []
        if not found:
            continue
        is_table = isinstance(child, Embedding)
        if _has_vectors_alone(child) or (is_table and follows_table):
            into = layers[-1].parameters if layers else waiting
            for layer in found:
                into.update(layer.parameters)
        else:
            found[0] = Layer(found[0].name, {**waiting, **found[0].parameters})
            waiting = {}
            layers += found
        follows_table = is_table
    return [*layers, Layer(prefix, waiting)] if waiting else layers


def _unseen(
    named: Iterable[tuple[str, Parameter]], prefix: str, seen: set[int]
) -> dict[str, Parameter]:
    """By qualified names, those that no earlier layer has."""
    found = {_join(prefix, name): one for name, one in named if id(one) not in seen}
    seen.update(map(id, found.values()))
    return found


def scales_of_layers(model: Module, decay: float | None) -> dict[int, float]:
    """The learning rates of parameters as multiples of the configuration's, by ``id``.

    Parameters
    ----------
    model : Module
    decay : float, optional
        From a layer to the one before it; the last has 1. None or 1: all have 1, and none is here.

    Raises
    ------
    ConfigError
        If there is one layer alone, so that no rate would be another.
    """
    if decay is None or decay == 1.0:
        return {}
    layers = layers_of(model)
    if len(layers) < 2:
        names = f"one: {layers[0].name or '(model)'!r}" if layers else "none"
        raise ConfigError(
            f"layer_decay: must have several layers between which rates fall, got {names}; name "
            "what is to have a rate of its own in param_groups"
        )
    return {
        id(parameter): decay ** (len(layers) - 1 - i)
        for i, layer in enumerate(layers)
        for parameter in layer.parameters.values()
    }


def describe_layers(model: Module, decay: float, lr: float) -> str:
    """For the header: the factor, how many layers there are, and the rates of first and last."""
    layers = layers_of(model)
    first = lr * decay ** (len(layers) - 1)
    return (
        f"{decay:g} a layer, {len(layers)} of them: lr {first:.3g} ({layers[0].name}) to {lr:g} "
        f"({layers[-1].name})"
    )
