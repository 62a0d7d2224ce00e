"""Text as ids: vocabularies, windows and the ids behind them, spans, wrong input."""

import json
import os
import tracemalloc
from pathlib import Path

import hotloop as hl
import numpy as np
import pytest
from hotloop.data.strides import series_of
from hotloop.errors import ConfigError, DataError
from needs import take_library

TEXT = "Grüße aus Köln: 1 + 1 = 2 — 😀\nund noch eine Zeile.\r\n" * 30


def make(n: int = 500, length: int = 8, **options: object) -> hl.DataModule:
    """A text of n characters, of which the i-th is chr(i + 40)."""
    text = "".join(chr(i + 40) for i in range(n))
    return hl.DataModule.from_text(text, length, tokenizer="characters", **options)


# ---- vocabularies


@pytest.mark.parametrize("kind", ["bytes", "characters"])
def test_text_comes_back(kind: str) -> None:
    data = hl.DataModule.from_text(TEXT, 10, tokenizer=kind)
    known = data.vocabulary
    assert known.decode(known.encode(TEXT)) == TEXT
    x = np.concatenate([batch["x"] for batch in data.batches_in_order("train")])
    y = np.concatenate([batch["y"] for batch in data.batches_in_order("train")])
    ids = known.encode(TEXT)
    n = (len(ids) - 1) // 10
    np.testing.assert_array_equal(x.reshape(-1), ids[: 10 * n])
    np.testing.assert_array_equal(y.reshape(-1), ids[1 : 10 * n + 1])
    assert x.dtype == y.dtype == np.int64
    assert data.n_classes == len(known) == (256 if kind == "bytes" else len(set(TEXT)))
    assert data.classes == (None if kind == "bytes" else sorted(set(TEXT)))


def test_bytes_of_a_file_are_mapped_and_others_are_small(tmp_path: Path) -> None:
    content = np.random.default_rng(0).bytes(2_000_000) * 20
    (tmp_path / "x.bin").write_bytes(content)
    hl.DataModule.from_text("warm up " * 100, 8)
    tracemalloc.start()
    data = hl.DataModule.from_text(tmp_path / "x.bin", 256, val=0.1, batch_size=4)
    batch = next(data.batches_in_order("val"))
    data.check_labels("train", 256)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < len(content) / 2  # a block of those that are checked has row numbers
    begin = int(data.rows("val")[0])
    np.testing.assert_array_equal(batch["x"][0], list(content[begin : begin + 256]))
    for n_kinds, dtype in [(250, "uint8"), (300, "int16"), (40_000, "int32")]:
        text = "".join(chr(i + 57_344 * (i > 55_000) + 1) for i in range(n_kinds))
        many = hl.DataModule.from_text(text * 2, 4, tokenizer="characters")
        assert many.split("train").fields[0].array.dtype == dtype
        assert many.vocabulary.decode(many.vocabulary.encode(text)) == text


def test_windows_are_views(tmp_path: Path) -> None:
    data = make(stride=1)
    x, y = data.split("train").fields
    (first, window), (second, other) = series_of(x.array), series_of(y.array)
    assert window == other == 8
    assert np.shares_memory(first, second)


def test_a_tokenizers_file(tmp_path: Path) -> None:
    tokenizers = take_library("tokenizers")
    words = {word: i for i, word in enumerate(["[UNK]", "to", "be", "or", "not", ","])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "words.json"))
    text = "to be, or not to be " * 20
    for given in (tmp_path / "words.json", str(tmp_path / "words.json"), tokenizer):
        data = hl.DataModule.from_text(text, 7, tokenizer=given)
        batch = next(data.batches_in_order("train"))
        np.testing.assert_array_equal(batch["x"][0], [1, 2, 5, 3, 4, 1, 2])
        np.testing.assert_array_equal(batch["y"][0], [2, 5, 3, 4, 1, 2, 1])
        assert data.n_classes == 6
        assert data.vocabulary.decode([1, 2, 3]) == "to be or"
        np.testing.assert_array_equal(data.vocabulary.encode("be mine"), [2, 0])
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=500)
    tokenizer.save(str(tmp_path / "words.json"))
    data = hl.DataModule.from_text(text, 7, tokenizer=tmp_path / "words.json")
    assert len(data.vocabulary.encode(text)) == 140  # the whole text, and nothing else
    for name, off in (("truncation", tokenizer.no_truncation), ("padding", tokenizer.no_padding)):
        message = rf"without {name}, got .*call tokenizer.no_{name}"
        with pytest.raises(hl.ConfigError, match=message):
            hl.DataModule.from_text(text, 7, tokenizer=tokenizer)
        off()
    (tmp_path / "bad.json").write_text(json.dumps({"version": "1.0"}))
    with pytest.raises(DataError, match=r"tokenizer: '.*bad.json' is no file of tokenizers \("):
        hl.DataModule.from_text(text, 7, tokenizer=tmp_path / "bad.json")


