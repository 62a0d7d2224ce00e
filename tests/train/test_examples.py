"""Every example, and the first code in README.md, runs as it stands and warns of nothing."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import hotloop as hl
import numpy as np
import pytest
from needs import take_library

ROOT = Path(__file__).resolve().parents[2]
PHOTOGRAPHS = ROOT / "examples" / "04_cifar10.py"  # needs images
WRITER = ROOT / "examples" / "05_gpt_tinyshakespeare.py"  # needs a text
EXAMPLES = sorted(set((ROOT / "examples").glob("*.py")) - {PHOTOGRAPHS, WRITER})


def run(code: list[str], folder: Path, limit_s: int = 120) -> str:
    """Output of a script that must end well; it runs in an empty folder."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *code],
        cwd=folder, capture_output=True, text=True, timeout=limit_s,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, tmp_path: Path) -> None:
    assert run([str(path)], tmp_path)
    assert os.listdir(tmp_path) == [] or os.listdir(tmp_path) == ["runs"]


@pytest.mark.extra
def test_photographs(tmp_path: Path) -> None:
    """On a few images of one colour a class, as files."""
    image = take_library("PIL.Image")
    for split, count in (("train", 12), ("test", 2)):
        for label in range(10):
            folder = tmp_path / "images" / split / f"class{label}"
            folder.mkdir(parents=True)
            for i in range(count):
                colour = (25 * label, 255 - 25 * label, 8 * i)
                image.new("RGB", (32, 32), colour).save(folder / f"{i}.jpg")
    (tmp_path / "here").mkdir()
    text = run([str(PHOTOGRAPHS), str(tmp_path / "images"), "1"], tmp_path / "here")
    assert re.search(r"'accuracy': [\d.]+.* s in all", text)
    assert (
        "python examples/04_cifar10.py"
        in subprocess.run(
            [sys.executable, str(PHOTOGRAPHS)], capture_output=True, text=True, check=False
        ).stderr
    )


def test_a_writer_of_letters(tmp_path: Path) -> None:
    """On another text, in a few steps: a beginning, and 500 letters of those that the text has."""
    text = (ROOT / "docs" / "semantics.md").read_text()
    (tmp_path / "input.txt").write_text(text)
    made = run([str(WRITER), "input.txt", "40"], tmp_path)
    loss, written = re.search(r"validation loss ([\d.]+)\n(.*)\n", made, re.DOTALL).groups()
    assert float(loss) < 4
    assert len(written) == 501
    assert set(written) <= set(text)
    assert "input.txt [steps]" in subprocess.run(
        [sys.executable, str(WRITER)], capture_output=True, text=True, check=False
    ).stderr  # fmt: skip


@pytest.mark.long
def test_the_writer_learns_shakespeare(data_dir: Path, tmp_path: Path) -> None:
    """As nanoGPT's setting does: 1.88 there."""
    made = run([str(WRITER), str(data_dir / "tinyshakespeare.txt")], tmp_path, limit_s=3000)
    assert float(re.search(r"validation loss ([\d.]+)", made).group(1)) <= 1.90


def test_regression_leaves_only_the_noise(tmp_path: Path) -> None:
    text = run([str(ROOT / "examples" / "02_regression.py")], tmp_path)
    error = float(re.search(r"error ([\d.]+)", text).group(1))
    assert 0.95 < error < 1.1


def test_readme_starts_with_code_that_runs(tmp_path: Path) -> None:
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL).group(1)
    check = "\nassert result.history['val_accuracy'][-1] > 0.9\n"
    run(["-c", code + check], tmp_path)
    assert (tmp_path / "net.safetensors").exists()


CUBES = ROOT / "examples" / "hyperspectral" / "pipelines.py"


def auc(inside: np.ndarray, outside: np.ndarray) -> float:
    """How often a score of an anomaly is above one of another pixel."""
    ranks = np.argsort(np.argsort(np.concatenate([inside, outside])))
    n, m = len(inside), len(outside)
    return float((ranks[:n].sum() - n * (n - 1) / 2) / (n * m))


LEARNT = {"rx": 0.5, "layers": 0.9, "selector": 0.9, "svdd": 0.1}  # the last loss of the first


@pytest.mark.parametrize("system", ["rx", "layers", "selector", "svdd"])
def test_pipelines_of_cubes(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On few small cubes: losses fall, and scores tell anomalies from other pixels."""
    monkeypatch.syspath_prepend(str(CUBES.parent))
    import pipelines

    run, channels, has_masks = pipelines.SYSTEMS[system]
    cubes, masks = pipelines.make_cubes(60, 32, channels)
    options = {"val": 0.2, "batch_size": 16}
    data = hl.DataModule.from_arrays(cubes, masks if has_masks else None, **options)
    result, score_of = run(data, channels, enable_progress_bar=False)
    score = score_of(cubes[:1])[0]
    assert result.stop_reason in ("completed", "early_stopping")
    history = result.history
    assert history["val_loss"][-1] < LEARNT[system] * history["val_loss"][0]
    assert auc(score[masks[0]], score[~masks[0]]) > (0.5 if system == "svdd" else 0.9)
    if system == "rx":
        components = result.model.pca1.components.numpy().astype(np.float64)
        assert np.abs(components @ components.T - np.eye(20)).max() < 5e-3  # steps are 1e-3
        assert history["val_pca1_explained_variance"][-1] > 0.85
    if system == "selector":
        assert max(history["val_iou"]) > 2 * history["val_iou"][0]
        # Where the spectra differ most: at the ends of the bumps, not between them.
        chosen = np.sort(result.model.selector.selected()) / (channels - 1)
        assert ((chosen < 0.35) | (chosen > 0.65)).all()


def test_a_pipeline_of_cubes_as_a_program(tmp_path: Path) -> None:
    text = run([str(CUBES), "rx", "--cubes", "20", "--size", "16"], tmp_path)
    assert re.search(r"score of anomalies [\d.]+, of other pixels [\d.]+", text)
    if find_spec("matplotlib"):
        assert (tmp_path / "rx.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("system", ["rx", "selector"])
def test_a_pipeline_of_files(system: str, tmp_path: Path) -> None:
    """They stay, and are read again: the same scores."""
    command = [str(CUBES), system, "--cubes", "20", "--size", "16", "--channels", "30"]
    texts = [run([*command, "--folder", "cubes"], tmp_path) for _ in range(2)]
    scores = [re.search("score of anomalies .*", text).group() for text in texts]
    assert scores[0] == scores[1]
    assert len(list((tmp_path / "cubes").iterdir())) == 40
