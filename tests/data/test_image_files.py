"""Folders of classes and tables of paths: what is there, in a fixed order, and what is refused."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop.data.images.files import ImageFiles, read_image_folder, read_image_table
from needs import take_library

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two classes, one of them nested, with names that sort in other ways than they are made."""
    top = tmp_path / "root"
    for name in ["dog/b.JPG", "dog/a.jpeg", "cat/x/2.png", "cat/10.webp", "cat/9.gif"]:
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"?")
    return top


def names(files: ImageFiles, root: Path) -> list[str]:
    """The paths below root."""
    return [str(Path(path).relative_to(root)) for path in files.paths]


def test_a_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = read_image_folder(root)
    assert names(files, root) == [
        "cat/10.webp", "cat/9.gif", "cat/x/2.png", "dog/a.jpeg", "dog/b.JPG"
    ]  # fmt: skip
    assert files.classes == ("cat", "dog")
    assert files.labels is not None
    assert files.labels.dtype == np.int64
    assert files.labels.tolist() == [0, 0, 0, 1, 1]
    monkeypatch.chdir(root.parent)
    assert read_image_folder("root").paths == files.paths  # absolute


def test_litter_is_left_out(root: Path) -> None:
    for name in ["dog/.DS_Store", "dog/Thumbs.db", ".git/config", "desktop.ini", "cat/.x/a.jpg"]:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"?")
    assert len(read_image_folder(root).paths) == 5


def test_an_image_may_have_any_name(root: Path) -> None:
    (root / "dog/c").write_bytes(PNG)
    (root / "dog/d.backup").write_bytes(b"RIFF1234WEBP")
    assert names(read_image_folder(root), root)[-2:] == ["dog/c", "dog/d.backup"]


def test_not_a_folder_of_classes(root: Path, tmp_path: Path) -> None:
    with pytest.raises(hl.DataError, match="root: must be a folder, got '/none'"):
        read_image_folder("/none")
    with pytest.raises(hl.DataError, match="must be a folder"):
        read_image_folder(root / "dog/b.JPG")
    (tmp_path / "empty").mkdir()
    with pytest.raises(hl.DataError, match=r"folder for each class, got none.*from_image_table"):
        read_image_folder(tmp_path / "empty")
    (root / "ant/deep").mkdir(parents=True)
    with pytest.raises(hl.DataError, match="every class must have an image, got none in ant of "):
        read_image_folder(root)
    (root / "ant/deep/a.png").touch()
    (root / "stray.jpg").touch()
    with pytest.raises(hl.DataError, match=r"folders of classes, got stray\.jpg directly in "):
        read_image_folder(root)


def test_files_that_are_no_images_are_named(root: Path) -> None:
    for i in range(7):
        (root / f"cat/note{i}.txt").write_text("words")
    with pytest.raises(hl.DataError, match=r"got cat/note0\.txt, cat/note1\.txt.* and 2 more in "):
        read_image_folder(root)


@pytest.mark.parametrize("name", ["dog/pipe", "dog/pipe.png", "pipe"])
def test_pipes(root: Path, name: str) -> None:
    """Nobody writes to them, so whoever reads them waits for good."""
    os.mkfifo(root / name)
    with pytest.raises(hl.DataError, match=f"{name}, which is neither; move it"):
        read_image_folder(root)
    (root / name).rename(root / "dog/.hidden")
    (root / "dog/link.png").symlink_to(root / "dog/.hidden")
    with pytest.raises(hl.DataError, match=r"dog/link\.png, which is neither"):
        read_image_folder(root)
    (root / "dog/link.png").unlink()
    assert len(read_image_folder(root).paths) == 5


