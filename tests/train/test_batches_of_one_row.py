"""Batch statistics need two values per channel, which one image has."""

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from needs import take_library
from train.recipes import exact, quiet, same_bits

RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((9, 2, 5, 4)).astype(np.float32)
VALUES = RNG.standard_normal((9, 3)).astype(np.float32)


def net(lib):
    return lib.Sequential(
        lib.Conv2d(2, 4, 3), lib.BatchNorm2d(4), lib.ReLU(), lib.Flatten(), lib.Linear(24, 3)
    )


@pytest.mark.parametrize(("batch_size", "k"), [(1, 1), (1, 3), (1, 4), (4, 1), (8, 1)])
def test_images_one_at_a_time_as_in_torch(batch_size, k) -> None:
    """The last batch of 9 rows has one, too; windows of k batches are one step."""
    torch = take_library("torch")
    mine, theirs = net(nn), net(torch.nn)
    theirs.load_state_dict({n: torch.tensor(v) for n, v in mine.state_dict().items()})
    theirs.double()
    data = hl.DataModule.from_arrays(IMAGES, VALUES, batch_size=batch_size, shuffle=False)
    config = exact(max_epochs=2, accumulate_grad_batches=k)
    hl.train(mine, data, config)
    optimizer = torch.optim.SGD(
        theirs.parameters(), config.lr, momentum=config.optimizer_config.momentum
    )
    x, y = torch.tensor(IMAGES).double(), torch.tensor(VALUES).double()
    batches = list(zip(x.split(batch_size), y.split(batch_size)))
    for _ in range(2):
        for begin in range(0, len(batches), k):
            window = batches[begin : begin + k]
            optimizer.zero_grad()
            total = sum((theirs(a) - b).square().sum() for a, b in window)
            (total / sum(b.numel() for _, b in window)).backward()
            optimizer.step()
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(mine.state_dict()[name], value.numpy(), 1e-5, 1e-6)


class Steps(nn.Module):
    """The loss is training_step's, over rows that it cuts out of each sample."""

    def __init__(self):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.norm(x.mean(dim=(1, 2))))

    def training_step(self, batch):
        return self.head(self.norm(batch["x"].reshape(-1, 4))).square().mean()


def test_rows_that_training_step_makes_are_counted() -> None:
    data = hl.DataModule.from_arrays(IMAGES, VALUES, batch_size=1)
    assert hl.train(Steps(), data, quiet(max_epochs=1)).steps == 9


@pytest.mark.parametrize("of", ["vectors", "pooled"])
def test_one_value_per_channel_still_joins_the_batch_before(of) -> None:
    x, model = IMAGES[:, :, 0, 0], nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4))
    if of == "pooled":
        x = IMAGES
        model = nn.Sequential(nn.Conv2d(2, 4, (5, 4)), nn.BatchNorm2d(4), nn.Flatten())
    model = nn.Sequential(*model, nn.Linear(4, 3))
    data = hl.DataModule.from_arrays(x, VALUES, batch_size=4)
    assert hl.train(model, data, quiet(max_epochs=1)).steps == 2
    with pytest.raises(hl.DataError, match="batch statistics need two rows, got 9 rows"):
        hl.train(model, hl.DataModule.from_arrays(x, VALUES, batch_size=1), quiet(max_epochs=1))


def test_a_norm_that_is_only_evaluated_needs_no_rows() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    model[1].eval()
    data = hl.DataModule.from_arrays(IMAGES[:, :, 0, 0], VALUES, batch_size=4)
    assert hl.train(model, data, quiet(max_epochs=1)).steps == 3


def test_a_stepper_takes_one_image() -> None:
    data = hl.DataModule.from_arrays(IMAGES, VALUES, batch_size=1, shuffle=False)
    model, other = net(nn), net(nn)
    step = hl.stepper(model, quiet(max_epochs=1), data)
    for batch in data.train_batches():
        step.step(batch)
    hl.train(other, data, quiet(max_epochs=1))
    assert same_bits(step.sync().state_dict(), other.state_dict())
