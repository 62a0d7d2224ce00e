"""The example notebooks, cell by cell."""

import json
from pathlib import Path
from typing import Any

import hotloop as hl
import pytest
from needs import take_library

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(path.name for path in EXAMPLES.glob("*.ipynb"))


def cells(name: str) -> list[str]:
    """The code of a notebook."""
    found = json.loads((EXAMPLES / name).read_text())["cells"]
    assert not any(cell.get("outputs") for cell in found), "outputs are not kept"
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]


def run(name: str) -> dict[str, Any]:
    """What its names hold in the end."""
    names: dict[str, Any] = {}
    for i, code in enumerate(cells(name)):
        exec(compile(code, f"{name}, code {i}", "exec"), names)
    return names


def test_there_are_some() -> None:
    assert len(NOTEBOOKS) >= 1


@pytest.mark.extra
def test_image_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take_library("PIL")
    take_library("matplotlib")
    monkeypatch.chdir(tmp_path)
    names = run("06_image_folder.ipynb")
    assert names["result"].history["val_accuracy"][-1] > 0.95
    assert len(names["wrong"]) < 0.06 * len(names["digits"])


@pytest.mark.extra
def test_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors on rows without holes are those of the noise, 40, but for a few per cent."""
    take_library("pandas")
    take_library("pyarrow")
    monkeypatch.chdir(tmp_path)
    names = run("07_table.ipynb")
    assert abs(names["errors"]).mean() < 43
    found = hl.load(str(tmp_path / "flats.safetensors")).predict(names["new"])
    assert [1250 < found[0, 0] < 1450, 500 < found[1, 0] < 680] == [True, True]
