"""What scripts for torch do with tensors, parameters and optimizers, and what is said to it."""

import pickle

import hotloop as hl
import numpy as np
import pytest
from api.traced import trace
from hotloop import TraceError, nn
from hotloop.base import suggest
from hotloop.nn import functional as F
from needs import take_library

X = ("float32", (6, 8))
ROWS = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)


def tried(use):
    """What using a tensor of a forward raises."""
    with pytest.raises((AttributeError, TraceError)) as caught:
        trace(use, X)
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda x: x.sum().backward(), ["TraceError", "training_step", "hl.train", "hl.stepper"]),
        (lambda x: x.grad, ["AttributeError", "'grad'", "training step", "hl.train"]),
        (lambda x: x.grad_fn, ["AttributeError", "training step"]),
        (lambda x: x.retain_grad(), ["AttributeError", "training step"]),
        (lambda x: x.requires_grad_(), ["AttributeError", "nn.Parameter", "detach()"]),
        (lambda x: x.requires_grad, ["AttributeError", "nn.Parameter"]),
        (lambda x: x.item(), ["TraceError", "no value yet", "hl.where"]),
        (lambda x: x.numpy(), ["TraceError", "no value yet"]),
        (lambda x: x.detach().cpu().numpy(), ["TraceError", "no value yet"]),
        (lambda x: np.mean(x), ["TraceError", "np.mean(tensor)", "hl.mean"]),
        (lambda x: np.concatenate([x, x]), ["TraceError", "np.concatenate(tensor)"]),
        (lambda x: x.detach_(), ["TraceError", "x = x.detach("]),
    ],
)
def test_what_a_tensor_of_forward_has_not(use, words):
    said = tried(use)
    assert all(word in said for word in words), said


def test_what_numpy_may_ask_of_a_tensor():
    trace(lambda x: [pytest.fail("shape") for _ in range(np.shape(x) != (6, 8))] or x, X)
    trace(lambda x: [pytest.fail("ndim") for _ in range(np.ndim(x) != 2)] or x, X)
    trace(lambda x: [pytest.fail("size") for _ in range(np.size(x) != 48)] or x, X)


def test_rows_of_a_tensor():
    def taken_apart(x):
        a, b, *rest = x
        assert len(rest) == 4
        assert a.shape == b.shape == (8,)
        return sum(row.sum() for row in x)

    assert trace(taken_apart, X)[3][0].shape == ()
    with pytest.raises(TraceError, match="iteration: must be over a tensor with dims"):
        trace(lambda x: list(x.sum()), X)


@pytest.mark.parametrize(
    "take",
    [
        lambda x: hl.stack([row * 2 for row in x]),
        lambda x: (lambda a, b: a + b)(*x),
        lambda x: hl.stack(list(x)),
    ],
)
def test_a_batch_is_not_gone_through_by_rows(take):
    class Rows(nn.Module):
        def forward(self, x):
            return take(x)

    refused = r"iteration: must not be over a batch, .*, got one of shape \(6, 8\); .*x.unbind\(1\)"
    with pytest.raises(TraceError, match=refused):
        Rows()(ROWS)

    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(8, 1)

        def training_step(self, batch):
            return self.body(take(batch["x"])).mean()

    with pytest.raises(TraceError, match=refused):
        hl.train(Step(), hl.DataModule.from_arrays(ROWS, batch_size=6), enable_progress_bar=False)


