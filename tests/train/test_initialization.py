"""Statistical nodes: fitted by as few passes as there are levels, to the statistics of NumPy."""

import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hotloop as hl
import hotloop.nn.functional as F
import numpy as np
import pytest
from hotloop import _core, nn, stats
from hotloop.training.plans import initialization
from hotloop.training.plans.accelerator import device_of_statistics
from hotloop.training.plans.initialization import Fitting
from train.recipes import quiet, same_bits

RNG = np.random.default_rng(3)
MIX = RNG.standard_normal((12, 12))
CUBES = (RNG.standard_normal((30, 6, 5, 12)) @ MIX * 40 + 300).astype(np.float32)
PIXELS = CUBES.reshape(-1, 12).astype(np.float64)
CLOSE = 1e-10  # what any cut into batches may change, relative


def sequential(**nodes: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(nodes))


def fit(model: Any, x: Any = CUBES, batch_size: int = 8, **fields: Any) -> Any:
    """Phase 1 alone."""
    options = {"val": None, "batch_size": batch_size}
    data = x if isinstance(x, hl.DataModule) else hl.DataModule.from_arrays(x, **options)
    hl.train(model, data, quiet(accelerator="cpu", max_epochs=0, **fields))
    return model


def passes(monkeypatch: Any) -> list[int]:
    """How many passes each fit takes."""
    found: list[int] = []
    run = Fitting.run

    def counted(self: Any, *args: Any) -> None:
        run(self, *args)
        found.append(self.n_passes)

    monkeypatch.setattr(Fitting, "run", counted)
    return found


def close(got: Any, want: Any, scale: float = 1.0) -> None:
    want = np.asarray(want)
    atol = CLOSE * scale * max(np.abs(want).max(), 1.0)
    np.testing.assert_allclose(got, want, rtol=CLOSE, atol=atol)


def principal(pixels: Any, k: int) -> tuple[Any, Any]:
    """By the singular values of the centred pixels, another way than the eigenvectors."""
    _, s, vt = np.linalg.svd(pixels - pixels.mean(0), full_matrices=False)
    signs = np.sign(vt[np.arange(len(vt)), np.abs(vt).argmax(1)])
    return (vt * signs[:, None])[:k], (s**2 / (len(pixels) - 1))[:k]


# ---------------------------------------------------------------------------- what is fitted


def normalized() -> Any:
    return (PIXELS - PIXELS.min()) / (PIXELS.max() - PIXELS.min())


def test_minimum_and_maximum() -> None:
    node = fit(sequential(n=stats.MinMaxNormalizer())).n
    assert node.statistics == {"minimum": PIXELS.min(), "maximum": PIXELS.max()}
    got = hl.predict(sequential(n=node), CUBES)
    np.testing.assert_allclose(got.reshape(-1, 12), normalized(), rtol=1e-5, atol=1e-6)
    assert int(node.n_pixels_seen.numpy()) == len(PIXELS)


def test_z_scores() -> None:
    node = fit(sequential(n=stats.ZScoreNormalizerGlobal())).n
    close(node.statistics["mean"], PIXELS.mean(0))
    close(node.statistics["std"], PIXELS.std(0, ddof=1))
    got = hl.predict(sequential(n=node), CUBES).reshape(-1, 12)
    np.testing.assert_allclose(got.mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(got.std(0, ddof=1), 1, rtol=1e-4)


@pytest.mark.parametrize("whiten", [False, True])
def test_principal_components(whiten: bool) -> None:
    node = fit(sequential(n=stats.TrainablePCA(5, whiten=whiten))).n
    components, variance = principal(PIXELS, 5)
    close(node.statistics["components"], components, 100)
    close(node.statistics["explained_variance"], variance)
    close(node.statistics["total_variance"], PIXELS.var(0, ddof=1).sum())
    got = hl.predict(sequential(n=node), CUBES).reshape(-1, 5)
    want = (PIXELS - PIXELS.mean(0)) @ components.T
    want = want / np.sqrt(variance + 1e-6) if whiten else want
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * np.abs(want).max())


