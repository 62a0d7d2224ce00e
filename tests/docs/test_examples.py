"""Every example runs: the ``>>>`` of docstrings, and the blocks of Python in docstrings and pages.

An example stands as a reader would copy it, after `import hotloop as hl`, `from hotloop import nn`
and `import numpy as np`. The blocks of a page run in order and share their names, in a folder that
is empty at first, and warn of nothing. An example that imports a library which is no dependency,
such as pandas, is left out where there is none, with the blocks that go on from it.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import hotloop
import hotloop as hl
import numpy as np
import pytest
from hotloop import nn

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
EXTRAS = ("pandas", "polars", "pyarrow", "PIL", "matplotlib")
BLOCK = re.compile(r"^```python[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def preamble() -> dict[str, object]:
    """The names that every example has."""
    return {"__name__": "example", "hl": hl, "nn": nn, "np": np}


def python_blocks(text: str) -> Iterator[tuple[int, str]]:
    """The fenced blocks of Python with the number of lines before each."""
    for match in BLOCK.finditer(text):
        yield text.count("\n", 0, match.start(1)), match.group(1)


def lacking(code: str) -> str:
    """The library that an example imports and this machine lacks; "": none."""
    used = set(re.findall(r"^(?:>>> )?\s*(?:import|from) (\w+)", code, re.MULTILINE))
    return next((name for name in EXTRAS if name in used and not find_spec(name)), "")


def run_block(code: str, lines_before: int, path: str, names: dict[str, object]) -> None:
    """Runs a block; a traceback has the page's line numbers."""
    exec(compile("\n" * lines_before + code, path, "exec"), names)


def docstrings() -> list[doctest.DocTest]:
    """Every docstring of the package, by the name of what it documents.

    Those of internal functions also have the names of their module.
    """
    finder = doctest.DocTestFinder(exclude_empty=False)
    public = {*hl.__all__, *nn.__all__}
    found: list[doctest.DocTest] = []
    for info in pkgutil.walk_packages(hotloop.__path__, "hotloop."):
        if info.ispkg or info.name.endswith(("__main__", "_core")):
            continue
        module = importlib.import_module(info.name)
        for test in finder.find(module, info.name):
            name = test.name.removeprefix(f"{info.name}.").partition(".")[0]
            own = {} if name in public else vars(module)
            test.globs = {**own, **preamble()}
            found.append(test)
    return [*finder.find(hotloop, "hotloop", globs=preamble()), *found]


DOCSTRINGS = docstrings()
EXAMPLES = [test for test in DOCSTRINGS if test.examples]


pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("example", EXAMPLES, ids=[test.name for test in EXAMPLES])
def test_docstring(example: doctest.DocTest) -> None:
    if library := lacking("".join(part.source for part in example.examples)):
        pytest.skip(f"it needs {library} (make test-long installs it)")
    names = {option: value for part in example.examples for option, value in part.options.items()}
    assert doctest.SKIP not in names, "an example that is skipped is no example"
    report: list[str] = []
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, _ = doctest.DocTestRunner(optionflags=options).run(example, out=report.append)
    assert not failed, "".join(report)


def test_blocks_in_docstrings() -> None:
    for test in DOCSTRINGS:
        for before, code in python_blocks(test.docstring):
            run_block(code, before, test.name, test.globs)


def names_in(code: str) -> tuple[set[str], set[str]]:
    """The names that an example reads, and those that it gives a value."""
    read, given = set(), set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else given).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            given.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            given |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return read, given


def run_page(page: str) -> str:
    """Runs the blocks of a page that this machine has the libraries of, and what they need from the
    blocks before them; a library that another block lacks.
    """
    names = preamble()
    left_out = ""
    missing: set[str] = set()  # what only blocks that were left out give a value
    for before, code in python_blocks((ROOT / page).read_text(encoding="utf-8")):
        read, given = names_in(code)
        library = lacking(code)
        if library or read & missing:
            left_out = library or left_out
            missing |= given - names.keys()
        else:
            run_block(code, before, page, names)
            missing -= given
    return left_out


@pytest.mark.extra
@pytest.mark.parametrize("page", PAGES)
def test_page(page: str) -> None:
    if library := run_page(page):
        pytest.skip(f"a block needs {library} (make test-long installs it); the others ran")


@pytest.mark.parametrize("page", PAGES)
def test_page_without_other_libraries(page: str, monkeypatch) -> None:
    monkeypatch.setitem(globals(), "find_spec", lambda name: None)
    run_page(page)


def test_blocks_are_found_and_run() -> None:
    page = "text\n\n```python\nx = 1\n```\n\n```\nnot this\n```\n\n```python\nx + missing\n```\n"
    blocks = list(python_blocks(page))
    assert blocks == [(3, "x = 1\n"), (11, "x + missing\n")]
    names = preamble()
    run_block(blocks[0][1], blocks[0][0], "page.md", names)
    with pytest.raises(NameError, match="missing") as error:
        run_block(blocks[1][1], blocks[1][0], "page.md", names)
    assert error.traceback[-1].lineno == 11
