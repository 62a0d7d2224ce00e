"""What torch.nn has besides layers: parameters without a shape, extra state, deprecated names."""

import copy
import pickle
import warnings

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.errors import ConfigError


class Lazy(nn.Module):
    """A lazy layer as users of torch write one."""

    def __init__(self, out_features=2):
        super().__init__()
        self.out_features = out_features
        self.weight = nn.UninitializedParameter()
        self.shift = nn.UninitializedBuffer(dtype="int64", persistent=False)

    def forward(self, x):
        if isinstance(self.weight, nn.UninitializedParameter):
            self.weight.materialize((self.out_features, x.shape[-1]))
            nn.init.constant_(self.weight, 0.5)
            self.shift.materialize(self.out_features)
        return nn.functional.linear(x, self.weight) + self.shift


def test_a_lazy_layer_of_a_users():
    layer, x = Lazy(), np.ones((4, 3), np.float32)
    assert layer.weight.is_lazy
    assert repr(layer.weight) == "UninitializedParameter(lazy, dtype=float32)"
    twin = copy.deepcopy(layer)
    np.testing.assert_array_equal(layer(x), np.full((4, 2), 1.5))
    assert (type(layer.weight), type(layer.shift)) == (nn.Parameter, nn.Buffer)
    assert list(layer.state_dict()) == ["weight"]
    loaded = pickle.loads(pickle.dumps(twin))
    loaded.load_state_dict({"weight": np.eye(2, 3)})
    assert type(loaded.weight) is nn.Parameter
    assert type(loaded.shift) is nn.UninitializedBuffer
    with pytest.raises(hl.TraceError, match="cannot be initialised inside forward"):
        Late(layer)(x)
    result = hl.train(
        nn.Sequential(Lazy(3), nn.ReLU(), Lazy(2)), (x, np.arange(4) % 2), max_steps=1
    )
    assert result.model[2].weight.shape == (2, 3)


class Late(nn.Module):
    """What is initialised after the forward that gave it its shape would differ between steps."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        nn.init.zeros_(self.inner.weight)
        return self.inner(x)


@pytest.mark.parametrize("name", ["LazyLinear", "LazyConv2d", "LazyBatchNorm1d"])
def test_lazy_layers_have_such_parameters(name):
    layer = getattr(nn, name)(*(() if "Norm" in name else (4, 3) if "Conv" in name else (4,)))
    assert all(type(p) is nn.UninitializedParameter for p in layer.parameters())
    layer(np.ones((2, 3, 5, 5) if "Conv" in name else (2, 3), np.float32))
    assert all(type(p) is nn.Parameter for p in layer.parameters())
    assert not any(isinstance(b, nn.UninitializedBuffer) for b in layer.buffers())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: nn.UninitializedParameter(dtype="float16"), "dtype must be float32"),
        (lambda: nn.UninitializedBuffer(requires_grad=True), "requires_grad must be False"),
        (lambda: nn.UninitializedParameter().shape, "known after the first batch"),
        (
            lambda: nn.UninitializedParameter().materialize(3, dtype="int64"),
            "dtype must be float32",
        ),
        (lambda: nn.Linear(2, 3).share_memory(), "must stay in one process"),
        (lambda: nn.Linear(2, 3).xpu(), "xpu"),
        (lambda: nn.Linear(2, 3).ipu(), "ipu"),
        (lambda: nn.Linear(2, 3).mtia(), "mtia"),
        (lambda: nn.Linear(2, 3).type(hl.float64), "must be float32"),
        (lambda: nn.Linear(2, 3).set_submodule("", nn.ReLU()), "a path and a module"),
        (lambda: nn.Linear(2, 3).set_submodule("x", 3), "a path and a module"),
    ],
)
def test_refusals(call, words):
    with pytest.raises(ConfigError, match=words):
        call()


def test_set_submodule():
    net = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU()))
    net.set_submodule("1.0", nn.Tanh(), strict=True)
    net.set_submodule("1.1", nn.Linear(3, 1))
    assert repr(net[1][0]) == "Tanh()"
    np.testing.assert_array_equal(net(np.zeros((1, 2), np.float32)).shape, (1, 1))
    with pytest.raises(AttributeError, match="no module '7'"):
        net.set_submodule("1.7", nn.ReLU(), strict=True)
    with pytest.raises(AttributeError, match="no module 'forward'"):
        net.set_submodule("1.forward", nn.ReLU())


def test_places_and_compilers():
    net = nn.Linear(2, 3)
    before = net.state_dict()["weight"]
    assert net.to_empty(device="cpu") is net
    assert net.type(hl.float32) is net
    assert net.compile(fullgraph=True) is None
    np.testing.assert_array_equal(net.state_dict()["weight"], before)


class Counted(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = np.zeros(2)

    def get_extra_state(self):
        return self.calls

    def set_extra_state(self, state):
        self.calls = np.array(state)


def test_extra_state(tmp_path):
    net = nn.Sequential(nn.Linear(2, 2), Counted())
    net[1].calls += 3
    state = net.state_dict()
    assert list(state) == ["0.weight", "0.bias", "1._extra_state"]
    other = nn.Sequential(nn.Linear(2, 2), Counted())
    other.load_state_dict(state)
    np.testing.assert_array_equal(other[1].calls, [3, 3])
    assert Counted().state_dict("x.").keys() == {"x._extra_state"}
    with pytest.raises(ConfigError, match=r"missing keys: 1\._extra_state"):
        other.load_state_dict({k: v for k, v in state.items() if "extra" not in k})
    with pytest.raises(ConfigError, match=r"unexpected keys: _extra_state"):
        nn.Linear(2, 2).load_state_dict({**nn.Linear(2, 2).state_dict(), "_extra_state": 1})


class Base:
    def __init__(self):
        self.made = True


class Both(nn.Module, Base):
    call_super_init = True


class One(nn.Module, Base):
    pass


def test_the_next_base():
    assert Both().made
    assert not hasattr(One(), "made")


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
def test_deprecated_names_warn():
    for make, words in (
        (lambda: nn.Container(a=nn.ReLU()), "`nn.Container` is deprecated"),
        (nn.NLLLoss2d, "`NLLLoss2d` has been deprecated"),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            made = make()
        assert [(w.category, w.filename) for w in caught] == [(FutureWarning, __file__)]
        assert words in str(caught[0].message)
        assert isinstance(made, nn.Module)
    assert list(dict(nn.Container(a=nn.ReLU(), b=nn.Tanh()).named_children())) == ["a", "b"]
    logs = np.log(np.full((2, 3, 4, 4), 1 / 3, np.float32))
    loss = nn.NLLLoss2d(None, None, 2)(logs, np.zeros((2, 4, 4), int))
    np.testing.assert_allclose(loss, np.log(3), rtol=1e-6)
