"""Recurrent layers by cuDNN in trainings on a GPU, real or emulated: see test_gpu_convolutions."""

import ctypes
import gc
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from needs import NO_GPU, emulated
from train.recipes import quiet, same_bits, weights

if not os.environ.get("HOTLOOP_TEST_GPU"):
    pytest.skip(NO_GPU, allow_module_level=True)

RNG = np.random.default_rng(0)
X = RNG.standard_normal((24, 7, 5)).astype(np.float32)
Y = np.arange(24) % 3
UNITS = 8
LAYERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "tanh": (nn.RNN, {}),
    "relu": (nn.RNN, {"nonlinearity": "relu"}),
    "lstm": (nn.LSTM, {}),
    "gru": (nn.GRU, {}),
    "lstm-no-bias": (nn.LSTM, {"bias": False}),
    "gru-no-bias": (nn.GRU, {"bias": False}),
    "lstm-projected": (nn.LSTM, {"proj_size": 3}),
    "lstm-two": (nn.LSTM, {"num_layers": 2, "dropout": 0.4}),
    "gru-both-ways": (nn.GRU, {"bidirectional": True}),
}
STANDARD, STATIC, DYNAMIC, SMALL = range(4)  # algorithms of cuDNN


class Net(nn.Module):
    """Both the states and the last one are read."""

    def __init__(self, name: str) -> None:
        super().__init__()
        kind, fields = LAYERS[name]
        self.rnn = kind(5, UNITS, batch_first=True, **fields)
        width = fields.get("proj_size", UNITS)
        self.states = nn.Linear(width * (1 + fields.get("bidirectional", False)), 3)
        self.last = nn.Linear(width, 3)

    def forward(self, x: hl.Tensor) -> hl.Tensor:
        states, last = self.rnn(x)
        h = last[0] if isinstance(last, tuple) else last
        return self.states(states.mean(1)) + self.last(h[-1])


def config(**fields: object) -> hl.TrainingConfig:
    sgd = {"optimizer": "sgd", "lr": 0.1, "precision": "32-true", "max_epochs": 2}
    return quiet(**(sgd | {"accelerator": "gpu"} | fields))


def data(x: Any = X) -> hl.DataModule:
    return hl.DataModule.from_arrays(x, Y[: len(x)], val=None, batch_size=8)


def train(name: str, **fields: object) -> tuple[dict[str, np.ndarray], hl.nn.Module]:
    hl.manual_seed(1)
    model = Net(name)
    hl.train(model, data(), config(**fields))
    return weights(model), model


def plan_of(name: str, x: Any = X, **fields: object) -> str:
    return hl.plan(Net(name), data(x), config(**fields)).text


@pytest.fixture(autouse=True)
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU with cuDNN, and a disk cache of the test's own."""
    monkeypatch.setenv("HOTLOOP_CACHE_PATH", str(tmp_path / "cache"))
    hl.empty_cache()
    if "recurrent_layer.cudnn" not in plan_of("lstm"):
        pytest.skip("no cuDNN starts here (HOTLOOP_CUDNN_PATH may name one)")


