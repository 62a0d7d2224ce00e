"""save and load: the same predictions without the class, and damaged files that are refused."""

import json
import random
import struct
from pathlib import Path

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.interop.safetensors_file import make_header, read_safetensors
from hotloop.training.result import saving
from train.recipes import classes, mlp, quiet, regression, same_bits

X, Y = classes()


class Two(nn.Module):
    """Two inputs by name, a normalisation, two outputs."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(10, 3)

    def forward(self, x):
        return self.head(hl.cat([self.norm(x["values"]), self.table(x["id"])], 1))


def fitted(kind: str):
    """A trained model and inputs."""
    if kind == "classes":
        names = np.array(["ant", "bee", "cat"])[Y]
        model, data = mlp(norm=True, dropout=0.3), (X, names)
    elif kind == "columns":
        ids = np.arange(90) % 7
        model, data = Two(), ({"values": X, "id": ids}, Y)
    elif kind == "values":
        model, data = nn.Linear(5, 2), regression(60, k=2)
    else:
        model = mlp(norm=True)
        data = hl.DataModule.from_arrays(X * 50 + 7, Y, batch_size=32, standardize=True)
        hl.train(model, data, quiet(max_epochs=2, lr=1e-2))
        return model, X * 50 + 7
    hl.train(model, data, quiet(max_epochs=2, lr=1e-2))
    return model, data[0]


@pytest.mark.parametrize("kind", ["classes", "columns", "values", "standardized"])
def test_round_trip(kind: str, tmp_path: Path) -> None:
    model, inputs = fitted(kind)
    path = tmp_path / "net.safetensors"
    hl.save(model, path)
    loaded = hl.load(path)
    assert same_bits(loaded.state_dict(), model.state_dict())
    for value in loaded.state_dict().values():
        with pytest.raises(hl.ConfigError, match="is read-only"):
            value[...] = 0
    assert same_bits(loaded.state_dict(), model.state_dict())
    np.testing.assert_allclose(
        hl.predict(loaded, inputs), hl.predict(model, inputs), rtol=1e-5, atol=1e-6
    )
    if kind == "classes":
        assert list(hl.predict(loaded, inputs, labels=True)) == list(
            hl.predict(model, inputs, labels=True)
        )
        np.testing.assert_allclose(
            hl.predict(loaded, inputs, proba=True), hl.predict(model, inputs, proba=True), atol=1e-6
        )


class Constants(nn.Module):
    """An attention mask, infinite numbers in every place, and a table too large for a header."""

    table = np.random.default_rng(0).standard_normal((6, 5000)).astype(np.float32)

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 36)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        scores = self.inner(x).reshape(-1, 6, 6)
        future = hl.tensor(np.triu(np.ones((6, 6), bool), 1))
        x = hl.softmax(scores.masked_fill(future, -np.inf), 2).mean(1)
        limits = np.array([1, np.inf] * 3, np.float32)
        x = hl.minimum(x, hl.tensor(limits)) + hl.maximum(x, -hl.tensor(limits)) + hl.ones(6)
        x = x.clamp(max=np.inf) * 0.5 + hl.tensor([0.5]) - hl.tensor([np.float32(0.5)])
        padded = nn.functional.pad(x, (0, 2), value=-np.inf).max(1).values
        return self.head(nn.functional.gelu(x + padded.reshape(-1, 1))) + (
            (x @ hl.tensor(self.table)).mean(1, keepdim=True)
        )


@pytest.fixture(scope="module")
def with_constants(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    model = Constants()
    hl.train(model, (X, Y), quiet(max_epochs=1))
    path = tmp_path_factory.mktemp("constants") / "model.safetensors"
    hl.save(model, path)
    return model, path


def test_constants_are_tensors_of_the_file(with_constants) -> None:
    """Arrays once each, whatever the number of graphs and places that use them; infinite ones too.

    Numbers stay in the header, so that other tools find the usual models' own tensors alone.
    """
    from safetensors.numpy import load_file

    model, path = with_constants
    loaded = hl.load(path)
    np.testing.assert_allclose(hl.predict(loaded, X), hl.predict(model, X), rtol=1e-5, atol=1e-6)
    assert loaded.state_dict().keys() == model.state_dict().keys()
    tensors = load_file(path)
    constants = {k: v for k, v in tensors.items() if k.startswith("hotloop.constant.")}
    assert tensors.keys() - constants.keys() == model.state_dict().keys()
    contents = [(v.dtype, v.shape, v.tobytes()) for v in constants.values()]
    assert len(contents) == len(set(contents))
    assert Constants.table.nbytes in map(len, (content for _, _, content in contents))
    assert all(v.ndim for v in constants.values())
    assert any(np.isinf(v).any() for v in constants.values())
    size = struct.unpack("<Q", path.read_bytes()[:8])[0]
    assert size < 30_000  # the header holds none of them
    again = Constants()
    assert again.load_state_dict(tensors) == ([], [])
    assert same_bits(again.state_dict(), model.state_dict())


def test_a_file_of_the_former_format(with_constants, tmp_path: Path) -> None:
    """It has its constants in the header."""
    from safetensors.numpy import load_file

    _, path = with_constants
    tensors = load_file(path)

    def as_format_1(described):
        described["format"] = 1
        for graph in described["graphs"]:
            for leaf in graph["leaves"]:
                if leaf["kind"] == "const" and "tensor" in leaf:
                    leaf["value"] = tensors[leaf.pop("tensor")].ravel().tolist()
        return described

    (tmp_path / "then").write_bytes(with_description(path.read_bytes(), as_format_1))
    now, then = (hl.predict(hl.load(file), X) for file in (path, tmp_path / "then"))
    np.testing.assert_array_equal(now, then)


@pytest.mark.parametrize(
    ("key", "value"), [("tensor", "nobody"), ("shape", [7]), ("dtype", "int64"), ("tensor", 5)]
)
def test_a_constant_that_does_not_fit_is_refused(with_constants, key, value, tmp_path) -> None:
    def change(described):
        leaf = next(e for e in described["graphs"][0]["leaves"] if "tensor" in e)
        leaf[key] = value
        return described

    (tmp_path / "bad").write_bytes(with_description(with_constants[1].read_bytes(), change))
    with pytest.raises(hl.CheckpointError):
        hl.load(tmp_path / "bad")


class Scaled(nn.Module):
    """A parameter and, in its norm, a buffer that have no dims."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.scale = nn.Parameter(np.float32(1.5))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.norm(x)) * self.scale


