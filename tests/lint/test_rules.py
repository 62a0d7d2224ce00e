"""Holds every file of the tree to rules.py; one test per rule, all faults in one message."""

from collections.abc import Callable, Iterator
from pathlib import Path

from lint import rules

ROOT = Path(__file__).resolve().parents[2]
CORE = ("csrc", "kernels")
SOURCES = (*CORE, "python", "tests", "benchmarks", "examples", "docs", ".ci")
ROOT_FILES = ("setup.py", "pyproject.toml", "Makefile", "README.md", "CONTRIBUTING.md")
MADE = {"build", "__pycache__", ".venv", "runs", "results", "hotloop.egg-info"}


def files(folders: tuple[str, ...], *suffixes: str) -> Iterator[tuple[str, str]]:
    """(path relative to the root, text) of every source file with one of the suffixes."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            relative = path.relative_to(ROOT)
            if path.suffix in suffixes and path.is_file() and not MADE & set(relative.parts):
                yield relative.as_posix(), path.read_text(encoding="utf-8")


def root_files() -> Iterator[tuple[str, str]]:
    """The project's own files beside the folders."""
    for name in ROOT_FILES:
        if (ROOT / name).exists():
            yield name, (ROOT / name).read_text(encoding="utf-8")


def hold(rule: Callable[[str], list[str]], found: Iterator[tuple[str, str]]) -> None:
    """Fails with every fault of every file; an empty selection is a fault of the selection."""
    checked = list(found)
    assert checked, "no file was selected"
    faults = [f"{path}: {fault}" for path, text in checked for fault in rule(text)]
    assert not faults, f"{len(faults)} faults\n" + "\n".join(faults)


C = (".c", ".h", ".def", ".cu", ".cuh")


def test_arrows_point_one_way() -> None:
    faults = [
        f"{path}: {fault}"
        for path, text in files(CORE, *C)
        for fault in rules.check_includes(path, text)
    ]
    assert not faults, "\n".join(faults)


def test_no_circles_of_includes() -> None:
    faults = rules.check_circles(dict(files(CORE, *C)))
    assert not faults, "\n".join(faults)


def test_python_arrows_point_one_way() -> None:
    faults = [
        f"{path}: {fault}"
        for path, text in files(("python",), ".py")
        for fault in rules.check_python_imports(path, text)
    ]
    assert not faults, "\n".join(faults)


def test_no_circles_of_python_imports() -> None:
    faults = rules.check_python_circles(dict(files(("python",), ".py")))
    assert not faults, "\n".join(faults)


def test_every_python_layer_is_there() -> None:
    names = {rules.module_of(path) for path, _ in files(("python",), ".py")}
    missing = [layer for layer in rules.PYTHON_LAYERS if f"hotloop.{layer}" not in names]
    assert not missing


def test_os_calls_have_one_home() -> None:
    faults = [
        f"{path}: {fault}"
        for path, text in files(CORE, *C)
        for fault in rules.check_os_calls(path, text)
    ]
    assert not faults, "\n".join(faults)


def test_ops_are_facts_of_the_table() -> None:
    faults = [
        f"{path}: {fault}"
        for path, text in files(CORE, *C)
        for fault in rules.check_op_names(path, text)
    ]
    assert not faults, "\n".join(faults)


def test_passes_name_what_they_may() -> None:
    texts = {path: text for path, text in files(CORE, ".c") if "/passes/" in path}
    for stem, ops in rules.PASS_OPS.items():
        text = rules.strip_c(texts[f"csrc/passes/{stem}.c"])
        unnamed = ops - {name for _, _, name in rules.find_op_names(text)}
        assert not unnamed, f"{stem} may name {unnamed} and does not"


def test_core_never_prints_or_ends() -> None:
    hold(rules.check_no_output, files(CORE, *C))


def test_one_way_out_after_an_acquisition() -> None:
    hold(rules.check_cleanup, files((*CORE, "python"), ".c"))


def test_no_static_python_objects() -> None:
    hold(rules.check_no_static_objects, files(("python",), ".c", ".h"))


def test_layout_of_c() -> None:
    hold(rules.check_layout, files(SOURCES, *C))


def test_layout_of_python() -> None:
    hold(rules.check_layout, files(SOURCES, ".py", ".pyi"))


def test_nothing_is_left_undone() -> None:
    own = "tests/lint/"
    found = (item for item in files(SOURCES, *C, ".py", ".pyi") if not item[0].startswith(own))
    hold(rules.check_finished, found)


def test_no_machine_paths() -> None:
    def found() -> Iterator[tuple[str, str]]:
        yield from files(SOURCES, *C, ".py", ".pyi", ".md", ".toml", ".ipynb", ".json", "")
        yield from root_files()

    hold(rules.check_machine_paths, found())


def test_public_python_is_documented() -> None:
    found = (
        (path, text)
        for path, text in files(("python",), ".py")
        if not any(part.startswith("_") and part != "__init__.py" for part in path.split("/"))
    )
    hold(rules.check_docstrings, found)
