"""Hyperspectral pipelines: statistics of a stream, then gradients. Four systems on synthetic cubes.

    python pipelines.py rx         MinMax, two PCAs, RX: trained to stay orthogonal
    python pipelines.py layers     gradients through fixed projections: an autoencoder of spectra
    python pipelines.py selector   which three of 61 channels tell anomalies, learnt from masks
    python pipelines.py svdd       deep SVDD of normal pixels

Each prints what it found and, where matplotlib is installed, writes a picture of scores beside the
truth, `<name>.png`.
"""

import argparse
from collections import OrderedDict
from importlib.util import find_spec
from itertools import pairwise

import hotloop as hl
import numpy as np
from hotloop import nn, stats


def make_cubes(n, size, channels, seed=0, share=0.05):
    """Cubes (n, size, size, channels) of float32 and masks (n, size, size) of bool.

    A normal spectrum under uneven light and noise; discs that cover about 5 % have another one.
    Each cube has a seed of its own.
    """
    w = np.linspace(0, 1, channels)
    normal = 100 * np.exp(-((w - 0.5) ** 2) / 0.1)
    bumps = [0.5 * np.exp(-((w - at) ** 2) / 0.05) for at in (0.3, 0.7)]
    rows, columns = np.mgrid[:size, :size]
    light = (1 + 0.2 * np.sin(2 * np.pi * rows / size)) * (
        1 + 0.2 * np.cos(2 * np.pi * columns / size)
    )
    cubes = np.empty((n, size, size, channels), np.float32)
    masks = np.zeros((n, size, size), bool)
    for cube, mask, i in zip(cubes, masks, range(n)):
        rng = np.random.default_rng((seed, i))
        cube[:] = light[..., None] * normal + rng.normal(0, 10, cube.shape)
        while mask.mean() < share:
            (y, x), r = rng.integers(0, size, 2), rng.integers(2, 6)
            mask |= (rows - y) ** 2 + (columns - x) ** 2 <= r * r
        cube[mask] = 300 * sum(bumps) + rng.normal(0, 10, (mask.sum(), channels))
    return cubes, masks


def rx(cubes, masks, **fields):
    """W1a: one pass fits all four nodes; then the PCAs are trained to stay orthogonal."""
    model = nn.Sequential(OrderedDict(
        minmax=stats.MinMaxNormalizer(),
        pca1=stats.TrainablePCA(20),
        pca2=stats.TrainablePCA(10),
        rx=stats.RXGlobal(),
    ))  # fmt: skip
    data = hl.DataModule.from_arrays(cubes, val=0.2, batch_size=16)
    result = hl.train(
        model, data, max_epochs=5, optimizer="adam", lr=1e-3, unfreeze=["pca1", "pca2"],
        losses=[(stats.OrthogonalityLoss("pca1"), 0.1), (stats.OrthogonalityLoss("pca2"), 0.1)],
        metrics=[stats.ExplainedVariance("pca1"), stats.ScoreStatistics("rx")], **fields,
    )  # fmt: skip
    return result, hl.predict(model, cubes[:1])[0, ..., 0]


class Projection(nn.Module):
    """z-score, a fixed projection on singular vectors, and a linear layer that is trained."""

    def __init__(self, n_in, n_out, rng):
        super().__init__()
        self.norm = stats.ZScoreNormalizerGlobal(n_in)
        u, _, vt = np.linalg.svd(rng.normal(size=(n_out, n_in)), full_matrices=False)
        self.register_buffer("basis", (u @ vt).astype(np.float32))
        self.mix = nn.Linear(n_out, n_out)
        nn.init.eye_(self.mix.weight)

    def forward(self, x):
        return self.mix(self.norm(x) @ self.basis.T)


