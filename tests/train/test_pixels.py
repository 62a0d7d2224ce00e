"""Nodes, losses and metrics of hotloop.stats by value, and the mask that leaves pixels out."""

import math
from collections import OrderedDict
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn, stats
from train.recipes import quiet, same_bits

RNG = np.random.default_rng(11)
N = 12  # channels
CUBES = (RNG.random((20, 6, 5, N)) * 3 + 1).astype(np.float32)
PIXELS = CUBES.reshape(-1, N).astype(np.float64)
TARGETS = RNG.random(CUBES.shape[:3]) < 0.3
MASK = RNG.random(CUBES.shape[:3]) < 0.6
SPOILT = np.where(MASK[..., None], CUBES, np.nan).astype(np.float32)


def sequential(**nodes: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(nodes))


def measured(model: nn.Module, data: Any, **fields: Any) -> Any:
    """What one step of training says of the weights it began with, all rows in one batch."""
    result = hl.train(model, data, quiet(max_epochs=1, accelerator="cpu", lr=1e-9, **fields))
    return {name: values[0] for name, values in result.history.items()}


def whole(x: Any = CUBES, y: Any = None, **options: Any) -> hl.DataModule:
    """Training and validation have all rows, in one batch."""
    val = (x, y) if y is not None else (x,)
    args = (x,) if y is None else (x, y)
    return hl.DataModule.from_arrays(*args, val=val, batch_size=20, **options)


def close(got: Any, want: Any, rtol: float = 1e-4) -> None:
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * np.abs(want).max())


# ---------------------------------------------------------------------------- nodes


def images() -> Any:
    return CUBES.astype(np.float64).reshape(20, 30, N)


def test_each_images_own_statistics() -> None:
    x = images()
    got = hl.predict(stats.ZScoreNormalizer(), CUBES).reshape(x.shape)
    close(got, (x - x.mean(1, keepdims=True)) / x.std(1, ddof=1, keepdims=True))
    low, high = x.min(1, keepdims=True), x.max(1, keepdims=True)
    got = hl.predict(stats.MinMaxNormalizer(use_running_stats=False), CUBES).reshape(x.shape)
    close(got, (x - low) / (high - low))
    middle = np.sort(x, axis=1)[:, 14:15]  # the lower one of two
    score = (x - middle) / (x.std(1, ddof=1, keepdims=True) + 1e-6)
    got = hl.predict(stats.SigmoidNormalizer(), CUBES).reshape(x.shape)
    close(got, 1 / (1 + np.exp(-score)))
    away = x - x.mean(1, keepdims=True)
    inverse = np.stack([np.linalg.inv(np.cov(z.T)) for z in x])
    want = np.einsum("npi,nij,npj->np", away, inverse, away)
    got = hl.predict(stats.RXPerBatch(), CUBES)
    assert got.shape == (20, 6, 5, 1)
    close(got.reshape(20, 30), want, 1e-3)


def test_statistics_behind_each_images_own() -> None:
    """No affine map: they are of what the normalizer returns."""
    first = stats.MinMaxNormalizer(use_running_stats=False)
    model = sequential(own=first, norm=stats.ZScoreNormalizerGlobal())
    hl.train(model, CUBES, quiet(max_epochs=0))
    pixels = hl.predict(model, CUBES, outputs="own").reshape(-1, N).astype(np.float64)
    close(model.norm.statistics["mean"], pixels.mean(0))
    close(model.norm.statistics["std"], pixels.std(0, ddof=1))


def mixing(node: Any) -> nn.Sequential:
    return sequential(mix=nn.Linear(N, 6), node=node)


def mixed(model: Any) -> Any:
    return hl.predict(model, CUBES, outputs="mix").reshape(-1, 6).astype(np.float64)


def test_variances_behind_a_layer_that_mixes_channels() -> None:
    """They follow from the covariance alone, though no node needs that."""
    hl.train(model := mixing(stats.ZScoreNormalizerGlobal()), CUBES, quiet(max_epochs=0))
    close(model.node.statistics["std"], mixed(model).std(0, ddof=1))
    hl.train(model := mixing(stats.ScoreToLogit(6)), CUBES, quiet(max_epochs=0))
    pixels = mixed(model)
    close(model.node.statistics["bias"], pixels.mean(0) + 2 * pixels.std(0, ddof=1))
    node = stats.SoftChannelSelector(2, init="variance")
    hl.train(model := mixing(node), CUBES, quiet(max_epochs=0))
    variance = mixed(model).var(0, ddof=1)
    close(node.statistics["logits"], np.log(variance / variance.sum()))


