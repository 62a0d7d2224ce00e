"""Functions on arrays outside of forward: computed at once, by the ops that training uses."""

import pickle
import threading

import hotloop as hl
import numpy as np
import pytest
from api.traced import run
from hotloop import DataError, ShapeError, TraceError, nn, ops
from hotloop.graph.eager import is_eager
from hotloop.nn import functional as F

# Which make arrays without tensors, or say something about a run and not about arrays.
NOT_OF_ARRAYS = {
    *("arange", "as_tensor", "broadcast_shapes", "empty", "empty_like", "eye", "from_numpy"),
    *("full", "full_like", "initial_seed", "linspace", "manual_seed", "no_grad", "ones"),
    *("ones_like", "rand", "rand_like", "randint", "randn", "randn_like", "randperm", "scalar"),
    *("tensor", "zeros", "zeros_like"),
}


@pytest.fixture
def x(rng):
    return rng.standard_normal((6, 8)).astype(np.float32)


def softmax(x, axis):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def test_functions_of_hl_give_arrays(x):
    cases = [
        (hl.softmax(x, dim=1), softmax(x, 1)),
        (hl.cat([x, x[:2]]), np.concatenate([x, x[:2]])),
        (hl.stack([x, x], 1), np.stack([x, x], 1)),
        (hl.where(x > 0, x, 0.0), np.maximum(x, 0)),
        (hl.exp(x), np.exp(x)),
        (hl.einsum("ij,kj->ik", x, x), x @ x.T),
        (hl.masked_fill(x, x > 0, -1), np.where(x > 0, -1, x)),
        (hl.clamp(x, -0.5, 0.5), x.clip(-0.5, 0.5)),
        (hl.gather(x, 1, x.argmax(1)[:, None]), x.max(1, keepdims=True)),
        (hl.flatten(x), x.reshape(-1)),
        (hl.sum(x), x.sum()),
        (hl.add(1, 2), 3),
    ]
    for n, (got, want) in enumerate(cases):
        assert isinstance(got, np.ndarray), n
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6, err_msg=f"case {n}")


def test_structures_come_back_as_they_are(x):
    largest = hl.max(x, dim=1)
    np.testing.assert_array_equal(largest.values, x.max(1))
    np.testing.assert_array_equal(largest.indices, x.argmax(1))
    parts = hl.split(x, 3)
    assert [part.shape for part in parts] == [(3, 8), (3, 8)]
    assert hl.broadcast_shapes((3, 1), (4,)) == (3, 4)


def test_functional_and_losses_give_arrays(x):
    classes = np.arange(6)
    logs = np.log(softmax(x, 1))
    want = -logs[classes, classes].mean()
    cases = [
        (F.relu(x), np.maximum(x, 0)),
        (F.one_hot(classes, 6), np.eye(6, dtype=int)),
        (F.layer_norm(x, 8), (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1) + 1e-5)[:, None]),
        (F.mse_loss(x, x + 2), 4.0),
        (nn.MSELoss()(x, x + 2), 4.0),
        (F.cross_entropy(x, classes), want),
        (nn.CrossEntropyLoss()(x, classes), want),
        (F.linear(x, np.ones((3, 8)), np.ones(3)), np.repeat(x.sum(1)[:, None] + 1, 3, 1)),
        (F.dropout(x, 0.5, training=False), x),
        (F.cosine_similarity(x, x), np.ones(6)),
    ]
    for n, (got, want) in enumerate(cases):
        assert isinstance(got, np.ndarray), n
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5, err_msg=f"case {n}")


def test_every_public_function_takes_arrays():
    named = {name: getattr(ops, name) for name in vars(ops) if not name.startswith("_")}
    named = {name: f for name, f in named.items() if callable(f) and name not in NOT_OF_ARRAYS}
    # Those that end in _ change the array that they are given: test_nn_functional.py.
    named |= {name: getattr(F, name) for name in F.__all__ if not name.endswith("_")}
    assert len(named) > 180
    lacking = [name for name, function in named.items() if not is_eager(function)]
    assert not lacking, f"these run in forward alone: {lacking}"


