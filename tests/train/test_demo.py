"""`hotloop demo`: what it reaches, what it says, and that the lines it prints are what ran."""

import fnmatch
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import hotloop as hl
import numpy as np
import pytest
from hotloop.tools.demo import DEMO_CODE
from needs import take_library


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, Path]:
    """Standard output, standard error and folder of one run, as users start it."""
    folder = tmp_path_factory.mktemp("demo")
    done = subprocess.run(
        [sys.executable, "-m", "hotloop", "demo"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr, folder


def printed_code(out: str) -> str:
    """The lines that the demo ends with, without their indent."""
    _, _, code = out.partition("The same in Python:\n\n")
    return "".join(line.removeprefix("    ") + "\n" for line in code.splitlines())


def test_accuracy(demo: tuple[str, str, Path]) -> None:
    accuracy = float(re.search(r"validation accuracy ([\d.]+)%", demo[0]).group(1))
    assert accuracy >= 97.0


def test_header_progress_and_time_are_shown(demo: tuple[str, str, Path]) -> None:
    out, err, _ = demo
    assert "hotloop: " in err
    assert "parameters" in err
    assert "cross_entropy" in err
    assert "epoch 20/20" in err
    assert re.search(r"20 epochs in [\d.]+ s", out)


@pytest.mark.extra
def test_plot_where_matplotlib_is(demo: tuple[str, str, Path]) -> None:
    take_library("matplotlib")
    out, _, folder = demo
    assert "digits.png" in out
    assert (folder / "digits.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_it_says_so(monkeypatch, capsys, tmp_path) -> None:
    import importlib.util

    from hotloop.tools.demo import run_demo

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else found(name)
    )
    monkeypatch.chdir(tmp_path)
    assert run_demo() == 0
    out = capsys.readouterr().out
    assert "pip install matplotlib" in out
    assert printed_code(out) == DEMO_CODE
    assert not (tmp_path / "digits.png").exists()


def test_printed_lines_do_the_same(demo: tuple[str, str, Path], tmp_path: Path) -> None:
    out = demo[0]
    code = printed_code(out)
    assert code.startswith(DEMO_CODE)
    check = "print(max(result.history['val_accuracy'][result.best_epoch - 1:][:1]))"
    done = subprocess.run(
        [sys.executable, "-c", code + check],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"{float(done.stdout):.2%}" in out


def test_digits_are_the_published_ones() -> None:
    X, y = hl.load_digits()
    assert X.shape == (1797, 64)
    assert X.dtype == np.float32
    assert y.shape == (1797,)
    assert y.dtype == np.int64
    assert X.min() == 0.0
    assert X.max() == 1.0
    assert np.bincount(y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    pixels = (X * 16).astype(np.uint8)
    assert np.array_equal(pixels / np.float32(16), X)
    import hashlib

    digest = hashlib.sha256(pixels.tobytes() + y.astype(np.uint8).tobytes()).hexdigest()
    source = (Path(hl.__file__).parent / "data" / "files" / "digits.txt").read_text()
    assert digest in source
    assert "CC BY 4.0" in source


def test_wheels_take_every_data_file_along() -> None:
    root = Path(__file__).resolve().parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["*"]
    package = root / "python" / "hotloop"
    files = [
        path
        for path in package.rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc", ".so")
    ]
    assert any(path.name == "digits.npz" for path in files)
    for path in files:
        assert (path.parent / "__init__.py").exists(), f"{path}: its folder is no package"
        assert any(fnmatch.fnmatch(path.name, p) for p in patterns), f"{path}: no pattern takes it"
