"""What torch.nn 2.13 has and hotloop lacks: every name with its reason.

torch's names are stored in tests/parity/torch_nn_2_13.json; tests/parity holds that list to
torch where it is installed.
"""

import inspect
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hotloop import nn
from hotloop.nn import functional, init

NAMES = json.loads((Path(__file__).parents[1] / "parity" / "torch_nn_2_13.json").read_text())

# Pattern of names to why they are missing: what is quantised, what is sparse, and DataParallel.
CLASSES = {r"DataParallel": "several GPUs are the configuration's `devices`"}
FUNCTIONS = {r"scaled_(grouped_)?mm": "quantised: products of 8-bit formats with their scales"}


@pytest.mark.parametrize(
    ("kind", "home", "reasons"),
    [
        ("classes", nn, CLASSES),
        ("functions", functional, FUNCTIONS),
        ("init", init, {}),
        ("module", nn.Module, {}),
    ],
)
def test_what_is_missing_has_a_reason(kind, home, reasons):
    missing = [name for name in NAMES[kind] if not hasattr(home, name)]
    used, silent = set(), []
    for name in missing:
        found = [pattern for pattern in reasons if re.fullmatch(pattern, name)]
        used.update(found[:1])
        if not found:
            silent.append(name)
    assert not silent, f"missing without a reason: {silent}"
    assert used == set(reasons), f"reasons for nothing: {sorted(set(reasons) - used)}"


def test_all_is_what_there_is():
    for module in (nn, functional, init):
        assert sorted(set(module.__all__)) == sorted(module.__all__)
        for name in module.__all__:
            assert hasattr(module, name)


def test_hotloops_names():
    import hotloop as hl

    for name in hl.__all__:
        if name in ("DataModule", "GraphDataModule"):
            continue
        value = getattr(hl, name)
        assert value is not None, name
        assert not callable(value) or inspect.getdoc(value), f"{name} has no docstring"
    with pytest.raises(AttributeError, match="did you mean 'where'"):
        hl.whre  # noqa: B018


def test_each_op_is_a_name_of_hotloop():
    """One list says so: the ``__all__`` of the family that has it."""
    import hotloop as hl
    from hotloop import ops
    from hotloop.graph import (
        comparison,
        contraction,
        creation,
        einsum,
        elementary,
        factorization,
        indexing,
        ordering,
        pointwise,
        rearranging,
        reduction,
        views,
    )

    listed = {"initial_seed", "manual_seed", "no_grad"}
    arithmetic = (comparison, contraction, einsum, elementary, pointwise, reduction)
    for family in (*arithmetic, creation, factorization, indexing, ordering, rearranging, views):
        listed.update(family.__all__)
        for name in family.__all__:
            assert getattr(hl, name) is getattr(ops, name) is getattr(family, name)
    assert {name for name in vars(ops) if not name.startswith("_")} == listed <= set(hl.__all__)


def test_a_star_import_hides_no_types():
    """``hl.float`` is a dtype; a star import leaves the builtin alone."""
    import hotloop as hl

    assert {"bool", "float", "int"}.isdisjoint(hl.__all__)
    assert (hl.bool, hl.float, hl.int) == ("bool", "float32", "int32")
    assert {"train", "sum", "ConfigError", "nn", "__version__"} <= set(hl.__all__) <= set(dir(hl))


@pytest.mark.parametrize("name", ["logcumsumexp", "cummax", "atan2", "asin", "cumprod", "unfold"])
def test_what_torch_has_besides(name):
    import hotloop as hl

    class Net(nn.Module):
        def forward(self, x):
            return getattr(x, name)(1)

    for call in (lambda: getattr(hl, name), lambda: Net()(np.ones((2, 3), np.float32))):
        with pytest.raises(AttributeError, match=rf"'{name}': not in this version; \w"):
            call()


def test_names_of_compositions_are_methods():
    import hotloop as hl

    class Net(nn.Module):
        def forward(self, x):
            y = x.swapaxes(0, 1).moveaxis(0, 1).rot90().fliplr().flipud()
            return y.clamp_min(0).clamp_max(1).swapdims(0, 1).diagonal()

    assert Net()(np.ones((2, 3), np.float32)).shape == (2,)
    x = np.arange(6).reshape(2, 3)
    assert np.array_equal(hl.rot90(x), np.rot90(x))
    for call, words in (
        (lambda: hl.rot90(x, 0.5), "rot90: k must be an integer"),
        (lambda: hl.rot90(x, 1, (0, 0)), "rot90: dims must be two different"),
        (lambda: hl.diagonal(x, 0, 1, 1), "diagonal: dim1 and dim2 must differ"),
        (lambda: hl.fliplr(x[0]), "fliplr: dim must be in"),
        (lambda: hl.meshgrid(x, x), "meshgrid: must be given vectors"),
        (lambda: hl.meshgrid(x[0], indexing="ji"), "meshgrid: indexing must be"),
        (lambda: hl.tensordot(x, x, 1), "tensordot: summed dims must be pairs"),
        (lambda: hl.tensordot(x, x, 3), r"tensordot: dims must be in \[0, 2\]"),
        (lambda: hl.cdist(x, x.T), "cdist: must be"),
    ):
        with pytest.raises((hl.ConfigError, hl.ShapeError), match=words):
            call()
