"""Fit a function of ten variables from noisy values, and see that only the noise is left.

The data is Friedman's first problem (Friedman 1991, "Multivariate adaptive regression splines"):
five of the ten variables matter, and the noise has a standard deviation of 1. So no model can have
a root mean squared error below 1 on new data.
"""

import hotloop as hl
import numpy as np
from hotloop import nn

rng = np.random.default_rng(0)
X = rng.random((20_000, 10), dtype=np.float32)
signal = (
    10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 5 * X[:, 4]
)
y = (signal + rng.standard_normal(len(X))).astype(np.float32)

model = nn.Sequential(nn.Linear(10, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
data = hl.DataModule.from_arrays(X, y, val=0.2, test=0.1, batch_size=128)

# Floats as targets: the loss is the mean squared error, and the header says so.
result = hl.train(model, data, max_epochs=40, lr=5e-3, metrics=["rmse", "r2"], early_stopping=5)

scores = hl.evaluate(result, data, split="test")
print(f"root mean squared error {scores['rmse']:.3f}, of which 1 is noise; R2 {scores['r2']:.3f}")

# What it learnt of one variable, the others at their middle.
grid = np.full((5, 10), 0.5, dtype=np.float32)
grid[:, 2] = np.linspace(0, 1, 5)
print("x3:      ", grid[:, 2])
print("model:   ", hl.predict(result.model, grid)[:, 0].round(2))
truth = 10 * np.sin(np.pi / 4) + 20 * (grid[:, 2] - 0.5) ** 2 + 7.5
print("function:", truth.round(2))
