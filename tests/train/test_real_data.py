"""Learning on data that nobody made for it ($HOTLOOP_DATA): a transformer's hours, a text."""

import csv
from pathlib import Path

import hotloop as hl
import numpy as np
from hotloop import nn
from train.recipes import quiet

HOURS, AHEAD = 6, 8


def read_station(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """The last hours of each row's seven readings, and where the oil's temperature goes: down,
    nowhere or up, by more than 0.6 standard deviations of its change."""
    with path.open(newline="") as file:
        rows = np.array([row[1:] for row in csv.reader(file)][1:], np.float32)
    change = rows[AHEAD:, -1] - rows[:-AHEAD, -1]
    far = 0.6 * change.std()
    y = np.where(change > far, "up", np.where(change < -far, "down", "flat"))
    n = len(rows) - AHEAD - HOURS + 1
    X = np.concatenate([rows[k : k + n] for k in range(HOURS)], axis=1)
    return X, y[HOURS - 1 :]


class Gated(nn.Module):
    """An MLP with batch norm, dropout and a gate."""

    def __init__(self, n_in: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.BatchNorm1d(n_in)]
        for width in (64, 32):
            layers += [nn.Linear(n_in, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.3)]
            n_in = width
        self.body = nn.Sequential(*layers)
        self.gate = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 32), nn.Sigmoid())
        self.head = nn.Linear(32, 3)

    def forward(self, x):
        h = self.body(x)
        return self.head(h * self.gate(h))


def test_a_station_in_the_order_of_time(data_dir: Path, tmp_path: Path) -> None:
    X, y = read_station(data_dir / "ETTh1.csv")
    train_end, val_end = int(0.7 * len(X)), int(0.85 * len(X))
    data = hl.DataModule.from_arrays(
        X,
        y,
        val=np.arange(train_end, val_end),
        test=np.arange(val_end, len(X)),
        batch_size=512,
        standardize=True,
    )
    config = quiet(
        max_epochs=15,
        optimizer="adamw",
        lr=1e-3,
        weight_decay=5e-4,
        class_weight="balanced",
        label_smoothing=0.1,
        gradient_clip_val=1.0,
        metrics=("accuracy", "f1"),
        monitor="val_f1",
        restore_best=True,
    )
    result = hl.train(Gated(X.shape[1]), data, config)
    found = hl.evaluate(result, data, "test")
    shares = [np.mean(y[val_end:] == name) for name in np.unique(y)]
    guessing = max(2 * share / (1 + share) for share in shares) / 3  # always the same class
    assert found["f1"] > 1.5 * guessing
    result.save(tmp_path / "net.safetensors")
    named = hl.predict(hl.load(tmp_path / "net.safetensors"), X[val_end:], labels=True)
    assert np.mean(named == y[val_end:]) == np.float64(found["accuracy"])


def test_the_next_letter_of_a_text(data_dir: Path) -> None:
    """Eight letters tell more than the one before: below the entropy of pairs of letters."""
    text = np.frombuffer((data_dir / "tinyshakespeare.txt").read_bytes(), np.uint8)[:120_000]
    letters, ids = np.unique(text, return_inverse=True)
    X = np.lib.stride_tricks.sliding_window_view(ids, 8)[:-1].astype(np.int64)
    n = len(letters)
    pairs = np.bincount(ids[:-1] * n + ids[1:], minlength=n * n).reshape(n, n) / (len(ids) - 1)
    given = pairs / pairs.sum(1, keepdims=True)
    entropy = -np.sum(pairs * np.log(np.where(pairs > 0, given, 1)))
    layers = (nn.Embedding(n, 16), nn.Flatten(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, n))
    config = quiet(max_epochs=4, optimizer="adamw", lr=2e-3)
    data = hl.DataModule.from_arrays(X, ids[8:], val=0.1, batch_size=256, stratify=False)
    result = hl.train(nn.Sequential(*layers), data, config)
    assert result.history["val_loss"][-1] < 0.95 * entropy
