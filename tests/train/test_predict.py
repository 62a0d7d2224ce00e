"""``predict``, ``evaluate`` and ``model(array)`` as those call them who know other libraries."""

import contextlib
import copy
import gc
import os
import pickle
import signal
import statistics
import threading
import time
import warnings
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.nn import functional as F
from hotloop.training.plans import fitted
from hotloop.training.plans.fitted import exclusive
from needs import take_library
from train.recipes import classes, mlp, quiet, regression

X, Y = classes()


@pytest.fixture(scope="module")
def model() -> nn.Module:
    net = mlp()
    hl.train(net, (X, Y), quiet(max_epochs=2, lr=1e-2))
    return net


@pytest.fixture(scope="module")
def path(model: nn.Module, tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("saved") / "net.safetensors"
    hl.save(model, file)
    return file


# ---------------------------------------------------------------------------- one row's time


def ratio(slow: Any, quick: Any) -> float:
    """Of the medians of two calls that take turns; the least of some rounds."""

    def seconds(call: Any) -> float:
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    for call in (slow, quick):
        call()
    rounds = []
    for _ in range(7):
        pairs = [(seconds(slow), seconds(quick)) for _ in range(25)]
        rounds.append(
            statistics.median(a for a, _ in pairs) / statistics.median(b for _, b in pairs)
        )
    return min(rounds)


def test_one_row_costs_what_the_call_costs(model: nn.Module) -> None:
    row = X[:1]
    assert ratio(lambda: hl.predict(model, row), lambda: model(row)) < 1.5
    assert ratio(lambda: hl.predict(model, row, proba=True), lambda: model(row)) < 4


def test_a_missing_attribute_of_a_model_is_asked_for_by_nobody() -> None:
    """Each costs a search for the name that may be meant, hundreds of microseconds."""
    asked = []

    class Net(nn.Sequential):
        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            return super().__getattr__(name)

    net = Net(nn.Linear(6, 3))
    hl.evaluate(net, (X, Y))
    hl.predict(net, X)
    assert not {"model", "runner", "config"} & set(asked)
    asked.clear()
    hl.predict(net, X)
    net(X)
    assert asked == []


# ---------------------------------------------------------------------------- whose attributes


def test_a_models_own_attributes_are_its_own(tmp_path: Path) -> None:
    """A part named model, as Lightning's modules have it, is not what predicts."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(6, 3)
            self.config = SimpleNamespace(width=6)
            self.runner = None

        def forward(self, x: Any) -> Any:
            return self.model(x) * 0 + 7

    net = Net()
    assert (hl.predict(net, X) == 7).all()
    hl.train(net, (X, Y), quiet(max_epochs=1))
    assert hl.evaluate(net, (X, Y))["loss"] == pytest.approx(np.log(3))
    hl.save(net, tmp_path / "net")
    assert (hl.load(tmp_path / "net").predict(X) == 7).all()


def test_a_model_that_predicted_is_freed() -> None:
    net = mlp()
    hl.predict(net, X)
    net(X[:1])
    there = weakref.ref(net)
    del net
    gc.collect()
    assert there() is None


# ---------------------------------------------------------------------------- shapes


SHAPES = {
    "rows": X,
    "one row": X[:1],
    "no rows": X[:0],
    "a row alone": X[3],
    "a list": X[3].tolist(),
    "lists": X[:2].tolist(),
    "more dims": X[:24].reshape(2, 3, 4, 6),
    "float64": X.astype(np.float64),
    "integers": X.astype(np.int32),
    "strided": np.asfortranarray(X)[::2],
}


@pytest.mark.parametrize("is_trained", [False, True])
@pytest.mark.parametrize("kind", SHAPES)
def test_predict_takes_what_the_model_takes(kind: str, is_trained: bool, model: nn.Module) -> None:
    net = model if is_trained else mlp()
    want = net(SHAPES[kind])
    got = hl.predict(net, SHAPES[kind])
    assert want.shape == (*np.shape(SHAPES[kind])[:-1], 3)
    assert type(got) is np.ndarray
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("none", [X[:0], [], np.empty(0)], ids=["array", "list", "no shape"])
def test_no_rows_have_no_predictions(none: Any, model: nn.Module, path: Path) -> None:
    for net in (model, hl.load(path)):
        assert hl.predict(net, none).shape == net(none).shape == (0, 3)
        assert hl.predict(net, none, proba=True).shape == (0, 3)
        assert hl.predict(net, none, labels=True).shape == (0,)


class Normed(nn.Module):
    """Classes of rows of sequences, or of whole ones."""

    def __init__(self, by_row: bool) -> None:
        super().__init__()
        self.by_row = by_row
        self.norm, self.head = nn.LayerNorm(2), nn.Linear(2, 3)

    def forward(self, x: Any, said: Any) -> Any:
        made = self.head(self.norm(x))
        return made if self.by_row else made.mean(1)


@pytest.mark.parametrize("role", ["lengths", "padding_mask"])
@pytest.mark.parametrize("by_row", [False, True])
def test_no_sequences_have_no_predictions(by_row: bool, role: str, tmp_path: Path) -> None:
    walks = [np.ones((n, 2), np.float32) for n in (2, 3, 4, 4)]
    y = [np.arange(len(walk)) % 3 for walk in walks] if by_row else [0, 1, 2, 0]
    data = hl.DataModule.from_sequences(walks, y, lengths_as=role)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hl.ModelWarning)  # of what makes nothing of lengths
        result = hl.train(Normed(by_row), data, quiet(max_epochs=1))
    result.save(tmp_path / "net.safetensors")
    for net in (result, hl.load(tmp_path / "net.safetensors")):
        for none in (walks[:0], np.empty((0, 4, 2), np.float32)):
            found = hl.predict(net, none)
            assert found == [] if by_row else found.shape == (0, 3)
            assert len(hl.predict(net, none, labels=True)) == 0


def test_a_row_alone_has_probabilities_and_a_label(model: nn.Module, path: Path) -> None:
    for net in (model, hl.load(path)):
        proba = hl.predict(net, X[3], proba=True)
        np.testing.assert_array_equal(proba, hl.predict(net, X[3:4], proba=True)[0])
        assert proba.shape == (3,)
        assert proba.sum() == pytest.approx(1)
        label = hl.predict(net, X[3], labels=True)
        assert np.ndim(label) == 0
        assert label == proba.argmax()
        np.testing.assert_allclose(net(X[3]), hl.predict(net, X)[3], rtol=1e-5)


def test_a_row_of_more_features_than_a_batch_has_rows() -> None:
    wide = np.linspace(-1, 1, 3000, dtype=np.float32)
    net = nn.Linear(3000, 2)
    np.testing.assert_array_equal(hl.predict(net, wide), net(wide))
    with pytest.raises(hl.ShapeError, match="in_features=3000"):
        hl.predict(net, wide, batch_size=1000)
    with pytest.raises(hl.ShapeError, match="in_features=3000"):
        hl.predict(net, wide[:2999])


def test_what_forward_does_not_take_is_named_with_the_shape_of_training(model: nn.Module) -> None:
    for call in (lambda x: hl.predict(model, x), model):
        with pytest.raises(
            hl.ShapeError,
            match=r"Linear.*; x must have shape \(rows, 6\) as in training, got \(4, 5\)$",
        ):
            call(np.zeros((4, 5), np.float32))


@pytest.mark.parametrize(
    ("make", "x", "other"),
    [
        (
            lambda: nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3)),
            np.ones((20, 7), int),
            (20, 5),
        ),
        (lambda: nn.Linear(4, 3), np.ones((20, 7, 4)), (20, 5, 4)),
    ],
    ids=["ids", "vectors"],
)
def test_a_file_of_sequences_says_how_other_lengths_are_predicted(make, x, other, tmp_path) -> None:
    model = make()
    hl.train(model, (x, np.ones((20, 7), int)), quiet(max_epochs=1)).save(
        tmp_path / "m.safetensors"
    )
    loaded, shorter = hl.load(tmp_path / "m.safetensors"), np.ones(other, x.dtype)
    with pytest.raises(
        hl.ShapeError, match=r"load_state_dict\(loaded.state_dict\(\)\), and predict"
    ):
        hl.predict(loaded, shorter)
    again = make()
    again.load_state_dict(loaded.state_dict())
    np.testing.assert_array_equal(hl.predict(again, shorter), hl.predict(model, shorter))
    with pytest.raises(hl.ShapeError, match=r"as in training, got \(20,\)$"):
        hl.predict(loaded, np.ones(20, x.dtype))


def test_lengths_that_differ() -> None:
    class Both(nn.Module):
        def forward(self, x: Any, table: Any) -> Any:
            return x + table.sum(0)

    rows, table = np.ones((5, 2), np.float32), np.ones((3, 2), np.float32)
    want = Both()(rows, table)
    np.testing.assert_array_equal(hl.predict(Both(), (rows, table)), want)
    with pytest.raises(hl.ShapeError, match=r"equal lengths, got \[5, 3\]"):
        hl.predict(Both(), (rows, table), batch_size=2)
    with pytest.raises(hl.TraceError, match=r"too many .*; dim 0 of the inputs differs, \[5, 3\]"):
        hl.predict(nn.Linear(2, 2), (rows, table))


class Keyed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(7, 4), nn.Linear(5, 2)

    def forward(self, x: Any) -> Any:
        return self.head(hl.cat([self.table(x["id"]), x["size"].unsqueeze(1)], 1))


def test_columns_and_ids() -> None:
    rng = np.random.default_rng(0)
    columns = {"id": rng.integers(0, 7, 40), "size": rng.standard_normal(40).astype(np.float32)}
    net = Keyed()
    hl.train(net, (columns, np.arange(40) % 2), quiet(max_epochs=1))
    turned = dict(reversed(columns.items()))
    np.testing.assert_array_equal(net(turned), hl.predict(net, columns))
    for call in (lambda x: hl.predict(net, x), net):
        with pytest.raises(hl.DataError, match="none for 'size'"):
            call({"id": columns["id"]})
        with pytest.raises(hl.DataError, match=r"x\.id must hold integers as in training"):
            call({**columns, "id": columns["id"] + 0.5})
        with pytest.raises(hl.DataError, match=r"row 9: .*below 7, got 8"):
            call({**columns, "id": np.where(np.arange(40) == 9, 8, columns["id"])})


@pytest.mark.extra
def test_a_row_of_a_frame_may_have_flags() -> None:
    frame = take_library("pandas").DataFrame({"age": X[:, 0], "is_new": Y == 1})
    net = mlp(2)
    data = hl.DataModule.from_pandas(frame.assign(y=Y), target="y")
    hl.train(net, data, quiet(max_epochs=1))
    np.testing.assert_allclose(hl.predict(net, frame.iloc[3]), hl.predict(net, frame)[3], rtol=1e-5)


@pytest.mark.extra
def test_frames_are_read_by_their_columns() -> None:
    pandas = take_library("pandas")
    frame = pandas.DataFrame(X, columns=list("abcdef"))
    net = mlp()
    data = hl.DataModule.from_pandas(frame.assign(y=Y), target="y")
    hl.train(net, data, quiet(max_epochs=1))
    turned = frame[list("fedcba")]
    np.testing.assert_array_equal(net(turned), hl.predict(net, frame))
    np.testing.assert_array_equal(hl.predict(net, turned), hl.predict(net, frame))


@pytest.mark.parametrize("rows", [1, 40])
def test_standardisation_is_a_part_of_the_model(rows: int, tmp_path: Path) -> None:
    shifted = X * 100 + 1000
    net = mlp()
    data = hl.DataModule.from_arrays(shifted, Y, standardize=True)
    hl.train(net, data, quiet(max_epochs=2)).save(tmp_path / "net")
    want = hl.predict(net, shifted[:rows])
    np.testing.assert_array_equal(net(shifted[:rows]), want)
    np.testing.assert_allclose(hl.load(tmp_path / "net")(shifted[:rows]), want, rtol=1e-5)
    np.testing.assert_allclose(net(shifted[3]), hl.predict(net, shifted)[3], rtol=1e-5)


def test_outputs_without_rows_are_not_put_together() -> None:
    class Mean(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.mean(0)

    want = X.mean(0)
    np.testing.assert_allclose(hl.predict(Mean(), X), want, rtol=1e-5)
    with pytest.raises(hl.ShapeError, match=r"one row for each row .* got \(6,\) for 30 rows"):
        hl.predict(Mean(), X, batch_size=30)


def test_a_file_pads_rows_and_so_refuses_outputs_without_rows(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 3)

        def forward(self, x: Any) -> Any:
            return self.head(x), x.mean(0)

    net = Net()
    hl.train(net, (X, Y), quiet(max_epochs=1)).save(tmp_path / "net")
    loaded = hl.load(tmp_path / "net")
    for rows in (1, 5, 90):
        with pytest.raises(hl.ShapeError, match=r"from a file must have one row for each row"):
            loaded(X[:rows])
    assert net(X[:5])[1].shape == (6,)


# ---------------------------------------------------------------------------- threads


def run_all(*calls: Any) -> None:
    """Each in a thread of its own; raises what one of them raised."""
    errors: list[BaseException] = []

    def keep(call: Any) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=keep, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_threads_predict_with_one_model(model: nn.Module, path: Path) -> None:
    loaded = hl.load(path)
    want, scores = hl.predict(model, X), hl.evaluate(model, (X, Y))

    def use(call: Any, right: Any) -> Any:
        def several() -> None:
            for _ in range(15):
                np.testing.assert_equal(call(), right)

        return several

    run_all(
        use(lambda: hl.predict(model, X, batch_size=16), want),
        use(lambda: hl.predict(model, X), want),
        use(lambda: model(X[:1]), np.asarray(model(X[:1]))),
        use(lambda: hl.evaluate(model, (X, Y)), scores),
        use(lambda: hl.predict(loaded, X), hl.predict(loaded, X)),
        use(lambda: loaded(X), np.asarray(loaded(X))),
        use(hl.empty_cache, None),
    )


def test_threads_use_a_model_in_the_order_in_which_they_came() -> None:
    net, order, threads = mlp(), [], []

    def use(i: int) -> None:
        with exclusive(net, "predict"):
            order.append(i)

    with exclusive(net, "predict"):
        for i in range(4):
            threads.append(threading.Thread(target=use, args=(i,)))
            threads[i].start()
            while len(fitted._queues[net]) < i + 2:
                time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3]


def test_train_waits_for_a_prediction() -> None:
    net = mlp()
    done = []

    def train() -> None:
        hl.train(net, (X, Y), quiet(max_epochs=1))
        done.append("train")

    worker = threading.Thread(target=train)
    with exclusive(net, "predict"):
        worker.start()
        time.sleep(0.05)
        done.append("predict")
    worker.join()
    assert done == ["predict", "train"]


def test_a_model_in_training_says_what_to_do() -> None:
    net, errors = mlp(), []

    class Asks:
        def on_epoch_end(self, run: Any) -> None:
            def ask() -> None:
                for call, data in ((hl.predict, X), (hl.evaluate, pair), (hl.train, pair)):
                    try:
                        call(net, data)
                    except hl.BusyError as error:
                        errors.append(str(error))

            run_all(ask)  # another thread
            ask()

    pair = (X, Y)
    hl.train(net, pair, quiet(max_epochs=1, callbacks=(Asks(),)))
    assert len(errors) == 6
    assert all("by another thread; wait until" in error for error in errors[:3])
    assert all("by this thread" in error for error in errors[3:])
    assert all("copy.deepcopy(model)" in error for error in errors)
    hl.predict(net, X)


def test_ctrl_c_while_waiting(model: nn.Module) -> None:
    held, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with exclusive(model, "predict"):
            held.set()
            leave.wait(30)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job may ignore it
    worker = threading.Thread(target=hold)
    worker.start()
    assert held.wait(30)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            hl.predict(model, X)
        assert worker.is_alive()
    finally:
        leave.set()
        worker.join()
        signal.signal(signal.SIGINT, before)
    assert hl.predict(model, X).shape == (90, 3)


def test_ctrl_c_leaves_a_model_that_can_be_used() -> None:
    """Wherever it comes: thousands of signals while a model is taken and let go."""
    net = mlp()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for i in range(3000):
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 2e-5 + 1e-8 * i)
                while True:
                    with exclusive(net, "predict"):
                        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert hl.predict(net, X).shape == (90, 3)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_predicts_whatever_the_parents_threads_do(
    model: nn.Module, path: Path
) -> None:
    loaded, stop = hl.load(path), threading.Event()
    want = hl.predict(model, X)
    right = hl.predict(loaded, X)

    def work() -> None:
        while not stop.is_set():
            hl.predict(model, X)
            hl.predict(loaded, X)

    held = threading.Event()

    def hold() -> None:  # the child does not have the thread that would go on
        with exclusive(model, "predict"), exclusive(loaded, "predict"):
            held.set()
            stop.wait(30)

    for body in (work, hold):
        stop.clear()
        worker = threading.Thread(target=body)
        worker.start()
        if body is hold:
            assert held.wait(30)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python's, of threads and fork
            child = os.fork()
        if not child:
            signal.alarm(100)  # of a deadlock: a busy machine may take long
            try:
                same = (hl.predict(model, X) == want).all() and (loaded.predict(X) == right).all()
                os._exit(0 if same else 1)
            except BaseException:
                os._exit(2)
        _, status = os.waitpid(child, 0)
        stop.set()
        worker.join()
        assert os.waitstatus_to_exitcode(status) == 0, body.__name__


# ---------------------------------------------------------------------------- ported weights


def test_ported_weights_are_read_by_the_loss_that_is_named(model: nn.Module) -> None:
    ported = mlp()
    ported.load_state_dict(dict(model.state_dict()))  # values alone
    for what in ("proba", "labels"):
        with pytest.raises(
            hl.ConfigError, match=rf"predict\(model, X, {what}=True, loss='cross_entropy'\)"
        ):
            hl.predict(ported, X, **{what: True})
    for loss in ("cross_entropy", nn.CrossEntropyLoss(), F.cross_entropy):
        got = hl.predict(ported, X, proba=True, loss=loss)
        np.testing.assert_array_equal(got, hl.predict(model, X, proba=True))
        got = hl.predict(ported, X, labels=True, loss=loss)
        np.testing.assert_array_equal(got, hl.predict(model, X, labels=True))


def test_a_state_has_what_training_found_of_the_data(tmp_path: Path) -> None:
    data = hl.DataModule.from_arrays(10 + 5 * X, np.array(["a", "b", "c"])[Y], standardize=True)
    result = hl.train(mlp(), data, quiet(max_epochs=3, lr=1e-2))
    want = hl.predict(result, 10 + 5 * X, labels=True)
    result.save(tmp_path / "net.safetensors")
    for state in (result.model.state_dict(), hl.load(tmp_path / "net.safetensors").state_dict()):
        again = mlp()
        again.load_state_dict(state)
        np.testing.assert_array_equal(hl.predict(again, 10 + 5 * X, labels=True), want)
        part = nn.Sequential(*mlp(), nn.Linear(3, 3))
        part.load_state_dict(state, strict=False)  # another model
        with pytest.raises(hl.ConfigError, match="labels=True needs a model trained"):
            hl.predict(part, X, labels=True)


def test_a_named_loss_of_several_kinds(model: nn.Module) -> None:
    logits = hl.predict(model, X).astype(np.float64)
    got = hl.predict(model, X, proba=True, loss="bce")
    np.testing.assert_allclose(got, 1 / (1 + np.exp(-logits)), rtol=1e-5)
    got = hl.predict(model, X, labels=True, loss="bce")
    np.testing.assert_array_equal(got, logits > 0)
    one = nn.Linear(6, 1)
    assert hl.predict(one, X, labels=True, loss="bce").shape == (90,)
    with pytest.raises(hl.ConfigError, match=r"loss must be .* outputs are classes, .* got 'mse'"):
        hl.predict(one, X, proba=True, loss="mse")
    with pytest.raises(hl.ConfigError, match="did you mean 'cross_entropy'"):
        hl.predict(one, X, proba=True, loss="crossentropy")


def test_options_that_would_count_for_nothing(model: nn.Module) -> None:
    with pytest.raises(hl.ConfigError, match=r"got outputs='1' as well"):
        hl.predict(model, X, outputs="1", proba=True)
    with pytest.raises(hl.ConfigError, match=r"got loss='bce' and neither"):
        hl.predict(model, X, loss="bce")


def test_a_named_loss_keeps_the_names_of_classes() -> None:
    names = np.array(["ant", "bee", "cow"])[Y]
    net = mlp()
    result = hl.train(net, (X, names), quiet(max_epochs=1))
    want = hl.predict(net, X, labels=True)
    np.testing.assert_array_equal(hl.predict(net, X, labels=True, loss="cross_entropy"), want)
    assert result.classes == ["ant", "bee", "cow"]


# ---------------------------------------------------------------------------- methods


def test_methods_of_a_loaded_model(path: Path, model: nn.Module, tmp_path: Path) -> None:
    loaded = hl.load(path)
    np.testing.assert_allclose(loaded.predict(X), hl.predict(model, X), rtol=1e-5, atol=1e-6)
    assert loaded.predict(X, proba=True).sum(1) == pytest.approx(np.ones(90))
    assert loaded.predict(X, labels=True).shape == (90,)
    assert loaded.classes is None
    named = hl.train(mlp(), (X, np.array(["a", "b", "c"])[Y]), quiet(max_epochs=1))
    named.save(tmp_path / "named")
    again = hl.load(tmp_path / "named")
    assert again.classes == named.classes == ["a", "b", "c"]
    assert set(again.predict(X, labels=True)) <= {"a", "b", "c"}


def test_names_of_other_libraries_say_what_to_write(model: nn.Module, path: Path) -> None:
    result = hl.train(mlp(), (X, Y), quiet(max_epochs=1))
    for held in (model, result, hl.load(path)):
        with pytest.raises(AttributeError, match=r"write hl.predict\(model, X, proba=True\)"):
            held.predict_proba(X)
    with pytest.raises(AttributeError, match=r"result\.classes"):
        model.classes_  # noqa: B018


def test_evaluate_of_habit(model: nn.Module) -> None:
    result = hl.train(mlp(), (X, Y), quiet(max_epochs=1))
    with pytest.raises(hl.ConfigError, match=r"write evaluate\(model, \(X, y\)\)"):
        hl.evaluate(result, X, Y)
    for held in (model, result):
        assert set(hl.evaluate(held, (X, Y), metrics=["f1"])) == {"loss", "f1"}
        assert set(hl.evaluate(held, (X, Y))) == {"loss", "accuracy"}


# ---------------------------------------------------------------------------- outputs as arrays


def test_outputs_have_what_scripts_use(model: nn.Module) -> None:
    out = model(X)
    plain = hl.predict(model, X)
    assert isinstance(out, np.ndarray)
    assert type(out.detach().cpu().numpy()) is np.ndarray
    np.testing.assert_array_equal(out.detach().cpu().numpy(), plain)
    np.testing.assert_array_equal(out.argmax(dim=1), plain.argmax(1))
    np.testing.assert_array_equal(out.mean(dim=1, keepdim=True), plain.mean(1, keepdims=True))
    np.testing.assert_array_equal(out.argmax(1), plain.argmax(1))
    np.testing.assert_array_equal(out.std(0), plain.std(0))
    assert (out.argmax(dim=1) == Y).mean().item() == (plain.argmax(1) == Y).mean()
    assert out.view(-1).shape == (270,)
    assert out.view(3, -1).shape == out.view((3, 90)).shape == (3, 90)
    assert out.view(np.int32).dtype == np.int32
    assert out.view(np.ndarray).dtype == out.view("float32").dtype == np.float32
    total = out.sum()
    assert isinstance(total, np.float32)
    assert repr(total) == repr(plain.sum())
    assert f"{total:.3f}" == f"{plain.sum():.3f}"
    assert type(pickle.loads(pickle.dumps(total))) is type(total + 1) is np.float32
    assert (total.item(), float(total), hash(total)) == (
        *2 * (plain.sum().item(),),
        hash(plain.sum()),
    )
    assert np.asarray([total, total]).dtype == np.float32
    assert isinstance(out[0, 0], np.float32)
    assert repr(out) == repr(plain)


def test_outputs_go_anywhere_that_arrays_go(model: nn.Module, tmp_path: Path) -> None:
    out = model(X)
    for made in (pickle.loads(pickle.dumps(out)), copy.deepcopy(out)):
        np.testing.assert_array_equal(made, out)
    assert type(pickle.loads(pickle.dumps(out))) is np.ndarray
    np.save(tmp_path / "out.npy", out)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), out)
    assert hl.predict(nn.Linear(3, 2), out).shape == (90, 2)
    assert hl.train(nn.Linear(3, 3), (out, Y), quiet(max_epochs=1)).epochs == 1


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda out: out.max(dim=1), hl.ConfigError, r"output.max\(axis=1\) and output.argmax"),
        (lambda out: out.std(dim=0), hl.ConfigError, r"output.std\(axis=0, ddof=1\)"),
        (lambda out: out.softmax(dim=1), AttributeError, r"predict\(model, X, proba=True\)"),
        (lambda out: out.unsqueeze(0), AttributeError, "np.expand_dims"),
        (lambda out: out.backward(), AttributeError, "hl.train and hl.stepper"),
        (lambda out: ((out - 1) ** 2).mean().backward(), AttributeError, "hl.train and hl.stepper"),
        (lambda out: out.sum().nonsense, AttributeError, "'numpy.float32' object has no attribute"),
        (lambda out: out.cuda(), AttributeError, r"model.cuda\(\)"),
        (lambda out: out.sort(dim=1), hl.ConfigError, r"np.sort\(output, axis=1\) and .*argsort"),
        (lambda out: out.view_as(out), AttributeError, r"output.reshape\(other.shape\)"),
        (lambda out: out.nonsense, AttributeError, "no attribute 'nonsense'"),
    ],
)
def test_outputs_say_what_to_write(call: Any, error: Any, text: str, model: nn.Module) -> None:
    with pytest.raises(error, match=text):
        call(model(X))


# ---------------------------------------------------------------------------- modes


class Functional(nn.Module):
    def forward(self, x: Any) -> Any:
        return F.dropout(x, 0.5, training=self.training)


@pytest.mark.parametrize(
    "make", [lambda: mlp(dropout=0.5), Functional, lambda: nn.Sequential(Functional())]
)
def test_train_mode_of_a_call_is_said_not_to_count(make: Any) -> None:
    net = make()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quiet_one = net(X)  # modules begin in training mode, which asks for nothing
    net.train()
    with pytest.warns(
        hl.ModelWarning, match=r"model.train\(\) was called.*write model.eval"
    ) as seen:
        np.testing.assert_array_equal(net(X), quiet_one)
    assert seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net(X)  # said once
        net.train()
        net.eval()
        net(X)
        assert not net.training
        net.train()
        hl.predict(net, X)
        assert net.training


def test_train_mode_without_an_effect_is_not_warned_of() -> None:
    net = mlp().train()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net(X)
    Xr, Yr = regression()
    part = mlp(5, 1, dropout=0.5).train()
    part[2].eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        part(Xr)
    hl.train(part, (Xr, Yr), quiet(max_epochs=1))


@pytest.mark.parametrize("how", ["labels", "proba"])
@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (3, 2, r"an output for each of the 3 classes .*'a', 'b', 'c'.*got 2 outputs; train"),
        (3, 1, "an output for each of the 3 classes .*got 1 output;"),
        (2, 3, "an output for each of the 2 classes .*'a', 'b'.*got 3 outputs"),
        (1, 3, "one output for the 2 classes .*'a', 'b'.*got 3 outputs"),
    ],
)
def test_a_last_layer_that_was_replaced_is_told_of(before, after, words, how) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((30, 4)).astype(np.float32)
    y = np.array(["a", "b", "c"])[np.arange(30) % max(before, 2)]
    model = nn.Sequential(nn.Linear(4, before))
    hl.train(model, (x, y), max_epochs=1, enable_progress_bar=False)
    model[0] = nn.Linear(4, after)
    model[0].bias.copy_(np.arange(after) * 9.0)
    if (before, how) == (2, "proba"):
        assert hl.predict(model, x, proba=True).shape == (30, 3)  # the third may be spare
        return
    with pytest.raises(hl.ShapeError, match=words):
        hl.predict(model, x, **{how: True})


def test_spare_outputs_are_no_classes() -> None:
    x = np.eye(4, dtype=np.float32)
    y = np.array(["a", "b", "a", "b"])
    model = nn.Sequential(nn.Linear(4, 5))
    hl.train(model, (x, y), max_epochs=200, lr=0.1, enable_progress_bar=False)
    assert list(hl.predict(model, x, labels=True)) == list(y)


def test_a_split_of_a_datamodule_is_predicted_by_its_name() -> None:
    X, y = classes()
    data = hl.DataModule.from_arrays(X, y, val=20, test=30)
    result = hl.train(mlp(), data, quiet(max_epochs=1))
    for name, n in (("train", 40), ("val", 20), ("test", 30)):
        found = hl.predict(result, data, split=name)
        assert np.array_equal(found, hl.predict(result, X[data.rows(name)]))
        assert len(found) == n
    with pytest.raises(hl.ConfigError, match="must be one of train, val, test"):
        hl.predict(result, data, split="validation")
    with pytest.raises(hl.ConfigError, match="has no test split"):
        hl.predict(result, hl.DataModule.from_arrays(X, y, val=20), split="test")
    with pytest.raises(hl.ConfigError, match="split is of a DataModule"):
        hl.predict(result, X, split="val")


def test_errors_of_forward_keep_their_class_beside_inputs_of_other_lengths() -> None:
    """Of a layer whose dim 0 is time, inputs have several lengths by right."""
    x = np.zeros((5, 2, 3), np.float32)
    rest = r"; dim 0 of the inputs differs, \[5, 2\]: are they rows of one batch\?$"
    assert nn.LSTM(3, 4)(x, lengths=np.array([5, 2]))[0].shape == (5, 2, 4)
    with pytest.raises(hl.TraceError, match=r"LSTM.*lengths must be integers, got float32" + rest):
        nn.LSTM(3, 4)(x, lengths=np.array([1.5, 2.0]))
    with pytest.raises(hl.ShapeError, match=r"LSTM.*" + rest):
        nn.LSTM(4, 4)(x, lengths=np.array([5, 2]))
