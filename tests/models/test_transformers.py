"""Nets of the zoo that are made of attention: they learn in float32 and in bfloat16, and what they
refuse."""

from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import models
from models.small import SEQUENCES, TOKENS, WORDS, make_model, make_rows
from train.recipes import quiet

QUICK = ("bert", "deformable_encoder", "vit_tiny_patch16_224")


def separable(name: str, n: int) -> tuple[Any, Any]:
    """Rows whose class is in their brightness, or in one of their words."""
    x, y = make_rows(name, n)
    if name == "bert":
        x = np.where(x == 7, 8, x)
        x[np.arange(n), 1 + np.arange(n) % (TOKENS - 1)] = 7 + y
        return x, y
    return x * 0.3 + y[:, None, None, None], y


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("name", QUICK)
def test_they_learn(name: str, precision: str) -> None:
    hl.manual_seed(0)
    x, y = separable(name, 48)
    data = hl.DataModule.from_arrays(x, y, batch_size=16, val=None)
    rate = {"bert": 2e-3, "deformable_encoder": 3e-4}.get(name, 5e-4)
    config = quiet(
        max_epochs=20 if name == "bert" else 4, lr=rate, optimizer="adamw", precision=precision
    )
    losses = hl.train(make_model(name), data, config).history["loss"]
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("name", [name for name in SEQUENCES if name in QUICK])
def test_bfloat16_is_no_larger(name: str) -> None:
    """A step's memory in mixed precision: copies in 16 bits, and nothing in float32 twice."""
    data = hl.DataModule.from_arrays(*make_rows(name, 8), batch_size=8, val=None)
    peaks = [
        hl.plan(make_model(name), data, quiet(precision=precision)).peak_bytes
        for precision in ("32-true", "bf16-mixed")
    ]
    assert peaks[1] < 1.5 * peaks[0]


def test_padding_changes_nothing() -> None:
    """BERT on longer rows with a mask, and on the words alone."""
    model = make_model("bert")
    ids, _ = make_rows("bert", 3)
    longer = ids.copy()
    longer[:, 8:] = 0
    mask = (longer > 0).astype(np.int64)
    np.testing.assert_allclose(model(longer, mask), model(ids[:, :8]), rtol=1e-4, atol=1e-5)
    other = longer.copy()
    other[:, 8:] = 3
    np.testing.assert_allclose(model(longer, mask), model(other, mask), rtol=1e-4, atol=1e-5)


def test_a_tokenizers_dict_trains() -> None:
    x, y = separable("bert", 48)
    x[:, 10:] = 0
    parts = {"input_ids": x, "attention_mask": x > 0, "token_type_ids": np.zeros_like(x)}
    data = hl.DataModule.from_arrays(parts, y, batch_size=16, val=None)
    losses = hl.train(make_model("bert"), data, quiet(max_epochs=8, lr=2e-3)).history["loss"]
    assert losses[-1] < 0.9 * losses[0]


def test_the_row_of_padding_stays_zero() -> None:
    model = make_model("bert")
    x, y = make_rows("bert", 16)
    x[:, 5:] = 0
    assert not model.bert.embeddings.word_embeddings.weight.numpy()[0].any()
    hl.train(model, hl.DataModule.from_arrays(x, y, batch_size=8, val=None), quiet(max_epochs=1))
    table = model.bert.embeddings.word_embeddings.weight.numpy()
    assert not table[0].any()
    assert table[1:].any(1).all()


