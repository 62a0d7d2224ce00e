"""The core's Feed from Python: every sample once, any position, the same in any process."""

from typing import Any

import numpy as np
import pytest
from hotloop import _core, errors


def epoch_of(feed: _core.Feed) -> list[np.ndarray]:
    batches = []
    while (rows := feed.next_rows()) is not None:
        batches.append(rows)
    assert feed.next_rows() is None
    return batches


@pytest.mark.parametrize("n", [1, 5, 64, 65, 1000])
def test_every_sample_once(n: int) -> None:
    batch = max(1, n // 7)
    full = n // batch * batch
    head = _core.Feed(n, batch, shuffle=True, seed=3, count=full)
    for epoch in range(3):
        head.seek(epoch)
        batches = epoch_of(head)
        assert all(rows.shape == (batch,) for rows in batches)
        if n > full:
            tail = _core.Feed(n, n - full, shuffle=True, seed=3, first=full)
            tail.seek(epoch)
            batches += epoch_of(tail)
        order = np.concatenate(batches)
        assert sorted(order.tolist()) == list(range(n))
        assert (order == _core.permutation(3, "shuffle", epoch, n)).all()


def test_positions_and_rows() -> None:
    rows = np.arange(100, 200, dtype=np.int64)
    feed = _core.Feed(100, 8, rows=rows[:], shuffle=True, seed=2**64 - 1, first=4, count=50)
    rows[:] = 0
    feed.seek(9)
    batches = epoch_of(feed)
    assert len(batches) == 6
    for batch in range(7):
        feed.seek(9, batch)
        assert [b.tolist() for b in epoch_of(feed)] == [b.tolist() for b in batches[batch:]]
    order = _core.permutation(2**64 - 1, "shuffle", 9, 100) + 100
    assert (np.concatenate(batches) == order[4:52]).all()
    plain = _core.Feed(10, 3)
    assert [b.tolist() for b in epoch_of(plain)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_refuses() -> None:
    feed = _core.Feed(10, 3)
    wrong: list[tuple[type[Exception], Any]] = [
        (TypeError, lambda: _core.Feed(10)),
        (TypeError, lambda: _core.Feed(10, 3, None)),
        (TypeError, lambda: _core.Feed(10.0, 3)),
        (TypeError, lambda: _core.Feed(10, 3, shuffle=1)),
        (errors.ConfigError, lambda: _core.Feed(-1, 3)),
        (errors.ConfigError, lambda: _core.Feed(10, 0)),
        (errors.ConfigError, lambda: _core.Feed(10, 3, first=11)),
        (errors.ConfigError, lambda: _core.Feed(10, 3, first=5, count=6)),
        (errors.ConfigError, lambda: _core.Feed(10, 3, count=-2)),
        (errors.ConfigError, lambda: _core.Feed(10, 3, seed=2**64)),
        (errors.ConfigError, lambda: _core.Feed(10, 3, n_threads=-1)),
        (errors.ConfigError, lambda: _core.Feed(10, 3, n_slots=0)),
        (errors.ShapeError, lambda: _core.Feed(10, 3, rows=np.arange(9))),
        (errors.ShapeError, lambda: _core.Feed(10, 3, rows=np.arange(10, dtype=np.int32))),
        (errors.DataError, lambda: _core.Feed(10, 3, rows=np.arange(10) - 1)),
        (errors.ConfigError, lambda: feed.seek(0, 4)),
        (errors.ConfigError, lambda: feed.seek(0, -1)),
        (errors.ConfigError, lambda: feed.seek(2**64)),
        (TypeError, lambda: feed.seek()),
    ]
    for kind, call in wrong:
        with pytest.raises(kind):
            call()
    assert _core.Feed(0, 3).next_rows() is None
    assert _core.Feed(10, 2**62).next_rows() is None
