"""Hyperspectral pipelines: statistics of a stream, then gradients. Four systems on synthetic cubes.

    python pipelines.py rx         MinMax, two PCAs, RX: trained to stay orthogonal
    python pipelines.py layers     gradients through fixed projections: an autoencoder of spectra
    python pipelines.py selector   which three of 61 channels tell anomalies, learnt from masks
    python pipelines.py svdd       deep SVDD of normal pixels

Each prints what it found and, where matplotlib is installed, writes a picture of scores beside the
truth, `<name>.png`. With --folder the cubes are files there, which are made where they are missing
and read as they are needed, so that they may be larger than memory.
"""

import argparse
from collections import OrderedDict
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

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


def make_files(folder, n, size, channels):
    """The same as files of a cube and a mask each, `0000.npy` and `0000.mask`; those that are there
    stay.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    paths = [Path(folder, f"{i:04}.npy") for i in range(n)]
    for i, path in enumerate(paths):
        mask = path.with_suffix(".mask")
        if path.exists() and mask.exists():
            shape = np.load(path, mmap_mode="r").shape
            if shape != (size, size, channels):
                wanted = f"a cube of {size} x {size} x {channels}"
                raise SystemExit(
                    f"{path}: must be {wanted}, got one of {shape}; give another folder"
                )
            continue
        cubes, masks = make_cubes(1, size, channels, seed=i)
        for to, values in ((path, cubes[0]), (mask, masks[0])):
            part = to.with_suffix(".part")  # what has its name is a whole file
            with part.open("wb") as file:
                np.save(file, values)
            part.rename(to)
    return paths


def rx(data, channels, **fields):
    """W1a: one pass fits all four nodes; then the PCAs are trained to stay orthogonal."""
    model = nn.Sequential(OrderedDict(
        minmax=stats.MinMaxNormalizer(),
        pca1=stats.TrainablePCA(20),
        pca2=stats.TrainablePCA(10),
        rx=stats.RXGlobal(),
    ))  # fmt: skip
    result = hl.train(
        model, data, max_epochs=5, optimizer="adam", lr=1e-3, weight_decay=0,
        unfreeze=["pca1", "pca2"],
        losses=[(stats.OrthogonalityLoss("pca1"), 0.1), (stats.OrthogonalityLoss("pca2"), 0.1)],
        metrics=[stats.ExplainedVariance("pca1"), stats.ScoreStatistics("rx")], **fields,
    )  # fmt: skip
    return result, lambda x: hl.predict(model, x)[..., 0]


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


def layers(data, channels, **fields):
    """W1b: the mean squared error between output and normalized input, through four layers."""
    rng = np.random.default_rng(0)
    widths = [channels, 20, 10, 20, channels]
    parts = [(f"layer{i + 1}", Projection(a, b, rng)) for i, (a, b) in enumerate(pairwise(widths))]
    model = nn.Sequential(OrderedDict([("minmax", stats.MinMaxNormalizer()), *parts]))
    result = hl.train(
        model, data, max_epochs=5, optimizer="adam", lr=1e-3, weight_decay=0,
        losses=[stats.ReconstructionLoss("minmax")], **fields,
    )  # fmt: skip

    def errors(x):
        away = hl.predict(model, x) - hl.predict(model, x, outputs="minmax")
        return (away**2).mean(-1)

    return result, errors


def selector(data, channels, **fields):
    """W1c: a loss on masks reaches the weights of the channels through the scores."""
    model = nn.Sequential(OrderedDict(
        minmax=stats.MinMaxNormalizer(),
        selector=stats.SoftChannelSelector(3, steps=200),
        rx=stats.RXGlobal(),
        logit=stats.ScoreToLogit(),
    ))  # fmt: skip
    result = hl.train(
        model, data, max_epochs=20, optimizer="adamw", lr=1e-3, weight_decay=0.01,
        gradient_clip_val=1.0, scheduler="plateau", early_stopping=8, monitor="val_iou",
        losses=["bce"], metrics=["iou"], unfreeze=["logit"], **fields,
    )  # fmt: skip
    print("channels:", model.selector.selected())
    return result, lambda x: hl.predict(model, x)[..., 0]


def svdd(data, channels, **fields):
    """W1d: embeddings of pixels near a centre; what lies far from it is an anomaly."""
    waves = np.linspace(430, 910, channels)
    band = stats.BandpassByWavelength(waves, low=700)
    n = band.channels.stop - band.channels.start
    model = nn.Sequential(OrderedDict(
        band=band,
        unit=stats.PerPixelUnitNorm(),
        norm=stats.ZScoreNormalizerGlobal(n),
        embed=stats.DeepSVDDProjection(n),
        tracker=stats.DeepSVDDCenterTracker(32),
    ))  # fmt: skip
    result = hl.train(
        model, data, max_epochs=20, optimizer="adamw", lr=1e-3,
        losses=[stats.DeepSVDDSoftBoundaryLoss("tracker")],
        metrics=[stats.ScoreStatistics("tracker")], **fields,
    )  # fmt: skip
    return result, lambda x: hl.predict(model, x)[..., 0]


def draw(path, cube, mask, score):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.subplots(1, 3)
    panels = [(cube.mean(-1), "mean of the channels"), (score, "score"), (mask, "anomalies")]
    for axis, (image, title) in zip(axes, panels):
        axis.imshow(image)
        axis.set(title=title, xticks=[], yticks=[])
    figure.savefig(path, dpi=60)


SYSTEMS = {  # with the channels of its cubes, and whether it learns from masks
    "rx": (rx, 50, False),
    "layers": (layers, 50, False),
    "selector": (selector, 61, True),
    "svdd": (svdd, 61, False),
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("--cubes", type=int, default=200)
    parser.add_argument("--size", type=int, default=128, help="pixels of a side")
    parser.add_argument("--channels", type=int, help="of a cube; by default 50 or 61")
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--folder", help="where the cubes are files, or are to be")
    arguments = parser.parse_args()
    run, usual, has_masks = SYSTEMS[arguments.system]
    n, size, channels = arguments.cubes, arguments.size, arguments.channels or usual
    options, fields = {"val": 0.2, "batch_size": arguments.batch_size}, {}
    if arguments.folder:
        paths = make_files(arguments.folder, n, size, channels)
        masks = np.stack([np.load(path.with_suffix(".mask")) for path in paths])
        cubes = np.load(paths[0])[None]
        shown = {"cube": cubes}  # as batches of files are
        given = masks if has_masks else None
        data = hl.DataModule.from_cubes(list(map(str, paths)), given, **options)
        fields["memory_limit"] = "3.5 GB"  # computes large batches in parts
    else:
        cubes, masks = make_cubes(n, size, channels)
        shown = cubes[:1]
        data = hl.DataModule.from_arrays(cubes, masks if has_masks else None, **options)
    result, score_of = run(data, channels, **fields)
    score = score_of(shown)[0]
    print(result)
    last = {name: values[-1] for name, values in result.history.items() if name.startswith("val_")}
    print("  ".join(f"{name} {value:.4g}" for name, value in last.items()))
    inside, outside = score[masks[0]], score[~masks[0]]
    print(f"score of anomalies {np.median(inside):.4g}, of other pixels {np.median(outside):.4g}")
    if find_spec("matplotlib"):
        draw(f"{arguments.system}.png", cubes[0], masks[0], score)


if __name__ == "__main__":
    main()
