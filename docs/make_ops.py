"""Writes docs/ops.md from the built extension's op table; tests/api/test_docs.py holds it true.

python docs/make_ops.py
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("ops.md")

_HEAD = """\
# The ops

For anyone who adds an op or reads a plan: what a graph's nodes are. Functions for `forward` are in
the reference (Tensors).

Made by `python docs/make_ops.py` from `csrc/ir/ops.def`, `pointwise.def` and `attrs.def`; edit
those. These are the ops that a graph is written in; those that passes make (gradients of
normalisation, packed products, fused chains, optimizers) are internal and stand in the same tables.

"in" is the number of operands (n: any), "grad" whether a gradient flows. Pointwise ops broadcast as
NumPy does. Attributes are `kind:name=default` (kinds: int, flag, float, dtype, ints for a list,
text); without a default they are required.
"""


def _count(op: dict[str, Any]) -> str:
    low, high = op["min_in"], op["max_in"]
    if high < 0:
        return f"{low}-n"
    return str(low) if low == high else f"{low}-{high}"


def _rows(ops: Iterable[dict[str, Any]]) -> str:
    lines = ["| op | in | out | grad | attributes | meaning |", "|---|---|---|---|---|---|"]
    for op in ops:
        attrs = op["attrs"]
        shown = attrs if isinstance(attrs, str) else " ".join(map(str, attrs))
        doc = op["doc"].replace("|", "\\|")
        grad = "yes" if op["differentiable"] else "-"
        code = f"`{shown}`" if shown else ""
        lines.append(f"| `{op['name']}` | {_count(op)} | {op['n_out']} | {grad} | {code} | {doc} |")
    return "\n".join(lines)


def make_page(table: list[dict[str, Any]]) -> str:
    """The page for an op table."""
    pointwise = [op for op in table if op["pointwise"]]
    others = [op for op in table if not op["pointwise"]]
    return f"{_HEAD}\n## Pointwise\n\n{_rows(pointwise)}\n\n## The others\n\n{_rows(others)}\n"


if __name__ == "__main__":
    from hotloop import _core

    PAGE.write_text(make_page(_core.op_table()), encoding="utf-8")