def test_what_a_model_made_of_a_batch_is_taken_apart():
    class Parts(nn.Module):
        def forward(self, x):
            first, *others = x.unbind(1)
            a, b = x.reshape(-1, 2, 4).transpose(0, 1)
            return first + sum(others), a + b

    first, both = Parts()(ROWS)
    np.testing.assert_allclose(first, ROWS.sum(1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(both, ROWS[:, :4] + ROWS[:, 4:], rtol=1e-6)


@pytest.mark.extra
def test_functions_of_torch_are_refused_and_its_tensors_are_arrays():
    torch = take_library("torch")

    class Mixed(nn.Module):
        def __init__(self, act):
            super().__init__()
            self.body, self.scale, self.act = nn.Linear(8, 2), torch.full((2,), 3.0), act

        def forward(self, x):
            return self.act(self.scale, self.body(x))

    def both(s, h):
        return (s + h) * (s - h) / (s * h * h + 9) + (s > h).float()

    model = Mixed(both)
    h = ROWS @ model.body.weight.numpy().T + model.body.bias.numpy()
    np.testing.assert_allclose(model(ROWS), both(np.float32(3), h.view(Float)), rtol=1e-4)
    data = hl.DataModule.from_arrays(ROWS, np.arange(6) % 2)
    for act, words in (
        (lambda s, h: torch.relu(h), r"torch.relu: must get tensors of torch.*hl.relu or F.relu"),
        (lambda s, h: torch.cat([h, h]), "torch.cat: must get tensors of torch"),
        (lambda s, h: torch.nn.GELU()(h), r"torch.gelu: .*write hotloop's own layer, nn\.GELU \("),
        (lambda s, h: torch.fft.fft(h), r"torch.fft_fft: .*write it with functions of hotloop"),
        (lambda s, h: torch.pixel_shuffle(h, 1), r"hotloop's own, F.pixel_shuffle \(from"),
    ):
        with pytest.raises(TraceError, match=words):
            hl.train(Mixed(act), data, max_epochs=1, enable_progress_bar=False)
    with pytest.raises(TraceError, match=r"torch\.cross_entropy: .*nn\.CrossEntropyLoss \(from"):
        hl.train(nn.Linear(8, 2), data, loss=torch.nn.CrossEntropyLoss(), enable_progress_bar=False)


@pytest.mark.extra
def test_a_layer_of_torch_is_no_child():
    torch = take_library("torch")
    with pytest.raises(hl.ConfigError, match=r"got Linear of torch; write .*nn\.Linear \(from"):
        nn.Sequential(torch.nn.Linear(3, 3))


class Float(np.ndarray):
    """With torch's name of a conversion."""

    def float(self):
        return self.astype(np.float32)


def test_gradients_of_a_parameter():
    p = nn.Linear(3, 2).weight
    with pytest.raises(AttributeError, match=r"Parameter has no attribute 'grad': .*hl\.train"):
        p.grad  # noqa: B018
    assert getattr(p, "grad", None) is None
    p.grad = None  # there is nothing to clear
    with pytest.raises(AttributeError, match=r"hl\.train"):
        p.grad = np.zeros((2, 3))
    with pytest.raises(TraceError, match=r"hl\.train"):
        p.backward()
    p.requires_grad_(False)
    assert not p.requires_grad


def test_a_parameter_goes_into_a_layer_and_a_loss():
    layer = nn.Linear(3, 2)
    w = layer.weight.numpy()
    np.testing.assert_array_equal(nn.ReLU()(layer.weight), np.maximum(w, 0))
    np.testing.assert_allclose(nn.MSELoss()(layer.weight, np.zeros((2, 3))), (w**2).mean(), 1e-6)
    np.testing.assert_array_equal(F.relu(layer.weight), np.maximum(w, 0))


def test_a_loss_of_arrays_has_no_backward():
    out = np.ones((4, 3), np.float32)
    for loss in (F.mse_loss(out, 2 * out), nn.MSELoss()(out, 2 * out), hl.sum(out)):
        assert loss.item() in (1.0, 12.0)
        assert f"{loss:.1f}" in ("1.0", "12.0")
        with pytest.raises(AttributeError, match=r"no 'backward'; .*hl\.train.*optimizer\.step"):
            loss.backward()
    rows = hl.softmax(out, 1)
    np.testing.assert_allclose(rows.detach().cpu().numpy().sum(1), 1, rtol=1e-6)
    assert rows.mean(dim=1).shape == (4,)
    copy = nn.Linear(3, 2).weight.detach().clone().numpy()
    assert type(copy) is np.ndarray


@pytest.mark.parametrize("name", ["step", "zero_grad"])
def test_an_optimizer_is_a_setting(name):
    with pytest.raises(AttributeError, match=rf"OptimizerConfig has no '{name}'.*hl\.stepper"):
        getattr(hl.OptimizerConfig("adam"), name)()
    assert not hasattr(hl.OptimizerConfig("adam"), "no_such_field")


@pytest.mark.parametrize("name", ["zero_grad", "backward"])
def test_a_step_is_one_call(name):
    stepper = hl.stepper(nn.Linear(3, 1), data=(np.ones((8, 3)), np.ones((8, 1))))
    with pytest.raises(AttributeError, match=rf"Stepper has no '{name}'.*step\(batch\)"):
        getattr(stepper, name)()


def test_what_could_be_meant_is_looked_for_when_the_message_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Models are built by assignments, each of which asks whether its name is free."""

    def refuse(name: str, candidates: object) -> str:
        raise AssertionError("looked for")

    layer = nn.Linear(2, 1)
    with monkeypatch.context() as patched:
        patched.setattr(suggest, "did_you_mean", refuse)
        assert not hasattr(layer, "wieght")
        assert getattr(layer, "wieght", None) is None
        nn.Sequential(nn.Linear(2, 1), nn.ReLU())
        with pytest.raises(AttributeError) as found:
            layer.wieght  # noqa: B018
    meant = "Linear has no attribute 'wieght'; did you mean 'weight'?"
    assert repr(found.value) == f"AttributeError({meant!r})"
    layer.wieghtt = 1
    assert (type(found.value), str(found.value)) == (AttributeError, meant)
    again = pickle.loads(pickle.dumps(found.value))
    assert (type(again), again.args) == (AttributeError, (meant,))
