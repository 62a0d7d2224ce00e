"""Vision transformers, BERT and the deformable encoder against their twins: names, logits from the
same weights, one training step's gradients; deformable attention against its composition."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from needs import take_library

torch = take_library("torch")

import hotloop as hl  # noqa: E402
from hotloop import models, nn  # noqa: E402
from hotloop.nn import functional as F  # noqa: E402
from parity import sequence_zoo as twins  # noqa: E402
from parity import zoo  # noqa: E402
from parity.twins import check_twins, copy_weights, shake  # noqa: E402

from benchmarks import cape_torch  # noqa: E402


def load(model: nn.Module, twin: Any) -> None:
    """The same values into both, by the same names in the same order."""
    state = zoo.random_state(twin)
    assert list(model.state_dict()) == list(state)
    twin.load_state_dict({k: torch.from_numpy(v) for k, v in state.items()})
    model.load_state_dict(state)


def check_logits(got: Any, want: Any) -> None:
    want = want.numpy()
    scale = abs(want).max()
    assert scale > 1e-2
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * scale)


@pytest.mark.parametrize(
    ("name", "options"),
    [("tiny", {}), ("small", {"img_size": 64}), ("base", {"img_size": 48, "num_classes": 7})],
)
def test_vit(name: str, options: dict[str, int]) -> None:
    model = getattr(models, f"vit_{name}_patch16_224")(**options)
    twin = twins.make_vit(name, **options).eval()
    load(model, twin)
    side = options.get("img_size", 224)
    x = np.random.default_rng(1).standard_normal((2, 3, side, side)).astype("float32")
    with torch.no_grad():
        check_logits(model(x), twin(torch.from_numpy(x)))


def tokens(n: int, rows: int, words: int) -> tuple[Any, Any, Any]:
    """Ids, of which some at the end are padding, the mask, and parts."""
    rng = np.random.default_rng(1)
    ids = rng.integers(1, words, (n, rows))
    mask = np.arange(rows) < rng.integers(rows // 2, rows + 1, (n, 1))
    parts = (np.arange(rows) > rows // 3) & mask
    return ids * mask, mask.astype(np.int64), parts.astype(np.int64)


@pytest.mark.parametrize("sizes", [(97, 48, 3, 4, 80), (300, 768, 2, 12, 3072)], ids=str)
def test_bert(sizes: tuple[int, ...]) -> None:
    model, twin = models.bert(*sizes), twins.Bert(*sizes).eval()
    load(model, twin)
    given = tokens(3, 11, sizes[0])
    with torch.no_grad():
        last, summary = twin(*(torch.from_numpy(x) for x in given))
    made = model(*given)
    check_logits(made["last_hidden_state"], last)
    check_logits(made["pooler_output"], summary)
    ids, mask, parts = given
    by_name = model({"input_ids": ids, "attention_mask": mask, "token_type_ids": parts})
    np.testing.assert_array_equal(by_name["pooler_output"], made["pooler_output"])
    plain, ones = model(ids), np.ones_like(ids)
    with torch.no_grad():
        arguments = (torch.from_numpy(x) for x in (ids, ones, np.zeros_like(ids)))
        check_logits(plain["last_hidden_state"], twin(*arguments)[0])


def test_bert_of_a_file(tmp_path: Path) -> None:
    """Names of old versions, of pretraining, of a head."""
    sizes = (97, 48, 2, 4, 80)
    twin = twins.Bert(*sizes)
    state = zoo.random_state(twin)
    old = {
        "bert."
        + k.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): torch.from_numpy(v)
        for k, v in state.items()
    }
    old["bert.embeddings.position_ids"] = torch.arange(512)[None]
    old["cls.predictions.bias"] = torch.zeros(97)
    torch.save(old, tmp_path / "a.bin")
    model = models.bert(*sizes, weights=tmp_path / "a.bin", strip_prefix="bert.")
    for key, value in model.state_dict().items():
        np.testing.assert_array_equal(value, state[key], key)
    classes = models.bert(*sizes, num_labels=3, weights=tmp_path / "a.bin", replace_head=True)
    for key, value in classes.state_dict().items():
        if not key.startswith("classifier."):
            np.testing.assert_array_equal(value, state[key.removeprefix("bert.")], key)
    assert classes(*tokens(2, 7, 97)).shape == (2, 3)
    with pytest.raises(ValueError, match="replace_head=True keeps the head of classifier new"):
        models.bert(*sizes, num_labels=3, weights=tmp_path / "a.bin")
    with pytest.raises(ValueError, match="goes with num_labels="):
        models.bert(*sizes, weights=tmp_path / "a.bin", replace_head=True)


def test_deformable_encoder(tmp_path: Path) -> None:
    model, twin = models.deformable_encoder(), cape_torch.DeformableEncoder().eval()
    load(model, twin)
    x = np.random.default_rng(1).standard_normal((2, 3, 64, 96)).astype("float32")
    with torch.no_grad():
        check_logits(model(x), twin(torch.from_numpy(x)))
    others = {"transformer.decoder.layers.0.norm1.weight": torch.ones(3), "class_embed.0.bias":
              torch.ones(2), "query_embed.weight": torch.ones(4)}  # fmt: skip
    torch.save({"model": {**twin.state_dict(), **others}}, tmp_path / "a.pth")
    again = models.deformable_encoder(weights=tmp_path / "a.pth")
    np.testing.assert_array_equal(again(x), model(x))


# ---------------------------------------------------------------------------- gradients


def test_a_step_of_vit() -> None:
    model, twin = (
        models.vit_tiny_patch16_224(5, img_size=32),
        twins.make_vit("tiny", num_classes=5, img_size=32),
    )
    load(model, twin)
    x = np.random.default_rng(1).standard_normal((2, 3, 32, 32))
    check_twins(model, model, twin, twin, [x], training=True, rtol=1e-7)


def test_a_step_of_bert() -> None:
    sizes = (97, 48, 2, 4, 80)
    model = models.bert(*sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    twin = twins.Bert(*sizes)
    load(model, twin)

    def call(*given: Any) -> Any:
        made = model(*given)
        return made["last_hidden_state"], made["pooler_output"]

    check_twins(call, model, twin, twin, list(tokens(3, 11, 97)), training=True, rtol=1e-7)


def test_a_step_of_the_deformable_encoder() -> None:
    """Places are of float32 in both, each rounded in its own way."""
    model = models.deformable_encoder(
        hidden_dim=64, enc_layers=2, dim_feedforward=96, dropout=0.0, train_backbone=False
    )
    twin = cape_torch.DeformableEncoder(64, 96, 2)
    load(model, twin)
    x = np.random.default_rng(1).standard_normal((1, 3, 32, 48))
    check_twins(model, model, twin, twin, [x], training=True, rtol=1e-5)


SHAPES = ((5, 7), (3, 2), (1, 4))
N_PIXELS = sum(h * w for h, w in SHAPES)


def places(*shape: int) -> Any:
    return np.random.default_rng(3).uniform(-0.2, 1.2, shape)


def test_deformable_attention_is_its_composition() -> None:
    rng = np.random.default_rng(2)
    value = rng.standard_normal((2, N_PIXELS, 3, 6))
    at, weights = places(2, 9, 3, 3, 4, 2), rng.standard_normal((2, 9, 3, 3, 4))
    check_twins(
        lambda v, p, w: F.multi_scale_deformable_attention(v, SHAPES, p, w), None,
        lambda v, p, w: cape_torch.deformable_core(v, SHAPES, p, w), None,
        [value, at, weights],
    )  # fmt: skip


def test_deformable_attention_is_that_of_grid_sample() -> None:
    """hotloop's own composition, beside the op."""
    rng = np.random.default_rng(2)
    value = rng.standard_normal((2, N_PIXELS, 3, 6)).astype("float32")
    at = places(2, 9, 3, 3, 4, 2).astype("float32")
    weights = rng.standard_normal((2, 9, 3, 3, 4)).astype("float32")
    total, begin = 0.0, 0
    for i, (h, w) in enumerate(SHAPES):
        image = value[:, begin : begin + h * w].transpose(0, 2, 3, 1).reshape(6, 6, h, w)
        grid = 2 * at[:, :, :, i].transpose(0, 2, 1, 3, 4).reshape(6, 9, 4, 2) - 1
        taken = np.asarray(F.grid_sample(image, grid)).reshape(2, 3, 6, 9, 4)
        total = total + np.einsum("nmdqp,nqmp->nqmd", taken, weights[:, :, :, i])
        begin += h * w
    got = F.multi_scale_deformable_attention(value, SHAPES, at, weights)
    np.testing.assert_allclose(got, np.reshape(total, (2, 9, 18)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_made_before", [False, True])
@pytest.mark.parametrize("has_sizes", [False, True])
@pytest.mark.parametrize("has_mask", [False, True])
def test_deformable_attention_layer(has_sizes: bool, has_mask: bool, is_made_before: bool) -> None:
    """Of pixels, or of the values that were made of them before."""
    model = nn.MultiScaleDeformableAttention(12, 3, 2, 4)
    twin = cape_torch.DeformableAttention(12, 3, 2, 4)
    assert list(model.state_dict()) == list(twin.state_dict())
    shake(model, np.random.default_rng(0))
    copy_weights(model, twin)
    rng = np.random.default_rng(4)
    points = rng.uniform(0, 1, (2, 9, 3, 4 if has_sizes else 2))
    mask = [rng.random((2, N_PIXELS)) < 0.3] if has_mask else []
    query, pixels = rng.standard_normal((2, 9, 12)), rng.standard_normal((2, N_PIXELS, 12))
    inputs = [query, points, pixels, *mask]

    def call(q: Any, p: Any, x: Any, *m: Any) -> Any:
        return (
            model(q, p, model.values(x, *m), SHAPES)
            if is_made_before
            else model(q, p, x, SHAPES, None, *m)
        )

    check_twins(
        call, model,
        lambda q, p, x, *m: twin(q, p, x, SHAPES, *m), twin,
        inputs,
    )  # fmt: skip


def test_values_of_deformable_attention_have_no_mask() -> None:
    model = nn.MultiScaleDeformableAttention(12, 3, 2, 4)
    query, points = np.zeros((2, 9, 12), "f"), np.zeros((2, 9, 3, 2), "f")
    mask = np.zeros((2, N_PIXELS), bool)
    with pytest.raises(hl.ShapeError, match="goes with pixels, got values of them; give it to"):
        model(query, points, np.zeros((2, N_PIXELS, 2, 6), "f"), SHAPES, None, mask)
    with pytest.raises(hl.ShapeError, match="input_flatten must be"):
        model(query, points, np.zeros((2, N_PIXELS, 3, 4), "f"), SHAPES)


def test_initial_values_of_deformable_attention() -> None:
    """As the authors': offsets in as many directions as heads, one pixel further for each place."""
    state = nn.MultiScaleDeformableAttention(32, 2, 8, 3).state_dict()
    turn = torch.arange(8, dtype=torch.float32) * (2.0 * np.pi / 8)
    grid = torch.stack([turn.cos(), turn.sin()], -1)
    grid = (grid / grid.abs().max(-1, keepdim=True)[0]).view(8, 1, 1, 2).repeat(1, 2, 3, 1)
    for i in range(3):
        grid[:, :, i] *= i + 1
    got = state["sampling_offsets.bias"]
    np.testing.assert_allclose(got, grid.view(-1).numpy(), rtol=1e-6, atol=1e-6)
    for name in ("sampling_offsets.weight", "attention_weights.weight", "attention_weights.bias"):
        assert not state[name].any()
    for name in ("value_proj", "output_proj"):
        bound = np.sqrt(6 / 64)
        weight = state[f"{name}.weight"]
        assert 0.9 * bound < abs(weight).max() <= bound
        assert not state[f"{name}.bias"].any()


def test_what_deformable_attention_refuses() -> None:
    value, at = np.ones((1, N_PIXELS, 2, 4), "float32"), np.ones((1, 3, 2, 3, 1, 2), "float32")
    weights = np.ones((1, 3, 2, 3, 1), "float32")
    f = F.multi_scale_deformable_attention
    with pytest.raises(hl.errors.ShapeError, match=r"\(N, 45, heads, width\).*got value \(1, 44"):
        f(value[:, 1:], SHAPES, at, weights)
    with pytest.raises(hl.errors.ShapeError, match=r"must be \(1, queries, 2, 3, places, 2\)"):
        f(value, SHAPES, at[..., :1], weights)
    with pytest.raises(hl.errors.ShapeError, match="the same without the last dim"):
        f(value, SHAPES, at, weights[..., None])
    with pytest.raises(hl.errors.ConfigError, match=r"\(height, width\) of each image, got \[3\]"):
        f(value, [3], at, weights)
    with pytest.raises(hl.errors.ShapeError, match="1 to 8 images of 1 pixel or more"):
        f(value, ((0, 5),), at, weights)
