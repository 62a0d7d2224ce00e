"""docs/ops.md says what the op table says."""

import importlib.util
from pathlib import Path

from hotloop import _core

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_ops_page_is_current() -> None:
    spec = importlib.util.spec_from_file_location("make_ops", DOCS / "make_ops.py")
    make_ops = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_ops)
    written = (DOCS / "ops.md").read_text(encoding="utf-8")
    assert written == make_ops.make_page(_core.op_table()), "run python docs/make_ops.py"