def test_mahalanobis_distances() -> None:
    node = fit(sequential(n=stats.RXGlobal(eps=1e-3))).n
    covariance = np.cov(PIXELS.T) + 1e-3 * np.eye(12)
    close(node.covariance, covariance)
    away = PIXELS - PIXELS.mean(0)
    want = (away @ np.linalg.inv(covariance) * away).sum(1)
    got = hl.predict(sequential(n=node), CUBES)
    assert got.shape == (30, 6, 5, 1)
    np.testing.assert_allclose(got.reshape(-1), want, rtol=1e-3)


def test_laplacian_anomalies() -> None:
    node = fit(sequential(n=stats.LADGlobal(12))).n
    mean = PIXELS.mean(0)
    weights = 1 / (1 + (np.abs(mean[:, None] - mean) / mean.mean()) ** 2) - np.eye(12)
    degree = weights.sum(1)
    laplacian = np.eye(12) - weights / np.sqrt(degree[:, None] * degree)
    close(node.statistics["laplacian"], laplacian)
    away = PIXELS - mean
    want = (away @ laplacian * away).sum(1)
    got = hl.predict(sequential(n=node), CUBES).reshape(-1)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5 * want.max())


def test_a_mixer_begins_with_components() -> None:
    node = fit(sequential(n=stats.LearnableChannelMixer(4))).n
    close(node.statistics["weight"], principal(PIXELS, 4)[0], 100)


def test_shares_of_the_variance() -> None:
    node = fit(sequential(n=stats.SoftChannelSelector(3, init="variance"))).n
    variance = PIXELS.var(0, ddof=1)
    close(node.statistics["logits"], np.log(variance / variance.sum()))
    assert node.selected() == list(np.argsort(-variance)[:3])


def test_logits_of_scores() -> None:
    scores = PIXELS[:, :1].reshape(30, 6, 5, 1).astype(np.float32)
    node = fit(sequential(n=stats.ScoreToLogit()), scores).n
    close(node.statistics["bias"], PIXELS[:, 0].mean() + 2 * PIXELS[:, 0].std(ddof=1))


# ---------------------------------------------------------------------------- levels


def chain() -> nn.Module:
    return sequential(
        minmax=stats.MinMaxNormalizer(),
        pca1=stats.TrainablePCA(8),
        pca2=stats.TrainablePCA(4),
        rx=stats.RXGlobal(),
    )


class Mixed(nn.Module):
    """Affine work that is no node: a slice, numbers, a layer, a reshape."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(7, 5)
        self.register_buffer("scale", np.linspace(0.5, 1.5, 7, dtype=np.float32))
        self.norm, self.pca = stats.ZScoreNormalizerGlobal(), stats.TrainablePCA(3)

    def forward(self, x: Any) -> Any:
        y = self.norm(-(x[..., 2:9] * self.scale - 1.0) / 3.0)
        return self.pca(2.0 - self.lin(y.reshape(-1, 7)))


class Softened(nn.Module):
    """Channels by shares that are computed of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.choose = stats.SoftChannelSelector(3)
        self.rx, self.logit = stats.RXGlobal(), stats.ScoreToLogit()

    def forward(self, x: Any) -> Any:
        return self.logit(self.rx(self.choose(x)))


class Bent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.lin, self.pca = (
            stats.MinMaxNormalizer(),
            nn.Linear(12, 6),
            stats.TrainablePCA(2),
        )
        self.after = stats.MinMaxNormalizer()  # behind a map that mixes channels

    def forward(self, x: Any) -> Any:
        return self.after(self.pca(self.lin(self.norm(x)).relu()))


LEVELS: list[tuple[Callable[[], nn.Module], int]] = [
    (chain, 1),
    (Mixed, 1),
    (Softened, 2),
    (Bent, 3),
    (lambda: sequential(a=stats.PerPixelUnitNorm(), b=stats.ZScoreNormalizerGlobal()), 1),
]


@pytest.mark.parametrize(("make", "n"), LEVELS)
def test_as_few_passes_as_there_are_levels(make: Any, n: int, monkeypatch: Any) -> None:
    found = passes(monkeypatch)
    fit(make())
    assert found == [n]