def test_a_node_gets_what_it_asks_for() -> None:
    class Wrong(stats.StatisticalNode):
        needs = "mean"

        def shapes(self, n_channels: int) -> dict[str, tuple[int, ...]]:
            return {}

        def fit(self, found: stats.Statistics) -> dict[str, Any]:
            return {"spread": found.variance}

        def transform(self, x: Any) -> Any:
            return x

    with pytest.raises(hl.HotloopError, match="the variance is known to nodes that ask for it"):
        hl.train(mixing(Wrong()), CUBES, quiet(max_epochs=0))
    Wrong.needs = "covariances"
    with pytest.raises(hl.ConfigError, match=r"Wrong.needs: must be .* or 'covariance', got 'cova"):
        Wrong()


def test_whole_numbers_of_sensors() -> None:
    counts = (CUBES * 1000).astype(np.uint16)
    model = sequential(norm=stats.ZScoreNormalizerGlobal(), rx=stats.RXGlobal())
    hl.train(model, counts, quiet(max_epochs=0))
    close(model.norm.statistics["mean"], counts.reshape(-1, N).mean(0))


def test_distances_from_a_centre_that_moves() -> None:
    tracker = stats.DeepSVDDCenterTracker(alpha=0.25)
    model = sequential(project=stats.DeepSVDDProjection(N, 8, 4), tracker=tracker)
    hl.train(model, CUBES, quiet(max_epochs=0))
    w1, w2 = model.project.hidden.weight.numpy(), model.project.output.weight.numpy()
    embedded = np.maximum(PIXELS @ w1.T, 0) @ w2.T
    centre = embedded.mean(0)
    close(tracker.center.numpy(), centre)
    close(hl.predict(model, CUBES).reshape(-1), ((embedded - centre) ** 2).sum(1))
    tracker.center.set_value(np.zeros(4, np.float32))
    losses = [stats.DeepSVDDSoftBoundaryLoss("tracker", nu=0.1)]
    found = measured(model, whole(), losses=losses)
    close(tracker.center.numpy(), 0.25 * centre)  # one step
    radius = math.log(2.0)  # softplus(0)
    outside = np.maximum((embedded**2).sum(1) - radius**2, 0).mean()
    close(found["loss"], radius**2 + outside / 0.1)


@pytest.mark.parametrize("name", ["select", "mix"])
def test_temperatures_fall_by_the_same_factor(name: str) -> None:
    """From 5, or 10, to 0.1; the model is saved with that of its weights."""
    node: Any = stats.SoftChannelSelector(3, N, steps=10)
    if name == "mix":
        node = stats.ConcreteChannelMixer(3, N, steps=10)
    logits = RNG.standard_normal(node.logits.shape).astype(np.float32)
    node.logits.set_value(logits)
    model = sequential(**{name: node, "head": nn.Linear(N if name == "select" else 3, 1)})
    y = TARGETS.astype(np.float32)[..., None]
    data = hl.DataModule.from_arrays(CUBES, y, val=None, batch_size=5)

    def shares(temperature: float) -> Any:
        e = np.exp((logits - logits.max(-1, keepdims=True)) / temperature)
        e = e / e.sum(-1, keepdims=True)
        return PIXELS * e * 3 if name == "select" else PIXELS @ e.T

    first = 5.0 if name == "select" else 10.0
    for epochs, steps in ((1, 4), (3, 10)):
        hl.train(model, data, quiet(max_epochs=epochs, lr=1e-12, weight_decay=0, loss="mse"))
        want = shares(first * (0.1 / first) ** (min(steps, epochs * 4 - 1) / 10))
        got = hl.predict(model, CUBES, outputs=name)
        close(got.reshape(len(PIXELS), -1), want, 2e-2)


def test_what_a_temperature_may_be() -> None:
    for wrong in ((1, 2, 3), "hot", (1.0,), 0.0, (5.0, -1.0), (math.inf, 1.0)):
        with pytest.raises(hl.ConfigError, match="temperature must be a positive number, or two"):
            stats.SoftChannelSelector(2, N, temperature=wrong)  # type: ignore[arg-type]
    for make in (stats.RXGlobal, stats.RXPerBatch, stats.ZScoreNormalizer):
        with pytest.raises(hl.ConfigError, match="eps must be finite and at least 0, got -1"):
            make(eps=-1)
    with pytest.raises(hl.ConfigError, match="eps must be a finite number, got nan"):
        stats.TrainablePCA(2, eps=math.nan)


# ---------------------------------------------------------------------------- losses, metrics


