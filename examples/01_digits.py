"""Classify handwritten digits: train, look at the result, save, load, predict.

The data ships with hotloop. Runs in seconds.
"""

import tempfile
from pathlib import Path

import hotloop as hl
from hotloop import nn


class Net(nn.Module):
    """64 pixels in, a score for each of ten digits out."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.2)
        )
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        return self.head(self.body(x))


X, y = hl.load_digits()
data = hl.DataModule.from_arrays(X, y, val=0.15, test=0.15, batch_size=64)
result = hl.train(Net(), data, max_epochs=20, lr=3e-3, metrics=["accuracy", "f1"])
print(result)

# The test split was not seen by training, nor did it choose the best epoch.
print("on the test split:", hl.evaluate(result, data, split="test"))

# A file is the model with all that it needs to predict; its Python class is not needed again.
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "net.safetensors"
    result.save(path)
    loaded = hl.load(path)
    print("labels:       ", hl.predict(loaded, X[:10], labels=True))
    print("probabilities:", hl.predict(loaded, X[:1], proba=True).round(3))
    print("true:         ", y[:10])
