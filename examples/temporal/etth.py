"""Classify what comes next in a time series: the oil temperature of a transformer, 8 hours ahead.

Needs `ETTh1.csv` of the ETT data (Zhou et al. 2021, "Informer"), hourly loads and oil temperature
of a power transformer over two years, whose path is given on the command line:

    python etth.py ETTh1.csv [epochs]

The class is how the temperature changes within 8 hours: falls or rises by more than 0.6 standard
deviations, or neither. A model sees a window of 20 hours with 29 features each.
"""

import sys

import hotloop as hl
import numpy as np
from hotloop import models, nn

AHEAD, LENGTH = 8, 20
TRAINED = 0.7  # of the rows; then 15 % to choose the best epoch by, and the last 15 % as the test


def before(values, hours):
    """Each row's values so many hours earlier; the first row's where there are none."""
    return values[np.maximum(np.arange(len(values)) - hours, 0)]


def read_series(path):
    """29 features of every hour, and the oil temperature.

    Levels are left out, and the oil's differences measured in its spread of that week: summer and
    winter differ in both, and the test has another season than most of the training.
    """
    with open(path) as file:
        names = file.readline().strip().split(",")
    if names[:1] != ["date"] or names[-1] != "OT" or len(names) != 8:
        raise SystemExit(
            f"{path}: must be ETTh1.csv or ETTh2.csv of the ETT data, which begin with "
            f"date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT, got {','.join(names)[:80]}"
        )
    columns = np.loadtxt(path, delimiter=",", skiprows=1, usecols=range(1, 8))
    hours = np.loadtxt(path, delimiter=",", skiprows=1, usecols=0, dtype="datetime64[s]")
    clock = 2 * np.pi * hours.astype("datetime64[h]").astype(int) / 24
    oil = columns[:, 6]
    day, week = (np.stack([before(columns, i) for i in range(n)]) for n in (24, 7 * 24))
    spread = np.ones_like(columns)
    spread[:, 6] = week[:, :, 6].std(0) + 0.3
    features = [
        (columns - day.mean(0)) / spread,
        (columns - before(columns, 1)) / spread,
        (columns - before(columns, 24)) / spread,
        # What the oil did in the same hours of the last three days.
        *((before(oil, i - AHEAD) - before(oil, i)) / spread[:, 6] for i in (24, 48, 72)),
        (day[:, :, 6].mean(0) - week[:, :, 6].mean(0)) / spread[:, 6],
        day[:, :, 6].std(0) / spread[:, 6],
        spread[:, 6],
        np.sin(clock),
        np.cos(clock),
    ]
    return np.column_stack(features), oil


def classes_of(oil):
    """0 falls, 1 stays, 2 rises: the change over the hours before each row."""
    change = oil - before(oil, AHEAD)
    limit = 0.6 * change[: int(TRAINED * len(oil))].std()
    return 1 + (change > limit).astype(int) - (change < -limit)


class LastRow(nn.Module):
    """A model of tables as one of windows: it sees the last row."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x[:, -1])


def make_models(n):
    """Each model with the settings that it is trained with.

    The windows overlap, so there is little in them to learn by: models that see them are small, and
    their head sees the last row's outputs and not all of them alike.
    """
    windows = {
        "batch_size": 256,
        "scheduler": "cosine",
        "warmup": "5 epochs",
        "gradient_clip_val": 0.5,
    }
    rows = {
        "batch_size": 512,
        "scheduler": hl.SchedulerConfig("plateau", factor=0.5, patience=8),
        "warmup": 0,
        "gradient_clip_val": 1.0,
    }
    lstm = models.lstm_classifier(n, 3, num_layers=1, bidirectional=False, pooling="last")
    short = {**windows, "max_epochs": 12, "warmup": "2 epochs", "weight_decay": 0.1}
    transformer = models.transformer_classifier(n, 3, 64, 4, 2, 128, dropout=0.3, pooling="last")
    return {
        "logistic regression": (LastRow(models.mlp(n, 3, ())), {**rows, "lr": 1e-2}),
        "MLP": (LastRow(models.gated_mlp(n, 3)), {**rows, "lr": 1e-3}),
        "TCN": (models.tcn(n, 3), {**windows, "lr": 3e-4}),
        "LSTM": (lstm, {**short, "lr": 5e-4}),
        "Transformer": (transformer, {**windows, "lr": 5e-4}),
    }


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    given = {"max_epochs": int(sys.argv[2])} if len(sys.argv) > 2 else {}
    if 0 < given.get("max_epochs", 0) < 6:  # warmup has five
        given["warmup"] = 0.3
    series, oil = read_series(sys.argv[1])
    target = classes_of(oil)
    found = {}
    for name, (model, settings) in make_models(series.shape[1]).items():
        print(f"\n{name}", file=sys.stderr)
        data = hl.DataModule.from_windows(
            series, LENGTH, AHEAD, target=target, val=0.15, test=0.15,
            batch_size=settings.pop("batch_size"), classes=["falls", "stays", "rises"],
        )  # fmt: skip
        settings = {"max_epochs": 30, "weight_decay": 5e-4, **settings, **given}
        result = hl.train(
            model, data, **settings, label_smoothing=0.1, early_stopping=15, seed=0,
            metrics=["accuracy", "balanced_accuracy"],
        )  # fmt: skip
        found[name] = hl.evaluate(result, data, split="test")
    _, y = data.arrays("test")
    most_frequent = max(np.mean(np.array(y) == name) for name in data.classes)
    print(f"{'the most frequent class':<24}{most_frequent:.3f}")
    for name, scores in found.items():
        print(f"{name:<24}{scores['accuracy']:.3f}  balanced {scores['balanced_accuracy']:.3f}")
