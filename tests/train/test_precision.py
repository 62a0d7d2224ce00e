"""Mixed precision as users meet it: close to float32, scaled where it must be, honest about it."""

import re
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core, nn
from hotloop.training.plans import precision as precision_module
from train.recipes import classes, mlp, quiet, weights

MIXED = ("bf16-mixed", "16-mixed")
UNIT = {"bf16-mixed": 2.0**-8, "16-mixed": 2.0**-11}


def trained(precision: str, **fields: Any) -> tuple[hl.TrainResult, dict[str, Any]]:
    X, y = classes(256, 12, 4)
    data = hl.DataModule.from_arrays(X, y, val=0.25, batch_size=48)
    config = quiet(max_epochs=4, lr=0.02, optimizer="sgd", precision=precision, **fields)
    result = hl.train(mlp(12, 4, norm=True), data, config)
    return result, weights(result.model)


@pytest.mark.parametrize("precision", MIXED)
@pytest.mark.parametrize("fields", [{}, {"accumulate_grad_batches": 3}, {"gradient_clip_val": 0.5}])
def test_follows_float32(precision: str, fields: dict[str, Any]) -> None:
    """Rounding of operands, relative to the loss and to weights near 1, grown by 20 steps."""
    full, w32 = trained("32-true", **fields)
    reduced, w16 = trained(precision, **fields)
    allowed = 8 * UNIT[precision]
    np.testing.assert_allclose(reduced.history["loss"], full.history["loss"], rtol=allowed)
    np.testing.assert_allclose(reduced.history["val_loss"], full.history["val_loss"], rtol=allowed)
    assert any(w16[name].tobytes() != w32[name].tobytes() for name in w32), "nothing was rounded"
    for name in w32:
        np.testing.assert_allclose(w16[name], w32[name], rtol=0, atol=allowed)
    assert reduced.steps == full.steps
    assert reduced.skipped_steps == 0