@pytest.mark.parametrize("make", [make for make, _ in LEVELS])
def test_statistics_are_those_of_what_forward_computes(make: Any) -> None:
    """Each node's, of its own input as prediction has it, to float32's accuracy."""
    model = fit(make())
    model.load_state_dict(model.state_dict())  # else another path draws other initial values
    paths = {name: m for name, m in model.named_modules() if isinstance(m, stats.StatisticalNode)}
    for name, node in paths.items():
        found = hl.predict(Before(model, name), CUBES)
        pixels = np.asarray(found, np.float64).reshape(-1, found.shape[-1])
        for each, value in node.statistics.items():
            if each == "mean":
                atol = 1e-4 * pixels.std()
                np.testing.assert_allclose(value, pixels.mean(0), rtol=1e-4, atol=atol)
            elif each == "std":
                np.testing.assert_allclose(value, pixels.std(0, ddof=1), rtol=1e-3)
            elif each == "explained_variance":
                want = principal(pixels, len(value))[1]
                np.testing.assert_allclose(value, want, rtol=1e-3)
            elif each == "maximum":
                np.testing.assert_allclose(value, pixels.max(), rtol=1e-4)
            elif each == "bias":
                want = pixels.mean(0) + 2 * pixels.std(0, ddof=1)
                np.testing.assert_allclose(value, want, rtol=1e-3)


class Before(nn.Module):
    """What a model gives to one of its modules."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, x: Any) -> Any:
        from hotloop.graph.trace import current

        seen = current().watch(self.model.get_submodule(self.name))
        self.model(x)
        return seen[-1].inputs[0]


def embedded() -> nn.Module:
    """Deep SVDD: behind a ReLU."""
    return sequential(
        unit=stats.PerPixelUnitNorm(),
        norm=stats.ZScoreNormalizerGlobal(),
        project=stats.DeepSVDDProjection(12, 16, 4),
        tracker=stats.DeepSVDDCenterTracker(),
    )


@pytest.mark.parametrize("make", [chain, Mixed, Softened, embedded])
def test_the_cut_into_batches_changes_nothing(make: Any, monkeypatch: Any) -> None:
    want = fit(make(), batch_size=30)
    for size in (1, 7, 16):
        monkeypatch.setattr(initialization, "_BATCH_BYTES", size * 4 * CUBES[0].size)
        got = fit(make(), batch_size=30)
        for (name, a), (_, b) in zip(want.named_modules(), got.named_modules(), strict=True):
            for key, value in getattr(a, "statistics", {}).items():
                close(b.statistics[key], value), (name, key, size)


def test_batches_of_a_pass_are_small(tmp_path: Path) -> None:
    """Training's may be large: a pass needs no more memory for that, nor a limit of it."""
    rng = np.random.default_rng(0)
    for i in range(16):
        np.save(tmp_path / f"{i:02}.npy", rng.standard_normal((64, 128, 64), np.float32))
    data = hl.DataModule.from_cubes(f"{tmp_path}/*.npy", val=8, batch_size=14, num_workers=1)
    model = sequential(pca=stats.TrainablePCA(2), rx=stats.RXGlobal())
    _core.alloc_peak_reset()
    before = _core.alloc_stats()["current_bytes"]
    fit(model, data)
    assert _core.alloc_stats()["peak_bytes"] - before < 15 * 2**21  # training: 3 x 8 x 2**21
    fields: dict[str, Any] = {"unfreeze": ["pca"], "losses": [(stats.OrthogonalityLoss("pca"), 1)]}
    for limit in range(20, 48, 4):
        model = sequential(pca=stats.TrainablePCA(2), rx=stats.RXGlobal())
        held = _core.alloc_stats()["current_bytes"]  # by plans of other tests
        fields |= {
            "metrics": [stats.ExplainedVariance("pca")],
            "memory_limit": held + limit * 10**6,
        }
        hl.train(model, data, quiet(accelerator="cpu", max_epochs=1, **fields))


def test_numbers_far_from_zero_keep_their_variance() -> None:
    """Their squares would have none left in float64."""
    x = (1e9 + RNG.integers(0, 2, (40, 4, 4, 3)) * 64).astype(np.float32)
    node = fit(sequential(n=stats.ZScoreNormalizerGlobal()), x).n
    np.testing.assert_allclose(
        node.statistics["std"], x.astype(np.float64).reshape(-1, 3).std(0, ddof=1), rtol=1e-9
    )


