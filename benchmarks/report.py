"""What a benchmark shows and keeps: rows of ratios as a table, the machine, the JSON file."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.duel import ROOT, Ratio

__all__ = [
    "RESULTS", "Row", "describe_machine", "format_table", "read_load", "usable_sets",
    "write_results",
]  # fmt: skip

RESULTS = ROOT / "benchmarks" / "results"
_SHOWN_NODES = 10
_QUIET = 0.5  # load average above which two-threaded measurements mean little


@dataclasses.dataclass
class Row:
    """A workload's ratios by column."""

    title: str
    ratios: dict[str, Ratio]
    aims: dict[str, float]
    note: str = ""
    raw: Any = None
    profile: Any = None  # hl.Profile.to_dict()


def usable_sets() -> list[str]:
    """Instruction sets that hotloop can use here."""
    from hotloop import _core

    return list(_core.cpu_info()["isa"])


def describe_machine() -> dict[str, Any]:
    """Machine, versions and date, for the JSON file."""
    from hotloop import _core

    there = [name for name in ("torch", "numpy") if importlib.util.find_spec(name)]
    versions = {name: importlib.metadata.version(name) for name in there}
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "processor": _core.cpu_info()["name"],
        "processors": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "build": _core.build_info(),
        "versions": {"hotloop": _core.__version__, **versions},
    }


def format_table(rows: Sequence[Row], title: str, columns: Mapping[str, str]) -> str:
    """Ratios by row and column: median (lowest, best) [aim].

    Parameters
    ----------
    rows : sequence of Row
    title : str
    columns : mapping of str to str
        What stands above a column, by its name in the rows' ratios; in the order shown.
    """
    shown = [column for column in columns if any(column in row.ratios for row in rows)]
    table = [[f"{title}; times as fast as", *(columns[c] for c in shown)]]
    for row in rows:
        cells = [row.title]
        for column in shown:
            ratio, aim = row.ratios.get(column), row.aims.get(column)
            text = f"{ratio.median:.2f} ({ratio.lowest:.2f}, {ratio.best:.2f})" if ratio else "-"
            cells.append(f"{text} [{aim:g}]" if ratio and aim else text)
        table.append(cells)
    widths = [max(len(cells[i]) for cells in table) for i in range(len(shown) + 1)]
    lines = [
        "  ".join([cells[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(cells[1:], widths[1:]))])
        for cells in table
    ]
    lines.insert(1, "-" * len(lines[0]))
    lines.append("median over the rounds (lowest; best slice to best slice) [aim]")
    lines += [f"{row.title}: {row.note}" for row in rows if row.note]
    for row in rows:
        if row.profile:
            lines += ["", f"{row.title}: nodes of a step", format_nodes(row.profile)]
    return "\n".join(lines)


def format_nodes(profile: dict[str, Any], n: int = _SHOWN_NODES) -> str:
    """The slowest nodes of a row, as hl.profile shows them."""
    from hotloop.tools.profiling import Profile

    return Profile.from_dict(profile).table(n)


def read_load() -> float:
    """The load average, which is said where it disturbs."""
    load = os.getloadavg()[0]
    if load > _QUIET:
        print(f"benchmarks: other programs run here (load {load:.1f})", file=sys.stderr)
    return load


def write_results(facts: Mapping[str, Any], out: Path) -> None:
    """Writes the JSON file and says where."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(facts, indent=1) + "\n")
    print(f"written to {os.path.relpath(out)}")