def test_numbers_keep_their_shape(tmp_path: Path) -> None:
    model, again = Scaled(), Scaled()
    hl.train(model, (X, Y), quiet(max_epochs=1))
    hl.save(model, tmp_path / "a")
    loaded = hl.load(tmp_path / "a")
    assert loaded.state_dict()["scale"].shape == ()
    again.load_state_dict(loaded.state_dict())
    assert same_bits(again.state_dict(), model.state_dict())
    np.testing.assert_allclose(hl.predict(loaded, X), hl.predict(model, X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [0, 1, 2, 90, 256, 257, 600])
def test_any_number_of_rows(n: int, tmp_path: Path) -> None:
    model, inputs = fitted("classes")
    rows = np.resize(inputs, (n, 6))
    hl.save(model, tmp_path / "a")
    got = hl.predict(hl.load(tmp_path / "a"), rows)
    np.testing.assert_allclose(got, hl.predict(model, rows), rtol=1e-5, atol=1e-6)


def test_saving_again_gives_the_same_bytes(tmp_path: Path) -> None:
    model, _ = fitted("classes")
    hl.save(model, tmp_path / "a")
    hl.save(model, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_safetensors_reads_it(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    model, _ = fitted("classes")
    hl.save(model, tmp_path / "a.safetensors")
    read = load_file(tmp_path / "a.safetensors")
    assert same_bits(dict(sorted(read.items())), dict(sorted(model.state_dict().items())))


@pytest.mark.parametrize("kind", ["classes", "columns", "values"])
def test_tensors_are_aligned(kind: str, tmp_path: Path) -> None:
    """The header's length, blanks included, is a multiple of 8, and tensors follow without gaps."""
    model, _ = fitted(kind)
    hl.save(model, tmp_path / "a")
    content = (tmp_path / "a").read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    assert length % 8 == 0
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__")
    at = 0
    for name, value in model.state_dict().items():
        assert header[name]["data_offsets"] == [at, at + value.nbytes]
        assert content[8 + length + at :][: value.nbytes] == value.tobytes()
        at += value.nbytes
    assert len(content) == 8 + length + at


def test_untrained_model_has_values_only(tmp_path: Path) -> None:
    model = mlp()
    hl.save(model, tmp_path / "a")
    with pytest.raises(hl.CheckpointError, match="untrained"):
        hl.load(tmp_path / "a")


def test_cannot_write(tmp_path: Path) -> None:
    model, _ = fitted("classes")
    with pytest.raises(hl.CheckpointError):
        hl.save(model, tmp_path / "no" / "such" / "folder")
    (tmp_path / "folder").mkdir()
    with pytest.raises(hl.CheckpointError):
        hl.save(model, tmp_path / "folder")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(hl.CheckpointError):
        hl.load(tmp_path / "none")
    assert issubclass(hl.CheckpointError, OSError)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a good file."""
    model, _ = fitted("classes")
    path = tmp_path_factory.mktemp("saved") / "good"
    hl.save(model, path)
    return path.read_bytes()


def refuse(path: Path, data: bytes) -> None:
    """The file is refused as such, or is a model that predicts: nothing else."""
    path.write_bytes(data)
    try:
        model = hl.load(path)
        hl.predict(model, X[:3])
    except hl.HotloopError:
        return
    except ValueError as error:  # proba of a class list that lost its names, say
        raise AssertionError(f"not one of hotloop's errors: {error!r}") from error


def test_truncated(saved: bytes, tmp_path: Path) -> None:
    """Cut at every 97th byte and around each boundary."""
    header = 8 + struct.unpack("<Q", saved[:8])[0]
    cuts = {*range(0, len(saved), 97), *range(12), header - 1, header, header + 1, len(saved) - 1}
    for cut in sorted(cuts):
        path = tmp_path / "cut"
        path.write_bytes(saved[:cut])
        with pytest.raises(hl.CheckpointError):
            hl.load(path)


def test_longer(saved: bytes, tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_bytes(saved + b"x")
    with pytest.raises(hl.CheckpointError):
        hl.load(path)


def with_description(saved: bytes, change) -> bytes:
    """The file with its metadata changed."""
    size = struct.unpack("<Q", saved[:8])[0]
    header = json.loads(saved[8 : 8 + size])
    described = json.loads(header["__metadata__"]["hotloop"])
    described = change(described)
    header["__metadata__"]["hotloop"] = (
        described if isinstance(described, str) else json.dumps(described)
    )
    metadata = header.pop("__metadata__")
    del metadata["crc32"]
    return make_header(metadata, header) + saved[8 + size :]


def set_at(place: list, value):
    """A change that puts a value at a place of the description, or removes it (...)."""

    def change(described):
        at = described
        for key in place[:-1]:
            at = at[key]
        if value is ...:
            del at[place[-1]]
        else:
            at[place[-1]] = value
        return described

    return change


DAMAGE = {
    "no json": lambda d: "{",
    "a list": lambda d: [],
    "a number": lambda d: 7,
    "null": lambda d: None,
    "format": set_at(["format"], 99),
    "no graphs": set_at(["graphs"], ...),
    "graphs null": set_at(["graphs"], None),
    "graphs a number": set_at(["graphs"], 5),
    "no fitted": set_at(["fitted"], ...),
    "fitted null": set_at(["fitted"], None),
    "no fields": set_at(["fitted", "fields"], ...),
    "fields null": set_at(["fitted", "fields"], None),
    "batch a text": set_at(["graphs", 0, "batch"], "many"),
    "batch negative": set_at(["graphs", 0, "batch"], -1),
    "batch 0": set_at(["graphs", 0, "batch"], 0),
    "batch huge": set_at(["graphs", 0, "batch"], 2**62),
    "no nodes": set_at(["graphs", 0, "nodes"], []),
    "nodes null": set_at(["graphs", 0, "nodes"], None),
    "unknown op": set_at(["graphs", 0, "nodes", 0, "op"], "system"),
    "op a list": set_at(["graphs", 0, "nodes", 0, "op"], []),
    "internal op": set_at(["graphs", 0, "nodes", 0, "op"], "assign"),
    "input unknown": set_at(["graphs", 0, "nodes", 0, "inputs"], [10**6]),
    "inputs texts": set_at(["graphs", 0, "nodes", 0, "inputs"], ["a"]),
    "too many inputs": set_at(["graphs", 0, "nodes", 0, "inputs"], [0] * 1000),
    "outputs too many": set_at(["graphs", 0, "nodes", 0, "outputs"], [1, 2, 3, 4]),
    "attrs null": set_at(["graphs", 0, "nodes", 0, "attrs"], None),
    "attr unknown": set_at(["graphs", 0, "nodes", 0, "attrs"], {"evil": 1}),
    "no leaves": set_at(["graphs", 0, "leaves"], []),
    "leaf kind": set_at(["graphs", 0, "leaves", 0, "kind"], "thing"),
    "leaf shape": set_at(["graphs", 0, "leaves", 0, "shape"], [-5]),
    "leaf shape huge": set_at(["graphs", 0, "leaves", 0, "shape"], [2**62, 2**62]),
    "leaf shape text": set_at(["graphs", 0, "leaves", 0, "shape"], "abc"),
    "leaf dtype": set_at(["graphs", 0, "leaves", 0, "dtype"], "complex64"),
    "leaf name": set_at(["graphs", 0, "leaves", 1, "name"], "nobody"),
    "outputs unknown": set_at(["graphs", 0, "outputs"], [10**9]),
    "outputs texts": set_at(["graphs", 0, "outputs"], ["x"]),
    "out spec": set_at(["graphs", 0, "out"], {"dict": 5}),
    "cache no text": set_at(["fitted", "autotune_cache"], "\ud800"),
    "cache a list": set_at(["fitted", "autotune_cache"], ["a = b"] * 3),
    "cache of all kinds": set_at(["fitted", "autotune_cache"], " = \n=\n\0\na = b" * 10_000),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_tampered_description(damage: str, saved: bytes, tmp_path: Path) -> None:
    refuse(tmp_path / "bad", with_description(saved, DAMAGE[damage]))


MUST_REFUSE = [
    "no json", "a list", "a number", "null", "format", "no graphs", "graphs null", "no fitted",
    "unknown op", "internal op", "input unknown", "leaf kind", "outputs unknown",
    "cache no text",
]  # fmt: skip


@pytest.mark.parametrize("damage", MUST_REFUSE)
def test_refused_at_load(damage: str, saved: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad"
    path.write_bytes(with_description(saved, DAMAGE[damage]))
    with pytest.raises(hl.CheckpointError):
        hl.load(path)


def test_random_bytes(saved: bytes, tmp_path: Path) -> None:
    """One byte of the header changed: refused, or still a model; never anything else."""
    rng = random.Random(1)
    size = struct.unpack("<Q", saved[:8])[0]
    for _ in range(400):
        at = rng.randrange(8 + size)
        data = bytearray(saved)
        data[at] = rng.randrange(256)
        refuse(tmp_path / "bad", bytes(data))


def test_attributes_by_their_former_names(saved: bytes, tmp_path: Path) -> None:
    def rename(described):
        text = json.dumps(described)
        assert '"float32_out"' in text
        return json.loads(text.replace('"float32_out"', '"end": 0, "wide"'))

    (tmp_path / "now").write_bytes(saved)
    (tmp_path / "then").write_bytes(with_description(saved, rename))
    now, then = (hl.predict(hl.load(tmp_path / name), X) for name in ("now", "then"))
    np.testing.assert_array_equal(now, then)


def test_padding_by_its_former_name() -> None:
    node = {"op": "pad", "attrs": {"pads": [1, 2, 3, 4], "mode": 1}}
    assert saving._read_attrs(node) == {"before": [1, 3], "after": [2, 4], "mode": 1}


@pytest.mark.parametrize("key", ["autotune_cache", "choices"])
def test_autotune_cache_by_either_name(
    key: str, saved: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older files have it under "choices"."""

    def rename(described):
        assert described["fitted"].pop("autotune_cache") == ""
        assert "choices" not in described["fitted"]
        described["fitted"][key] = "matmul; gpu; 1; k = v\n"
        return described

    taken: list[str] = []
    monkeypatch.setattr(saving, "take_autotune_cache", taken.append)
    path = tmp_path / "model"
    path.write_bytes(with_description(saved, rename))
    assert hl.predict(hl.load(path), X).shape == (90, 3)
    assert taken == ["matmul; gpu; 1; k = v\n"]


def test_foreign_safetensors(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"w": np.zeros(3, np.float32)}, tmp_path / "other")
    with pytest.raises(
        hl.CheckpointError, match=r"not written by hotloop; .*hl.read_weights\(path"
    ):
        hl.load(tmp_path / "other")


def test_a_good_file_loads_after_bad_ones(saved: bytes, tmp_path: Path) -> None:
    path = tmp_path / "good"
    path.write_bytes(saved)
    assert hl.predict(hl.load(path), X).shape == (90, 3)


class Masked(nn.Module):
    """Buffers that state_dict leaves out: a mask, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.register_buffer("mask", np.array([1, 0, 1, 1, 0, 1], np.float32), persistent=False)
        self.register_buffer("scale", np.float32(0.5), persistent=False)
        self.register_buffer("columns", np.array([5, 4, 3, 2, 1, 0]), persistent=False)

    def forward(self, x):
        return self.head((x * self.mask * self.scale)[:, self.columns])


def test_a_buffer_that_state_dict_leaves_out_is_a_constant_of_the_file(tmp_path) -> None:
    X, y = classes()
    model = Masked()
    hl.train(model, (X, y), quiet(max_epochs=1))
    model.mask.copy_(np.array([1, 1, 0, 1, 0, 1]))  # of now, not of then
    hl.save(model, tmp_path / "net")
    loaded = hl.load(tmp_path / "net")
    np.testing.assert_array_equal(hl.predict(loaded, X), hl.predict(model, X))
    assert sorted(loaded.state_dict()) == ["head.bias", "head.weight"]
    tensors, _ = read_safetensors(str(tmp_path / "net"))
    assert sum(name.startswith("hotloop.constant.") for name in tensors) == 2  # not one a graph
    Masked().load_state_dict(tensors)


def test_weights_of_torch_are_no_models(tmp_path) -> None:
    path = tmp_path / "net.pth"
    path.write_bytes(b"PK\x03\x04 and what torch.save writes")
    rule = r"load: .* cannot be read: .*; .*torch.save .*load_state_dict\(hl.read_weights\(path\)\)"
    with pytest.raises(hl.CheckpointError, match=rule):
        hl.load(path)
    with pytest.raises(hl.CheckpointError, match=r"cannot be read: No such file[^;]*$"):
        hl.load(tmp_path / "none.pth")
