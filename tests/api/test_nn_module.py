"""Module, Parameter, Buffer, containers and layout: names, values, copies, errors."""

import copy
import pickle
import warnings

import hotloop as hl
import numpy as np
import pytest
from api.traced import run, trace
from hotloop import nn
from hotloop.errors import ConfigError, ShapeError, TraceError
from hotloop.graph.trace import Trace, trace_twice
from hotloop.nn.layout import Layout, resolve_lazy


@pytest.fixture(autouse=True)
def forget_seed():
    """Each test begins without a global seed."""
    from hotloop.graph import seeds

    seeds._State.seed = None
    seeds._State.n_streams = 0


class Net(nn.Module):
    """A body, a head, a parameter and a buffer of its own."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(16, 4)
        self.scale = nn.Parameter(hl.ones(4))
        self.register_buffer("seen", np.zeros((), np.int64))

    def forward(self, x):
        self.seen = self.seen + 1
        return self.head(self.body(x)) * self.scale


KEYS = [
    *("scale", "seen", "body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"),
    *("body.1.running_mean", "body.1.running_var", "body.1.num_batches_tracked"),
    *("head.weight", "head.bias"),
]


def test_names():
    net = Net()
    assert list(net.state_dict()) == KEYS
    assert [n for n, _ in net.named_parameters()] == [
        *("scale", "body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"),
        *("head.weight", "head.bias"),
    ]
    assert [n for n, _ in net.named_children()] == ["body", "head"]
    assert [n for n, _ in net.named_modules()][:3] == ["", "body", "body.0"]
    assert net.get_submodule("body.1") is net.body[1]
    assert net.get_parameter("head.bias") is net.head.bias
    assert net.get_buffer("seen") is net.seen
    assert net.body[0].path == "body.0"
    assert net.body[0].weight.qualified_name == "body.0.weight"
    assert {"body", "head", "scale", "seen"} <= set(dir(net))


def test_same_script_same_weights_in_any_order():
    a, b = Net(), Net()
    first = a.head.weight.numpy()
    whole = b.state_dict()
    np.testing.assert_array_equal(first, whole["head.weight"])
    assert not np.array_equal(whole["body.0.weight"][:4], whole["head.weight"][:, :8])
    c = Net()
    c.materialize(seed=5)
    assert not np.array_equal(c.head.weight.numpy(), first)
    hl.manual_seed(42)
    d = Net()
    d.materialize(seed=5)
    np.testing.assert_array_equal(d.head.weight.numpy(), first)


def test_weights_are_torchs_distribution():
    layer = nn.Linear(400, 300)
    weight = layer.weight.numpy()
    assert abs(weight).max() <= 1 / 20
    assert abs(weight.std() - 1 / 20 / 3**0.5) < 3e-4
    assert abs(layer.bias.numpy()).max() <= 1 / 20


def test_loaded_values_are_never_drawn_again():
    net = Net()
    state = {key: np.full(value.shape, 3.0) for key, value in Net().state_dict().items()}
    net.load_state_dict(state)
    net.materialize(seed=9)
    assert all((value == 3).all() for value in net.state_dict().values())


def test_state_dict_stays_as_it_was():
    net = Net()
    state = net.state_dict()
    net.scale.copy_(np.full(net.scale.shape, 7.0))
    assert (state["scale"] == 1).all()
    assert state["seen"].dtype == np.int64


def test_load_state_dict_is_all_or_nothing():
    net, state = Net(), Net().state_dict()
    before = net.state_dict()
    cases = [
        ({k: v for k, v in state.items() if k != "head.bias"}, ConfigError, "missing keys: head.b"),
        ({**state, "head.wieght": 1.0}, ConfigError, "unexpected keys: head.wieght"),
        ({**state, "scale": np.ones(4) * 2, "head.bias": np.ones(7)}, ShapeError, r"\(4,\), got"),
    ]
    for bad, error, words in cases:
        with pytest.raises(error, match=words):
            net.load_state_dict(bad)
        for key, value in net.state_dict().items():
            np.testing.assert_array_equal(value, before[key])
    found = net.load_state_dict({"scale": np.zeros(4), "other": 1.0}, strict=False)
    assert found.unexpected_keys == ["other"]
    assert len(found.missing_keys) == len(KEYS) - 1
    assert (net.scale.numpy() == 0).all()


def test_copies_and_pickles_keep_values_and_names():
    net = Net()
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        for key, value in other.state_dict().items():
            np.testing.assert_array_equal(value, net.state_dict()[key])
        assert other.body[0].weight.qualified_name == "body.0.weight"
        other.scale.set_value(np.zeros(4))
        assert (net.scale.numpy() == 1).all()


def make_every_layer_with_values():
    return nn.Sequential(
        nn.BatchNorm1d(3), nn.BatchNorm2d(3, affine=False), nn.BatchNorm3d(3, bias=False),
        nn.SyncBatchNorm(3), nn.InstanceNorm1d(3, affine=True, track_running_stats=True),
        nn.InstanceNorm2d(3), nn.InstanceNorm3d(3, affine=True), nn.LayerNorm(3),
        nn.LayerNorm((2, 3), bias=False), nn.GroupNorm(1, 3), nn.GroupNorm(1, 3, affine=False),
        nn.RMSNorm(3), nn.PReLU(3, 0.5), nn.Embedding(5, 3), nn.Embedding(5, 3, padding_idx=-1),
        nn.EmbeddingBag(5, 3, padding_idx=2), nn.Bilinear(2, 3, 4), nn.Linear(2, 3),
        nn.Conv2d(2, 3, 1), nn.GRU(2, 3),
    )  # fmt: skip


def test_reset_parameters_of_every_layer():
    model, new = make_every_layer_with_values(), make_every_layer_with_values()
    for value in (*model.parameters(), *model.buffers()):
        value.copy_(np.full(value.shape, 7, np.int64 if value.dtype == hl.int64 else np.float32))
    assert all((value == 7).all() for value in model.state_dict().values())
    for layer in model:
        layer.reset_parameters()
    for key, value in new.state_dict().items():
        np.testing.assert_array_equal(model.state_dict()[key], value, err_msg=key)
    assert (model.state_dict()["14.weight"][4] == 0).all()
    model[0].running_var.copy_(np.full(3, 7.0))
    model[0].weight.copy_(np.full(3, 7.0))
    model[0].reset_running_stats()
    assert (model[0].running_var.numpy() == 1).all()
    assert (model[0].weight.numpy() == 7).all()
    given = nn.Embedding.from_pretrained(np.full((5, 3), 7.0))
    given.reset_parameters()
    assert (given.weight.numpy() != 7).all()
    assert not given.weight.requires_grad


@pytest.mark.parametrize("kind", ["LazyBatchNorm1d", "LazyInstanceNorm1d"])
def test_reset_parameters_of_lazy_norms(kind):
    layer = getattr(nn, kind)(affine=True, track_running_stats=True)
    layer.reset_parameters()  # of no shape yet: nothing
    layer(np.ones((2, 3, 4), np.float32))
    layer.weight.copy_(np.full(3, 7.0))
    layer.reset_parameters()
    assert (layer.weight.numpy() == 1).all()


def test_reset():
    net = Net()
    first = net.state_dict()
    for value in (*net.parameters(), *net.buffers()):
        value.set_value(np.full(value.shape, 9))
    net.reset()
    for key, value in net.state_dict().items():
        np.testing.assert_array_equal(value, first[key])


def test_copy_sets_the_initial_value():
    net = Net()
    version = net.scale.version
    net.scale.copy_([1, 2, 3, 4])
    assert net.scale.version > version
    net.scale.set_value(np.zeros(4))
    net.reset()
    np.testing.assert_array_equal(net.scale.numpy(), [1, 2, 3, 4])


def test_tied_parameters_are_one_slot():
    net = nn.Module()
    net.a, net.b = nn.Linear(3, 3), nn.Linear(3, 3)
    net.b.weight = net.a.weight
    assert list(net.state_dict()) == ["a.weight", "a.bias", "b.weight", "b.bias"]
    assert [n for n, _ in net.named_parameters()] == ["a.weight", "a.bias", "b.bias"]
    assert len(Layout(net).slots) == 3


def test_layout_puts_what_learns_first():
    net = Net()
    net.head.bias.requires_grad_(False)
    layout = Layout(net, freeze=["body.0"], unfreeze=["body.0.bias"])
    names = [slot.name for slot in layout.slots]
    assert names[: layout.n_trainable] == [
        *("scale", "body.0.bias", "body.1.weight", "body.1.bias", "head.weight"),
    ]
    assert names[layout.n_trainable : layout.n_trainable + 2] == ["body.0.weight", "head.bias"]
    offset = 0
    for slot in layout.trainable:
        assert (slot.store, slot.offset) == ("param", offset)
        offset = -(-(offset + slot.size) // 16) * 16
    assert layout.n_flat == layout.trainable[-1].offset + layout.trainable[-1].size
    assert all(slot.offset * slot.owner.numpy().itemsize % 64 == 0 for slot in layout.slots)
    assert layout.stores()["counter"] == ("int64", 9)  # two, 64 bytes apart
    with pytest.raises(ConfigError, match="freeze"):
        Layout(net, freeze=["bodi"])


def test_buffers_are_committed_in_training_alone():
    net = Net()
    for training in (False, True):
        graph, *_ = trace(net, ("float32", (6, 8)), model=net, training=training)
        assert str(graph).count("<-") == (4 if training else 0)


def test_reading_after_assign_gives_the_new_value():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("n", np.zeros(2, np.float32))

        def forward(self, x):
            self.n.assign(self.n + 1)
            self.n.assign(self.n + 10)
            return x + self.n

    net = Twice()
    (got,) = run(net, np.zeros((3, 2), np.float32), model=net)
    np.testing.assert_array_equal(got, np.full((3, 2), 11))
    with pytest.raises(ShapeError, match=r"n\.assign"):
        trace(lambda x: net.n.assign(x), ("float32", (3,)), model=net)


def test_modes():
    net = Net()
    assert net.training
    assert not net.eval().body[3].training
    net.train()
    net.body.eval()
    seen = []

    class Spy(nn.Module):
        def forward(self, x):
            seen.append((self.training, net.body[3].training))
            return x

    for training in (True, False):
        trace(Spy(), ("float32", (2, 2)), training=training)
    assert seen == [(True, False), (False, False)]


def test_dropout_is_a_stream_per_call_site():
    net = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
    x = np.ones((64, 64), np.float32)
    first, both = run(lambda x: (net[0](x), net(x)), x, training=True)
    assert set(np.unique(first)) == {0.0, 2.0}
    assert abs((first == 0).mean() - 0.5) < 0.05
    assert abs((both == 0).mean() - 0.75) < 0.05
    assert not np.array_equal(first == 0, both == 0)
    (again,) = run(lambda x: net[0](x), x, training=True)
    np.testing.assert_array_equal(first, again)
    (longer,) = run(lambda x: net[0](x), np.ones((80, 64), np.float32), training=True)
    np.testing.assert_array_equal(first, longer[:64])
    (still,) = run(net, x, training=False)
    np.testing.assert_array_equal(still, x)


def test_shape_error_names_layer_and_both_shapes():
    net = Net()
    with pytest.raises(ShapeError) as caught:
        trace(net, ("float32", (64, 20)), model=net)
    text = str(caught.value)
    assert text.startswith("body.0, Linear(in_features=8, out_features=16, bias=True): ")
    assert "(64, 20)" in text
    assert "(16, 8)" in text
    assert text.count("Linear(") == 1


def test_one_sample_with_batch_statistics():
    net = nn.Sequential(nn.BatchNorm1d(8))
    with pytest.raises(ShapeError, match="more than one value per channel"):
        trace(net, ("float32", (1, 8)), model=net, training=True)
    trace(net, ("float32", (1, 8)), model=net)


def test_unregistered_parameter_is_said():
    class Lost(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = [nn.Linear(3, 3)]

        def forward(self, x):
            return self.layers[0](x)

    net = Lost()
    with pytest.raises(TraceError, match=r"nn\.ModuleList"):
        trace(net, ("float32", (2, 3)), model=net)


def test_impure_forward_is_found():
    class Impure(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x * self.calls

    net = Impure()

    def build():
        from hotloop import _core

        graph = _core.Graph()
        with Trace(graph) as recorder:
            net(recorder.input("x", "float32", (2, 2)))
        return recorder, None

    with pytest.raises(TraceError, match=r"a constant made in forward that was 1\.0, and 2\.0"):
        trace_twice(build)


def test_lazy_linear():
    net = nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(2, bias=False))
    with pytest.raises(ConfigError, match="first batch"):
        net.state_dict()
    assert repr(net[0]) == "LazyLinear(in_features=0, out_features=5, bias=True)"
    resolve_lazy(net, [("float32", (4, 7))])
    assert [p.shape for p in net.parameters()] == [(5, 7), (5,), (2, 5)]
    assert repr(net[0]) == "Linear(in_features=7, out_features=5, bias=True)"
    assert abs(net[0].weight.numpy()).max() <= 7**-0.5
    other = nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(2, bias=False))
    other.load_state_dict(net.state_dict())
    assert other[0].in_features == 7


def test_containers():
    seq = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 3))
    assert len(seq[:2]) == 2
    assert seq[-1].out_features == 3
    seq.insert(1, nn.Tanh()).append(nn.Identity())
    del seq[0]
    assert [type(m).__name__ for m in seq] == ["Tanh", "ReLU", "Linear", "Identity"]
    assert list(seq.state_dict()) == ["2.weight", "2.bias"]
    assert isinstance(seq.pop(-1), nn.Identity)
    named = nn.Sequential({"a": nn.ReLU(), "b": nn.Tanh()})
    del named[0]
    assert list(named._modules) == ["b"]
    many = nn.ModuleList(nn.Linear(i, i) for i in (1, 2))
    many += [nn.Linear(3, 3)]
    assert [m.in_features for m in many] == [1, 2, 3]
    assert many[0] in many
    with pytest.raises(IndexError):
        many[3]
    both = nn.ModuleDict({"x": nn.ReLU()})
    both["y"] = nn.Tanh()
    assert list(both) == ["x", "y"]
    assert isinstance(both.pop("x"), nn.ReLU)
    weights = nn.ParameterList([np.zeros(2), nn.Parameter(np.ones(3))])
    assert list(weights.state_dict()) == ["0", "1"]
    table = nn.ParameterDict({"w": np.zeros(2)})
    assert table["w"].shape == (2,)


@pytest.mark.parametrize(
    ("act", "error", "words"),
    [
        (lambda net: setattr(net, "head", 3), ConfigError, "nn.Module or None"),
        (lambda net: setattr(net, "scale", np.ones(4)), ConfigError, "copy_"),
        (lambda net: net.register_forward_hook(print), ConfigError, "hooks are not run"),
        (lambda net: net.double(), ConfigError, "64-true"),
        (lambda net: net.half(), ConfigError, "16-mixed"),
        (lambda net: net.haed, AttributeError, "did you mean 'head'"),
        (lambda net: nn.Parameter(np.ones(3, int)), ConfigError, "floats"),
        (lambda net: net.scale.data.__setitem__(0, 1), ConfigError, "read-only"),
        (lambda net: net.scale.data.normal_(), ConfigError, "nn.init"),
        (lambda net: setattr(net.scale, "data", 1), ConfigError, "copy_"),
        (lambda net: net.scale.copy_(np.ones(5)), ShapeError, "scale"),
        (lambda net: net.register_buffer("head", np.ones(1)), ConfigError, "already"),
        (lambda net: net.register_parameter("a.b", None), ConfigError, "dots"),
        (lambda net: nn.Linear(-1, 2), ConfigError, "in_features"),
        (lambda net: nn.Dropout(1.5), ConfigError, "[0, 1]"),
        (lambda net: nn.CrossEntropyLoss(reduction="man"), ConfigError, "reduction"),
        (lambda net: nn.MSELoss(True), ConfigError, "size_average"),
        (lambda net: nn.Embedding(3, 2, max_norm=np.inf), ConfigError, "max_norm"),
        (
            lambda net: nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2), 2, norm=8),
            ConfigError,
            "TransformerEncoder: norm must be a module, got 8",
        ),
        (
            lambda net: nn.TransformerDecoder(
                nn.TransformerDecoderLayer(4, 2), 2, norm=nn.LayerNorm
            ),
            ConfigError,
            "; write norm=nn.LayerNorm(...)",
        ),
        (lambda net: net.get_submodule("boby"), AttributeError, "did you mean 'body'"),
    ],
)
def test_errors(act, error, words):
    with pytest.raises(error) as caught:
        act(Net())
    assert words in str(caught.value)


def test_attributes_before_init_are_refused():
    class Early(nn.Module):
        def __init__(self):
            self.layer = nn.Linear(2, 2)

    with pytest.raises(TraceError, match=r"super\(\).__init__"):
        Early()


def test_in_place_numbers_of_data_are_refused():
    net = Net()
    with pytest.raises(ConfigError):
        net.scale.data += 1
    doubled = net.scale.data * 2
    doubled[0] = 5  # a new array, the user's own
    assert (net.scale.numpy() == 1).all()


def test_apply_and_init_in_torchs_way():
    def init(module):
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            module.bias.zero_()

    net = Net().apply(init)
    assert (net.head.bias.numpy() == 0).all()
    assert 0.005 < net.head.weight.numpy().std() < 0.04
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net.zero_grad()
        assert net.to("auto").cpu().float() is net


@pytest.mark.parametrize("device", ["mps", "meta", "cuda:x", "cuda:-1", "tpu"])
def test_devices_of_others_are_refused(device, tmp_path):
    fix = f"'cpu', 'cuda', 'cuda:1' or 'auto', got '{device}'"
    with pytest.raises(hl.ConfigError, match=fix):
        Net().to(device=device)


def test_repr_is_torchs():
    assert repr(Net()).splitlines() == [
        "Net(",
        "  (body): Sequential(",
        "    (0): Linear(in_features=8, out_features=16, bias=True)",
        "    (1): BatchNorm1d(16, eps=1e-05, momentum=0.1, affine=True, bias=True, "
        "track_running_stats=True)",
        "    (2): ReLU()",
        "    (3): Dropout(p=0.2, inplace=False)",
        "  )",
        "  (head): Linear(in_features=16, out_features=4, bias=True)",
        ")",
    ]
