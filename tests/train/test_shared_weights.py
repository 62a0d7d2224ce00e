"""What happens to a model's weights outside of a stepper counts for the stepper's next step."""

import copy
import warnings

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.nn import functional as F
from needs import take_library
from train.recipes import classes, mlp, quiet, same_bits

X, Y = classes(96)
DATA = hl.DataModule.from_arrays(X, Y, val=0.25, batch_size=24)
BATCH = next(iter(DATA.train_batches()))


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


class Game(nn.Module):
    """Two nets of which one learns."""

    def __init__(self, G, D):
        super().__init__()
        self.G, self.D = G, D

    def forward(self, z):
        return self.D(self.G(z))


class TrainsG(Game):
    def training_step(self, batch):
        return F.softplus(-self.D(self.G(batch["x"]))).mean()


class TrainsD(Game):
    def training_step(self, batch):
        fake = self.G(batch["x"]).detach()
        return F.softplus(-self.D(batch["y"])).mean() + F.softplus(self.D(fake)).mean()


def nets(lib):
    return (
        lib.Sequential(lib.Linear(4, 8), lib.BatchNorm1d(8), lib.ReLU(), lib.Linear(8, 3)),
        lib.Sequential(lib.Linear(3, 8), lib.BatchNorm1d(8), lib.ReLU(), lib.Linear(8, 1)),
    )


def test_two_steppers_play_against_each_other_as_two_optimizers_do() -> None:
    """In the running statistics too, which both steps move."""
    torch = take_library("torch")
    rng = np.random.default_rng(0)
    z = rng.standard_normal((60, 4)).astype(np.float32)
    x = rng.standard_normal((60, 3)).astype(np.float32) + 2
    G, D = nets(nn)
    g, d = nets(torch.nn)
    data = hl.DataModule.from_arrays(z, x, batch_size=20, shuffle=False)
    config = quiet(precision="64-true", optimizer="sgd", lr=0.05, scheduler="constant", warmup=0)
    train_g = hl.stepper(TrainsG(G, D), config.replace(freeze="D"), data)
    train_d = hl.stepper(TrainsD(G, D), config.replace(freeze="G"), data)
    for mine, theirs in ((G, g), (D, d)):
        theirs.load_state_dict({k: torch.tensor(v) for k, v in mine.state_dict().items()})
    g.double(), d.double()
    softplus = torch.nn.functional.softplus
    momentum = train_g.config.optimizer_config.momentum
    by_g, by_d = (torch.optim.SGD(n.parameters(), 0.05, momentum=momentum) for n in (g, d))
    for batch in [*data.train_batches()] * 4:
        train_d.step(batch)
        train_d.sync()
        train_g.step(batch)
        train_g.sync()
        z, x = (torch.tensor(batch[k]).double() for k in "xy")
        by_d.zero_grad()
        loss = softplus(-d(x)).mean() + softplus(d(g(z).detach())).mean()
        loss.backward()
        by_d.step()
        by_g.zero_grad()
        softplus(-d(g(z))).mean().backward()
        by_g.step()
    for mine, theirs in ((G, g), (D, d)):
        for name, value in theirs.state_dict().items():
            np.testing.assert_allclose(mine.state_dict()[name], value.numpy(), 1e-4, 1e-6)


def constant(value: float):
    def change(model):
        for parameter in model.parameters():
            parameter.copy_(np.full(parameter.shape, value, np.float32))

    return change


def train_again(model) -> None:
    hl.train(model, DATA, quiet(max_epochs=1, lr=1e-2))


def step_again(model) -> None:
    other = hl.stepper(model, quiet(lr=1e-2), DATA)
    other.step(BATCH)
    other.sync()


def load_other(model) -> None:
    model.load_state_dict({k: v + 0.25 for k, v in model.state_dict().items()})


@pytest.mark.parametrize("ema", [False, 0.5])
@pytest.mark.parametrize("change", [constant(0.5), train_again, step_again, load_other])
def test_weights_that_were_set_are_those_of_the_next_step(change, ema) -> None:
    model = mlp(dropout=0.0)
    step = hl.stepper(model, quiet(lr=1e-2, ema=ema), DATA)
    step.step(BATCH)
    step.sync()
    change(model)
    now = model.state_dict()
    assert same_bits(step.sync().state_dict(), now)
    assert step.evaluate()["loss"] == pytest.approx(hl.evaluate(model, DATA, "val")["loss"], 1e-5)
    fresh = hl.stepper(copy.deepcopy(model), quiet(lr=1e-2), DATA)
    assert step.step(BATCH)["loss"] == fresh.step(BATCH)["loss"]


def test_weights_that_are_set_over_steps_without_a_sync_are_said_to_be() -> None:
    model = mlp(dropout=0.0)
    step = hl.stepper(model, quiet(lr=1e-2), DATA)
    step.step(BATCH)
    constant(0.5)(model)
    now = model.state_dict()
    with pytest.warns(hl.ModelWarning, match=r"^step: 0\.weight, .* other values since"):
        step.step(BATCH)
    step.sync()
    step.step(BATCH)
    constant(0.5)(model)
    with pytest.warns(hl.ModelWarning, match=r"^sync: .*call sync\(\) before setting weights"):
        step.sync()
    assert same_bits(model.state_dict(), now)


def test_what_a_stepper_has_not_written_is_missed_aloud() -> None:
    model = mlp(dropout=0.0)
    first = hl.stepper(model, quiet(lr=1e-2), DATA)
    second = hl.stepper(model, quiet(lr=1e-2), DATA)
    first.step(BATCH)
    with pytest.warns(hl.ModelWarning, match=r"^step: .*trained by a stepper.*its sync\(\)"):
        second.step(BATCH)
    second.sync()
    with pytest.warns(hl.ModelWarning, match=r"^sync: .*other values since"):
        first.sync()
    first.step(BATCH)
    with pytest.warns(hl.ModelWarning, match=r"^train: .*trained by a stepper"):
        hl.train(model, DATA, quiet(max_epochs=1))
    del first
    hl.train(model, DATA, quiet(max_epochs=1))


def test_weights_that_were_drawn_keep_their_trained_values_under_another_name() -> None:
    model = mlp(dropout=0.0)
    step = hl.stepper(model, quiet(lr=1e-2), DATA)
    step.step(BATCH)
    outer = nn.Sequential(model)  # 0.weight is 0.0.weight from now on
    outer.state_dict()
    other = mlp(dropout=0.0)
    alone = hl.stepper(other, quiet(lr=1e-2), DATA)
    alone.step(BATCH)
    assert step.step(BATCH) == alone.step(BATCH)
    assert same_bits(step.sync().state_dict(), alone.sync().state_dict())


def test_a_sync_leaves_alone_what_the_stepper_did_not_train() -> None:
    model = mlp(dropout=0.0)
    step = hl.stepper(model, quiet(lr=1e-2, freeze="0"), DATA)
    versions = [model[0].weight.version, model[0].bias.version]
    step.step(BATCH)
    step.sync()
    assert [model[0].weight.version, model[0].bias.version] == versions