@pytest.mark.parametrize(
    ("call", "dtype"),
    [
        (lambda: hl.exp(np.ones(3)), "float32"),  # float64 becomes the working precision
        (lambda: hl.exp(np.ones(3, np.float16)), "float16"),
        (lambda: hl.exp(np.ones(3, int)), "float32"),
        (lambda: hl.abs(np.ones(3, np.int16)), "int16"),
        (lambda: hl.sum(np.ones(3, np.int32)), "int64"),
        (lambda: hl.add(np.ones(3, int), 1.5), "float32"),
        (lambda: hl.add(np.ones(3, np.uint8), 1), "uint8"),
        (lambda: hl.gt(np.ones(3), 0), "bool"),
        (lambda: hl.argmax(np.ones(3)), "int64"),
        (lambda: hl.cat([np.ones(3, int), np.ones(3, np.float32)]), "float32"),
    ],
)
def test_dtypes_follow_torch(call, dtype):
    assert call().dtype == dtype


IMAGE = np.random.default_rng(0).standard_normal((2, 4, 6, 6)).astype(np.float16)
ROWS = IMAGE.reshape(8, 36)


@pytest.mark.parametrize(
    "call",
    [
        lambda kind: hl.softmax(ROWS.astype(kind), 1),
        lambda kind: hl.log_softmax(ROWS.astype(kind), 0),
        lambda kind: F.cross_entropy(ROWS.astype(kind), np.arange(8)),
        lambda kind: F.max_pool2d(IMAGE.astype(kind), 2),
        lambda kind: F.max_pool2d(IMAGE.astype(kind), 2, return_indices=True)[1],
        lambda kind: F.avg_pool2d(IMAGE.astype(kind), 3),
        lambda kind: F.interpolate(IMAGE.astype(kind), scale_factor=2.0, mode="bilinear"),
        lambda kind: F.fold(IMAGE.astype(kind).reshape(2, 4, 36), (7, 7), 2),
    ],
    ids=["softmax", "log_softmax", "cross_entropy", "max", "indices", "mean", "resize", "fold"],
)
def test_halves_are_computed_in_float32_and_rounded(call):
    got, want = call(np.float16), call(np.float32)
    assert got.dtype == (np.float16 if want.dtype == np.float32 else want.dtype)
    np.testing.assert_allclose(
        got, want, rtol=2e-3, atol=2e-3
    )  # resized by each axis, rounded twice


