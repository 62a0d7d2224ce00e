"""A small GPT learns Shakespeare letter by letter, then writes: three minutes on one core.

Structure, sizes and schedule are those of nanoGPT's small setting for a CPU. Needs the text, a
megabyte that nanoGPT calls tinyshakespeare, as a file that is given on the command line:

    python examples/05_gpt_tinyshakespeare.py input.txt [steps]
"""

import sys
from pathlib import Path

import hotloop as hl
import numpy as np

CONTEXT, BATCH = 64, 12


def windows(ids, starts):
    """CONTEXT letters from each start on, and of each of them the letter behind it."""
    rows = np.lib.stride_tricks.sliding_window_view(ids, CONTEXT + 1)[starts]
    return rows[:, :-1], rows[:, 1:]


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    text = Path(sys.argv[1]).read_text(encoding="utf-8")
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    letters = sorted(set(text))
    number = {letter: i for i, letter in enumerate(letters)}
    ids = np.array([number[letter] for letter in text], np.int32)
    learnt, unseen = np.split(ids, [len(ids) * 9 // 10])

    # A step sees windows from anywhere; validation sees every letter of the last tenth once.
    rng = np.random.default_rng(0)
    X, y = windows(learnt, rng.integers(0, len(learnt) - CONTEXT, steps * BATCH))
    val = windows(unseen, np.arange(0, len(unseen) - CONTEXT, CONTEXT))
    data = hl.DataModule.from_arrays(X, y, val=val, batch_size=BATCH)

    model = hl.models.gpt(
        vocab_size=len(letters), block_size=CONTEXT, n_layer=4, n_head=4, n_embd=128, bias=False
    )
    result = hl.train(
        model, data, max_epochs=1, lr=1e-3, warmup=min(100, steps // 2), weight_decay=0.1,
        optimizer=hl.OptimizerConfig("adamw", betas=(0.9, 0.99)),
        scheduler=hl.SchedulerConfig("cosine", min_lr=1e-4),
    )  # fmt: skip
    print(f"validation loss {result.history['val_loss'][-1]:.3f}")

    # Where 64 letters are full, the last 32 of them go on.
    prompt = np.array([[number["\n"]]])
    written = hl.generate(result, prompt, 500, temperature=0.8, context=CONTEXT // 2)
    print("".join(letters[i] for i in written[0]))
