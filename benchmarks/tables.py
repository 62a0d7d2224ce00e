"""A data frame to its first training batch, beside what users of PyTorch write, and a JSON file.

    python -m benchmarks.tables --out FILE [--rounds 5] [--rows 1000000] [--smoke]

From the frame to the first shuffled batch of 512 rows. PyTorch's side is frame.to_numpy and a
DataLoader of tensors; of a frame with missing values and texts fillna(median) and category codes
before: as it is mostly written ("loader"), and with the medians of those columns alone that lack
values ("tuned"). Numbers are how many times as fast hotloop is; sides take turns.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pandas as pd
import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.duel import ratio_of
from benchmarks.report import Row, read_load

_BATCH = 512
_AIM = 5.0
_COLUMNS = 40
_CATEGORIES = (3, 5, 8, 12)  # of the last columns of a mixed frame
_LACKING = 10  # columns of it that lack a hundredth of their values


def make_frame(rows: int, *, is_mixed: bool) -> pd.DataFrame:
    """Forty columns and a target of two classes."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({f"c{i}": rng.standard_normal(rows) for i in range(_COLUMNS)})
    if is_mixed:
        for i in range(_LACKING):
            frame.loc[rng.random(rows) < 0.01, f"c{i}"] = np.nan
        for i, n in enumerate(_CATEGORIES):
            names = np.array([f"kind {j}" for j in range(n)])
            frame[f"c{_COLUMNS - 1 - i}"] = names[rng.integers(0, n, rows)]
    frame["y"] = rng.integers(0, 2, rows)
    return frame


def run_ours(frame: pd.DataFrame) -> Any:
    """The first batch by hotloop, texts as ids."""
    data = hl.DataModule.from_pandas(
        frame, "y", categorical="ids", missing="auto", batch_size=_BATCH
    )
    return next(data.train_batches())


def run_theirs(frame: pd.DataFrame, *, is_tuned: bool) -> Any:
    """The first batch by pandas and PyTorch."""
    features = frame.drop(columns="y")
    texts = [name for name in features if features[name].dtype.kind not in "biuf"]
    parts = []
    if texts:
        codes = np.stack([features[n].astype("category").cat.codes.to_numpy() for n in texts], 1)
        parts.append(torch.from_numpy(codes.astype(np.int64)))
        features = features.drop(columns=texts)
    if texts:  # a mixed frame
        lacking = features.columns[features.isna().any()] if is_tuned else features.columns
        features = features.fillna(features[lacking].median())
    x = torch.from_numpy(features.to_numpy(np.float32))
    y = torch.from_numpy(frame["y"].to_numpy().copy())
    return next(iter(DataLoader(TensorDataset(x, *parts, y), _BATCH, shuffle=True)))


def time_call(call: Callable[[pd.DataFrame], Any], frame: pd.DataFrame) -> float:
    """Seconds."""
    begin = time.perf_counter()
    call(frame)
    return time.perf_counter() - begin


def measure(title: str, frame: pd.DataFrame, rounds: int) -> Row:
    """The row of a frame."""
    sides = {
        "hotloop": run_ours,
        "loader": functools.partial(run_theirs, is_tuned=False),
        "tuned": functools.partial(run_theirs, is_tuned=True),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name in list(sides)[:: 1 if number % 2 else -1]:
            one = time_call(sides[name], frame)
            if number:  # the first time imports and touches memory
                seconds[name].append(one)
    rates = {name: [1.0 / s for s in times] for name, times in seconds.items()}
    taken = {name: f"{1e3 * statistics.median(times):.0f} ms" for name, times in seconds.items()}
    return Row(
        title,
        {name: ratio_of(rates["hotloop"], rates[name]) for name in ("loader", "tuned")},
        {"loader": _AIM},
        f"{taken['hotloop']} beside {taken['loader']} and {taken['tuned']}",
        {"seconds": seconds},
    )


def main() -> None:
    """Measures, and writes the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--smoke", action="store_true", help="in miniature")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    load = read_load()
    n = 1000 if options.smoke else options.rows
    found = []
    for what, is_mixed in (("numbers", False), ("numbers, missing values, texts", True)):
        title = f"frame of {n:,} x {_COLUMNS}: {what}"
        found.append(measure(title, make_frame(n, is_mixed=is_mixed), options.rounds))
        ratios = {name: f"{ratio.median:.2f}" for name, ratio in found[-1].ratios.items()}
        print(f"{title}: {ratios} ({found[-1].note})")
    facts = {
        "rows": [dataclasses.asdict(row) for row in found],
        "smoke": options.smoke,
        "options": {"rounds": options.rounds, "rows": n},
        "load_before": load,
    }
    options.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