def of_logits(logits: Any) -> Any:
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_losses_of_selectors() -> None:
    """Two of one selector, and two selectors, with the shares that forward had."""
    a, b = stats.SoftChannelSelector(3, N, temperature=2.0), stats.SoftChannelSelector(2, N)
    for node in (a, b):
        node.logits.set_value(RNG.standard_normal(N).astype(np.float32))
    losses = [
        stats.SelectorEntropyLoss("a", 0.5),
        stats.SelectorDiversityLoss("a"),
        stats.SelectorEntropyLoss("b"),
    ]
    found = measured(sequential(a=a, b=b), whole(), losses=losses)
    shares = of_logits(a.logits.numpy().astype(np.float64) / 2)
    entropy = -(shares * np.log(shares)).sum()
    close(found["a_entropy"], (entropy - 0.5) ** 2)
    close(found["a_diversity"], -shares.var())
    shares = of_logits(b.logits.numpy().astype(np.float64) / 5)
    close(found["b_entropy"], (shares * np.log(shares)).sum() ** 2)


def test_losses_read_the_noise_of_forward() -> None:
    """Not other shares, of noise drawn again: with one-hot pixels the output is the shares."""
    x = np.tile(np.eye(N, dtype=np.float32)[:1, None, None], (4, 2, 2, 1))
    mix = stats.ConcreteChannelMixer(1, N, temperature=1.0)

    class Share(stats.ModuleLoss):
        def compute(self, calls: Any) -> Any:
            from hotloop.stats.selection import shares_of

            return (shares_of(mix)[:, 0] - calls["mix"].output[0, 0, 0]).abs().sum()

    data = hl.DataModule.from_arrays(x, val=None, batch_size=4)
    losses = [Share("share"), stats.SelectorEntropyLoss("mix"), stats.SelectorDiversityLoss("mix")]
    assert measured(sequential(mix=mix), data, losses=losses)["share"] == 0


def test_distinct_rows_and_orthogonal_ones() -> None:
    model = sequential(lin=nn.Linear(N, 3), mix=stats.ConcreteChannelMixer(2, 3))
    losses = [stats.DistinctnessLoss("lin"), stats.OrthogonalityLoss("lin")]
    found = measured(model, whole(), losses=[*losses, stats.DistinctnessLoss("mix")])
    w = model.lin.weight.numpy().astype(np.float64)
    unit = w / np.linalg.norm(w, axis=1, keepdims=True)
    close(found["lin_distinctness"], (unit @ unit.T)[np.triu_indices(3, 1)].mean())
    close(found["lin_orthogonality"], ((w @ w.T - np.eye(3)) ** 2).sum())
    shares = of_logits(model.mix.logits.numpy().astype(np.float64) / 10)
    unit = shares / np.linalg.norm(shares, axis=1, keepdims=True)
    close(found["val_mix_distinctness"], (unit @ unit.T)[0, 1])


def layers() -> nn.Sequential:
    return sequential(first=nn.Linear(N, N), second=nn.Linear(N, N), out=nn.Linear(N, 1))


def outputs(model: Any, name: str, x: Any = CUBES) -> Any:
    return np.asarray(hl.predict(model, x, outputs=name), np.float64)


def test_losses_of_outputs() -> None:
    model = layers()
    losses = [stats.ReconstructionLoss("first", "second"), stats.SoftIoULoss(), "bce"]
    found = measured(model, whole(y=TARGETS), losses=losses)
    first, second, out = (outputs(model, name) for name in ("first", "second", "out"))
    close(found["reconstruction"], ((second - first) ** 2).mean())
    p, y = 1 / (1 + np.exp(-out[..., 0])), TARGETS
    close(found["soft_iou"], 1 - (p * y).sum() / (p + y - p * y).sum())
    close(found["bce"], -np.where(y, np.log(p), np.log(1 - p)).mean())


def test_metrics_of_modules() -> None:
    model = sequential(pca=stats.TrainablePCA(4), rx=stats.RXGlobal())
    hl.train(model, CUBES, quiet(max_epochs=0))
    w = model.pca.components.numpy() + RNG.standard_normal((4, N)).astype(np.float32) / 10
    model.pca.components.set_value(w)
    metrics = [
        stats.ExplainedVariance("pca"),
        stats.ComponentOrthogonality("pca"),
        stats.ScoreStatistics("rx"),
    ]
    fields = {"losses": [stats.OrthogonalityLoss("pca")], "unfreeze": ["pca"]}
    found = measured(model, whole(), metrics=metrics, **fields)
    z, w = PIXELS - PIXELS.mean(0), w.astype(np.float64)
    left = z - z @ w.T @ w
    close(found["val_pca_explained_variance"], 1 - (left**2).sum() / (z**2).sum())
    close(found["val_pca_orthogonality_error"], np.linalg.norm(w @ w.T - np.eye(4)))
    scores = outputs(model, "rx")
    close(found["val_rx_mean"], scores.mean())
    close(found["val_rx_std"], scores.std())