# ---------------------------------------------------------------------------- masks, dicts


def test_masked_pixels_do_not_count() -> None:
    mask = RNG.random(CUBES.shape[:3]) < 0.7
    spoilt = np.where(mask[..., None], CUBES, np.nan).astype(np.float32)
    data = hl.DataModule.from_arrays(
        {"cube": spoilt, "mask": mask}, val=None, batch_size=7, allow_nonfinite=True
    )
    model = fit(chain(), data)
    kept = CUBES[mask].astype(np.float64)
    assert model.minmax.statistics["maximum"] == kept.max()
    scaled = (kept - kept.min()) / (kept.max() - kept.min())
    close(model.pca1.statistics["components"], principal(scaled, 8)[0], 100)


def test_nan_without_a_mask() -> None:
    spoilt = CUBES.copy()
    spoilt[3, 2, 2, 7] = np.nan
    data = hl.DataModule.from_arrays(spoilt, val=None, allow_nonfinite=True)
    model = sequential(norm=stats.ZScoreNormalizerGlobal())
    with pytest.raises(
        hl.DataError,
        match=r"norm: .* got NaN or infinity in 1 of 12 channels, the first 7; leave such pixels",
    ):
        fit(model, data)
    assert not model.norm.is_fitted


def test_a_mask_that_leaves_nothing() -> None:
    x = {"cube": CUBES, "mask": np.zeros(CUBES.shape[:3], bool)}
    with pytest.raises(hl.DataError, match="mask: it must leave some pixels"):
        fit(chain(), hl.DataModule.from_arrays(x, val=None))


def test_cubes_of_files(tmp_path: Path) -> None:
    for i, cube in enumerate(CUBES):
        np.save(tmp_path / f"{i}.npy", cube)
    data = hl.DataModule.from_cubes(str(tmp_path / "*.npy"), val=None, batch_size=4)
    got, want = fit(chain(), data), fit(chain())
    close(got.rx.covariance, want.rx.covariance)


# ---------------------------------------------------------------------------- two phases


LOSSES = [(stats.OrthogonalityLoss("pca1"), 0.1), (stats.OrthogonalityLoss("pca2"), 0.1)]


def train(model: Any, **fields: Any) -> Any:
    data = hl.DataModule.from_arrays(CUBES, val=0.2, batch_size=8)
    config = {"max_epochs": 3, "accelerator": "cpu", "optimizer": "adam", "losses": LOSSES}
    return hl.train(model, data, quiet(**(config | {"unfreeze": ["pca1", "pca2"]} | fields)))


def test_both_phases() -> None:
    """What is frozen stays as it was fitted; timings have each phase."""
    alone = fit(chain(), hl.DataModule.from_arrays(CUBES, val=0.2, batch_size=8))
    model = chain()
    result = train(model, metrics=[stats.ExplainedVariance("pca1"), stats.ScoreStatistics("rx")])
    rx = {"whitening": model.rx.whitening.numpy(), "mean": model.rx.mean.numpy()}
    assert same_bits(rx, {name: getattr(alone.rx, name).numpy() for name in rx})
    assert not np.array_equal(model.pca1.components.numpy(), model.pca1.statistics["components"])
    assert model.pca1.statistics["mean"].shape == (12,)
    assert result.timings["statistics"] > 0
    assert result.timings["train"] > 0
    assert result.epochs == 3
    losses = {"loss", "pca1_orthogonality", "pca2_orthogonality"}
    metrics = {"pca1_explained_variance", "rx_mean", "rx_std"}
    assert losses | {f"val_{name}" for name in losses | metrics} <= set(result.history)
    assert metrics.isdisjoint(result.history)  # as all metrics they are validation's


def test_fitted_nodes_are_fitted_once(monkeypatch: Any) -> None:
    found = passes(monkeypatch)
    model = fit(chain())
    train(model, max_epochs=1)
    assert found == [1]
    model.reset()
    assert not model.pca1.is_fitted
    train(model, max_epochs=1)
    assert found == [1, 1]


