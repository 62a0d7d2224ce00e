"""The list of mutants is true of the tree: texts stand there once, tests are there; and the runner
tells what it finds apart.
"""

import re
import subprocess
from pathlib import Path

import pytest
from mutants import runner
from mutants.mutant import Check, Mutant, python
from mutants.tables import MUTANTS

ROOT = runner.ROOT
PROGRAMS = {
    "c": ("tests/c/{}.c", "test_"),
    "header": ("tests/c/{}.c", "test_"),
    "cuda": ("tests/cuda/{}.cpp", "test_"),
    "host": ("tests/cuda/{}.c", "test_d"),
}


def test_every_text_stands_once() -> None:
    assert runner.find_faults(MUTANTS) == []
    assert len(MUTANTS) >= 60


def is_there(check: Check) -> bool:
    """Whether all tests of a check exist."""
    for name in check.names:
        if check.kind == "python":
            file, _, test = name.partition("[")[0].partition("::")  # and perhaps [its case]
            path = ROOT / file
            if not path.is_file():
                return False
            if test and not re.search(rf"^def {test}\(", path.read_text(), re.M):
                return False
        else:
            file, start = PROGRAMS[check.kind]
            if not (name.startswith(start) and (ROOT / file.format(name)).is_file()):
                return False
    return bool(check.names)


def test_their_tests_are_there() -> None:
    assert [mutant.name for mutant in MUTANTS if not is_there(mutant.check)] == []


def test_names_are_words() -> None:
    for mutant in MUTANTS:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", mutant.name)


def test_faults_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text("one = 1\ntwo = one + one\n")
    check = python("test_a.py")
    cases = {
        "gone": Mutant("gone", "a.py", "three", "3", check),
        "twice": Mutant("twice", "a.py", "one", "1", check),
        "no file": Mutant("no file", "b.py", "one", "1", check),
        "the same": Mutant("the same", "a.py", "two", "two", check),
    }
    assert runner.find_faults([Mutant("fine", "a.py", "= 1", "= 2", check)]) == []
    for name, words in (
        ("gone", "gone: its text must stand once in a.py, found 0 times: 'three'"),
        ("twice", "twice: its text must stand once in a.py, found 3 times: 'one'"),
        ("no file", "no file: its text must stand once in b.py, found 0 times: 'one'"),
        ("the same", "the same: changes nothing"),
    ):
        assert runner.find_faults([cases[name]]) == [words]
    again = runner.find_faults([cases["the same"], cases["the same"]])
    assert "the same: two mutants have this name" in again


def test_objects_of_a_copy_depend_on_its_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a change in a header would be made and never compiled."""
    tree, copy = tmp_path / "tree", tmp_path / "copy"
    built = "build/cuda-tests/release"
    (tree / built).mkdir(parents=True)
    (tree / ".gitignore").write_text("build/\n")
    (tree / built / "a.d").write_text(f"{tree}/{built}/a.o: csrc/a.h {tree}/b.h\n")
    subprocess.run(["git", "init", "-q", tree], check=True)
    monkeypatch.setattr(runner, "ROOT", tree)
    runner._copy_sources(copy)
    assert (copy / built / "a.d").read_text() == f"{copy}/{built}/a.o: csrc/a.h {copy}/b.h\n"
    assert str(copy) not in (tree / built / "a.d").read_text()


CODE = """def double(n):
    return 2 * n
"""
TESTS = """import time
from code_ import double

def test_double():
    while double(3) < 6:
        time.sleep(0.01)
    assert double(3) == 6
"""


@pytest.mark.long
def test_outcomes_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed, lived, broken and hanging mutants of a tree of two files, which stays as it was."""
    tree = tmp_path / "tree"
    tree.mkdir()
    files = {"code_.py": CODE, "test_code.py": TESTS, "setup.py": ""}
    for name, text in files.items():
        (tree / name).write_text(text)
    subprocess.run(["git", "init", "-q", tree], check=True)
    monkeypatch.setattr(runner, "ROOT", tree)
    monkeypatch.setenv("PYTHONPATH", "")
    check = python("test_code.py::test_double")

    def made(name: str, text: str, change: str, *, hangs: bool = False) -> Mutant:
        return Mutant(name, "code_.py", text, change, check, hangs)

    quick = [
        made("killed", "2 * n", "3 * n"),
        made("lived", "2 * n", "n + n"),
        made("broken", "2 * n", "2 *"),
        made("not imported", "def double", "def triple"),
    ]
    endless = [made("hangs", "2 * n", "1 * n"), made("may hang", "2 * n", "1 * n", hangs=True)]
    assert runner.find_faults(quick + endless) == []
    outcomes = {o.mutant.name: o for o in runner.run_mutants(quick, 4)}
    monkeypatch.setattr(runner, "LIMIT_SECONDS", 2)
    outcomes |= {o.mutant.name: o for o in runner.run_mutants(endless, 2)}
    assert {name: outcome.what for name, outcome in outcomes.items()} == {
        "killed": "killed",
        "lived": "lived",
        "broken": "broken",
        "not imported": "broken",
        "hangs": "hangs",
        "may hang": "killed",
    }
    assert "assert 9 == 6" in outcomes["killed"].output
    assert all((tree / name).read_text() == text for name, text in files.items())
    (tree / "code_.py").write_text(CODE.replace("2", "4"))
    with pytest.raises(SystemExit, match="without any change this must succeed"):
        list(runner.run_mutants(quick, 1))