def test_scores_far_from_zero_keep_their_spread() -> None:
    """Squares of float32 would have none left."""
    x = RNG.normal(1e5, 1, (20, 6, 5, 1)).astype(np.float32)
    model = sequential(shift=nn.Identity(), head=nn.Linear(1, 1))
    fields = {"losses": [stats.OrthogonalityLoss("head")]}
    found = measured(model, whole(x), metrics=[stats.ScoreStatistics("shift")], **fields)
    close(found["val_shift_std"], x.astype(np.float64).std(), 1e-3)


def test_what_was_trained_is_what_is_shown() -> None:
    model = sequential(rx=stats.RXGlobal())
    hl.train(model, CUBES, quiet(max_epochs=0))
    before = model.rx.covariance
    w = 2 * model.rx.whitening.numpy()
    model.rx.whitening.set_value(w)
    close(model.rx.covariance, before / 4)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: sequential(n=stats.ZScoreNormalizerGlobal()), ["mean", "std"]),
        (lambda: sequential(n=stats.RXGlobal()), ["mean", "whitening"]),
        (lambda: sequential(n=stats.LADGlobal()), ["mean", "laplacian"]),
        (lambda: sequential(n=stats.LearnableChannelMixer(3)), ["weight"]),
        (
            lambda: sequential(rx=stats.RXGlobal(), n=stats.ScoreToLogit()),
            ["scale", "bias"],
        ),
    ],
)
def test_what_unfreeze_trains(make: Any, names: list[str]) -> None:
    class Small(stats.ModuleLoss):
        def compute(self, calls: Any) -> Any:
            return (calls["n"].output ** 2).mean()

    model = make()
    hl.train(model, CUBES, quiet(max_epochs=0))
    before = {name: getattr(model.n, name).numpy() for name in names}
    hl.train(model, CUBES, quiet(max_epochs=2, losses=[Small("small")], unfreeze=["n"], lr=1e-3))
    for name, value in before.items():
        assert not np.array_equal(getattr(model.n, name).numpy(), value), name


# ---------------------------------------------------------------------------- masks


def detector() -> nn.Sequential:
    return sequential(
        minmax=stats.MinMaxNormalizer(),
        pca=stats.TrainablePCA(3),
        lin=nn.Linear(3, 3),
        tracker=Tracked(),
        logit=stats.ScoreToLogit(),
    )


class Tracked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.centre = stats.DeepSVDDCenterTracker(alpha=0.5)

    def forward(self, x: Any) -> Any:
        return self.centre(x)


def losses() -> list[Any]:
    return [
        "bce",
        stats.SoftIoULoss(),
        stats.ReconstructionLoss("pca", "lin"),
        stats.DeepSVDDSoftBoundaryLoss("tracker.centre"),  # its radius is trained
        stats.OrthogonalityLoss("pca"),
    ]


METRICS: list[Any] = [
    "iou",
    "accuracy",
    "auc",
    stats.ExplainedVariance("pca"),
    stats.ScoreStatistics("tracker.centre"),
]


def run(x: Any, mask: Any = MASK, y: Any = TARGETS, **fields: Any) -> tuple[Any, Any]:
    data = hl.DataModule.from_arrays(
        {"cube": x, "mask": mask}, y, val=np.arange(4), batch_size=5, allow_nonfinite=True
    )
    model = detector()
    options = {"losses": losses(), "metrics": METRICS, "unfreeze": ["pca", "logit"]}
    config = quiet(accelerator="cpu", max_epochs=2, **(options | fields))
    return model, hl.train(model, data, config)


def test_pixels_beside_the_mask_count_nowhere() -> None:
    """Neither what they hold nor what their targets are changes a bit of weights or history."""
    wild = np.where(MASK[..., None], CUBES, 1e6).astype(np.float32)
    other = np.where(MASK, TARGETS, ~TARGETS)
    runs = [run(SPOILT), run(wild), run(SPOILT, y=other)]
    (want, first), *others = runs
    assert all(np.isfinite(values).all() for values in first.history.values())
    for got, result in others:
        assert same_bits(got.state_dict(), want.state_dict())
        for name in ("loss", "val_loss", "val_iou", "val_accuracy", "val_auc", "val_bce"):
            assert result.history[name] == first.history[name], name