def test_links(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "far.png").touch()
    (root / "dog/near.jpg").symlink_to(root / "cat/9.gif")
    assert len(read_image_folder(root).paths) == 6  # inside: nothing to fear
    for link, target in [("dog/far.png", other / "far.png"), ("dog/sub", other), ("eel", other)]:
        (root / link).symlink_to(target)
        with pytest.raises(hl.DataError, match=f"must not lead out of .*{link} to .*follow_sym"):
            read_image_folder(root)
        assert len(read_image_folder(root, follow_symlinks=True).paths) == 7
        (root / link).unlink()
    (root / "dog/gone.png").symlink_to(root / "nowhere")
    with pytest.raises(hl.DataError, match=r"links must lead to a file, got .*gone\.png to "):
        read_image_folder(root, follow_symlinks=True)
    (root / "dog/gone.png").unlink()
    (root / "dog/again").symlink_to(root / "dog")
    with pytest.raises(hl.DataError, match=r"must not lead in a circle, got .*dog/again"):
        read_image_folder(root)


def test_a_folder_whose_name_begins_like_the_root(root: Path) -> None:
    sibling = root.with_name("root2")
    sibling.mkdir()
    (sibling / "a.png").touch()
    (root / "dog/a.png").symlink_to(sibling / "a.png")
    with pytest.raises(hl.DataError, match="must not lead out"):
        read_image_folder(root)


# ---- tables


def as_csv(columns: dict[str, list[Any]], folder: Path) -> Any:
    """A CSV file."""
    path = folder / "table.csv"
    rows = [list(columns), *(list(row) for row in zip(*columns.values(), strict=True))]
    text = "\n".join(",".join("" if cell is None else str(cell) for cell in row) for row in rows)
    path.write_text(text + "\n", encoding="utf-8-sig")
    return path


def as_pandas(columns: dict[str, list[Any]], folder: Path) -> Any:
    """A data frame of pandas."""
    return take_library("pandas").DataFrame(columns)


def as_polars(columns: dict[str, list[Any]], folder: Path) -> Any:
    """A data frame of polars."""
    return take_library("polars").DataFrame(columns)


def as_dict(columns: dict[str, list[Any]], root: Path) -> Any:
    """The columns as they are."""
    return columns


KINDS = [as_csv, as_dict, as_pandas, as_polars]
kinds = pytest.mark.parametrize("make", KINDS)
Make = Callable[[dict[str, list[Any]], Path], Any]


@kinds
def test_a_table(make: Make, root: Path) -> None:
    paths = ["dog/b.JPG", "cat/9.gif", str(root / "dog/a.jpeg"), "dog/../cat/10.webp"]
    columns = {"n": [1, 2, 3, 4], "what": ["d", "c", "d", "c"], "file": paths}
    table = make(columns, root)
    files = read_image_table(table, "file", "what", root=root)
    assert names(files, root) == ["dog/b.JPG", "cat/9.gif", "dog/a.jpeg", "cat/10.webp"]
    assert files.classes is None
    assert files.labels is not None
    assert files.labels.tolist() == columns["what"]
    numbers = read_image_table(table, "file", "n", root=root).labels
    assert numbers is not None
    assert numbers.dtype == np.int64
    assert read_image_table(table, "file", root=root).labels is None


def test_where_paths_begin(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"file": ["dog/b.JPG"], "size": ["1.5"]}
    files = read_image_table(as_csv(columns, root), "file", "size")  # beside the CSV file
    assert names(files, root) == ["dog/b.JPG"]
    assert files.labels is not None
    assert files.labels.dtype == np.float64
    monkeypatch.chdir(root)
    assert read_image_table(as_pandas(columns, root), "file").paths == files.paths


