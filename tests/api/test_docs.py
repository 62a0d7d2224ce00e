"""docs/ops.md says what the op table says, docs/gpu.md what the backend says."""

import importlib.util
import re
from pathlib import Path

from hotloop import _core

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_ops_page_is_current() -> None:
    spec = importlib.util.spec_from_file_location("make_ops", DOCS / "make_ops.py")
    make_ops = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_ops)
    written = (DOCS / "ops.md").read_text(encoding="utf-8")
    assert written == make_ops.make_page(_core.op_table()), "run python docs/make_ops.py"


def numbers_aside(text: str) -> str:
    """With one mark for every number and for what printf puts in one's place."""
    return re.sub(r"%d|\d+", "#", text)


def test_reasons_are_those_of_the_backend() -> None:
    sources = (DOCS.parent / "kernels" / "cuda").glob("*.c")
    code = "".join(path.read_text(encoding="utf-8") for path in sources)
    said = numbers_aside(re.sub(r'"\s*"', "", code))
    page = (DOCS / "gpu.md").read_text(encoding="utf-8")
    table = page.partition("| the sentence has |")[2].partition("\n\n")[0]
    reasons = re.findall(r"^\| ([^|]+?) \|", table, re.MULTILINE)[1:]
    assert len(reasons) >= 10
    for reason in reasons:
        assert numbers_aside(reason) in said, f"no source of kernels/cuda says: {reason}"