def test_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("äb".encode("latin-1"))
    (tmp_path / "b.txt").write_bytes(b"cd" * 20)
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    data = hl.DataModule.from_text(paths, 4, tokenizer="characters", encoding="latin-1")
    assert data.vocabulary.decode([3, 0]) == "äb"
    assert data.vocabulary.tokens == ["b", "c", "d", "ä"]
    raw = hl.DataModule.from_text(str(tmp_path / "*.txt").replace("*", "b"), 4)
    assert raw.vocabulary.decode(raw.split("train").fields[0].array[0]) == "cdcd"
    both = hl.DataModule.from_text(paths, 4)
    np.testing.assert_array_equal(both.split("train").fields[0].array[0], list(b"\xe4bcd"))
    own = hl.DataModule.from_text(paths[1], 4, val=paths[1], tokenizer="characters")
    assert len(own.rows("val")) == 9
    with pytest.raises(
        DataError, match=r"val: '.*a.txt': characters must be those of the training"
    ):
        hl.DataModule.from_text(
            paths[1], 1, val=paths[0], tokenizer="characters", encoding="latin-1"
        )


# ---- spans


@pytest.mark.parametrize("stride", [None, 1, 3])
@pytest.mark.parametrize("gap", [0, 5])
def test_windows_lie_in_their_spans(stride: int | None, gap: int) -> None:
    data = make(500, 8, stride=stride, val=0.2, test=60, gap=gap)
    test, val = 500 - 60, 500 - 60 - gap - 100
    for name, begin, end in (("train", 0, val - gap), ("val", val, val + 100), ("test", test, 500)):
        rows = data.rows(name)
        np.testing.assert_array_equal(rows, np.arange(begin, end - 8, stride or 8))
        batches = list(data.batches_in_order(name))
        x, y = (np.concatenate([batch[key] for batch in batches]) for key in "xy")
        np.testing.assert_array_equal(x, rows[:, None] + np.arange(8))
        np.testing.assert_array_equal(y, x + 1)
        assert y.max() < end


def test_folds_walk_forward() -> None:
    data = make(500, 8, stride=2, test=50, gap=3)
    latest = 0
    for fold in data.folds(4):
        train, val = fold.arrays("train"), fold.arrays("val")
        ids = {c: i for i, c in enumerate(data.classes)}
        ends = np.array([[ids[c] for c in row] for row in train[1]])
        begins = val[0].min()
        assert ends.max() + 3 < begins
        assert begins > latest
        latest = val[0].max()
        np.testing.assert_array_equal(fold.rows("test"), data.rows("test"))
    assert latest < 450 - 3
    some = data.subset(10)
    assert len(some) == 10
    with pytest.raises(ConfigError, match="split: windows of a text share ids with their neigh"):
        data.fold(0, 2, split="random")


@pytest.mark.parametrize("stride", [1, 3, 8])
def test_counts_of_classes(stride: int) -> None:
    text = "abracadabra " * 30
    data = hl.DataModule.from_text(text, 8, stride, tokenizer="characters", val=40)
    counts = np.zeros(len(data.vocabulary), int)
    for batch in data.batches_in_order("train"):
        counts += np.bincount(batch["y"].reshape(-1), minlength=len(counts))
    assert data.class_counts() == counts.tolist()
    assert "classes" in data.describe()


def test_trains_and_names_its_characters(tmp_path: Path) -> None:
    text = "the quick brown fox jumps over the lazy dog. " * 60
    data = hl.DataModule.from_text(text, 16, 4, tokenizer="characters", val=0.1, batch_size=32)
    n = len(data.vocabulary)
    model = hl.models.gpt(vocab_size=n, block_size=16, n_layer=1, n_head=2, n_embd=32)
    result = hl.train(model, data, max_epochs=6, lr=1e-2, enable_progress_bar=False)
    losses = list(result.history["val_loss"])
    assert losses[-1] < 0.5 * losses[0]
    ids = hl.generate(result.model, data.vocabulary.encode("the qui")[None], 2, temperature=0.0)
    assert data.vocabulary.decode(ids[0])[-2:] == "ck"
    result.save(tmp_path / "gpt.safetensors")
    loaded = hl.load(tmp_path / "gpt.safetensors")
    window = data.vocabulary.encode(text[:16])[None]
    named = hl.predict(loaded, window, labels=True)
    assert "".join(named[0])[10:14] == text[11:15]


