"""What is shown of a run: history and result as text, the plan's summary, layers, the header."""

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.training.result.history import History
from train.recipes import classes, mlp, quiet

X, Y = classes()

# ---- history and result


def test_history_is_shown_in_a_few_words() -> None:
    history = History()
    for epoch in range(1, 1001):
        row = {"epoch": epoch, "loss": 2.0 / epoch, "lr": 1e-3, "seconds": 0.01}
        history.append(row | ({"val_loss": 3.0 / epoch} if epoch % 2 == 0 else {}))
    assert repr(history) == (
        "History(1,000 epochs: loss 2 -> 0.002, lr 0.001, seconds 0.01, val_loss 1.5 -> 0.003)"
    )
    assert history["loss"][0] == 2.0
    assert dict(history) == history


def test_history_of_few_epochs() -> None:
    history = History()
    assert repr(history) == "History(no epochs)"
    history.append({"epoch": 1.0, "loss": 0.25, "val_f1": float("nan")})
    assert repr(history) == "History(1 epoch: loss 0.25, val_f1 nan)"


def test_result_is_one_line() -> None:
    result = hl.train(mlp(), (X, Y), quiet(max_epochs=200))
    assert len(repr(result)) < 200
    assert len(repr(result.history)) < 400
    assert "\n" not in repr(result) + repr(result.history)


# ---- plan


def test_plan_is_shown_as_a_summary() -> None:
    report = hl.plan(mlp(), (X, Y), quiet())
    shown = str(report)
    assert len(shown.splitlines()) == 3
    assert "region 0" not in shown
    assert f"{report.info['n_instructions']} instructions (.text lists them)" in shown
    assert repr(report) == shown
    assert "region 0" in report.text
    assert "cpu.adam" in report.text


# ---- summary of layers


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.rows = nn.Sequential(nn.Flatten(), nn.Linear(12, 5))
        self.other = nn.Linear(5, 2)
        self.unused = nn.Linear(3, 3)

    def forward(self, x):
        made = self.rows(self.table(x))
        return self.other(made), made


def said(capsys: pytest.CaptureFixture[str], model: nn.Module, data: object, **fields: object):
    capsys.readouterr()
    hl.train(model, data, **({"max_epochs": 1, "logger": None} | fields))
    return capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:parameters unused")
def test_summary_has_output_shapes(capsys) -> None:
    ids = np.random.default_rng(0).integers(0, 10, (64, 3))
    data = hl.DataModule.from_arrays(ids, ids[:, 0] % 2, batch_size=16)
    lines = said(capsys, Two(), data, loss=of_first).splitlines()
    rows = [line.split("  ") for line in lines[:6]]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells == [
        ["layer", "type", "output", "parameters"],
        ["table", "Embedding", "(16, 3, 4)", "weight (10, 4)", "40"],
        ["rows.1", "Linear", "(16, 5)", "weight (5, 12), bias (5,)", "65"],
        ["other", "Linear", "(16, 2)", "weight (2, 5), bias (2,)", "12"],
        ["unused", "Linear", "weight (3, 3), bias (3,)", "12"],
        ["129 parameters, 516 bytes"],
    ]


def test_the_summary_beside_a_loss_module_has_the_models_shapes(capsys) -> None:
    data = hl.DataModule.from_arrays(X, Y, batch_size=30)
    text = said(capsys, nn.Linear(6, 3), data, loss=nn.CrossEntropyLoss())
    assert "(model)  Linear  (30, 3)  weight (3, 6)" in text


def of_first(output, target):
    return nn.functional.cross_entropy(output[0], target)


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(np.ones((6, 3), np.float32))

    def forward(self, x):
        made = x @ self.weight
        return {"a": made, "b": (made.sum(1), made)}


def test_summary_shows_structures(capsys) -> None:
    data = hl.DataModule.from_arrays(X, Y, batch_size=30)
    text = said(capsys, Several(), data, loss=lambda o, t: nn.functional.cross_entropy(o["a"], t))
    assert "(model)  Several  (30, 3), (30,), (30, 3)  weight (6, 3)" in text


def test_summary_of_a_layer_with_many_parameters(capsys) -> None:
    """An LSTM of two layers in both directions has sixteen."""
    net = nn.Sequential(nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True), Last())
    rows = hl.DataModule.from_arrays(np.zeros((8, 5, 3), "float32"), np.zeros((8, 1), "float32"))
    out = said(capsys, net, rows)
    assert "weight_ih_l0 (16, 3), weight_hh_l0 (16, 4), bias_ih_l0 (16,)," in out
    assert "bias_hh_l0 (16,), ... 12 more  " in out
    assert max(map(len, out.splitlines())) < 170


class Last(nn.Module):
    """One number of the last states."""

    def forward(self, states):
        return states[0][:, -1, :1]


def test_the_summary_of_training_step_has_shapes(capsys) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(6, 3)

        def training_step(self, batch):
            return nn.functional.cross_entropy(self.body(batch["x"]), batch["y"])

    data = hl.DataModule.from_arrays(X, Y, batch_size=30)
    assert "body   Linear  (30, 3)" in said(capsys, Own(), data)


# ---- header


def test_header_says_what_param_groups_do(capsys) -> None:
    groups = [
        {"params": ["0.weight", "*.bias"], "lr": 1e-4},
        {"params": "2", "lr_scale": 0.5, "weight_decay": 0.1},
    ]
    text = " ".join(said(capsys, mlp(), (X, Y), lr=1e-2, param_groups=groups).split())
    assert "groups 0.weight, *.bias: lr 0.0001 (3 tensors); 2: lr 0.005 wd 0.1 (1 tensor) |" in text
    assert "groups" not in said(capsys, mlp(), (X, Y))


def test_header_says_what_becomes_of_images_of_bytes(capsys) -> None:
    x, y = np.zeros((16, 3, 4, 4), "uint8"), np.arange(16) % 2
    for images, says in ((x, True), (x.astype("float32"), False)):
        net = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
        header = " ".join(said(capsys, net, (images, y)).split())
        assert ("images bytes as float32, 0 to 255" in header) == says


def test_header_says_which_group_is_empty(capsys) -> None:
    groups = [{"params": "0", "lr": 1e-4}, {"params": "0.bias", "lr": 1e-5}]
    text = " ".join(said(capsys, mlp(), (X, Y), param_groups=groups).split())
    assert "0.bias: lr 1e-05 (0 tensors)" in text


def test_a_name_that_the_history_has_not_is_said() -> None:
    result = hl.train(mlp(), (X, Y), quiet(max_epochs=1))
    with pytest.raises(
        KeyError, match=r"history has no 'losss', got .*loss.*did you mean 'loss'\?"
    ):
        result.history["losss"]
    assert result.history.get("val_acc") is None
