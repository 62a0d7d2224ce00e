"""examples/cape: its flags and first lines, size, resuming, step-by-step prediction, wrong input,
and that it finds keypoints of categories that it never saw."""

import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import models, nn
from train.recipes import same_bits

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "cape"
PARTS = ("cape", "model", "poses")
TINY = (
    "--categories", "4", "2", "2", "--pictures", "4", "--image_size", "32", "--batch_size", "2",
    "--queries", "2", "--episodes", "8", "--epochs", "1", "--device", "cpu", "--no-use_amp",
)  # fmt: skip


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The example's modules."""
    monkeypatch.syspath_prepend(FOLDER)
    for name in PARTS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    import cape
    import model
    import poses

    yield types.SimpleNamespace(cape=cape, model=model, poses=poses)
    for name in PARTS:
        sys.modules.pop(name, None)


def run(*flags: str, folder: Path, limit_s: int = 300) -> tuple[str, str]:
    """What the program says on stdout and stderr; it must end well and warn of nothing."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(FOLDER / "cape.py"), *flags],
        cwd=folder, capture_output=True, text=True, timeout=limit_s,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr


def score_of(text: str) -> float:
    return float(re.search(r"never trained on: ([\d.]+)", text).group(1))


def make(example: Any, *flags: str) -> tuple[Any, Any, Any]:
    """Flags, a model and data in miniature."""
    read = example.cape.read_flags([*TINY, *flags])
    made = example.poses.make_poses(
        sum(read.categories), read.pictures, read.image_size, read.seed, read.points
    )
    data = example.cape.make_data(*made, read.categories, read)
    return read, example.cape.make_model(read), data


def shake(model: Any) -> None:
    """Values that are not those of the start, by which points move in all layers."""
    rng = np.random.default_rng(0)
    state = {}
    for name, value in model.state_dict().items():
        noise = np.float32(0.05) * rng.standard_normal(value.shape, np.float32)
        noise = abs(noise) if name.endswith("running_var") else noise
        state[name] = value + noise if value.dtype == np.float32 else value
    model.load_state_dict(state)


# ---- the program


def test_it_runs(tmp_path: Path) -> None:
    """A line each for what users look for, a checkpoint an epoch, a picture; and it goes on."""
    text, said = run(*TINY, folder=tmp_path)
    lines = said.splitlines()
    first = lines.index("Using device: cpu")
    assert lines[first + 1] == "Mixed precision training (AMP) disabled"
    assert any(re.match(r"epoch 1/1 .* val_pck [\d.]+", line) for line in lines)
    assert 0 <= score_of(text) <= 1
    folder = tmp_path / "runs" / "cape" / "1"
    assert [path.name for path in folder.glob("checkpoints/step-*")] == [
        "step-000000004.safetensors"
    ]
    picture = (folder / "poses.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    run(*TINY, "--epochs", "2", "--resume", "runs/cape", folder=tmp_path)
    assert os.listdir(tmp_path / "runs" / "cape") == ["1"]
    steps = sorted(path.name for path in folder.glob("checkpoints/step-*"))
    assert steps == ["step-000000004.safetensors", "step-000000008.safetensors"]


@pytest.mark.extra
def test_the_picture_can_be_read(example: Any, tmp_path: Path) -> None:
    from needs import take_library

    image = take_library("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)
    example.poses.write_png(tmp_path / "a.png", pixels)
    np.testing.assert_array_equal(np.asarray(image.open(tmp_path / "a.png")), pixels)


FLAGS = [
    (("--use_amp",), "precision", "auto", "auto"),
    (("--no-use_amp",), "precision", "auto", "32-true"),
    (("--cudnn_benchmark",), "benchmark", True, True),
    (("--no-cudnn_benchmark",), "benchmark", True, False),
    (("--cudnn_deterministic",), "deterministic", False, True),
    (("--no-cudnn_deterministic",), "deterministic", False, False),
    (("--device", "cpu"), "accelerator", "auto", "cpu"),
    (("--device", "cuda"), "accelerator", "auto", "gpu"),
    (("--device", "cuda:1"), "devices", "auto", (1,)),
    (("--accumulation_steps", "3"), "accumulate_grad_batches", 1, 3),
    (("--seed", "7"), "seed", 0, 7),
    (("--lr", "0.01"), "lr", 5e-4, 0.01),
    (("--clip_max_norm", "0.5"), "gradient_clip_val", 1.0, 0.5),
    (("--epochs", "3"), "max_epochs", 10, 3),
    (("--scheduler", "warm_restarts"), "scheduler", "cosine", None),
    (("--output_dir", "here"), "output_dir", "runs/cape", "here"),
]


@pytest.mark.parametrize(("given", "field", "default", "want"), FLAGS)
def test_flags_of_training(
    example: Any, given: tuple[str, ...], field: str, default: Any, want: Any
) -> None:
    def config_of(*flags: str) -> Any:
        return example.cape.make_config(example.cape.read_flags(flags), None)

    assert getattr(config_of(), field) == default
    found = config_of(*given)
    if field == "scheduler":
        assert found.scheduler_config.name == "warm_restarts"
    else:
        assert getattr(found, field) == want


def test_flags_of_model_and_data(example: Any) -> None:
    _, model, data = make(example, "--batch_size", "1", "--queries", "3", "--num_workers", "1")
    assert (data.batch_size, data.num_workers) == (1, 1)
    batch = data.example_batch()
    assert batch["x.query"] == ("float32", (1, 3, 3, 32, 32))
    assert model.sizes == ((4, 4), (2, 2), (1, 1), (1, 1))
    config = example.cape.make_config(example.cape.read_flags(["--lr_backbone", "1e-5"]), data)
    (group,) = config.param_groups
    assert (group.params, group.lr) == (("encoder.backbone.*",), 1e-5)
    full = example.cape.read_flags(["--model", "full"])
    config = example.cape.make_config(full, data)
    assert (config.accumulate_grad_batches, config.gradient_clip_val) == (4, 0.1)
    assert (config.lr, config.param_groups[0].lr, config.weight_decay) == (1e-4, 1e-5, 1e-4)
    assert (config.early_stopping.patience, config.monitor) == (20, "val_pck")
    assert (full.image_size, full.batch_size, full.queries, full.epochs) == (256, 2, 2, 300)
    with pytest.raises(SystemExit):
        example.cape.read_flags(["--learning_rate", "1"])


@pytest.mark.parametrize(
    ("epochs", "want"), [(300, (200, 250)), (100, (66, 83)), (12, (8, 10)), (1, (1,))]
)
def test_the_rate_falls_twice_however_long_it_trains(
    example: Any, epochs: int, want: tuple[int, ...]
) -> None:
    read = example.cape.read_flags(["--scheduler", "multistep", "--epochs", str(epochs)])
    assert example.cape.make_schedule(read).milestones == want


def test_windows_are_accumulated_and_the_last_is_short(example: Any) -> None:
    """Four batches of an epoch in windows of 3 and 1."""
    read, model, data = make(example, "--accumulation_steps", "3")
    config = example.cape.make_config(read, data).replace(**QUIET)
    assert hl.train(model, data, config).steps == 2


def test_accumulated_batches_have_one_backward_pass(example: Any) -> None:
    """Losses with denominators of their own would have one each."""
    read, model, data = make(example)
    config = example.cape.make_config(read, data)
    work = [hl.plan(model, data, config, accumulate_grad_batches=k).info["flops"] for k in (1, 4)]
    assert work[1] < 1.05 * work[0]


# ---- the model


def test_size_of_the_whole(example: Any) -> None:
    """48 to 50 million parameters are trained; the stem and the first stage are not, no norm of the
    backbone is, and it has a learning rate of its own."""
    model = example.cape.make_model(example.cape.read_flags(["--model", "full"]))
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert 48e6 <= sum(p.numel() for p in trained.values()) <= 50e6
    own = [name for name in trained if name.startswith("encoder.backbone.")]
    assert own
    assert all(re.search(r"\.layer[234]\.", name) for name in own)
    assert not any("bn" in name or "downsample.1" in name for name in own)
    assert len(model.layers) == 6
    assert model.words.words.weight.shape == (2000, 256)
    assert model.places.weight.shape == (200, 256)


def test_numbers_of_the_whole(example: Any) -> None:
    """Layers, heads, levels, points, sizes and dropout are those of the system as published."""
    model = example.cape.make_model(example.cape.read_flags(["--model", "full"]))
    encoder, support = model.encoder.transformer.encoder.layers, model.support.layers
    assert (len(encoder), len(support), len(model.layers)) == (6, 3, 6)
    assert model.sizes == ((32, 32), (16, 16), (8, 8), (4, 4))
    of_images = [*(layer.self_attn for layer in encoder), *(layer.image for layer in model.layers)]
    for attention in of_images:
        numbers = attention.d_model, attention.n_heads, attention.n_levels, attention.n_points
        assert numbers == (256, 8, 4, 4)
        assert attention.sampling_offsets.weight.shape == (8 * 4 * 4 * 2, 256)
    assert {layer.linear1.weight.shape for layer in encoder} == {(1024, 256)}
    assert {layer.linear1.weight.shape for layer in support} == {(2048, 256)}
    assert {layer.maps[0].weight.shape for layer in model.layers} == {(2048, 256)}
    assert {(a.num_heads, a.dropout) for a in (layer.self_attn for layer in support)} == {(8, 0.1)}
    of_tokens = [own for layer in model.layers for own in (layer.before, layer.support)]
    assert {(own.heads, own.dropout) for own in of_tokens} == {(8, 0.1)}
    drops = [own for own in model.modules() if isinstance(own, nn.Dropout)]
    # Three of each layer of the encoder and of the support's, two of the decoder's, which has one
    # for all of its attentions.
    assert len(drops) == 3 * 6 + 3 * 3 + 2 * 6
    assert {own.p for own in drops} == {0.1}
    norms = [own for own in model.modules() if isinstance(own, nn.GroupNorm)]
    assert [own.num_groups for own in norms] == [32] * 4
    assert all(layer.types.weight.shape == (3, 256) for layer in model.layers)
    maps = [m for m in model.layers[0].points if isinstance(m, nn.Linear)]
    assert [m.weight.shape for m in maps] == [(256, 256), (256, 256), (2, 256)]


def test_the_losses_are_those_of_their_definition(example: Any) -> None:
    """In NumPy and float64, point by point: cross-entropy with a weight of 20 for the end, five
    times the distance of points that support and query have, and the sum of all six layers."""
    # As the model's own, but written down here: a change of one must show.
    point, hidden, end, ignored, start, unknown = 0, 1, 2, -100, 44 * 44, 44 * 44 + 1
    model = example.model.Cape(
        width=32, heads=8, encoder_layers=1, support_layers=1, decoder_layers=6, positions=8,
        encoder_hidden=24, decoder_hidden=40, dropout=0.0, image_size=32, noise=0.0,
        backbone="resnet18",
    )  # fmt: skip
    shake(model)
    rng = np.random.default_rng(0)
    query = rng.uniform(0, 255, (2, 2, 3, 32, 32)).astype(np.float32)
    support = rng.uniform(0, 1, (2, 1, 7, 3)).astype(np.float32)
    goal = rng.uniform(0, 1, (2, 2, 7, 3)).astype(np.float32)
    support[..., 2] = goal[..., 2] = 1
    support[0, 0, 5:, 2] = 0  # a support of five points
    support[1, 0, 1, 2] = 0  # one that the support does not show,
    goal[:, :, 3, 2] = 0  # and one that no query does
    x = {"query": query, "support_y": support}

    goals, supports = goal.reshape(4, 7, 3), np.repeat(support, 2, 1).reshape(4, 7, 3)
    kinds, before = np.full((4, 8), ignored), np.zeros((4, 8, 3), np.float32)
    before[:, 0, 2] = start
    for i in range(4):
        length = 5 if i < 2 else 7
        for t in range(8):
            is_point = t < 7 and goals[i, t, 2] and supports[i, t, 2]
            if t <= length:
                kinds[i, t] = end if t == length else point if is_point else hidden
            if t < 7:
                before[i, t + 1] = *goals[i, t, :2], 0 if is_point else unknown
    assert (kinds == ignored).sum() == 4
    assert (kinds == hidden).sum() == 6

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Any, before: Any) -> Any:
            return self.model.decode(before, self.model.remember(x))

    class Losses(Layers):
        def forward(self, x: Any, y: Any) -> Any:
            return self.model.training_step({"x": x, "y": y})

    weight = np.array([1.0, 1.0, 20.0])
    of_types = of_points = 0.0
    layers = Layers()(x, before)
    assert len(layers) == 6
    for logits, found in layers:
        logits = np.float64(logits)
        shares = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        loss = total = apart = n_points = 0.0
        for i, t in np.argwhere(kinds != ignored):
            loss -= weight[kinds[i, t]] * shares[i, t, kinds[i, t]]
            total += weight[kinds[i, t]]
            if kinds[i, t] == point:
                apart += np.abs(np.float64(found[i, t]) - goals[i, t, :2]).sum()
                n_points += 1
        of_types += loss / total
        of_points += apart / n_points
    found = Losses()(x, goal)
    assert set(found) == {"types", "points"}
    assert found["types"] == pytest.approx(of_types, rel=1e-5)
    assert found["points"] == pytest.approx(5 * of_points, rel=1e-5)


def test_backbones_from_files(example: Any, tmp_path: Path) -> None:
    resnet = models.resnet18()
    shake(resnet)
    hl.save(resnet, tmp_path / "resnet.safetensors")
    flags = example.cape.read_flags([*TINY, "--weights", str(tmp_path / "resnet.safetensors")])
    body = example.cape.make_model(flags).encoder.backbone[0].body
    want = {name: v for name, v in resnet.state_dict().items() if not name.startswith("fc.")}
    assert same_bits(body.state_dict(), want)


def test_points_one_by_one_are_those_of_a_whole_pass(example: Any) -> None:
    """With the cache a position costs one position, and what it sees is the same."""
    _, model, data = make(example, "--episodes", "16")
    shake(model)
    x = next(data.val_batches())["x"]
    x["support_y"][0, 0, 8:] = 0  # supports of several lengths, and a point that is not there
    x["support_y"][1, 0, 2] = 0
    finder = example.model.Finder(model)
    found = finder(x)
    np.testing.assert_array_equal(finder(x), found)
    images, count = found.shape[:2]
    before = np.zeros((images, count + 1, 3), np.float32)
    before[:, 0, 2] = example.model.START
    for i in range(count):
        types, points = model(x, before)
        before[:, i + 1, :2] = points[:, i]
        is_hidden = types[:, i].argmax(-1) == example.model.HIDDEN
        before[:, i + 1, 2] = np.where(is_hidden, example.model.UNKNOWN, 0)
    last = np.flatnonzero(x["support_y"][..., 2].any((0, 1)))[-1]
    np.testing.assert_allclose(found[:, : last + 1], before[:, 1 : last + 2, :2], atol=1e-5)
    assert np.ptp(found[:, : last + 1], 1).min() > 1e-3  # they are not one point


def test_points_are_mixed_of_four_cells(example: Any) -> None:
    """On a cell its own vector, between two their mean, at the far edge the last; or a word."""
    table = example.model.PointEmbedding(3)
    rows, grid = table.words.weight.numpy(), example.model.GRID
    points = np.array([[[2, 5], [2.5, 5], [2.25, 5.5], [grid - 1, grid - 1], [7, 7]]], np.float32)
    word = np.array([[0, 0, 0, 0, 1937]])
    made = table(points / np.float32(grid - 1), word)[0]
    at = lambda x, y: rows[y * grid + x]  # noqa: E731
    want = [
        at(2, 5), (at(2, 5) + at(3, 5)) / 2,
        0.375 * (at(2, 5) + at(2, 6)) + 0.125 * (at(3, 5) + at(3, 6)), at(grid - 1, grid - 1),
        rows[1937],
    ]  # fmt: skip
    np.testing.assert_allclose(made, want, rtol=1e-4, atol=1e-4)


def test_every_layer_has_its_losses(example: Any) -> None:
    """All layers' heads get a gradient; a leaf that is left out leaves its head without one, a leaf
    that is none is refused."""
    read, _, data = make(example)
    config = example.cape.make_config(read, data).replace(**QUIET)

    class Types(example.model.Cape):
        def training_step(self, batch: Any) -> Any:
            return {"types": super().training_step(batch)["types"]}

    class Constant(example.model.Cape):
        def training_step(self, batch: Any) -> Any:
            return super().training_step(batch) | {"extra": hl.zeros(())}

    class Nothing(example.model.Cape):
        def training_step(self, batch: Any) -> Any:
            return {}

    own = example.cape.SMALL | {"image_size": 32, "positions": 13}
    with pytest.warns(hl.ModelWarning, match=r"layers.1.points.0.weight.* get no gradient"):
        hl.train(Types(**own), data, config)
    with pytest.raises(hl.TraceError, match="extra"):
        hl.train(Constant(**own), data, config)
    with pytest.raises(hl.TraceError, match="training_step"):
        hl.train(Nothing(**own), data, config)


# ---- stopping and going on

QUIET = {
    "enable_progress_bar": False, "verbose": "auto", "callbacks": (), "monitor": "val_loss",
    "mode": "min", "logger": None, "enable_checkpointing": False, "output_dir": None,
    "save_every": None,
}  # fmt: skip


def test_a_run_that_was_stopped_goes_on_with_the_same_bits(example: Any, tmp_path: Path) -> None:
    """After an epoch, or in the middle of one, with gradients of several batches a step."""

    def train(name: str, resume: Any = None, **stops: Any) -> Any:
        folder = tmp_path / name
        read, model, data = make(
            example, "--epochs", "2", "--accumulation_steps", "2", "--output_dir", str(folder)
        )
        config = example.cape.make_config(read, data)
        callbacks = (*config.callbacks, *((hl.LambdaCallback(**stops),) if stops else ()))
        config = config.replace(
            enable_progress_bar=False, callbacks=callbacks,
            freeze="encoder.backbone.0.body.layer4.*", unfreeze=None,  # for smaller files
        )  # fmt: skip
        return hl.train(model, data, config, resume=resume)

    def stop_within(run: Any) -> None:
        if run.step == 3:
            run.stop()

    whole = train("whole")
    assert whole.steps == 4
    for name, steps, stops in (
        ("after", 2, {"on_epoch_end": lambda run: run.stop()}),
        ("within", 3, {"on_train_batch_end": stop_within}),
    ):
        cut = train(name, **stops)
        assert (cut.stop_reason, cut.steps) == ("interrupted", steps)
        result = train(name, resume=tmp_path / name)
        assert same_bits(result.model.state_dict(), whole.model.state_dict())
        assert (result.best_score, result.best_epoch) == (whole.best_score, whole.best_epoch)
        for column in ("loss", "types", "points", "val_loss", "val_pck", "lr"):
            assert result.history[column] == whole.history[column], column


# ---- data


def test_figures_are_what_their_points_say(example: Any) -> None:
    images, points, categories = example.poses.make_poses(6, 5, 48, seed=3)
    again = example.poses.make_poses(6, 5, 48, seed=3)
    assert all((a == b).all() for a, b in zip((images, points, categories), again))
    assert (images != example.poses.make_poses(6, 5, 48, seed=4)[0]).any()
    seen = points[..., 2] > 0
    assert ((points[seen][:, :2] > 0) & (points[seen][:, :2] < 1)).all()
    counts = [int(seen[categories == i].any(0).sum()) for i in range(6)]
    assert len(set(counts)) > 1
    assert all(5 <= n <= 12 for n in counts)
    # Pixels at the points differ from the background, which is smooth: from those at the corners'
    # mix by more than noise.
    rows, at = np.nonzero(seen)
    x, y = (points[rows, at, :2] * 48).astype(int).T
    joint = images[rows, :, y, x].astype(float)
    background = np.median(images.reshape(len(images), 3, -1), 2)[rows]
    assert np.mean(abs(joint - background).max(1) > 40) > 0.8


def test_unseen_categories_are_those_that_are_scored(example: Any) -> None:
    read = example.cape.read_flags([*TINY, "--episodes", "80"])
    images, points, categories = example.poses.make_poses(8, 4, 32, 0, 12)
    images[:] = categories[:, None, None, None]
    data = example.cape.make_data(images, points, categories, read.categories, read)
    for batches, want in (
        (data.train_batches(), {0, 1, 2, 3}),
        (data.val_batches(), {4, 5}),
        (data.test_batches(), {6, 7}),
    ):
        assert {int(v) for b in batches for v in np.unique(b["x"]["query"])} == want


def test_the_score_is_that_of_its_definition(example: Any) -> None:
    """By hand: near is below a fifth of the box's longer side; what one of them lacks is none."""
    _, _, data = make(example, "--episodes", "32")
    batches = list(data.val_batches())
    for batch in batches:
        batch["x"]["support_y"][0, 0, 1, 2] = 0
    rng = np.random.default_rng(0)
    moved = [
        example.cape.goals_of(b)[..., :2] + rng.normal(0, 0.1, (4, 12, 2)).astype(np.float32)
        for b in batches
    ]
    shares = []
    for batch, found in zip(batches, moved):
        support = np.repeat(batch["x"]["support_y"], 2, 1).reshape(4, 12, 3)
        for i, goal in enumerate(batch["y"].reshape(4, 12, 3)):
            counts = (goal[:, 2] > 0) & (support[i, :, 2] > 0)
            side = np.ptp(goal[counts, :2], 0).max()
            off = np.hypot(*(found[i] - goal[:, :2])[counts].T)
            shares.append((off < 0.2 * side).mean())
    given = iter(moved)
    assert example.cape.score(lambda x: next(given), batches) == pytest.approx(np.mean(shares))
    assert 0.05 < np.mean(shares) < 0.95


