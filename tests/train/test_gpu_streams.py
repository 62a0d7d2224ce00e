"""Samples made by threads on a GPU, real or emulated, held against arrays: see test_gpu.py."""

import os
import time
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.errors import DataError
from needs import NO_GPU
from train.recipes import quiet
from train.test_gpu import BATCH, EPOCHS, SGD

pytestmark = pytest.mark.skipif(not os.environ.get("HOTLOOP_TEST_GPU"), reason=NO_GPU)


class Slow:
    """A table's rows, some of which take longer than a step."""

    def __init__(self, n: int) -> None:
        rng = np.random.default_rng(0)
        self.X = rng.integers(0, 256, (n, 4), dtype=np.uint8)
        self.y = (self.X.sum(1) > 500).astype(np.int64)
        self.bad = -1

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, i: int) -> Any:
        if i % 31 == 0:
            time.sleep(0.002)
        if i == self.bad:
            raise ValueError("broken")
        return self.X[i], int(self.y[i])


def trained(data: Any, **fields: Any) -> list[np.ndarray]:
    hl.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    config = quiet(**({"max_epochs": EPOCHS, "accelerator": "gpu"} | SGD | fields))
    result = hl.train(model, data, config)
    return [*(p.numpy() for p in result.model.parameters()), np.array(result.history["val_loss"])]


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("k", [1, 3])
def test_same_bits_as_arrays(workers: int, k: int) -> None:
    """Bytes travel as bytes whichever way, and steps wait for batches that are not made yet."""
    slow = Slow(150)
    data = hl.DataModule.from_datasets(slow, 40, batch_size=BATCH, num_workers=workers)
    arrays = hl.DataModule.from_arrays(slow.X, slow.y, val=40, batch_size=BATCH, stratify=False)
    got = trained(data, accumulate_grad_batches=k)
    want = trained(arrays, accumulate_grad_batches=k, device_cache=False)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_sample_ends_training(workers: int) -> None:
    slow = Slow(150)
    slow.bad = 149
    data = hl.DataModule(slow, batch_size=BATCH, num_workers=workers, shuffle=False)
    with pytest.raises(DataError, match=r"train_dataset\[149\]: raised ValueError: broken"):
        trained(data, monitor="loss")
    slow.bad = -1
    trained(hl.DataModule.from_datasets(slow, 40, batch_size=BATCH, num_workers=workers))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("source", ["resident", "fed", "files"])
def test_drawn_rows(source: str, workers: int, tmp_path: Path) -> None:
    """Rows drawn with replacement, more than there are, as a CPU sees them in another order."""
    slow = Slow(150)
    options = {
        "sampler": "balanced",
        "samples_per_epoch": 12 * BATCH,
        "val": 40,
        "batch_size": BATCH,
    }
    arrays = hl.DataModule.from_arrays(slow.X, slow.y, **options)
    batches = [b for epoch in range(EPOCHS) for b in arrays.train_batches(epoch)]
    X, y = (np.concatenate([b[key] for b in batches]) for key in "xy")
    held = arrays.arrays("val")
    once = hl.DataModule.from_arrays(X, y, val=held, shuffle=False, batch_size=BATCH)
    data = arrays
    if source == "files":
        for i, part in enumerate(np.split(slow.X, 3)):
            np.save(tmp_path / f"{i}.npy", part)
        files = tmp_path / "*.npy"
        data = hl.DataModule.from_npy(files, slow.y, num_workers=workers, **options)
    fields: dict[str, Any] = {"scheduler": "constant", "restore_best": False}
    got = trained(data, **fields, device_cache=False if source == "fed" else "auto")
    want = trained(once, **fields, max_epochs=1)
    for a, b in zip(got[:-1], want[:-1], strict=True):
        np.testing.assert_array_equal(a, b)


class Ragged:
    """Samples of several lengths."""

    def __init__(self, n: int) -> None:
        rng = np.random.default_rng(0)
        self.X = [rng.random((k, 3), np.float32) for k in rng.integers(1, 12, n)]
        self.y = [int(x.mean() > 0.5) for x in self.X]

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, i: int) -> Any:
        return self.X[i], self.y[i]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("role", ["lengths", "padding_mask"])
def test_samples_in_buckets(role: str, workers: int) -> None:
    """Padded by threads as they are padded in memory, in the same order of batches."""

    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 2)

        def forward(self, x: Any, said: Any) -> Any:
            n = said if role == "lengths" else (said == 0).sum(1)
            return self.head(x.sum(1) / n.unsqueeze(1))

    ragged = Ragged(150)
    options = {"buckets": [4, 8, 12], "lengths_as": role, "batch_size": BATCH}
    made = []
    for data in (
        hl.DataModule.from_datasets(ragged, Ragged(40), num_workers=workers, **options),
        hl.DataModule.from_sequences(
            ragged.X, ragged.y, val=(ragged.X[:40], ragged.y[:40]), **options
        ),
    ):
        hl.manual_seed(0)
        config = quiet(**({"max_epochs": EPOCHS, "accelerator": "gpu"} | SGD))
        result = hl.train(Mean(), data, config)
        made.append([*(p.numpy() for p in result.model.parameters())])
    for a, b in zip(*made, strict=True):
        np.testing.assert_array_equal(a, b)
