"""Tables in CSV and Parquet files, by each library that reads them, and files that are none."""

import gzip
import importlib

import hotloop as hl
import numpy as np
import pytest
from hotloop.data.frames import table_files
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import take_library

TEXT = """age,city,when,buys
20.5,Bonn,2020-01-01,yes
,Ulm,2020-01-03,no
41,,2020-01-02,yes
33,Bonn,2020-01-05,no
"""
MATRIX = [[20.5, 1, 0, 0, 0], [33, 0, 1, 0, 2], [41, 0, 0, 1, 1], [33, 1, 0, 0, 4]]
COLUMNS = ("age", "city=Bonn", "city=Ulm", "city missing", "when")


def only(monkeypatch, library):
    """As where this library alone is installed."""
    take_library(library)

    def choose(what, readers):
        return importlib.import_module(library), readers[library]

    monkeypatch.setattr(table_files, "_choose", choose)
    if library != "pyarrow":
        monkeypatch.setattr("hotloop.data.frames.columns._has_pyarrow", lambda: False)


@pytest.fixture(
    params=[pytest.param(n, marks=pytest.mark.extra) for n in ("pyarrow", "pandas", "polars")]
)
def library(request, monkeypatch):
    only(monkeypatch, request.param)
    return request.param


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(name, text):
    with open(name, "w", encoding="utf-8", newline="") as file:
        file.write(text)
    return name


def read(path, target="buys", **options):
    return hl.DataModule.from_csv(path, target, missing="fill", **options)


# ---- what is read


def test_a_file_is_the_table_that_it_says(library) -> None:
    data = read(write("a.csv", TEXT))
    assert data.split("train").fields[0].columns == COLUMNS
    np.testing.assert_array_equal(data.arrays("train")[0], MATRIX)
    np.testing.assert_array_equal(data.arrays("train")[1], ["yes", "no", "yes", "no"])


def test_ways_to_write_the_same(library) -> None:
    head, _, rows = TEXT.partition("\n")
    with gzip.open("a.csv.gz", "wt", encoding="utf-8") as file:
        file.write(TEXT)
    for data in (
        read("a.csv.gz"),
        read(write("b.csv", "\ufeff" + TEXT.replace("\n", "\r\n"))),
        read(write("c.csv", TEXT.replace(",", ";")), delimiter=";"),
        read(write("d.csv", rows), names=head.split(",")),
        read(write("e.csv", TEXT.replace(",no", ',"no"').replace("\n,Ulm", "\nNA,Ulm"))),
    ):
        np.testing.assert_array_equal(data.arrays("train")[0], MATRIX)
        np.testing.assert_array_equal(data.arrays("train")[1], ["yes", "no", "yes", "no"])


def test_texts_may_hold_the_ends_of_lines_and_fields(library) -> None:
    data = read(write("a.csv", 'a,buys\n"x\ny",1\n"q,""r",0\n'))
    assert data.encoding.features[0].categories == ('q,"r', "x\ny")


def test_several_files_are_one_table(library) -> None:
    lines = TEXT.splitlines(keepends=True)
    write("p1.csv", "".join(lines[:3]))
    turned = ["city,age,buys,when\n", ",41,yes,2020-01-02\n", "Bonn,33,no,2020-01-05\n"]
    write("p2.csv", "".join(turned))
    write("other.txt", "nothing")
    for path in (["p1.csv", "p2.csv"], "p*.csv", "."):
        data = read(path)
        assert data.split("train").fields[0].columns == COLUMNS
        np.testing.assert_array_equal(data.arrays("train")[0], MATRIX)


def test_splits_may_be_files_and_columns_a_choice(library) -> None:
    write("train.csv", TEXT)
    write("val.csv", "city,buys,age,more\nUlm,no,50,x\n")
    data = read("train.csv", features=["city", "age"], val="val.csv")
    np.testing.assert_array_equal(data.arrays("val")[0], [[0, 1, 0, 50]])
    assert data.split("train").fields[0].columns == ("city=Bonn", "city=Ulm", "city missing", "age")


@pytest.mark.extra
def test_row_numbers_of_a_frame_are_left_out() -> None:
    take_library("pandas").DataFrame({"a": [1.5, 2.5], "y": [0, 1]}).to_csv("a.csv")
    with pytest.warns(hl.DataWarning, match=r"a.csv: column 0 has no name and is left out"):
        data = hl.DataModule.from_csv("a.csv", "y")
    assert data.encoding.names == ["a"]