def test_a_run_goes_on(tmp_path: Path, monkeypatch: Any) -> None:
    """With the same bits, without another pass."""
    saved = {"output_dir": tmp_path, "enable_checkpointing": True, "seed": 5}
    want = chain()
    train(want, max_epochs=4, seed=5)
    half = train(chain(), max_epochs=4, max_steps=5, **saved)
    found = passes(monkeypatch)
    got = chain()
    data = hl.DataModule.from_arrays(CUBES, val=0.2, batch_size=8)
    hl.train(got, data, resume=half.last_path, max_steps=None, losses=LOSSES)
    assert found == []
    assert got.pca1.is_fitted
    assert same_bits(dict(got.state_dict()), dict(want.state_dict()))


def test_states_are_loaded(tmp_path: Path) -> None:
    model, other = fit(chain()), chain()
    other.load_state_dict(model.state_dict())
    np.testing.assert_array_equal(hl.predict(other, CUBES), hl.predict(model, CUBES))
    assert other.pca1.num_channels == 12


def test_training_moves_what_unfreeze_names() -> None:
    model = fit(chain())
    before = dict(model.state_dict())
    train(model, unfreeze="pca1", losses=LOSSES[:1], lr=0.05)
    moved = {k for k, v in model.state_dict().items() if not np.array_equal(v, before[k])}
    assert moved == {"pca1.components"}


