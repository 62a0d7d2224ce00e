"""Classify windows of a time series: an LSTM with attention, a Transformer, MLPs, their ensemble.

    python temporal.py [ETTh1.csv] [--rows N] [--epochs N] [--folds N]

Without a file the series is synthetic. Each model is trained as its run file beside this program
says (lstm.toml, transformer.toml, mlp.toml); temporal.png shows what the LSTM attends to and the
ensemble's confusion matrix. --folds also trains walking forward through the years.
"""

import argparse
import tomllib
from importlib.util import find_spec
from pathlib import Path

import hotloop as hl
import numpy as np
from etth import AHEAD, LENGTH, LastRow, before, classes_of, read_series
from hotloop import models

CLASSES = ["falls", "stays", "rises"]


def make_series(rows, seed=0):
    """29 noisy mixtures of four hidden values, and what the first hidden value has done."""
    rng = np.random.default_rng(seed)
    fade = np.exp(-np.arange(80) / 8)
    noise = rng.normal(size=(4, rows + len(fade) - 1))
    hidden = np.stack([np.convolve(row, fade, "valid") for row in noise], axis=1)
    hidden /= hidden.std(0)
    series = hidden @ rng.normal(size=(4, 29)) + rng.normal(size=(rows, 29))
    # Of the change since eight rows ago a last row knows one end; a product is not linear.
    move = hidden[:, 0] - before(hidden[:, 0], 8) + hidden[:, 1] * hidden[:, 2]
    move += 0.5 * rng.normal(size=rows)
    limit = 0.6 * move.std()
    return series.astype(np.float32), 1 + (move > limit).astype(int) - (move < -limit)


def windows(series, target, ahead, batch_size):
    """The first 70 % of the rows to train on, then 15 % to validate and 15 % to test."""
    return hl.DataModule.from_windows(
        series, LENGTH, ahead, target=target, val=0.15, test=0.15, batch_size=batch_size,
        classes=CLASSES,
    )  # fmt: skip


def synthetic(rows=110_000, batch_size=256):
    """The data of the run files: about 77,000 windows to train on."""
    return windows(*make_series(rows), 0, batch_size)


def last_row_mlp(hidden_features=(128, 96, 64, 32)):
    """The gated MLP, which sees the last row of a window."""
    return LastRow(models.gated_mlp(29, 3, hidden_features))


# Of each model its run file, and how it is made.
KINDS = {
    "LSTM": ("lstm", lambda: models.lstm_classifier(29, 3)),
    "Transformer": ("transformer", lambda: models.transformer_classifier(29, 3)),
    "MLP": ("mlp", last_row_mlp),
}
VARIANTS = {
    "MLP 256-128-64-32": ("mlp", lambda: last_row_mlp((256, 128, 64, 32))),
    "MLP 512-256-128": ("mlp", lambda: last_row_mlp((512, 256, 128))),
    "MLP 128-64": ("mlp", lambda: last_row_mlp((128, 64))),
}
REGRESSION = "logistic regression"
BASELINE = {REGRESSION: ("mlp", lambda: LastRow(models.mlp(29, 3, ())))}


def read_run(name):
    """Batch size and configuration of a run file."""
    run = tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text())
    return run["data"]["batch_size"], hl.TrainingConfig(**run["training"])


def scores(target, probabilities):
    """Accuracy, and its mean over classes, as text."""
    hits = probabilities.argmax(1) == target
    balanced = np.mean([hits[target == i].mean() for i in np.unique(target)])
    return f"{hits.mean():.3f}  balanced {balanced:.3f}"


def draw(path, target, probabilities, attention):
    """What the LSTM attends to in windows of each class, and the confusion matrix."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    found = probabilities.argmax(1)
    for i, name in enumerate(CLASSES):
        left.plot(range(1 - LENGTH, 1), attention[target == i].mean(0), marker=".", label=name)
    left.set(xlabel="row of the window, 0 is its last", ylabel="mean weight", ylim=0,
             title="attention of the LSTM")  # fmt: skip
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.legend(frameon=False)
    counts = np.zeros((3, 3), int)
    np.add.at(counts, (target, found), 1)
    shares = counts / counts.sum(1, keepdims=True)
    right.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for (i, j), n in np.ndenumerate(counts):
        colour = "white" if shares[i, j] > 0.6 else "black"
        text = f"{n:,}\n{shares[i, j]:.0%}"
        right.text(j, i, text, ha="center", va="center", color=colour)
    right.set(xlabel="predicted", ylabel="true", title="the ensemble")
    right.set_xticks(range(3), CLASSES)
    right.set_yticks(range(3), CLASSES)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("csv", nargs="?", help="ETTh1.csv or ETTh2.csv")
    parser.add_argument("--rows", type=int, default=20_000, help="of the synthetic series")
    parser.add_argument("--epochs", type=int, help="at most; without it what the run files say")
    parser.add_argument("--folds", type=int, default=0, help="of a walk-forward validation")
    given = parser.parse_args()
    if given.rows < 400:
        parser.error(f"--rows: must be at least 400, of which 15 % are validated, got {given.rows}")

    if given.csv:
        series, oil = read_series(given.csv)
        target, ahead = classes_of(oil), AHEAD
    else:
        (series, target), ahead = make_series(given.rows), 0
    changes = {"max_epochs": given.epochs} if given.epochs else {}
    if 0 < (given.epochs or 0) < 6:  # the run files' warmup has five
        changes["warmup"] = 0.3
    found = {}
    for name, (run, make) in (BASELINE | KINDS | VARIANTS).items():
        batch_size, config = read_run(run)
        if name == REGRESSION:  # as one would use it
            config = config.replace(lr=1e-2, class_weight=None)
        data = windows(series, target, ahead, batch_size)
        model = make()
        hl.train(model, data, config, **changes)
        found[name] = hl.predict(model, data, split="test", proba=True)
        if name == "LSTM":
            _, attention = hl.predict(model, data, split="test")
    # All models have the same windows, so that their probabilities stand beside one another.
    found["all MLPs"] = np.mean([found[name] for name in ("MLP", *VARIANTS)], axis=0)
    members = ("LSTM", "Transformer", "all MLPs")
    found["ensemble"] = np.mean([found[name] for name in members], axis=0)
    truth = target[data.rows("test", at="target")]
    print(f"{'the most frequent class':<24}{np.bincount(truth).max() / len(truth):.3f}")
    for name, probabilities in found.items():
        print(f"{name:<24}{scores(truth, probabilities)}")
    if find_spec("matplotlib"):
        draw("temporal.png", truth, found["ensemble"], attention)

    walked = []
    for name, (run, make) in KINDS.items() if given.folds else ():
        batch_size, config = read_run(run)
        data = windows(series, target, ahead, batch_size)
        folds = hl.cross_validate(make, data, config, given.folds, keep_models=False, **changes)
        print(f"\n{name}, {folds}")
        walked.append(folds.aligned(at="target"))
    if walked:
        # Beside each row of the series what was predicted of it before; NaN where nothing was.
        together = np.mean(walked, axis=0)
        is_known = ~np.isnan(together[:, 0])
        print(f"\nensemble, {is_known.sum()} of {len(series)} rows predicted: "
              f"{scores(target[is_known], together[is_known])}")  # fmt: skip