@pytest.mark.parametrize(
    ("flags", "change", "words"),
    [
        (
            ("--pictures", "2"), lambda images, points: None,
            r"train: each category must have 3 rows at least, 1 for the support and 2 for queries, "
            r"got 2 of category 0, 2 of category 1, 2 of category 2 and 2 of category 3; take",
        ),
        (
            (), lambda images, points: points.__setitem__((5, 2), (1.2, 0.5, 1)),
            r"points: must lie in the image, .* got \[1.2 0.5\] for point 2 of image 5",
        ),
        (
            (), lambda images, points: points.__setitem__(7, 0),
            "points: each image must have one to be seen at least, got none for image 7",
        ),
        (
            (), lambda images, points: points.__setitem__((3, 1, 0), np.nan),
            "nan",
        ),
    ],
)  # fmt: skip
def test_wrong_data(example: Any, flags: tuple[str, ...], change: Any, words: str) -> None:
    read = example.cape.read_flags([*TINY, *flags])
    images, points, categories = example.poses.make_poses(8, read.pictures, 32, 0, 12)
    change(images, points)
    with pytest.raises(hl.DataError, match=words):
        example.cape.make_data(images, points, categories, read.categories, read).check("train")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda them: them.astype(str),
            r"numbers from 0 to 7, .* got '0' for image 0; number them by",
        ),
        (
            lambda them: them + 1,
            "numbers from 0 to 7, .* got 8 for image 28; give --categories whose",
        ),
        (
            lambda them: np.minimum(them, 5),
            "2 to validate and 2 to test, got no image of 6 to 7; give",
        ),
        (lambda them: [8, *them[1:]], "got 8 for image 0"),
    ],
)
def test_wrong_categories(example: Any, change: Any, words: str) -> None:
    read = example.cape.read_flags(TINY)
    images, points, categories = example.poses.make_poses(8, read.pictures, 32, 0, 12)
    with pytest.raises(hl.DataError, match=rf"^categories: must be .*{words}"):
        example.cape.make_data(images, points, change(categories), read.categories, read)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--categories", "4", "0", "2"), "argument --categories: must be 1 at least, got 0"),
        (("--episodes", "0"), "argument --episodes: must be 1 at least, got 0"),
        (("--epochs", "many"), "argument --epochs: invalid count value: 'many'"),
    ],
)
def test_wrong_flags(example: Any, flags: tuple[str, ...], words: str, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        example.cape.read_flags([*TINY, *flags])
    assert words in capsys.readouterr().err


def test_fewer_points_than_a_figure_has(example: Any) -> None:
    with pytest.raises(ValueError, match=r"points: must be 12 at least, .* got 3; give"):
        example.poses.make_poses(8, 4, 32, 0, 3)


@pytest.mark.parametrize("episodes", [1, 7, 8, 16])
def test_few_episodes_are_validated_and_scored_all_the_same(example: Any, episodes: int) -> None:
    _, _, data = make(example, "--episodes", str(episodes))
    sizes = [len(data.rows(name)) for name in ("train", "val", "test")]
    assert sizes == [episodes, max(episodes // 8, 1), max(episodes // 4, 1)]


# ---- learning


@pytest.mark.long
def test_it_learns_in_two_minutes(tmp_path: Path) -> None:
    """To place the keypoints of categories that it never saw."""
    flags = ("--device", "cpu", "--epochs", "5")
    assert score_of(run(*flags, folder=tmp_path, limit_s=1800)[0]) >= 0.5


@pytest.mark.long
@pytest.mark.skipif(not os.environ.get("HOTLOOP_PROOF"), reason="make proof trains to the end")
def test_it_finds_keypoints_of_new_categories(tmp_path: Path) -> None:
    assert score_of(run("--device", "cpu", folder=tmp_path, limit_s=6000)[0]) >= 0.6