class Fake:
    """The fake library, set up for a test."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(os.environ["HOTLOOP_CUDNN_PATH"])
        self.library.hl_fake_dnn_rnn_runs.restype = ctypes.c_int64
        self.library.hl_fake_dnn_fail.restype = ctypes.c_int64
        self.library.hl_fake_dnn_fail.argtypes = [ctypes.c_int64, ctypes.c_bool, ctypes.c_int]

    def configure(self, text: str) -> None:
        hl.empty_cache()  # and the device with it, which knows what it measured before
        self.library.hl_fake_dnn_configure(text.encode())

    def runs(self, algorithm: int) -> tuple[int, int]:
        """Calls forward, and back."""
        run = self.library.hl_fake_dnn_rnn_runs
        return run(algorithm, True), run(algorithm, False)

    def fail(self, k: int, sticky: bool, status: int) -> int:
        return int(self.library.hl_fake_dnn_fail(k, sticky, status))


@pytest.fixture
def fake() -> Iterator[Fake]:
    found = Fake()
    found.configure("")
    yield found
    found.fail(0, False, 0)
    found.configure("")


def count(text: str) -> tuple[int, int]:
    return text.count("cuda.recurrent_layer.cudnn"), text.count("cuda.recurrent_layer_grad.cudnn")


@pytest.mark.parametrize("name", LAYERS)
def test_weights_and_predictions_follow_the_cpus(name: str) -> None:
    exact, reference = train(name, accelerator="cpu")
    assert count(plan_of(name)) == ((2, 2) if name == "lstm-two" else (1, 1))
    got, model = train(name)
    for key in exact:
        np.testing.assert_allclose(got[key], exact[key], rtol=1e-4, atol=1e-5, err_msg=key)
    want = hl.predict(reference, X)
    np.testing.assert_allclose(hl.predict(model, X), want, rtol=1e-4, atol=1e-5)


def test_steps_have_the_same_bits_captured() -> None:
    found = [train("lstm", deterministic=True, cuda_graph=on)[0] for on in (False, True)]
    assert same_bits(*found)


def test_accumulated_gradients() -> None:
    """A layer's gradient runs several times before its weights change."""
    exact, _ = train("gru", accelerator="cpu", accumulate_grad_batches=3)
    got, _ = train("gru", accumulate_grad_batches=3)
    for key in exact:
        np.testing.assert_allclose(got[key], exact[key], rtol=1e-4, atol=1e-5, err_msg=key)


class Look:
    """A callback that reads the first plan."""

    def __init__(self) -> None:
        self.text = ""

    def on_epoch_end(self, run: Any) -> None:
        self.text = str(run.train_plans[0][0])


class Lengths(Net):
    """Rows that end earlier, as the batch says."""

    def forward(self, x: hl.Tensor) -> hl.Tensor:
        states, _ = self.rnn(x, lengths=(x[:, :, 0] > -9).sum(1))
        return self.states(states.mean(1))


def test_what_cudnn_is_not_asked_for() -> None:
    """Lengths that the step makes, few steps, mixed precision: product and recurrence are apart."""
    assert count(plan_of("lstm", X[:, :3])) == (0, 0)
    assert count(plan_of("lstm", precision="16-mixed")) == (0, 0)
    text = hl.plan(Lengths("lstm"), data(), config()).text
    assert count(text) == (0, 0)
    assert "cuda.matmul" in text


