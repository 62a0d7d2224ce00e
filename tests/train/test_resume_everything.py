"""A run with all that has a state goes on from each of its steps with the same bits."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from needs import take_library
from train.recipes import quiet
from train.test_resume import assert_same, at_once, every_step, final  # noqa: F401


def augmented_series(folder: Path) -> tuple[hl.DataModule, nn.Module]:
    """Windows that the step augments."""
    rng = np.random.default_rng(0)
    series = rng.normal(size=(100, 3)).astype(np.float32)
    target = (series.sum(1) > 0).astype(int)
    data = hl.DataModule.from_windows(
        series, 8, target=target, val=0.12, augment="strong", batch_size=4
    )
    return data, nn.Flatten()


def augmented_images(folder: Path) -> tuple[hl.DataModule, nn.Module]:
    """Files that threads decode and augment."""
    library = take_library("PIL.Image")
    rng = np.random.default_rng(0)
    for i in range(100):
        name = folder / "images" / str(i % 2) / f"{i}.png"
        name.parent.mkdir(parents=True, exist_ok=True)
        levels = rng.integers(0, 256, (9, 9, 3), np.uint8) // (1 + i % 2)
        library.fromarray(levels).save(name)
    data = hl.DataModule.from_image_folder(
        folder / "images", 8, val=0.2, augment="strong", num_workers=2, batch_size=4
    )
    return data, nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())


class Scales:
    """Sets the loss scale now and then: it doubles two steps later, or is so large that some steps
    overflow.
    """

    def on_train_batch_end(self, run: Any) -> None:
        if run.steps_attempted % 12 == 1:
            run.runtime.session.control_set(loss_scale=1024.0, good_steps=1998)
        if run.steps_attempted % 12 == 5:
            run.runtime.session.control_set(loss_scale=2.0**20, good_steps=0)


@pytest.mark.usefixtures("every_step")
@pytest.mark.parametrize("make", [augmented_series, augmented_images])
def test_every_step_of_fifty(make: Any, tmp_path: Path) -> None:
    """Dropout, BatchNorm, a moving average, overflows, accumulation, a plateau, augmentation."""
    data, first = make(tmp_path)

    def net() -> nn.Module:
        width = nn.Sequential(copy.deepcopy(first), nn.LazyLinear(16), nn.BatchNorm1d(16))
        return nn.Sequential(*width, nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))

    def values(result: hl.TrainResult) -> dict[str, Any]:  # without a file's predict graph
        return {k: v for k, v in final(result).items() if "constant" not in k}

    config = quiet(
        max_epochs=5, precision="16-mixed", ema=0.9, accumulate_grad_batches=2, lr=0.01,
        scheduler={"name": "plateau", "patience": 0, "factor": 0.7}, early_stopping=50,
        restore_best=True, enable_checkpointing=True, save_top_k=0, callbacks=[Scales()],
    )  # fmt: skip
    plain = hl.train(net(), data, config)
    wanted = values(plain)
    assert plain.steps + plain.skipped_steps == 50
    assert 10 <= plain.skipped_steps <= 25
    assert plain.history["loss_scale"][3] == 2048.0
    assert plain.history["lr"][-1] < plain.history["lr"][0]
    whole = config.replace(output_dir=tmp_path / "runs", save_every="1 steps")
    assert_same(values(hl.train(net(), data, whole)), wanted)
    paths = sorted((tmp_path / "runs/1/checkpoints").glob("step-*"))
    assert len(paths) == 50
    for path in paths[:49]:
        again = shutil.copy(path, tmp_path / "again.safetensors")
        resumed = hl.train(net(), data, config, resume=again)
        assert_same(values(resumed), wanted)
        assert (resumed.steps, resumed.skipped_steps) == (plain.steps, plain.skipped_steps)