class Halves(nn.Module):
    """Passes through ops whose kernels take float32, in float16."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Conv2d(1, 4, 3), nn.Linear(4, 3)

    def forward(self, x):
        x = F.interpolate(F.max_pool2d(self.body(x).half(), 2), scale_factor=2.0, mode="bilinear")
        return hl.log_softmax(hl.softmax(self.head(x.mean((2, 3)).float()).half(), 1), 1)


def test_halves_have_gradients():
    X = np.random.default_rng(1).standard_normal((32, 1, 8, 8)).astype(np.float32)
    config = hl.TrainingConfig.bare().replace(max_epochs=2, lr=0.05, enable_progress_bar=False)
    loss = hl.train(
        Halves(),
        (X, np.arange(32) % 3),
        config,
        loss=F.cross_entropy,
        logger=None,
        restore_best=False,
    )
    assert loss.history["loss"][1] < loss.history["loss"][0]


def test_the_bits_are_those_of_a_plan(x):
    def fn(a):
        return F.gelu(hl.softmax(a, 1) @ hl.ones(8, 4)).mean(0)

    (want,) = run(fn, x)
    with_arrays = F.gelu(hl.matmul(hl.softmax(x, 1), hl.ones(8, 4)))
    np.testing.assert_array_equal(hl.mean(with_arrays, 0), want)


def test_what_comes_back_is_the_users_own(x):
    same = F.dropout(x, 0.0)
    same[0] = 7
    assert not (x[0] == 7).any()


def test_one_hot_of_an_array_finds_the_number_of_classes():
    ids = np.array([[0, 3], [1, 1]])
    np.testing.assert_array_equal(F.one_hot(ids), np.eye(4, dtype=int)[ids])
    assert F.one_hot(ids.astype(np.uint8)).shape == (2, 2, 4)
    with pytest.raises(DataError, match="got -1"):
        F.one_hot(np.array([0, -1]), 2)
    with pytest.raises(TraceError, match="num_classes must be given"):
        F.one_hot(np.zeros((0, 3), int))


@pytest.mark.parametrize("make", [hl.tensor, hl.as_tensor, hl.from_numpy])
def test_an_array_of_a_parameter_is_a_copy(make):
    p = nn.Parameter(np.ones(3))
    made = make(p)
    p.fill_(2)
    assert isinstance(made, np.ndarray)
    np.testing.assert_array_equal(made, np.ones(3))
    assert hl.tensor(p, dtype=hl.float64).dtype == np.float64


def test_errors_are_those_of_forward(x):
    with pytest.raises(ShapeError, match=r"\(6, 8\) and \(6, 8\)"):
        hl.matmul(x, x)
    with pytest.raises(ShapeError, match="one shape"):
        F.mse_loss(x, x[:, :1])
    with pytest.raises(DataError, match="9"):
        F.cross_entropy(x, np.full(6, 9))
    with pytest.raises(TraceError, match="exp: must be given a tensor, array or number"):
        hl.exp("a")
    assert hl.exp(x).shape == x.shape  # an error leaves no trace running


def test_a_tensor_of_an_earlier_call_is_refused(x):
    kept = []
    nn_keep = type("Keep", (nn.Module,), {"forward": lambda self, v: kept.append(v) or v + 1})
    nn_keep()(x)
    with pytest.raises(TraceError, match="this call of forward"):
        hl.exp(kept[0])


def test_random_functions_draw_from_the_seed_and_the_call(x):
    hl.manual_seed(5)
    p = np.full((64, 64), 0.25, np.float32)
    first, second = hl.bernoulli(p), hl.bernoulli(p)
    dropped = F.dropout(np.ones((64, 64), np.float32), 0.5)
    hl.manual_seed(5)
    np.testing.assert_array_equal(first, hl.bernoulli(p))
    assert not np.array_equal(first, second)
    assert abs(first.mean() - 0.25) < 0.05
    assert set(np.unique(dropped)) == {0.0, 2.0}


def test_in_forward_arrays_are_constants(x):
    class Net(nn.Module):
        def forward(self, v):
            made = hl.exp(np.ones(8, np.float32))
            assert type(made) is hl.Tensor
            return v * made

    np.testing.assert_allclose(Net()(x), x * np.exp(1), rtol=1e-6)


def test_batch_norm_moves_buffers(x):
    mean, var = nn.Buffer(np.zeros(8)), nn.Buffer(np.ones(8))
    F.batch_norm(x, mean, var, training=True)
    np.testing.assert_allclose(mean.numpy(), 0.1 * x.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(var.numpy(), 0.9 + 0.1 * x.var(0, ddof=1), rtol=1e-5)
    with pytest.raises(hl.ConfigError, match=r"running_mean must be an nn\.Buffer"):
        F.batch_norm(x, np.zeros(8), np.ones(8), training=True)


def test_functions_can_be_pickled_and_have_their_signature():
    import inspect

    for function in (hl.softmax, hl.cat, F.relu, F.mse_loss, hl.abs):
        assert pickle.loads(pickle.dumps(function)) is function
    assert list(inspect.signature(hl.softmax).parameters) == ["input", "dim", "dtype"]


def test_threads_compute_beside_each_other(rng):
    big = rng.standard_normal((256, 512)).astype(np.float32)
    want, wrong = hl.softmax(big, 1), []

    def work():
        for _ in range(10):
            if not np.array_equal(hl.softmax(big, 1), want):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- parameters and buffers


@pytest.fixture
def layer():
    return nn.Linear(4, 3)


def test_slices_arithmetic_and_reductions_of_parameters_are_arrays(layer):
    p, w = layer.weight, layer.weight.numpy()
    cases = [
        (p[0], w[0]),
        (p[:, 1:3], w[:, 1:3]),
        (p[p > 0], w[w > 0]),
        (p * 2, w * 2),
        (2 - p, 2 - w),
        (p + 0, w),
        (-p, -w),
        (abs(p), abs(w)),
        (p**2, w**2),
        (p @ p.T, w @ w.T),
        (p > 0, w > 0),
        ((p > 0) & (p < 1), (w > 0) & (w < 1)),
        (p.mean(), w.mean()),
        (p.sum(dim=1), w.sum(1)),
        (p.max(1).values, w.max(1)),
        (p.norm(), np.linalg.norm(w)),
        (p.view(-1), w.reshape(-1)),
        (p.T, w.T),
        (p.clone(), w),
        (p.double(), w),
        (p - layer.weight, 0 * w),
        (next(iter(p)), w[0]),
        (p.softmax(0), softmax(w, 0)),
        (F.linear(np.ones((2, 4)), p), np.ones((2, 4)) @ w.T),
        (np.ones((3, 4), np.float32) * p, w),
    ]
    for n, (got, want) in enumerate(cases):
        assert isinstance(got, np.ndarray), n
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-6, err_msg=f"case {n}")
    assert p.double().dtype == np.float64
    assert len(p) == 3
    assert len(list(p)) == 3


def test_numpys_functions_take_parameters(layer):
    p, w = layer.weight, layer.weight.numpy()
    np.testing.assert_array_equal(np.asarray(p), w)
    np.testing.assert_allclose(np.mean(p, axis=0), w.mean(0), rtol=1e-6)
    np.testing.assert_allclose(np.exp(p), np.exp(w))
    np.testing.assert_array_equal(np.concatenate([p, p]), np.concatenate([w, w]))
    assert np.linalg.norm(p) == np.linalg.norm(w)
    assert np.shape(p) == (3, 4)
    assert np.allclose(p, w)


def test_one_element_is_a_number():
    one = nn.Parameter(np.full((1,), 2.5))
    assert float(one) == one.item() == 2.5
    assert int(one) == 2
    assert bool(one)
    assert f"{one:.2f}" == "2.50"
    assert 2.5 in one
    with pytest.raises(ValueError, match="ambiguous"):
        bool(nn.Parameter(np.ones(2)))


def test_what_is_computed_does_not_follow_the_model(layer):
    kept = [layer.weight[0], layer.weight + 0, layer.weight.clone(), layer.weight**1]
    before = [np.array(value) for value in kept]
    layer.weight.fill_(9)
    for value, was in zip(kept, before):
        np.testing.assert_array_equal(value, was)
    kept[1][0] = 7  # a result is the user's own
    assert (layer.weight.numpy() == 9).all()


def test_torchs_way_to_an_array_still_works(layer):
    for p in (layer.weight, layer.weight.detach(), layer.weight.detach().float().contiguous()):
        np.testing.assert_array_equal(p.cpu().numpy(), layer.weight.numpy())
        assert p.to("cpu") is p


def test_in_forward_parameters_are_symbolic():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(np.full(4, 2.0))

        def forward(self, v):
            parts = [
                self.scale[0], self.scale * 2, self.scale.mean(), self.scale > 0, +self.scale,
                self.scale.float(), np.ones(4) * self.scale, self.scale.clone(), self.scale.T,
                hl.cat([self.scale, self.scale]), next(iter(self.scale)), self.scale + 0,
                self.scale**1, (self.scale > 0) & True,
            ]  # fmt: skip
            assert all(isinstance(part, hl.Tensor) for part in parts)
            for refused in (float, np.mean, np.exp, np.asarray, bool):
                with pytest.raises(TraceError):
                    refused(self.scale)
            return v * self.scale.sum() + sum(part.float().sum() for part in parts) * 0

    net, ones = Net(), np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(net(ones), ones * 8)
    net.scale.fill_(3)
    np.testing.assert_array_equal(net(ones), ones * 12)  # nothing of the value is in the plan


IN_PLACE = {
    "*=": lambda p: p.__imul__(2),
    "+=": lambda p: p.__iadd__(1),
    "/=": lambda p: p.__itruediv__(2),
    "**=": lambda p: p.__ipow__(2),
    "@=": lambda p: p.__imatmul__(2),
    "[0] =": lambda p: p.__setitem__(0, 1.0),
    "mul_": lambda p: p.mul_(2),
    "clamp_": lambda p: p.clamp_(0, 1),
}


@pytest.mark.parametrize("write", IN_PLACE.values(), ids=IN_PLACE.keys())
def test_changes_in_place_say_how_to_set_values(layer, write):
    before = np.array(layer.weight)
    with pytest.raises(TraceError, match=r"Parameter weight.*copy_\("):
        write(layer.weight)
    np.testing.assert_array_equal(layer.weight, before)
