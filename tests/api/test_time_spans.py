"""Time spans as people write them."""

import hotloop as hl
import pytest


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1d 2h", 93600.0),
        ("1.5h", 5400.0),
        ("10min", 600.0),
        ("08:30:00", 30600.0),
        ("01:08:30:00", 117000.0),
        ("10 minutes", 600.0),
        ("1 Hour 30 min", 5400.0),
        ("2 days 1 second", 172801.0),
        ("45 secs", 45.0),
    ],
)
def test_texts(text: str, seconds: float) -> None:
    assert hl.TrainingConfig(max_time=text).max_time == seconds
    assert hl.TrainingConfig(save_every=text).save_every == f"{seconds:.0f}s"


@pytest.mark.parametrize("text", ["500 ms", "1:30", "minutes", "10 m m", "5 s 3 h", "", "0s"])
def test_other_texts(text: str) -> None:
    with pytest.raises(hl.ConfigError, match=r"max_time: .*(time span|longer than 0)"):
        hl.TrainingConfig(max_time=text)