@pytest.mark.extra
@pytest.mark.parametrize("name", ["pyarrow", "polars", "pandas"])
def test_parquet(name, monkeypatch) -> None:
    take_library("pyarrow")
    pandas = take_library("pandas")
    only(monkeypatch, name)
    frame = pandas.DataFrame({"a": [1.5, None, 2.5], "c": ["u", "v", "u"], "y": [0, 1, 0]})
    frame.iloc[:2].to_parquet("p1.parquet")
    frame.iloc[2:].set_index(pandas.Index([7])).to_parquet("p2.parquet")
    for path in (["p1.parquet", "p2.parquet"], "*.parquet", "."):
        data = hl.DataModule.from_parquet(path, "y", missing="fill")
        np.testing.assert_array_equal(
            data.arrays("train")[0], [[1.5, 1, 0], [2, 0, 1], [2.5, 1, 0]]
        )
    data = hl.DataModule.from_parquet("p1.parquet", "y", features=["c"], val="p2.parquet")
    np.testing.assert_array_equal(data.arrays("val")[0], [[1, 0]])
    with pytest.raises(hl.ConfigError, match=r"features: must name columns .*none for 'd'"):
        hl.DataModule.from_parquet("p1.parquet", "y", features=["c", "d"])
    write("bad.parquet", "PAR1 no")
    with pytest.raises(hl.DataError, match=r"bad.parquet: cannot be read as Parquet"):
        hl.DataModule.from_parquet("bad.parquet", "y")


# ---- wrong input


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"a\.csv: is empty; a first line names the columns"),
        ("\n\n", r"a\.csv: is empty"),
        ("a,b,y\n", r"a\.csv: has no rows"),
        ("a,b,y\n1,x,0\n2,1\n3,x,0\n", r"a\.csv: each row must .*3 fields .*got 2 in row 1: '2,1'"),
        ("a,b,y\n1,x,0\n2,x,1,7\n", r"a\.csv: .*have 3 fields .*got 4 in row 1: '2,x,1,7'"),
        ("a,b,y\n1,x,0\n2,x,1\noops,x,0\n4,x,1\n",
         r"column 'a': 3 of 4 values are numbers, got the text 'oops' in row 2 of a\.csv"),
        ("5.1,3.5,Iris\n5.2,3,Iris\n", r"first line must name the columns, got \['5.1', '3.5'"),
        ("p,x,p\nq,x,p\n", r"names of columns must differ, got 'p' twice"),
        ("a,,y\n1,2,0\n", r"each column needs a name, got none for column 1"),
        ("a;b;y\n1;2;0\n", r"separated by ',', got the first line 'a;b;y'; write delimiter=';'"),
        ("a\tb\ty\n1\t2\t0\n", r"write delimiter='\\t'"),
    ],
)  # fmt: skip
def test_files_that_are_no_tables(library, text, words) -> None:
    with pytest.raises(hl.DataError, match=words):
        hl.DataModule.from_csv(write("a.csv", text), "y")


def test_texts_among_the_numbers_of_one_file_of_several(library) -> None:
    write("p1.csv", "a,y\n1,0\n2,1\n3,1\n")
    write("p2.csv", "a,y\n4,0\noops,1\n")
    with pytest.raises(hl.DataError, match=r"column 'a': 4 of 5 .*text 'oops' in row 1 of p2.csv"):
        hl.DataModule.from_csv("p*.csv", "y")


def test_missing_values_are_named_by_file_and_row(library) -> None:
    write("p1.csv", "a,y\n1,0\n2,1\n")
    write("p2.csv", "a,y\n4,0\n,1\n")
    with pytest.raises(hl.DataError, match=r"column 'a': .*got none in row 1 of p2.csv"):
        hl.DataModule.from_csv("p*.csv", "y", missing="raise")