class Frozen(nn.Module):
    """The state's weight does not learn."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(5, UNITS, batch_first=True)
        self.head = nn.Linear(UNITS, 3)

    def forward(self, x: hl.Tensor) -> hl.Tensor:
        self.rnn.weight_hh_l0.requires_grad = False
        return self.head(self.rnn(x)[0].mean(1))


def test_weights_that_do_not_learn() -> None:
    found = []
    for fields in ({"accelerator": "cpu"}, {}):
        hl.manual_seed(1)
        model = Frozen()
        hl.train(model, data(), config(**fields))
        found.append(weights(model))
    for key in found[0]:
        np.testing.assert_allclose(found[1][key], found[0][key], rtol=1e-4, atol=1e-5)


def test_launches_do_not_grow_with_steps() -> None:
    """A layer is one instruction forward and one back."""
    texts = [plan_of("lstm", np.zeros((24, t, 5), np.float32)) for t in (5, 60)]
    assert [count(text) for text in texts] == [(1, 1)] * 2
    few, many = (int(re.search(r"(\d+) instructions", text)[1]) for text in texts)
    assert few == many < 40


@emulated
@pytest.mark.parametrize("fastest", [STANDARD, STATIC, DYNAMIC])
def test_the_fastest_algorithm_is_taken(fake: Fake, fastest: int) -> None:
    """By forward and backward alike; the next device takes it without measuring."""
    ms = ",".join("0.05" if i == fastest else "3" for i in range(4))
    fake.configure(f"rnn_ms={ms}")
    exact, _ = train("lstm", accelerator="cpu")
    got, _ = train("lstm")
    assert min(fake.runs(fastest)) >= 6
    for key in exact:
        np.testing.assert_allclose(got[key], exact[key], rtol=1e-4, atol=1e-5, err_msg=key)
    fake.configure(f"rnn_ms={ms}")
    train("lstm")
    assert all(fake.runs(i) == (0, 0) for i in range(4) if i != fastest)


@emulated
def test_an_algorithm_that_no_capture_takes_is_left_out(fake: Fake) -> None:
    """The one for small states is the fastest here, and works on a stream of its own."""
    fake.configure("rnn_ms=3,3,3,0.01")
    before = fake.runs(SMALL)
    train("lstm")
    tried = fake.runs(SMALL)[0] - before[0]
    assert 0 < tried <= 2


@emulated
@pytest.mark.parametrize(("machine", "n"), [("", 1), ("rnn_varies=1", 0)])
def test_deterministic_plans_take_what_repeats(fake: Fake, machine: str, n: int) -> None:
    """They measure nothing, and take the first algorithm or none."""
    exact, _ = train("lstm", accelerator="cpu")
    fake.configure(machine)
    look = Look()
    got, _ = train("lstm", deterministic=True, callbacks=(look,))
    for key in exact:
        np.testing.assert_allclose(got[key], exact[key], rtol=1e-4, atol=1e-5, err_msg=key)
    assert count(look.text) == (n, n)


@emulated
@pytest.mark.parametrize("machine", ["rnn_lacks=15", "rnn_refuses=15", "runs_nothing=1"])
@pytest.mark.parametrize("benchmark", [True, False])
def test_what_the_library_refuses_is_computed(fake: Fake, machine: str, benchmark: bool) -> None:
    """The plan is made again with product and recurrence apart, in the same training."""
    exact, _ = train("lstm", accelerator="cpu")
    fake.configure(machine)
    got, _ = train("lstm", benchmark=benchmark)
    assert count(plan_of("lstm")) == (0, 0)
    for key in exact:
        np.testing.assert_allclose(got[key], exact[key], rtol=1e-4, atol=1e-5, err_msg=key)


@emulated
def test_a_plan_names_its_algorithm(fake: Fake) -> None:
    look = Look()
    train("lstm", callbacks=(look,))
    assert len(re.findall(r"recurrent_layer\w*\.cudnn: .*\{algorithm \d of 4", look.text)) == 2


@emulated
@pytest.mark.parametrize("sticky", [False, True])
@pytest.mark.parametrize("status", [3000, 4003, 5000])
def test_calls_that_fail(fake: Fake, sticky: bool, status: int) -> None:
    """One call fails, or that one and all later: an error or other kernels, nothing is held, and
    the next training works. Every call of a training is too many: some, each with another
    remainder."""
    want, _ = train("lstm", deterministic=True)
    fake.configure("")
    gc.collect()
    n_live = fake.library.hl_fake_dnn_live()  # of other tests' devices
    train("lstm", deterministic=True)
    n_calls = fake.fail(0, False, 0)
    for k in range(1 + status % 7, n_calls + 1, 1 + n_calls // 12):
        fake.configure("")
        fake.fail(k, sticky, status)
        message = "cuDNN"
        try:
            got, _ = train("lstm", deterministic=True)
            for key in want:
                np.testing.assert_allclose(got[key], want[key], rtol=1e-4, atol=1e-5)
        except (hl.HotloopError, MemoryError) as error:
            message = str(error)
        assert "cuDNN" in message
        fake.fail(0, False, 0)
        gc.collect()  # what the error's frames hold
        hl.empty_cache()
        assert fake.library.hl_fake_dnn_live() == n_live
    fake.configure("")
    assert same_bits(train("lstm", deterministic=True)[0], want)
