"""Sequences on a GPU, real or emulated, held against the CPU's: see test_gpu.py."""

import os

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.training import generation
from needs import NO_GPU
from train.recipes import quiet
from train.test_gpu import BATCH, EPOCHS, SGD, Outcome, check_close

pytestmark = pytest.mark.skipif(not os.environ.get("HOTLOOP_TEST_GPU"), reason=NO_GPU)


@pytest.mark.parametrize("is_resident", [True, False])
def test_windows_of_a_series(is_resident: bool) -> None:
    """Gathered from the series on the GPU, or on the host and sent."""
    rng = np.random.default_rng(0)
    series, target = rng.standard_normal((150, 5)), rng.integers(0, 3, 150)
    found = []
    for accelerator, fields in (("cpu", {}), ("gpu", {"device_cache": is_resident})):
        data = hl.DataModule.from_windows(series, 6, 1, target=target, batch_size=BATCH)
        model = nn.Sequential(nn.Flatten(), nn.Linear(30, 3))
        config = quiet(**({"max_epochs": EPOCHS, "accelerator": accelerator} | SGD | fields))
        found.append(Outcome(model, data, config))
    check_close(found[1], found[0])


def test_going_on_from_a_prompt():
    """The cache lies on the device, and a step writes its rows where they belong."""
    model = hl.models.gpt(vocab_size=17, block_size=12, n_layer=2, n_head=2, n_embd=16)
    prompt = np.array([[1, 2, 3], [4, 5, 6]])
    want = hl.generate(model, prompt, 20, temperature=0, context=6)
    model.cuda()
    for _ in range(2):
        np.testing.assert_array_equal(
            hl.generate(model, prompt, 20, temperature=0, context=6), want
        )
    text = str(generation._generators[model].planned[1].plan)
    assert text.count("cuda.index_assign") == 4
    assert "cuda.assign" not in text


class Recurrent(nn.Module):
    """Two directions, lengths from the input, a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 6, batch_first=True, bidirectional=True)
        self.lstm = nn.LSTM(12, 5, batch_first=True, proj_size=3)
        self.head = nn.Linear(3, 2)

    def forward(self, x: hl.Tensor) -> hl.Tensor:
        lengths = (x[:, :, 0] != 0).sum(1)
        states, _ = self.gru(x, lengths=lengths)
        return self.head(self.lstm(states, lengths=lengths)[1][0][0])


@pytest.mark.parametrize("is_resident", [True, False])
def test_sequences_of_several_lengths(is_resident: bool) -> None:
    """Buckets gathered from the rows on the GPU, or on the host and sent, with windows of two."""
    rng = np.random.default_rng(0)
    X = [rng.standard_normal((n, 3)).astype("float32") for n in rng.integers(1, 8, 60)]
    found = []
    for accelerator, fields in (("cpu", {}), ("gpu", {"device_cache": is_resident})):
        data = hl.DataModule.from_sequences(
            X, np.arange(60) % 2, buckets=[3, 7], batch_size=8, normalize="standard", val=0.2
        )
        hl.manual_seed(0)
        model = hl.models.gru_classifier(3, 2, 6, 1, dropout=0, attention_dropout=0)
        config = quiet(
            **({"max_epochs": EPOCHS, "accelerator": accelerator} | SGD | fields),
            accumulate_grad_batches=2,
        )
        found.append(Outcome(model, data, config))
    check_close(found[1], found[0])


def test_recurrences() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 5, 3)).astype("float32")
    x[np.arange(5) >= 1 + np.arange(40)[:, None] % 5] = 0
    found = []
    for accelerator in ("cpu", "gpu"):
        data = hl.DataModule.from_arrays(x, np.arange(40) % 2, val=None, batch_size=BATCH)
        hl.manual_seed(0)
        config = quiet(max_epochs=EPOCHS, accelerator=accelerator, **SGD)
        found.append(Outcome(Recurrent(), data, config))
    check_close(found[1], found[0])


class ChangesItsTable(nn.Module):
    """A table that forward changes, which is the head's too, and a loss in chunks of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 16, max_norm=1.0)
        self.wide = nn.Linear(16, 64)
        self.narrow = nn.Linear(64, 16)
        options = nn.LinearCrossEntropyOptions(batch_chunk_size=6)
        self.head = nn.LinearCrossEntropyLoss(16, 40, bias=True, options=options)

    def forward(self, ids):
        x = self.table(ids.long()).mean(1)
        x = self.narrow(self.wide(x).relu())
        return x + x @ self.table.weight[:16]

    def training_step(self, batch):
        return self.head(self(batch["x"]), batch["y"])


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_table_that_forward_changes(precision: str) -> None:
    """No copy of the weights in 16 bits may be older than the table."""
    rng = np.random.default_rng(0)
    ids, y = rng.integers(0, 25, (48, 3)), rng.integers(0, 40, 48)
    found = []
    for accelerator in ("cpu", "gpu"):
        data = hl.DataModule.from_arrays(ids, y, batch_size=16, val=0)
        model = ChangesItsTable()
        fields = {"max_epochs": EPOCHS, "accelerator": accelerator, "metrics": []}
        config = quiet(**(SGD | fields | {"precision": precision}))
        history = hl.train(model, data, config).history["loss"]
        found.append((history, model.state_dict()))
    near = 1e-5 if precision == "32-true" else 2**-6
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=near)
    for name, value in found[0][1].items():
        np.testing.assert_allclose(found[1][1][name], value, rtol=near, atol=near)
    lengths = np.linalg.norm(found[1][1]["table.weight"], axis=1)
    assert (lengths[:25] < 1.2).all()
    assert (lengths[25:] > 1.2).any()