@pytest.mark.extra
def test_files_that_do_not_fit_together_or_are_not_there() -> None:
    take_library("pyarrow")
    write("one.csv", "age,y\n1,0\n2,1\n")
    write("two.csv", "ages,y\n1,0\n")
    for path, error, words in (
        (
            ["one.csv", "two.csv"],
            hl.DataError,
            r"two.csv: must have the columns of one.csv, got none for 'age' .did you mean 'ages'",
        ),
        (
            "ones.csv",
            hl.DataError,
            r"ones.csv: there is no such file: 'ones.csv' .did you mean 'one.csv'",
        ),
        ("z*.csv", hl.DataError, r"z\*.csv: no file matches this pattern"),
        ([], hl.ConfigError, "path: a file at least is needed"),
        (3, hl.ConfigError, "path: must be a path, a pattern or a list of them, got 3"),
    ):
        with pytest.raises(error, match=words):
            hl.DataModule.from_csv(path, "y")
    for options, words in (
        ({"delimiter": "ab"}, "delimiter: must be one character"),
        ({"names": []}, "names: must be a list of columns' names"),
        ({"names": [1, 2]}, "names: must be a list of columns' names"),
        ({"tset": 3}, "there is no option 'tset'; did you mean 'test'"),
    ):
        with pytest.raises(hl.ConfigError, match=words):
            hl.DataModule.from_csv("one.csv", "y", **options)
    with pytest.raises(hl.DataError, match=r"names must be those of all 2 fields of a line, got 3"):
        hl.DataModule.from_csv("one.csv", "y", names=["a", "b", "c"])
    with pytest.raises(hl.DataError, match=r"\.: has no .parquet file"):
        hl.DataModule.from_parquet(".", "y")


def test_other_bytes_than_utf_8(library) -> None:
    for name, row in (("head.csv", "é,y\nu,0\n"), ("rows.csv", "a,y\né,0\nu,1\n")):
        with open(name, "wb") as file:
            file.write(row.encode("latin-1"))
        with pytest.raises(hl.DataError, match=rf"{name}: .*UTF-8"):
            hl.DataModule.from_csv(name, "y")


def test_nothing_is_installed(monkeypatch) -> None:
    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(table_files.importlib, "import_module", absent)
    for read_file in (hl.DataModule.from_csv, hl.DataModule.from_parquet):
        with pytest.raises(
            hl.ConfigError, match=r"got none of them installed; pip install 'hotloop\[tables\]'"
        ):
            read_file("a.csv", "y")


@pytest.mark.extra
@pytest.mark.filterwarnings("ignore:.*column 0 has no name:hotloop.DataWarning")
@settings(deadline=None, max_examples=150)
@given(st.data())
def test_any_bytes_are_a_table_or_an_error_of_ours(tmp_path_factory, draw) -> None:
    """Files with lines cut, doubled and put elsewhere, and any bytes in them: no other error."""
    take_library("pyarrow")
    blob = bytearray(TEXT.encode())
    for _ in range(draw.draw(st.integers(1, 4))):
        at = draw.draw(st.integers(0, len(blob)))
        length = draw.draw(st.integers(0, 10))
        blob[at : at + length] = draw.draw(
            st.one_of(
                st.binary(max_size=8), st.sampled_from([b'"', b",,", b"\n", b"\r", b"\0", b"nan"])
            )
        )
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes(bytes(blob))
    try:
        data = hl.DataModule.from_csv(path, missing="fill")
    except hl.HotloopError as error:
        said = str(error)
    else:
        said = f"a table of {len(data)} rows, any.csv"
    assert "any.csv" in said or "column" in said


@pytest.mark.extra
@pytest.mark.parametrize("name", ["pyarrow", "polars"])
def test_parquet_files_with_other_bytes_are_named_or_read(name, monkeypatch) -> None:
    only(monkeypatch, name)
    pandas = take_library("pandas")
    frame = pandas.DataFrame({"a": np.arange(50.0), "c": ["u", "v"] * 25, "y": [0, 1] * 25})
    frame.to_parquet("good.parquet")
    with open("good.parquet", "rb") as file:
        good = file.read()
    rng = np.random.default_rng(0)
    n_refused = 0
    for i in range(150):
        bad = bytearray(good)
        for at in rng.integers(0, len(bad), 2):
            bad[at] = rng.integers(0, 256)
        bad = bad[: rng.integers(0, len(bad))] if i % 5 == 0 else bad
        with open("bad.parquet", "wb") as file:
            file.write(bad)
        try:
            features = ["a"] if i % 2 else None
            hl.DataModule.from_parquet("bad.parquet", "y", features=features, missing="fill")
        except hl.HotloopError:
            n_refused += 1
    assert n_refused > 30
