"""A training loop of one's own around hotloop's planned step.

`hl.stepper` gives the step that `hl.train` runs, one call per batch: for curricula, unusual
stopping rules, or code that already has a loop.
"""

import hotloop as hl
from hotloop import nn

X, y = hl.load_digits()
data = hl.DataModule.from_arrays(X, y, val=0.2, batch_size=64)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
config = hl.TrainingConfig(max_epochs=20, lr=3e-3)
step = hl.stepper(model, config, data)

n_steps = 0
for epoch in range(config.max_epochs):
    for batch in data.train_batches():
        report = step.step(batch)
        n_steps += 1
        if n_steps % 50 == 0:
            print(f"step {n_steps}: loss {report['loss']:.3f}, |g| {report['grad_norm']:.2f}")
    scores = step.evaluate("val")
    print(f"epoch {epoch + 1}: validation accuracy {scores['accuracy']:.2%}")
    if scores["accuracy"] > 0.97:
        break

step.sync()  # the weights, from the plan's memory into the model
print("labels:", hl.predict(model, X[:10]).argmax(1), "true:", y[:10])
