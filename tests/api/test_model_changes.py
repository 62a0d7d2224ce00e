"""A model that changes after it was used: what was recorded of it is of the old one."""

import copy
import pickle

import hotloop as hl
import numpy as np
import pytest
from hotloop import ConfigError, nn

X = np.random.default_rng(0).standard_normal((48, 4)).astype(np.float32)
Y = X[:, :1]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.more = nn.ModuleList([nn.Linear(4, 4, bias=False)])
        self.named = nn.ModuleDict({"a": nn.Linear(4, 4)})
        self.list = nn.ParameterList([np.full(4, 2.0)])
        self.dict = nn.ParameterDict({"a": np.full(4, 3.0)})
        self.register_buffer("shift", np.zeros(4))
        self.scale = 2.0
        self.activation = hl.tanh
        self.sizes = (4,)

    def forward(self, x):
        x = self.body(x)
        for module in self.more:
            x = module(x)
        for module in self.named.values():
            x = module(x)
        for value in (*self.list, *self.dict.values()):
            x = x * value
        if "offset" in dict(self.named_parameters(recurse=False)):
            x = x + self.offset
        return self.activation(x) * self.scale + self.shift


def tie(net):
    net.body[2].weight = net.body[0].weight


def swap(net):
    net.body[0], net.body[2] = net.body[2], net.body[0]


def extend(net):
    net.more += [nn.Linear(4, 4)]


def torchs_way(net):
    net._modules["body"] = nn.Linear(4, 4)


def other_forward(net):
    net.forward = lambda x: x * 3.0


CHANGES = {
    "a module set by index": lambda net: net.body.__setitem__(2, nn.ReLU()),
    "a module set by name": lambda net: setattr(net, "body", nn.Linear(4, 4)),
    "a module set deep below": lambda net: setattr(net.body, "0", nn.Tanh()),
    "a module in torch's way": torchs_way,
    "modules swapped": swap,
    "a module added": lambda net: net.body.append(nn.Linear(4, 4)),
    "a module inserted": lambda net: net.body.insert(0, nn.Linear(4, 4)),
    "a module removed": lambda net: net.body.pop(1),
    "a module deleted": lambda net: net.body.__delitem__(slice(0, 2)),
    "a list extended": extend,
    "a dict updated": lambda net: net.named.update({"b": nn.Linear(4, 4)}),
    "a dict cleared": lambda net: net.named.clear(),
    "a parameter replaced": lambda net: setattr(net.body[0], "weight", nn.Parameter(np.eye(4))),
    "a parameter removed": lambda net: setattr(net.body[0], "bias", None),
    "a parameter registered": lambda net: net.register_parameter("offset", nn.Parameter(X[0])),
    "a parameter tied": tie,
    "a parameter in a list": lambda net: net.list.__setitem__(0, np.full(4, 5.0)),
    "a parameter appended": lambda net: net.list.append(np.full(4, 5.0)),
    "a parameter in a dict": lambda net: net.dict.__setitem__("a", np.full(4, 5.0)),
    "a parameter deleted": lambda net: net.dict.__delitem__("a"),
    "a parameter popped": lambda net: net.dict.pop("a"),
    "a buffer registered again": lambda net: net.register_buffer("shift", np.ones(4)),
    "a buffer set": lambda net: setattr(net, "shift", np.ones(4)),
    "a number": lambda net: setattr(net, "scale", 7.0),
    "a function": lambda net: setattr(net, "activation", hl.sigmoid),
    "forward": other_forward,
}


def fresh(net, x):
    """The output of a copy, which nobody has used."""
    twin = copy.deepcopy(net)
    if "forward" in net.__dict__:
        twin.forward = net.forward
    return twin(x)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_the_next_call_is_of_the_changed_model(change):
    net = Net()
    net.load_state_dict(net.state_dict())  # initial values would be those of the names
    before = net(X), hl.predict(net, X)
    change(net)
    after = net(X), hl.predict(net, X)
    assert not np.array_equal(before[0], after[0])
    for value in after:
        np.testing.assert_array_equal(value, fresh(net, X))


def test_a_head_is_replaced_for_another_task():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    hl.train(net, (X, Y), max_epochs=1, enable_progress_bar=False)
    assert hl.predict(net, X).shape == (48, 1)
    net[2] = nn.Linear(8, 3)
    assert net(X).shape == hl.predict(net, X).shape == (48, 3)
    hl.train(net, (X, X[:, :3]), max_epochs=1, enable_progress_bar=False)
    np.testing.assert_array_equal(hl.predict(net, X), net(X))


def test_another_standardisation_is_not_that_of_an_earlier_training():
    net = nn.Linear(4, 1)
    quiet = {"max_epochs": 1, "lr": 1e-9, "enable_progress_bar": False, "restore_best": False}
    hl.train(net, hl.DataModule.from_arrays(X, Y, standardize=True, val=None), **quiet)
    first = hl.predict(net, X)
    moved = hl.DataModule.from_arrays(10 * X + 5, Y, standardize=True, val=None)
    hl.train(net, moved, **quiet)
    np.testing.assert_allclose(hl.predict(net, 10 * X + 5), first, atol=1e-4)


def test_plans_are_kept_while_nothing_changes(monkeypatch):
    class Notes(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.calls = 0

        def forward(self, x):
            self.hidden = self.layer(x)
            type(self).recorded = getattr(type(self), "recorded", 0) + 1
            return self.hidden

    net = Notes()
    net(X)
    recorded = Notes.recorded
    for _ in range(3):
        net.eval()
        net(X)
        nn.Linear(4, 4)  # another model
    assert Notes.recorded == recorded
    net(X[:7])
    net(X)
    assert Notes.recorded == 2 * recorded


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_copies_change_by_themselves(copied):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    twin = copied(net)
    before = net(X), twin(X)
    np.testing.assert_array_equal(*before)
    twin[1] = nn.Linear(4, 2)
    np.testing.assert_array_equal(net(X), before[0])
    assert twin(X).shape == (48, 2)


# ---------------------------------------------------------------------------- while it is trained


def replaced(net):
    net.body[2] = nn.Linear(4, 4)


def frozen(net):
    net.body.requires_grad_(False)


def trained(change, **more):
    class Changes:
        def on_epoch_end(self, run):
            if run.epoch == 1:
                change(run.model)

    quiet = {"max_epochs": 2, "enable_progress_bar": False}
    return hl.train(Net(), (X, X), **quiet, callbacks=[Changes()])


@pytest.mark.parametrize(
    ("change", "what"), [(replaced, "modules, parameters or buffers"), (frozen, "requires_grad")]
)
def test_a_callback_cannot_change_what_is_planned(change, what):
    text = rf"callbacks: Changes.on_epoch_end: .* got .*{what}.*run\.stop\(\), change the model"
    with pytest.raises(ConfigError, match=text):
        trained(change)


def test_an_attribute_that_a_callback_assigns_warns():
    with pytest.warns(hl.ModelWarning, match=r"on_epoch_end: an attribute .* hl\.scalar") as found:
        trained(lambda net: setattr(net, "scale", 0.5))
    assert found[0].filename == __file__


def test_a_stepper_does_not_go_on_with_another_model():
    net = Net()
    data = hl.DataModule.from_arrays(X, X, val=None)
    stepper = hl.stepper(net, data=data)
    stepper.step((X, X))
    stepper.sync()
    stepper.step((X, X))
    replaced(net)
    with pytest.raises(ConfigError, match=r"step: the model must stay.*make a new hl\.stepper"):
        stepper.step((X, X))