def test_the_frozen_part_of_the_encoder_is_not_trained() -> None:
    model = make_model("deformable_encoder")
    before = {k: v.copy() for k, v in model.state_dict().items()}
    data = hl.DataModule.from_arrays(*make_rows("deformable_encoder", 8), batch_size=4, val=None)
    hl.train(model, data, quiet(max_epochs=1, lr=1e-3))
    after = model.state_dict()
    body = "encoder.backbone.0.body."
    changed = {k for k, v in after.items() if not np.array_equal(v, before[k])}
    assert not {k for k in changed if k.startswith((f"{body}conv1", f"{body}layer1"))}
    assert not {k for k in changed if ".bn" in k}
    for part in ("layer2.0.conv1.weight", "layer4.2.conv3.weight"):
        assert body + part in changed
    assert "encoder.transformer.level_embed" in changed
    assert "encoder.transformer.encoder.layers.0.self_attn.sampling_offsets.weight" in changed


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: models.vit_tiny_patch16_224(img_size=50), "multiple of 16, got 50"),
        (lambda: models.bert(hidden_size=30, num_attention_heads=4), "multiple of num_attention"),
        (lambda: models.bert(hidden_act="swish"), "hidden_act must be one of gelu, .*got 'swish'"),
        (lambda: models.bert(hidden_size=-1), "hidden_size must"),
        (lambda: models.bert(replace_head=True), "goes with num_labels="),
        (lambda: models.bert(pad_token_id=90000), "padding_idx"),
        (lambda: models.deformable_encoder("vgg"), "backbone must be one of resnet18, resnet34"),
        (lambda: models.deformable_encoder(hidden_dim=40), "hidden_dim must be a multiple of 32"),
        (lambda: models.deformable_encoder(num_feature_levels=9), "must lie in 3 ... 8, got 9"),
        (lambda: make_model("vit_tiny_patch16_224")(np.ones((1, 3, 64, 64), "f")), "img_size= of"),
        (lambda: make_model("bert")(np.ones((1, 40), int)), "max_position_embeddings="),
        (lambda: make_model("bert")(np.full((1, 4), WORDS)), f"{WORDS}"),
        (lambda: make_model("bert")(np.ones(4, int)), r"must be \(N, tokens\), got \(4,\)"),
        (
            lambda: make_model("bert")(np.ones((2, 4), int), np.ones((2, 3), int)),
            r"attention_mask must have input_ids' shape \(2, 4\), got \(2, 3\)",
        ),
    ],
)
def test_what_they_refuse(make: Any, words: str) -> None:
    with pytest.raises((ValueError, IndexError), match=words):
        make()


@pytest.mark.parametrize(
    ("name", "last"), [("resnet18", 512), ("resnet34", 512), ("resnet50", 2048)]
)
def test_backbones_of_the_deformable_encoder(name: str, last: int) -> None:
    """Any ResNet's images, brought to one width; ``sizes`` says theirs for sides of any length."""
    sizes = {"hidden_dim": 32, "enc_layers": 1, "dim_feedforward": 16}
    model = models.deformable_encoder(name, **sizes, num_feature_levels=5)
    assert model.input_proj[2][0].weight.shape == (32, last, 1, 1)
    assert model.input_proj[3][0].weight.shape == (32, last, 3, 3)
    own = models.__dict__[name]().state_dict()
    body = {k: v for k, v in own.items() if not k.startswith("fc.")}
    model.backbone[0].body.load_state_dict(body)  # the norms' counts of batches are left out
    shape = model.sizes(70, 33)
    assert shape == ((9, 5), (5, 3), (3, 2), (2, 1), (1, 1))
    pixels = model(np.zeros((2, 3, 70, 33), np.float32))
    assert pixels.shape == (2, sum(height * width for height, width in shape), 32)


def test_norms_of_the_deformable_encoder() -> None:
    """Frozen ones stay; others move with the batches, where the stem and first stage are trained
    too by ``unfreeze``."""
    x, y = separable("deformable_encoder", 8)
    for frozen in (True, False):
        model = models.deformable_encoder(
            "resnet18", hidden_dim=32, enc_layers=1, dim_feedforward=16, frozen_norm=frozen
        )
        net = hl.nn.Sequential(model, hl.nn.Flatten(), hl.nn.Linear(32 * (16 + 4 + 1 + 1), 2))
        body = model.backbone[0].body
        before = {k: v.copy() for k, v in body.state_dict().items()}
        config = quiet(max_epochs=1, lr=1e-3, unfreeze=None if frozen else "0.backbone.*")
        hl.train(net, hl.DataModule.from_arrays(x, y, batch_size=4, val=None), config)
        moved = {k for k, v in body.state_dict().items() if (v != before[k]).any()}
        assert ("bn1.running_mean" in moved) is not frozen
        assert ("bn1.weight" in moved) is not frozen
        assert ("conv1.weight" in moved) is not frozen
        assert "layer2.0.conv1.weight" in moved