def test_losses_are_summed_with_their_weights() -> None:
    """As a training_step of one's own would."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(12, 6)

        def training_step(self, batch: Any) -> Any:
            w = self.lin.weight
            away = w @ w.T - hl.eye(6)
            return 0.3 * (away * away).sum() + 2.0 * F.mse_loss(self.lin(batch["x"]), batch["y"])

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(12, 6)

        def forward(self, x: Any) -> Any:
            return self.lin(x)

    x, y = CUBES[..., 0, 0, :] / 100, CUBES[..., 1, 1, :6] / 100
    data = hl.DataModule.from_arrays(x, y, batch_size=8, val=None)
    fields = {"max_epochs": 2, "accelerator": "cpu", "seed": 1}
    losses = [(stats.OrthogonalityLoss("lin"), 0.3), ("mse", 2.0)]
    own, plain = Own(), Plain()
    hl.train(own, data, quiet(**fields))
    result = hl.train(plain, data, quiet(**fields, losses=losses))
    for name, value in own.state_dict().items():
        np.testing.assert_allclose(plain.state_dict()[name], value, rtol=1e-5, atol=1e-7)
    assert {"lin_orthogonality", "mse"} <= set(result.history)


def test_a_loss_of_the_users() -> None:
    class Small(stats.ModuleLoss):
        def __init__(self) -> None:
            super().__init__("small")
            self.factor = nn.Parameter(np.ones((), np.float32))

        def compute(self, calls: Any) -> Any:
            out = calls["pca1"].output
            return (out * out).mean() + (self.factor - 2.0) ** 2

    loss = Small()
    result = train(fit(chain()), losses=[loss], lr=0.1, max_epochs=20)
    assert result.history["loss"][-1] < result.history["loss"][0]
    assert float(loss.factor.numpy()) > 1.2


# ---------------------------------------------------------------------------- wrong input


def test_a_node_that_is_not_fitted() -> None:
    with pytest.raises(
        hl.HotloopError, match=r"TrainablePCA must be fitted before it is used; .*max_epochs=0"
    ):
        hl.predict(sequential(pca=stats.TrainablePCA(3)), CUBES)


def test_other_channels_than_those_of_the_fit() -> None:
    model = fit(chain())
    with pytest.raises(
        hl.ShapeError, match=r"MinMaxNormalizer was fitted to 12 channels, got a cube with 9"
    ):
        hl.predict(model, CUBES[..., :9])
    with pytest.raises(hl.ShapeError, match="RXGlobal has 7 channels, got a cube with 12"):
        fit(sequential(rx=stats.RXGlobal(7)))
    band = stats.BandpassByWavelength(np.linspace(400, 900, 9), low=700)
    with pytest.raises(hl.ShapeError, match="has 9 wavelengths, got a cube with 12 channels"):
        fit(sequential(band=band, norm=stats.ZScoreNormalizerGlobal()))


def test_phase_1_alone_is_known_to_predict(tmp_path: Path) -> None:
    """A model that was fitted and not trained is standardised and saved as others are."""
    data = hl.DataModule.from_arrays(CUBES, standardize=True, val=None)
    model = sequential(rx=stats.RXGlobal())
    hl.train(model, data, quiet(max_epochs=0))
    scaled = (CUBES - CUBES.mean(0, np.float64)) / CUBES.std(0, dtype=np.float64)
    centred = scaled.reshape(-1, 12) - scaled.mean((0, 1, 2))
    covariance = np.cov(centred.T)
    want = np.einsum("ni,ij,nj->n", centred, np.linalg.inv(covariance), centred)
    got = hl.predict(model, CUBES)
    np.testing.assert_allclose(got.reshape(-1), want, rtol=0.01)
    hl.save(model, tmp_path / "rx.safetensors")
    np.testing.assert_array_equal(hl.predict(hl.load(tmp_path / "rx.safetensors"), CUBES), got)


def _lit(waves: Any, n: int = 6) -> hl.DataModule:
    """Cubes beside the wavelengths of their channels."""
    waves = np.tile(np.asarray(waves, np.float32), (n, 1))
    return hl.DataModule.from_arrays({"cube": CUBES[:n], "wavelengths": waves}, batch_size=3)


def test_other_wavelengths_than_those_of_the_fit(tmp_path: Path) -> None:
    waves, other = np.linspace(430, 870, 12), np.linspace(430, 870, 12)
    other[4] += 2
    model = fit(sequential(norm=stats.MinMaxNormalizer(), rx=stats.RXGlobal()), _lit(waves))
    words = (
        r"the model was fitted to 12 channels of 430 to 870 nm, got 12 channels of 430 to 870 nm "
        r"in row \d, at channel 4 592 for 590 nm; resample the cubes"
    )
    hl.save(model, tmp_path / "rx.safetensors")
    for run in (model, hl.load(tmp_path / "rx.safetensors")):
        assert hl.predict(run, _lit(waves), split="train").shape == (6, 6, 5, 1)
        with pytest.raises(hl.DataError, match="^predict: " + words):
            hl.predict(run, _lit(other), split="train")
    with pytest.raises(hl.DataError, match="^predict: " + words):
        hl.predict(model, {"cube": CUBES[:1], "wavelengths": other[None]})
    with pytest.raises(hl.DataError, match=r"must be \(cubes, channels\), .*np.tile"):
        hl.predict(model, {"cube": CUBES[:12], "wavelengths": waves})
    with pytest.raises(hl.DataError, match="^train: " + words):
        fit(model, _lit(other))


def test_cubes_whose_wavelengths_differ() -> None:
    waves = np.tile(np.linspace(430, 870, 12), (6, 1))
    waves[5] += 1
    data = hl.DataModule.from_arrays({"cube": CUBES[:6], "wavelengths": waves}, batch_size=3)
    with pytest.raises(hl.DataError, match=r"the first cube has .*, got .* in row 5 of train, at"):
        fit(sequential(rx=stats.RXGlobal()), data)
    band = stats.BandpassByWavelength(np.linspace(400, 800, 12), low=500)
    words = "band: BandpassByWavelength has 12 channels of 400 to 800 nm, got 12 channels of 430 to"
    with pytest.raises(hl.DataError, match=words):
        fit(sequential(band=band, rx=stats.RXGlobal()), _lit(np.linspace(430, 870, 12)))
    # A model without such nodes may be one of all wavelengths.
    ones = {"cube": CUBES[:6].mean((1, 2)), "wavelengths": waves}

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(12, 1)

        def forward(self, x: Any) -> Any:
            return self.layer(x["cube"] + x["wavelengths"])

    hl.train(Plain(), (ones, np.zeros(6, np.float32)), quiet(max_epochs=1))


def test_a_singular_covariance() -> None:
    x = np.concatenate([CUBES, CUBES[..., :2]], -1)
    with pytest.warns(hl.DataWarning, match=r"RXGlobal: .* has rank 12 of 14 .* eps=1e-06 decides"):
        fit(sequential(rx=stats.RXGlobal()), x)
    with pytest.raises(hl.DataError, match=r"rank 12 of 14 .*eps=0 does not make it invertible"):
        fit(sequential(rx=stats.RXGlobal(eps=0.0)), x)
    with pytest.warns(hl.DataWarning, match="variance in 12 directions alone, got n_components=13"):
        fit(sequential(pca=stats.TrainablePCA(13)), x)


def test_constant_channels() -> None:
    x = CUBES.copy()
    x[..., 4] = 7.0
    with pytest.warns(hl.DataWarning, match="1 channel of its input is constant, the first 4"):
        fit(sequential(n=stats.ZScoreNormalizerGlobal()), x)
    with pytest.warns(hl.DataWarning, match="its input is 2 throughout"):
        fit(sequential(n=stats.MinMaxNormalizer()), np.full_like(CUBES, 2.0))


def test_nodes_that_cannot_be_fitted() -> None:
    class Spare(nn.Module):
        def __init__(self, n: int) -> None:
            super().__init__()
            self.norm, self.n = stats.MinMaxNormalizer(), n

        def forward(self, x: Any) -> Any:
            for _ in range(self.n):
                x = self.norm(x)
            return x

    with pytest.raises(hl.ConfigError, match="norm: forward does not reach this MinMaxNormalizer"):
        fit(Spare(0))
    with pytest.raises(hl.ConfigError, match="norm: forward calls it more than once"):
        fit(Spare(2))
    with pytest.raises(
        hl.ConfigError, match=r"n_components must be at most the number of channels, 12, got 20"
    ):
        fit(sequential(pca=stats.TrainablePCA(20)))


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ([stats.OrthogonalityLoss("pca")], "no module 'pca' in the model; did you mean 'pca"),
        ([stats.OrthogonalityLoss("rx")], "'rx' must have components or a weight of two dims"),
        ([stats.SelectorEntropyLoss("pca1")], "'pca1' must be a SoftChannelSelector or Concrete"),
        ([stats.SoftIoULoss()], "a target is needed, and the data has none"),
        ([], "losses: must be a list of losses, or of pairs"),
        ([(stats.OrthogonalityLoss("pca1"), 0.1, 2)], "losses: must have losses or pairs"),
        ([(stats.OrthogonalityLoss("pca1"), "much")], "a number is needed, got 'much'"),
        ([stats.OrthogonalityLoss], "write OrthogonalityLoss() to make one"),
    ],
)  # fmt: skip
def test_losses_of_nothing(losses: Any, words: str) -> None:
    with pytest.raises(hl.ConfigError, match=re.escape(words)):
        train(fit(chain()), losses=losses)


def test_a_module_that_is_never_reached() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = nn.Linear(12, 3), nn.Linear(12, 3)

        def forward(self, x: Any) -> Any:
            return self.used(x)

    with pytest.raises(hl.ConfigError, match="the module 'spare' was not reached"):
        train(Spare(), losses=[stats.OrthogonalityLoss("spare")], unfreeze=None)
    fields = {"losses": [stats.OrthogonalityLoss("used")], "unfreeze": None}
    with pytest.raises(hl.ConfigError, match="ExplainedVariance: 'used' must be a TrainablePCA"):
        train(Spare(), metrics=[stats.ExplainedVariance("used")], **fields)


def test_metrics_are_of_all_pixels() -> None:
    model = fit(chain())
    result = train(
        model,
        max_epochs=1,
        lr=1e-9,
        losses=LOSSES,
        metrics=[
            stats.ExplainedVariance("pca1"),
            stats.ScoreStatistics("rx"),
            stats.ComponentOrthogonality("pca2"),
        ],
    )
    assert 0 < result.history["val_pca1_explained_variance"][0] <= 1
    assert result.history["val_pca2_orthogonality_error"][0] < 1e-5


def test_an_interrupted_fit_changes_nothing(monkeypatch: Any) -> None:
    from hotloop.training.run.watch import Watch

    monkeypatch.setattr(Watch, "is_over", property(lambda self: True))
    model = chain()
    fit(model)
    assert not model.minmax.is_fitted
    assert not model.minmax.statistics


def test_late_shares_are_no_map_yet(monkeypatch: Any) -> None:
    """Of a selector that this pass fits: what it makes of the data is a source of the next one."""
    found = passes(monkeypatch)
    model = sequential(
        select=stats.SoftChannelSelector(3, init="variance"), norm=stats.ZScoreNormalizerGlobal()
    )
    fit(model)
    assert found == [2]
    model.load_state_dict(model.state_dict())
    pixels = np.asarray(hl.predict(model, CUBES, outputs="select"), np.float64).reshape(-1, 12)
    np.testing.assert_allclose(model.norm.statistics["mean"], pixels.mean(0), rtol=1e-4)


def test_ranges_behind_a_negative_factor() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = stats.MinMaxNormalizer()

        def forward(self, x: Any) -> Any:
            return self.norm(1.0 - 2.0 * x)

    found = fit(Turned()).norm.statistics
    close([found["minimum"], found["maximum"]], [1 - 2 * PIXELS.max(), 1 - 2 * PIXELS.min()])


def test_a_fit_that_fails_changes_nothing() -> None:
    """In its second pass."""
    model = sequential(
        norm=stats.ZScoreNormalizerGlobal(),
        unit=stats.PerPixelUnitNorm(),
        rx=stats.RXGlobal(eps=0.0),
    )
    x = np.concatenate([CUBES, CUBES[..., :2]], -1)
    with pytest.raises(hl.DataError, match=r"rank 1[0-3] of 14"):
        fit(model, x)
    assert not model.norm.is_fitted
    assert not model.norm.mean.numpy().any()


@pytest.mark.parametrize(
    ("gpu", "flops", "float64_flops", "where"),
    [
        ("A100", 1000, 900, ""),
        ("H200", 1000, 900, ""),
        ("T4", 1000, 900, "float64 is slow on this GPU"),
        ("T4", 1000, 100, ""),  # a network before the sums
        ("A100", 70, 60, "sending the rows to the GPU would take longer"),
        ("T4", 70, 0, "sending the rows to the GPU would take longer"),
    ],
)
def test_a_pass_runs_where_it_takes_less_time(
    gpu: str, flops: float, float64_flops: float, where: str
) -> None:
    """A sample of 4 bytes, on GPUs by their descriptions, beside eight threads."""
    described, host = _core.Device("cuda", gpu=gpu), _core.Device("cpu", n_threads=8)
    device, why = device_of_statistics(described, host, flops, float64_flops, 4)
    assert why == where
    assert device is (host if where else described)
    assert device_of_statistics(host, host, flops, float64_flops, 4) == (host, "")


def test_a_pass_counts_what_it_would_compute(monkeypatch: Any) -> None:
    """Products of a sample, those of float64, and its bytes."""
    asked = []

    def noting(device: Any, host: Any, *work: float) -> Any:
        asked.append(work)
        return device_of_statistics(device, host, *work)

    monkeypatch.setattr(initialization, "device_of_statistics", noting)
    fit(sequential(n=stats.MinMaxNormalizer()))
    fit(sequential(n=stats.MinMaxNormalizer(), rx=stats.RXGlobal()))
    fit(sequential(up=nn.Linear(12, 50), relu=nn.ReLU(), n=stats.MinMaxNormalizer()))
    pixels = 6 * 5
    assert [n_bytes for _, _, n_bytes in asked] == [pixels * 12 * 4] * 3
    assert [flops / pixels for flops, _, _ in asked] == [0, 12 * 12, 2 * 12 * 50]
    assert [float64_flops / pixels for _, float64_flops, _ in asked] == [0, 12 * 12, 0]


def test_the_header_says_what_was_fitted_and_what_is_trained(capsys: Any) -> None:
    train(chain(), enable_progress_bar="auto", enable_model_summary=True, max_epochs=1)
    said = " ".join(capsys.readouterr().err.split())
    assert "statistics minmax, pca1, pca2 and rx by 1 pass over 24 rows on the CPU, " in said
    assert "model 128 parameters | data" in said  # of 148; it does not go on from weights
    assert "148 parameters, 20 of them frozen" in said
    hl.train(chain(), CUBES, quiet(max_epochs=0, enable_progress_bar="auto", accelerator="cpu"))
    assert "hotloop: fitted minmax, pca1, pca2 and rx by 1 pass" in capsys.readouterr().err