def layers(cubes, masks, **fields):
    """W1b: the mean squared error between output and normalized input, through four layers."""
    rng = np.random.default_rng(0)
    widths = [cubes.shape[-1], 20, 10, 20, cubes.shape[-1]]
    parts = [(f"layer{i + 1}", Projection(a, b, rng)) for i, (a, b) in enumerate(pairwise(widths))]
    model = nn.Sequential(OrderedDict([("minmax", stats.MinMaxNormalizer()), *parts]))
    data = hl.DataModule.from_arrays(cubes, val=0.2, batch_size=16)
    result = hl.train(
        model, data, max_epochs=5, optimizer="adam", lr=1e-3,
        losses=[stats.ReconstructionLoss("minmax")], **fields,
    )  # fmt: skip
    made = hl.predict(model, cubes[:1]) - hl.predict(model, cubes[:1], outputs="minmax")
    return result, (made**2).mean(-1)[0]


def selector(cubes, masks, **fields):
    """W1c: a loss on masks reaches the weights of the channels through the scores."""
    model = nn.Sequential(OrderedDict(
        minmax=stats.MinMaxNormalizer(),
        selector=stats.SoftChannelSelector(3, steps=200),
        rx=stats.RXGlobal(),
        logit=stats.ScoreToLogit(),
    ))  # fmt: skip
    data = hl.DataModule.from_arrays(cubes, masks.astype(np.int64), val=0.2, batch_size=16)
    result = hl.train(
        model, data, max_epochs=20, optimizer="adamw", lr=1e-3, weight_decay=0.01,
        gradient_clip_val=1.0, scheduler="plateau", early_stopping=8, monitor="val_iou",
        losses=["bce"], metrics=["iou"], unfreeze=["logit"], **fields,
    )  # fmt: skip
    print("channels:", model.selector.selected())
    return result, hl.predict(model, cubes[:1])[0, ..., 0]


def svdd(cubes, masks, **fields):
    """W1d: embeddings of pixels near a centre; what lies far from it is an anomaly."""
    waves = np.linspace(430, 910, cubes.shape[-1])
    band = stats.BandpassByWavelength(waves, low=700)
    n = band.channels.stop - band.channels.start
    model = nn.Sequential(OrderedDict(
        band=band,
        unit=stats.PerPixelUnitNorm(),
        norm=stats.ZScoreNormalizerGlobal(n),
        embed=stats.DeepSVDDProjection(n),
        tracker=stats.DeepSVDDCenterTracker(32),
    ))  # fmt: skip
    data = hl.DataModule.from_arrays(cubes, val=0.2, batch_size=16)
    result = hl.train(
        model, data, max_epochs=20, optimizer="adamw", lr=1e-3,
        losses=[stats.DeepSVDDSoftBoundaryLoss("tracker")],
        metrics=[stats.ScoreStatistics("tracker")], **fields,
    )  # fmt: skip
    return result, hl.predict(model, cubes[:1])[0, ..., 0]


def draw(path, cube, mask, score):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.subplots(1, 3)
    panels = [(cube.mean(-1), "mean of the channels"), (score, "score"), (mask, "anomalies")]
    for axis, (image, title) in zip(axes, panels):
        axis.imshow(image)
        axis.set(title=title, xticks=[], yticks=[])
    figure.savefig(path, dpi=100)


SYSTEMS = {  # with the channels of its cubes
    "rx": (rx, 50),
    "layers": (layers, 50),
    "selector": (selector, 61),
    "svdd": (svdd, 61),
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("--cubes", type=int, default=200)
    parser.add_argument("--size", type=int, default=128, help="pixels of a side")
    arguments = parser.parse_args()
    run, channels = SYSTEMS[arguments.system]
    cubes, masks = make_cubes(arguments.cubes, arguments.size, channels)
    result, score = run(cubes, masks)
    print(result)
    shown = {name: values[-1] for name, values in result.history.items() if name.startswith("val_")}
    print("  ".join(f"{name} {value:.4g}" for name, value in shown.items()))
    inside, outside = score[masks[0]], score[~masks[0]]
    print(f"score of anomalies {np.median(inside):.4g}, of other pixels {np.median(outside):.4g}")
    if find_spec("matplotlib"):
        draw(f"{arguments.system}.png", cubes[0], masks[0], score)


if __name__ == "__main__":
    main()