def test_shakespeare() -> None:
    folder = os.environ.get("HOTLOOP_DATA")
    path = Path(folder or "none") / "tinyshakespeare.txt"
    if not path.is_file():
        pytest.skip("HOTLOOP_DATA is not set to a folder with tinyshakespeare.txt")
    data = hl.DataModule.from_text(path, 256, tokenizer="characters", val=0.1)
    assert len(data.vocabulary) == 65
    text = path.read_text(encoding="utf-8")
    held = data.rows("val")
    x, _ = data.arrays("val")
    assert data.vocabulary.decode(x[3]) == text[held[3] : held[3] + 256]


# ---- wrong input


def test_wrong_input(tmp_path: Path) -> None:
    (tmp_path / "bad.txt").write_bytes(b"good \xff bad" * 9)
    (tmp_path / "empty.txt").write_bytes(b"")
    for source, options, words in [
        ("none.txt", {}, "source: there is no file 'none.txt'"),
        ("texts/part", {}, "source: there is no file 'texts/part'"),
        (str(tmp_path / "none*.txt"), {}, "source: no file matches the pattern '.*none"),
        ("no text", {}, r"source: must have more ids than a window of 8, got 7; .* \(there is no"),
        ("to be or not to be", {"val": "none.txt"}, "val: there is no file 'none.txt'"),
        ("", {}, "source: must have more ids than a window of 8, got 0"),
        (tmp_path / "none.txt", {}, "source: there is no file '.*none.txt'"),
        (tmp_path / "empty.txt", {}, "source: must have more ids than a window of 8, got 0"),
        (tmp_path, {}, "source: '.*' is a folder"),
        (b"bytes", {}, "source: must be a text, a path or a list of paths, got bytes b'bytes'"),
        (tmp_path / "bad.txt", {"tokenizer": "characters"},
         r"source: '.*bad.txt' must be text in utf-8, got byte 0xff at 5; write encoding="),
        (TEXT, {"val": 3}, "val: its 3 ids hold no window of 8 and the id behind it"),
        (TEXT, {"val": 0.5, "test": 0.5}, "val and test: leave no id of .* to train on"),
        (TEXT, {"val": 10**6}, "val: 1000000 rows were asked for, there are"),
    ]:  # fmt: skip
        with pytest.raises(DataError, match=words):
            hl.DataModule.from_text(source, 8, **options)
    for options, words in [
        ({"length": 0}, "length: must be at least 1, got 0"),
        ({"stride": 0}, "stride: must be at least 1, got 0"),
        ({"tokenizer": "words"}, "tokenizer: must be 'bytes', 'characters', a file of the library"),
        ({"tokenizer": 3}, "tokenizer: must be 'bytes', 'characters', a file of the library"),
        ({"gap": 3}, "gap: is between splits, got gap=3 without val or test"),
        ({"val": np.arange(5)}, "val: must be a fraction or a number of ids, or a path"),
        ({"val": True}, "val: must be a fraction"),
        ({"sampler": "balanced"}, "sampler: 'balanced' needs one class for each row in y"),
        ({"random_state": 3}, "there is no option 'random_state'; write seed="),
    ]:
        with pytest.raises(ConfigError, match=words):
            hl.DataModule.from_text(TEXT, **{"length": 8, **options})
    (tmp_path / "latin.txt").write_bytes(b"abc" * 9)
    with pytest.raises(ConfigError, match="encoding: must name an encoding of text, got 'klingon'"):
        hl.DataModule.from_text(
            tmp_path / "latin.txt", 8, tokenizer="characters", encoding="klingon"
        )


def test_wrong_ids_and_characters() -> None:
    known = make(50).vocabulary
    with pytest.raises(DataError, match="text: characters must be those of the training text, got"):
        known.encode("()~")
    with pytest.raises(DataError, match="ids: must be from 0 to 49, got 50"):
        known.decode([1, 50])
    with pytest.raises(DataError, match="ids: must be from 0 to 49, got -1"):
        known.decode([-1])
    with pytest.raises(DataError, match="ids: must be integers, got dtype float64"):
        known.decode([1.5])
    with pytest.raises(DataError, match="text: must be a text, got int 3"):
        known.encode(3)
    assert known.decode([]) == ""