@pytest.mark.parametrize("precision", MIXED)
def test_same_bits_again_and_at_any_number_of_threads(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, one = trained(precision)
    monkeypatch.setenv("HOTLOOP_NUM_THREADS", "1")
    _, again = trained(precision)
    assert all(one[name].tobytes() == again[name].tobytes() for name in one)


@pytest.mark.parametrize("isa", _core.cpu_info()["isa"])
def test_every_instruction_set(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTLOOP_CPU", isa)
    result, _ = trained("bf16-mixed")
    assert isa in result.device
    assert result.history["loss"][-1] < result.history["loss"][0]


def test_history_shows_the_scale() -> None:
    result, _ = trained("16-mixed")
    assert result.history["loss_scale"] == [65536.0] * 4
    assert result.history["skipped"] == [0.0] * 4
    assert "loss_scale" not in trained("bf16-mixed")[0].history


def test_a_stepper_scales_the_loss_as_train_does() -> None:
    data = hl.DataModule.from_arrays(*classes(64), batch_size=16)
    for precision, scale in (("16-mixed", 65536.0), ("bf16-mixed", 1.0)):
        step = hl.stepper(mlp(), quiet(precision=precision, max_epochs=1), data)
        control = step._runtime.session.control()
        assert (control["loss_scale"], control["scaling"]) == (scale, int(scale > 1))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_counts_as_agreement(dtype: str) -> None:
    """8 units of 1 + loss, and 32 units of the norm; what is not finite agrees with nothing."""
    unit = {"bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]
    loss, norm = 3.0, 0.5
    for sign in (-1, 1):
        for units, words in ((7.9, ""), (8.1, "the loss is")):
            got = (loss + sign * units * unit * (1 + loss), norm)
            assert words in precision_module._disagreement(dtype, got, (loss, norm))
            assert bool(words) == bool(precision_module._disagreement(dtype, got, (loss, norm)))
        for units, words in ((31.9, ""), (32.1, "the gradient norm is")):
            got = (loss, norm + sign * units * unit * norm)
            assert words in precision_module._disagreement(dtype, got, (loss, norm))
            assert bool(words) == bool(precision_module._disagreement(dtype, got, (loss, norm)))
    for bad in (np.nan, np.inf, -np.inf):
        assert "the loss" in precision_module._disagreement(dtype, (bad, norm), (loss, norm))
        assert "norm" in precision_module._disagreement(dtype, (loss, bad), (loss, norm))
        assert not precision_module._disagreement(dtype, (loss, norm), (bad, bad))


def test_overflow_skips_and_halves() -> None:
    """Inputs of 1e4 overflow float16's gradients at 2^16, not at what the scale comes down to."""
    X, y = classes(64, 6, 3)
    X = X * np.float32(2000.0)
    model = nn.Linear(6, 3)
    step = hl.stepper(
        model, quiet(max_epochs=9, lr=1e-6, optimizer="sgd", precision="16-mixed"), (X, y)
    )
    session = step._runtime.session
    session.control_set(loss_scale=2.0**30)
    data = hl.DataModule.from_arrays(X, y, val=None, batch_size=64)
    batch = next(iter(data.train_batches(0)))
    before = session.read("param", "float32").tobytes()
    first = step.step(batch)
    assert not first["applied"]
    assert first["step"] == 0
    assert session.read("param", "float32").tobytes() == before
    control = session.control()
    assert control["loss_scale"] == 2.0**29
    assert control["skipped"] == 1
    for _ in range(30):
        if step.step(batch)["applied"]:
            break
    control = session.control()
    assert control["applied"] == 1
    assert control["loss_scale"] == 2.0 ** (30 - control["skipped"])
    assert session.read("param", "float32").tobytes() != before
    lr = session.control_log(0)
    assert all(row[3] == lr[0][3] for row in lr), "the schedule stands still on skipped steps"
    session.control_set(good_steps=1999)
    assert step.step(batch)["applied"]
    assert session.control()["loss_scale"] == 2 * control["loss_scale"]


def test_scale_returns_the_gradients_of_float32() -> None:
    """A scale is a power of two: reported norms and clipping don't know of it."""
    X, y = classes(64, 6, 3)
    norms = []
    for precision in ("32-true", "16-mixed"):
        config = quiet(max_epochs=9, optimizer="sgd", precision=precision)
        data = hl.DataModule.from_arrays(X, y, val=None, batch_size=64)
        step = hl.stepper(mlp(), config, data)
        norms.append(step.step(next(iter(data.train_batches(0))))["grad_norm"])
    assert norms[1] == pytest.approx(norms[0], rel=4 * UNIT["16-mixed"])


def test_saved_and_loaded(tmp_path: Any) -> None:
    """Masters are float32: what a mixed run saves is what it has."""
    result, values = trained("bf16-mixed")
    path = tmp_path / "net.safetensors"
    result.save(path)
    loaded = hl.load(path)
    for name, value in loaded.state_dict().items():
        assert np.asarray(value, np.float64).tobytes() == values[name].tobytes()
    X, _ = classes(256, 12, 4)
    np.testing.assert_array_equal(hl.predict(loaded, X), hl.predict(result.model, X))


def test_goes_on_from_its_weights() -> None:
    X, y = classes(256, 12, 4)
    model = mlp(12, 4)
    config = quiet(max_epochs=2, lr=0.05, optimizer="sgd", precision="bf16-mixed")
    first = hl.train(model, (X, y), config)
    second = hl.train(model, (X, y), config)
    assert second.history["loss"][0] < first.history["loss"][0]


def test_plan_says_which_and_why() -> None:
    X, y = classes(256, 12, 4)
    text = hl.plan(mlp(12, 4, norm=True), (X, y), quiet(precision="bf16-mixed")).text
    assert "products in bfloat16, all else in float32" in text
    assert re.search(r"matmul.*\[(bfloat16|float32): product", text)
    assert re.search(r"control\..*state and updates stay float32", text) or "stay float32" in text
    assert "[" not in hl.plan(mlp(12, 4), (X, y), quiet(precision="32-true")).text


@pytest.mark.parametrize("precision", ["32-true", *MIXED])
def test_wrong_labels_are_named_by_row(precision: str) -> None:
    """The first batch is computed before training begins, but it is not where errors show."""
    X, y = classes(256, 12, 4)
    y[7] = 9
    data = hl.DataModule.from_arrays(X, y, val=None)
    with pytest.raises(hl.DataError, match="row 7"):
        hl.train(mlp(12, 4), data, quiet(precision=precision))


@pytest.mark.parametrize("isa", _core.cpu_info()["isa"])
def test_header_says_what_is_emulated(
    isa: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOTLOOP_CPU", isa)
    trained("bf16-mixed", enable_progress_bar="auto")
    words = " ".join(capsys.readouterr().err.split())
    assert ("bf16 products, emulated" in words) == (isa not in ("avx512bf16", "amx"))
    assert "fp32 for the rest" in words


def test_tf32_needs_a_gpu() -> None:
    X, y = classes()
    with pytest.raises(hl.ConfigError, match="'tf32' is a format of NVIDIA GPUs"):
        hl.train(mlp(), (X, y), quiet(precision="tf32"))


def test_evaluate_computes_as_the_configuration_says() -> None:
    X, y = classes(256, 12, 4)
    model = hl.train(mlp(12, 4), (X, y), quiet(max_epochs=1)).model
    full = hl.evaluate(model, (X, y), config=quiet(precision="32-true"))
    reduced = hl.evaluate(model, (X, y), config=quiet(precision="bf16-mixed"))
    assert reduced["loss"] != full["loss"]
    assert reduced["loss"] == pytest.approx(full["loss"], rel=8 * UNIT["bf16-mixed"])


# ---- "auto"


def large() -> tuple[nn.Module, tuple[Any, Any]]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((512, 160)).astype(np.float32)
    model = nn.Sequential(nn.Linear(160, 256), nn.ReLU(), nn.Linear(256, 3))
    return model, (X, np.arange(512) % 3)


has_bf16 = pytest.mark.skipif(
    "avx512bf16" not in _core.cpu_info()["isa"], reason="the processor has no avx512_bf16"
)


@pytest.mark.parametrize(("isa", "side"), [("avx512bf16", 128), ("amx", 64)])
def test_auto_takes_bf16_where_large_products_dominate(
    isa: str, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isa not in _core.cpu_info()["isa"]:
        pytest.skip(f"the processor has no {isa}")
    monkeypatch.setenv("HOTLOOP_CPU", isa)
    model, data = large()
    for rows, precision in ((side - 1, "32-true"), (side, "bf16-mixed")):
        batches = hl.DataModule.from_arrays(*data, val=None, batch_size=rows)
        result = hl.train(model, batches, quiet(precision="auto", max_epochs=1, limit_batches=2))
        assert result.config.precision == precision


@has_bf16
def test_a_stepper_takes_what_train_takes() -> None:
    X, y = large()[1]
    data = hl.DataModule.from_arrays(X, y, val=None, batch_size=256)
    config = quiet(precision="auto", max_epochs=1)
    trained, stepped = large()[0], large()[0]
    result = hl.train(trained, data, config)
    step = hl.stepper(stepped, config, data)
    assert step.config.precision == result.config.precision == "bf16-mixed"
    for batch in data.train_batches(0):
        step.step(batch)
    got, want = weights(step.sync()), weights(trained)
    assert all(got[name].tobytes() == want[name].tobytes() for name in want)


def test_auto_takes_float32_for_small_nets() -> None:
    X, y = classes()
    result = hl.train(mlp(), (X, y), quiet(precision="auto", max_epochs=1))
    assert result.config.precision == "32-true"


def test_auto_takes_float32_without_the_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTLOOP_CPU", "portable")
    model, data = large()
    data = hl.DataModule.from_arrays(*data, val=None, batch_size=256)
    result = hl.train(model, data, quiet(precision="auto", max_epochs=1))
    assert result.config.precision == "32-true"


@has_bf16
def test_auto_falls_back_when_the_check_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measure = precision_module._Probe.measure

    def wrong(self: Any, dtype: str) -> tuple[float, float, dict[str, Any]]:
        loss, norm, info = measure(self, dtype)
        return (loss, norm, info) if dtype == "float32" else (loss, norm * 1.5, info)

    monkeypatch.setattr(precision_module._Probe, "measure", wrong)
    model, data = large()
    data = hl.DataModule.from_arrays(*data, val=None, batch_size=256)
    result = hl.train(model, data, quiet(precision="auto", max_epochs=1))
    assert result.config.precision == "32-true"
    assert "fp32 instead of bf16, for on the first batch the gradient norm" in (
        capsys.readouterr().err
    )
    named = hl.train(model, data, quiet(precision="bf16-mixed", max_epochs=1))
    assert named.config.precision == "bf16-mixed"
    assert "warning: precision 'bf16-mixed': on the first batch" in capsys.readouterr().err


def test_the_check_tries_one_step_at_each_scale(capsys: pytest.CaptureFixture[str]) -> None:
    """A first scale that overflows is halved, and float32 has the masks of the same step."""
    X, y = classes(64, 6, 3)
    model = nn.Sequential(nn.Linear(6, 32), nn.Dropout(0.5), nn.Linear(32, 3))

    def loss(output: Any, target: Any) -> Any:
        return 64.0 * nn.functional.cross_entropy(output, target)

    config = quiet(precision="16-mixed", max_epochs=1, loss=loss)
    result = hl.train(model, (X, y), config)
    assert result.skipped_steps > 0  # so that the check met overflows, too
    assert "precision" not in capsys.readouterr().err


@has_bf16
def test_the_check_leaves_no_trace() -> None:
    """The same bits as a run that was told: same masks, same batches, same statistics."""
    values = []
    for precision in ("auto", "bf16-mixed"):
        rng = np.random.default_rng(0)
        X = rng.standard_normal((512, 160)).astype(np.float32)
        model = nn.Sequential(
            nn.Linear(160, 256), nn.BatchNorm1d(256), nn.Dropout(0.2), nn.Linear(256, 3)
        )
        data = hl.DataModule.from_arrays(X, np.arange(512) % 3, val=None, batch_size=256)
        result = hl.train(model, data, quiet(precision=precision, max_epochs=2))
        assert result.config.precision == "bf16-mixed"
        values.append(weights(result.model))
    assert all(values[0][name].tobytes() == values[1][name].tobytes() for name in values[0])