def test_masked_values() -> None:
    """Of those pixels that count, by NumPy; a batch has another share of them than the next."""
    x = {"cube": SPOILT, "mask": MASK}
    model = sequential(norm=stats.MinMaxNormalizer(), head=nn.Linear(N, 1))
    losses = ["bce", stats.SoftIoULoss()]
    data = hl.DataModule.from_arrays(x, TARGETS, val=None, batch_size=20, allow_nonfinite=True)
    found = measured(model, data, losses=losses, train_metrics=True, metrics=["f1"])
    kept = CUBES[MASK].astype(np.float64)
    scaled = (kept - kept.min()) / (kept.max() - kept.min())
    head = model.head
    logits = scaled @ head.weight.numpy()[0].astype(np.float64) + head.bias.numpy()[0]
    p, y = 1 / (1 + np.exp(-logits)), TARGETS[MASK]
    close(found["bce"], -np.where(y, np.log(p), np.log(1 - p)).mean())
    close(found["soft_iou"], 1 - (p * y).sum() / (p + y - p * y).sum())
    hits = ((p > 0.5) & y).sum()
    close(found["f1"], 2 * hits / max((p > 0.5).sum() + y.sum(), 1))


def test_micro_batches_divide_masked_losses_once() -> None:
    """Batches with other shares of pixels that count are the step of one batch."""

    def trained(batch_size: int, n: int) -> Any:
        model = sequential(
            minmax=stats.MinMaxNormalizer(),
            lin=nn.Linear(N, N),
            centre=stats.DeepSVDDCenterTracker(N, alpha=0),
        )
        losses = [
            stats.ReconstructionLoss("minmax", "lin"),
            stats.DeepSVDDSoftBoundaryLoss("centre"),
        ]
        x = {"cube": SPOILT, "mask": MASK}
        options = {"val": None, "shuffle": False, "allow_nonfinite": True}
        data = hl.DataModule.from_arrays(x, batch_size=batch_size, **options)
        config = quiet(max_epochs=1, losses=losses, accumulate_grad_batches=n, seed=5, lr=0.1)
        history = hl.train(model, data, config).history
        return history["reconstruction"][0], model.lin.weight.numpy()

    (loss, weight), (parts, same) = trained(20, 1), trained(5, 4)
    close(parts, loss, 1e-5)
    close(same, weight, 1e-5)


def test_the_header_says_how_many_pixels_count(capsys: Any) -> None:
    """Whoever gives the mask of anomalies sees that statistics are theirs."""
    x = {"cube": CUBES, "mask": MASK}
    data = hl.DataModule.from_arrays(x, val=np.arange(4))
    hl.train(detector(), data, quiet(max_epochs=0, enable_progress_bar="auto", accelerator="cpu"))
    share = MASK[4:].mean()
    assert f"over 16 rows, {share:.2g} of their pixels by the mask, on the CPU" in (
        capsys.readouterr().err
    )


def test_predictions_of_pixels_beside_the_mask() -> None:
    """They are what the pixel says: NaN of NaN."""
    model, _ = run(SPOILT)
    scores = hl.predict(model, {"cube": SPOILT, "mask": MASK})
    assert np.array_equal(np.isnan(scores[..., 0]), ~MASK)


def test_a_mask_of_cubes_in_files(tmp_path: Path) -> None:
    """Which a function adds: the same numbers."""
    for i, cube in enumerate(SPOILT):
        np.save(tmp_path / f"{i:02}.npy", cube)
    data = hl.DataModule.from_cubes(
        f"{tmp_path}/*.npy", TARGETS, val=np.arange(4), batch_size=5, allow_nonfinite=True
    )

    def add_mask(x: Any, y: Any) -> Any:
        return {**x, "mask": np.isfinite(x["cube"]).all(-1)}, y

    data = data.map(add_mask, allow_nonfinite=True)
    model = detector()
    fields = {"losses": losses(), "metrics": METRICS, "unfreeze": ["pca", "logit"]}
    result = hl.train(model, data, quiet(accelerator="cpu", max_epochs=2, **fields))
    want, other = run(SPOILT)
    assert same_bits(model.state_dict(), want.state_dict())
    assert result.history["val_loss"] == other.history["val_loss"]


def test_a_mask_of_another_shape() -> None:
    for wrong in (MASK[..., None], MASK[:, :, :3], MASK.transpose(0, 2, 1)):
        with pytest.raises(
            hl.ShapeError, match=r"mask: must have the cube's shape without channels, \(\d+, 6, 5\)"
        ):
            run(SPOILT, wrong)