@kinds
@pytest.mark.parametrize(
    ("paths", "labels", "words"),
    [
        (["dog/b.JPG", "dog/none.jpg"], [1, 2], r"'dog/none\.jpg' in row 1: .* is not there"),
        (["dog/b.JPG", "dog"], [1, 2], "'dog' in row 1: .* is no file"),
        (["dog/b.JPG", None], [1, 2], "a path in every row, got .* in row 1"),
        (["../../../etc/hostname"], [1], r"must not lead out of .*hostname' in row 0"),
        (["dog/b.JPG", "dog/a.jpeg"], ["x", None], "a label in every row, got .* in row 1"),
        ([], [], "a row at least"),
    ],
    ids=["missing", "folder", "no_path", "outside", "no_label", "empty"],
)
def test_rows_that_are_wrong(
    make: Make, paths: list[Any], labels: list[Any], words: str, root: Path
) -> None:
    table = make({"file": paths, "label": labels}, root)
    with pytest.raises(hl.DataError, match=words):
        read_image_table(table, "file", "label", root=root)


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        (["1", "-2", "10"], [1, -2, 10]),
        (["1", "2.5", " 3", "1e3", ".5"], [1.0, 2.5, 3.0, 1000.0, 0.5]),
        (["1_0", "10"], None),  # which Python takes for one number
        (["01", "1"], None),
        ([" 3", "3"], None),
        (["+1", "1"], None),
        (["\u0661", "1"], None),  # a digit of another script
        (["nan", "inf"], None),
        (["12345678901234567890", "1"], None),  # beyond int64: a class, and no value
    ],
)
def test_texts_that_are_numbers(texts: list[str], numbers: Any, root: Path) -> None:
    """Two texts never become one class, and a class no value."""
    table = as_csv({"file": ["dog/b.JPG"] * len(texts), "label": texts}, root)
    labels = read_image_table(table, "file", "label", root=root).labels
    assert labels is not None
    assert labels.tolist() == (texts if numbers is None else numbers)


@pytest.mark.parametrize("text", ["nan", "-Infinity"])
def test_numbers_are_finite(text: str, root: Path) -> None:
    table = as_csv({"file": ["dog/b.JPG"] * 3, "label": ["1.5", text, "2"]}, root)
    with pytest.raises(hl.DataError, match=f"finite in every row, got '{text}' in row 1"):
        read_image_table(table, "file", "label", root=root)


@pytest.mark.parametrize("dtype", ["string", "Int64", "boolean", "category", "datetime64[ns]"])
def test_a_label_that_pandas_has_not(dtype: str, root: Path) -> None:
    pandas = take_library("pandas")
    labels = pandas.Series([1, None]).astype("Int64").astype(dtype)
    table = pandas.DataFrame({"file": ["dog/b.JPG"] * 2, "label": labels})
    with pytest.raises(hl.DataError, match=r"label must have a label in every row, got .* row 1"):
        read_image_table(table, "file", "label", root=root)


def test_paths_out_of_the_root(root: Path, tmp_path: Path) -> None:
    (tmp_path / "far.png").touch()
    (root / "link.png").symlink_to(tmp_path / "far.png")
    for path in ["../far.png", "link.png"]:
        table = as_csv({"file": [path]}, root)
        with pytest.raises(hl.DataError, match=r"must not lead out of .*follow_symlinks=True"):
            read_image_table(table, "file")
        assert len(read_image_table(table, "file", follow_symlinks=True).paths) == 1


def test_tables_that_are_none(root: Path) -> None:
    with pytest.raises(hl.ConfigError, match="data frame or a dict of columns, got list"):
        read_image_table([["dog/b.JPG"]], "file")
    with pytest.raises(hl.DataError, match=r"columns must be of one length, got \[2, 1\]"):
        read_image_table({"file": ["dog/b.JPG"] * 2, "label": [1]}, "file", "label", root=root)
    with pytest.raises(hl.DataError, match=r"none.csv cannot be read \(No such file"):
        read_image_table(root / "none.csv", "file")
    for make in KINDS:
        table = make({"file": ["dog/b.JPG"]}, root)
        with pytest.raises(hl.ConfigError, match=r"no column .*fle.*file"):
            read_image_table(table, "fle", root=root)
    (root / "table.csv").write_bytes(b"file,label\ndog/b.JPG,1,2\n")
    with pytest.raises(hl.DataError, match="2 cells in every row, got 3 in row 0"):
        read_image_table(root / "table.csv", "file")
    (root / "table.csv").write_bytes(b"file\n\xff\xfe\n")
    with pytest.raises(hl.DataError, match="must be a CSV file in UTF-8"):
        read_image_table(root / "table.csv", "file")