def test_a_mask_behind_other_pixels() -> None:
    class Pooled(nn.Module):
        def __init__(self, axis: Any) -> None:
            super().__init__()
            self.norm, self.axis = stats.ZScoreNormalizerGlobal(), axis

        def forward(self, x: Any) -> Any:
            return self.norm(x["cube"].abs().mean(self.axis))

    data = hl.DataModule.from_arrays({"cube": CUBES, "mask": MASK}, val=None)
    with pytest.raises(
        hl.ConfigError, match=r"norm: the batch has a mask of shape .*\(\d+, 6, 12\)"
    ):
        hl.train(Pooled(2), data, quiet(max_epochs=0))
    model = Pooled((1, 2))  # one vector of each image
    hl.train(model, data, quiet(max_epochs=0))
    images = np.where(MASK[..., None], CUBES, 0).astype(np.float64).mean((1, 2))
    close(model.norm.statistics["mean"], images.mean(0))


def test_targets_that_are_numbers_beside_a_mask() -> None:
    y = TARGETS.astype(np.float32)
    with pytest.raises(hl.ConfigError, match=r"would count pixels that x\['mask'\] leaves out"):
        run(SPOILT, y=y, metrics=[])
    with pytest.raises(hl.ConfigError, match=r"metrics: .* count pixels that x\['mask'\] leaves"):
        run(SPOILT, y=y, losses=losses()[1:], metrics=["mse"])
    run(SPOILT, y=y, losses=losses()[1:], metrics=METRICS[3:])


def test_a_mask_beside_no_cube_is_an_input() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unit, self.lin = stats.PerPixelUnitNorm(), nn.Linear(N, 1)

        def forward(self, x: Any) -> Any:
            return self.lin(self.unit(x["x"])) + x["mask"].unsqueeze(-1)

    x = {"x": CUBES, "mask": MASK}
    model = Plain()
    found = measured(model, whole(x, TARGETS), losses=["bce"])
    logits = hl.predict(model, x)[..., 0]
    close(found["loss"], cross_entropy(logits, TARGETS))


def cross_entropy(logits: Any, y: Any) -> Any:
    p = 1 / (1 + np.exp(-np.asarray(logits, np.float64)))
    return -np.where(y, np.log(p), np.log(1 - p)).mean()


def plain() -> nn.Sequential:
    return sequential(norm=stats.ZScoreNormalizerGlobal(), head=nn.Linear(N, 1))


def masked_data(y: Any = TARGETS, x: Any = CUBES, mask: Any = MASK) -> hl.DataModule:
    return whole({"cube": x, "mask": mask}, y, allow_nonfinite=True)


def test_targets_with_a_dim_of_one_and_in_a_row() -> None:
    model = plain()
    found = measured(model, masked_data(TARGETS[..., None].astype(int)), loss="bce")
    logits = hl.predict(model, {"cube": CUBES, "mask": MASK})[..., 0]
    close(found["loss"], cross_entropy(logits[MASK], TARGETS[MASK]))
    close(found["val_accuracy"], ((logits > 0) == TARGETS)[MASK].mean())
    with pytest.raises(hl.ConfigError, match=r"would count pixels that x\['mask'\] leaves out"):
        measured(plain(), masked_data(TARGETS.reshape(20, -1)), loss="bce")


def test_evaluation_of_a_file(tmp_path: Path) -> None:
    """As of the model: it knows what counts by the batch."""
    model, data = plain(), masked_data(x=SPOILT)
    measured(model, data, loss="bce", metrics=["accuracy", "iou"])
    hl.save(model, tmp_path / "model.safetensors")
    want = hl.evaluate(model, data, split="val")
    got = hl.evaluate(hl.load(tmp_path / "model.safetensors"), data, split="val")
    assert got.keys() == want.keys()
    assert np.isfinite(list(got.values())).all()
    for name, value in got.items():
        close(value, want[name])


def test_losses_of_the_users_see_targets_as_they_are() -> None:
    class Own(stats.ModuleLoss):
        def compute(self, calls: Any) -> Any:
            return calls.target.cast("float32").mean() + (calls.output * 0).mean()

    found = measured(plain(), masked_data(), losses=[Own("own"), "bce"])
    close(found["own"], TARGETS.mean())
    for loss in (lambda output, target: (output.squeeze(-1) - target).abs().mean(), nn.MSELoss()):
        with pytest.raises(hl.ConfigError, match=r"x\['mask'\] leaves out"):
            measured(plain(), masked_data(), loss=loss)
    metric = hl.metric(lambda y, p: 0.0, needs="labels", name="own")
    with pytest.raises(hl.ConfigError, match=r"functions get the targets of all pixels"):
        measured(plain(), masked_data(), loss="bce", metrics=[metric])


def test_metrics_beside_a_training_step() -> None:
    """Which has the targets as they are."""

    class Stepped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = stats.ZScoreNormalizerGlobal(), nn.Linear(N, 2)

        def forward(self, x: Any) -> Any:
            return self.head(self.norm(x))

        def training_step(self, batch: Any) -> Any:
            y = batch["y"].cast("float32")
            return {"loss": (self(batch["x"])[..., 0] - y).abs().mean(), "y": y.mean()}

    model = Stepped()
    found = measured(model, masked_data(), metrics=["accuracy"])
    close(found["y"], TARGETS.mean())
    labels = hl.predict(model, {"cube": CUBES, "mask": MASK}).argmax(-1)
    close(found["val_accuracy"], (labels == TARGETS)[MASK].mean())


class Shaped(nn.Module):
    """Pixels in another form from some point on."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.norm, self.lin, self.shape = stats.ZScoreNormalizerGlobal(), nn.Linear(N, 1), shape
        self.centre = stats.DeepSVDDCenterTracker(1, alpha=0.5)
        self.last = nn.Identity()

    def forward(self, x: Any) -> Any:
        y = self.lin(self.norm(x))
        return self.last(self.centre(y.reshape(-1, 1)).reshape(self.shape))


@pytest.mark.parametrize("shape", [(-1, 6, 5, 1), (-1, 6, 5), (-1, 1), (-1, 30)])
def test_pixels_in_other_forms(shape: tuple[int, ...]) -> None:
    """With channels or without, in a row, or a row of each image: the same of the same pixels."""
    model = Shaped(shape)
    losses = [stats.DeepSVDDSoftBoundaryLoss("centre")]
    metrics = [stats.ScoreStatistics("last")]
    found = measured(model, masked_data(x=SPOILT), losses=losses, metrics=metrics)
    scores = np.asarray(hl.predict(model, {"cube": CUBES, "mask": MASK}), np.float64).reshape(-1)
    close(found["val_last_mean"], scores[MASK.reshape(-1)].mean())
    close(found["val_last_std"], scores[MASK.reshape(-1)].std())


def test_values_of_other_pixels() -> None:
    class Halved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.each = stats.ZScoreNormalizerGlobal(), nn.Identity()

        def forward(self, x: Any) -> Any:
            return self.each(self.norm(x)[:, ::2])

    metrics = [stats.ScoreStatistics("each")]
    with pytest.raises(hl.ConfigError, match="of which it is not known which count"):
        measured(Halved(), masked_data(), losses=[Small("small")], metrics=metrics, unfreeze="norm")


class Small(stats.ModuleLoss):
    def compute(self, calls: Any) -> Any:
        return (calls["norm"].output ** 2).mean()


def test_nodes_of_whole_images_take_no_mask() -> None:
    for node in (
        stats.ZScoreNormalizer(),
        stats.MinMaxNormalizer(use_running_stats=False),
        stats.SigmoidNormalizer(),
        stats.RXPerBatch(eps=1.0),
    ):
        model = sequential(own=node, norm=stats.ZScoreNormalizerGlobal())
        with pytest.raises(hl.ConfigError, match="statistics are of all pixels of an image, got a"):
            hl.train(model, masked_data(), quiet(max_epochs=0))


def test_images_that_the_mask_leaves_out_whole() -> None:
    """The first one too; a batch of them leaves the centre where it is."""
    mask = MASK.copy()
    mask[:19] = False
    model = sequential(norm=stats.ZScoreNormalizerGlobal(), c=stats.DeepSVDDCenterTracker(N))
    data = hl.DataModule.from_arrays(
        {"cube": SPOILT, "mask": mask & MASK}, val=None, batch_size=1, allow_nonfinite=True
    )
    hl.train(model, data, quiet(max_epochs=0))
    pixels = CUBES[19][MASK[19]].astype(np.float64)
    close(model.norm.statistics["mean"], pixels.mean(0))
    model.c.center.set_value(np.ones(N, np.float32))
    losses = [stats.DeepSVDDSoftBoundaryLoss("c")]
    hl.train(model, data, quiet(max_epochs=1, losses=losses, lr=1e-9))
    np.testing.assert_allclose(model.c.center.numpy(), 0.9, atol=1e-5)  # one batch of 20


def test_patches_behind_a_mask() -> None:
    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = stats.ZScoreNormalizerGlobal()

        def forward(self, x: Any) -> Any:
            return self.norm(x["cube"].reshape(-1, 5 * N))

    with pytest.raises(hl.ConfigError, match="norm: the batch has a mask of shape"):
        hl.train(Patches(), masked_data(), quiet(max_epochs=0))


def test_fitting_again_leaves_a_trained_model_as_it_is() -> None:
    select = stats.SoftChannelSelector(3, temperature=(5, 0.05), steps=4)
    model = sequential(norm=stats.MinMaxNormalizer(), select=select, head=nn.Linear(N, 1))
    data = whole(CUBES, TARGETS)
    hl.train(model, data, quiet(max_epochs=6, loss="bce"))
    before = hl.predict(model, CUBES, proba=True)
    hl.train(model, data, quiet(max_epochs=0))
    np.testing.assert_array_equal(hl.predict(model, CUBES, proba=True), before)


def test_selectors_of_the_users() -> None:
    class Own(stats.SoftChannelSelector):
        def weights(self) -> Any:
            return hl.softmax(self.logits, -1)

    losses = [stats.SelectorEntropyLoss("own")]
    found = measured(sequential(own=Own(2, N)), whole(), losses=losses)
    close(found["loss"], np.log(N) ** 2)


def test_inputs_of_modules_are_as_they_were_given() -> None:
    class Ids(stats.ModuleLoss):
        def compute(self, calls: Any) -> Any:
            return nn.functional.cross_entropy(calls.output, calls["table"].input)

    model = sequential(table=nn.Embedding(5, 5))
    ids = RNG.integers(0, 5, 20)
    assert measured(model, whole(ids), losses=[Ids("ids")])["loss"] > 0


# ---------------------------------------------------------------------------- wrong input


def test_losses_that_need_a_target() -> None:
    for loss in ("bce", "mse", "cross_entropy", nn.MSELoss()):
        with pytest.raises(hl.ConfigError, match="compares outputs with targets, and the data has"):
            hl.train(nn.Linear(N, 1), CUBES, quiet(max_epochs=1, losses=[loss]))
    y = TARGETS.transpose(0, 2, 1)
    with pytest.raises(hl.ConfigError, match="SoftIoULoss: the target must have the logits' shape"):
        hl.train(layers(), (CUBES, y), quiet(max_epochs=1, losses=[stats.SoftIoULoss()]))
    losses = [stats.ReconstructionLoss("out", "second")]
    with pytest.raises(hl.ConfigError, match="'second' must return the shape of 'out'"):
        hl.train(layers(), CUBES, quiet(max_epochs=1, losses=losses))


def test_channels_of_a_mixer() -> None:
    model = stats.ConcreteChannelMixer(2, 9)
    with pytest.raises(hl.ShapeError, match="ConcreteChannelMixer has 9 channels, got a cube with"):
        hl.predict(model, CUBES)


def test_phase_1_again(capsys: Any) -> None:
    """A cell of a notebook that runs twice."""
    model = sequential(pca=stats.TrainablePCA(3), rx=stats.RXGlobal())
    hl.train(model, CUBES, quiet(max_epochs=0))
    before = model.state_dict()
    config = quiet(max_epochs=0, enable_progress_bar="auto")
    assert hl.train(model, CUBES, config).stop_reason == "completed"
    assert "nothing is left to fit" in capsys.readouterr().err
    assert same_bits(model.state_dict(), before)
    with pytest.raises(hl.ConfigError, match=r"what is fitted \(pca, rx\) is frozen.*\['pca'\]"):
        hl.train(model, CUBES, quiet(max_epochs=1, losses=[stats.OrthogonalityLoss("pca")]))


def test_before_phase_1() -> None:
    model = sequential(first=stats.TrainablePCA(5), second=stats.TrainablePCA(3))
    with pytest.raises(hl.HotloopError, match="first, TrainablePCA must be fitted before"):
        hl.predict(model, CUBES)
    with pytest.raises(hl.HotloopError, match="evaluate: first, second must be fitted first"):
        hl.evaluate(model, (CUBES, TARGETS), split="train", loss="bce")
    with pytest.raises(hl.HotloopError, match="save: first, second must be fitted first"):
        hl.save(model, "model.safetensors")


def test_inputs_without_spread() -> None:
    flat = np.concatenate([CUBES[..., :3]] * 2, -1)
    model = sequential(one=stats.LearnableChannelMixer(5))
    with pytest.warns(hl.DataWarning, match="one, LearnableChannelMixer: .* in 3 directions alone"):
        hl.train(model, flat, quiet(max_epochs=0))
    model = sequential(logit=stats.ScoreToLogit())
    with pytest.warns(hl.DataWarning, match="logit, ScoreToLogit: the scores are 2 throughout"):
        hl.train(model, np.full((5, 4, 4, 1), 2, np.float32), quiet(max_epochs=0))
