"""``model(x, cache)``: steps of a model whose cache keeps its state from call to call."""

import copy
import gc
import weakref
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import models, nn
from hotloop.nn import functional as F

Array = np.ndarray[Any, Any]


class Attends(nn.Module):
    """A head of attention over rows; with ``offset`` something that is made once."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = nn.Linear(4, 12)

    def forward(self, x: Any = None, offset: Any = None, cache: Any = None) -> Any:
        if offset is not None and cache is not None:
            cache.offset.assign(offset * 2)
            return cache.positions(1)
        q, k, v = (part.unsqueeze(1) for part in self.maps(x).split(4, 2))
        if cache is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True) + offset * 2
        else:
            k, v = cache.update(k, v, 0)
            y = F.scaled_dot_product_attention(q, k, v, cache.mask(x.shape[1])) + cache.offset
        return y.squeeze(1)


class Kept(nn.KVCache):
    """A cache with a buffer of its own."""

    def __init__(self) -> None:
        super().__init__(1, 2, 1, max_seq_len=6, head_dim=4)
        self.register_buffer("offset", np.zeros(4, np.float32), persistent=False)


OFFSET = np.arange(4, dtype=np.float32)


def rows(n: int = 6) -> Array:
    return np.random.default_rng(0).standard_normal((2, n, 4)).astype(np.float32)


@pytest.mark.parametrize("cuts", [(1, 1, 1, 1, 1, 1), (3, 1, 2), (6,)])
def test_steps_are_the_whole(cuts: tuple[int, ...]) -> None:
    """One row at a time, or several: what the rows before left is there."""
    model, cache, x = Attends(), Kept(), rows()
    whole = model(x, OFFSET)
    assert model(offset=OFFSET, cache=cache) == [0]
    for _ in range(2):
        made, at = [], 0
        for n in cuts:
            made.append(model(x[:, at : at + n], cache=cache))
            at += n
        np.testing.assert_allclose(np.concatenate(made, 1), whole, rtol=1e-5, atol=1e-6)
        cache.reset()  # the buffer's too
        assert model(offset=OFFSET, cache=cache) == [0]


def test_what_writes_no_row_does_not_move_on() -> None:
    model, cache = Attends(), Kept()
    model(rows(2), cache=cache)
    for _ in range(2):
        assert model(offset=OFFSET, cache=cache) == [2]


def test_generate_is_such_steps() -> None:
    model = models.gpt(vocab_size=17, block_size=12, n_layer=2, n_head=2, n_embd=16)
    prompt = np.array([[1, 2, 3], [4, 5, 6]])
    want = hl.generate(model, prompt, 6, temperature=0)
    cache, made = model.make_cache(2), prompt
    for _ in range(6):
        given = made[:, -1:] if made is not prompt else prompt
        made = np.concatenate([made, model(given, cache)[:, -1:].argmax(-1)], 1)
    np.testing.assert_array_equal(made, want)


def test_values_that_were_set_and_other_models_begin_anew() -> None:
    model, other, cache, x = Attends(), Attends(), Kept(), rows()
    first = model(x[:, :1], cache=cache)
    assert (model(x[:, :1], cache=cache) == model(x[:, :1], cache=Kept())).all()  # the same twice
    model.maps.weight.copy_(model.maps.weight.numpy() * 2)
    np.testing.assert_array_equal(model(x[:, 1:2], cache=cache), model(x[:, 1:2], cache=Kept()))
    other.load_state_dict(model.state_dict())
    np.testing.assert_array_equal(other(x[:, 2:3], cache=cache), model(x[:, 2:3], cache=Kept()))
    assert first.shape == (2, 1, 4)


def test_caches_do_not_see_each_other() -> None:
    model, x = Attends(), rows()
    a, b = Kept(), Kept()
    alone = [model(x[:, i : i + 1], cache=a) for i in range(3)]
    a.reset()
    for i in range(3):
        np.testing.assert_array_equal(model(x[:, i : i + 1], cache=a), alone[i])
        np.testing.assert_array_equal(model(x[:, i : i + 1], cache=b), alone[i])


def test_a_trained_model_takes_steps_that_training_knows_nothing_of() -> None:
    """Columns and standardisation are of training's data."""

    class Net(Attends):
        def training_step(self, batch: Any) -> Any:
            return {"loss": self(batch["x"]["rows"], batch["x"]["offset"][0]).square().mean()}

        def forward(self, x: Any = None, offset: Any = None, cache: Any = None) -> Any:
            x = x["rows"] if isinstance(x, dict) else x
            return super().forward(x, OFFSET if offset is None else offset, cache)

    x = {"rows": np.repeat(rows(), 8, 0), "offset": np.tile(OFFSET, (16, 1))}
    model, untrained = Net(), Net()
    data = hl.DataModule.from_arrays(x, val=0, batch_size=8, standardize=["rows"])
    hl.train(model, data, max_epochs=1, enable_progress_bar=False, logger=None)
    untrained.load_state_dict(dict(model.state_dict()))  # the values alone
    steps = [net(rows(2), cache=Kept()) for net in (model, untrained)]
    np.testing.assert_array_equal(*steps)


def test_a_cache_is_freed_with_its_plans() -> None:
    from hotloop.training import predictor

    model, cache = Attends(), Kept()
    model(rows(1), cache=cache)
    seen = weakref.ref(cache)
    assert len(predictor._steps) == 1
    del cache
    gc.collect()
    assert seen() is None
    assert not predictor._steps
    copy.deepcopy(model)(rows(2), OFFSET)


class Steps(nn.Module):
    """Attention of tokens; the cache has the sum of the last ones of its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.maps = nn.Embedding(11, 4), Attends()

    def forward(self, ids: Any, cache: Any) -> Any:
        x = self.table(ids)
        cache.offset.assign(x[0, -1].nan_to_num() + cache.offset)
        return self.maps(x, cache=cache)


def test_a_step_that_fails_changes_nothing() -> None:
    """Neither the position, nor a buffer that is assigned, nor what later rows see."""
    hl.manual_seed(0)
    model, spoilt, sound = Steps(), Kept(), Kept()
    table = model.table.weight.numpy().copy()
    table[10] = np.nan  # hidden rows have a weight of 0, which does not hide a NaN
    model.table.weight.copy_(table)
    tokens = np.array([[1, 2], [3, 4]])
    for step in (tokens, tokens[:, ::-1].copy()):
        for wrong in (77, -1):
            with pytest.raises(hl.DataError, match=f"below 11, got {wrong}"):
                model(np.array([[10, 10, 10, 5], [10, 10, 10, wrong]]), spoilt)
        np.testing.assert_array_equal(model(step, spoilt), model(step, sound))


def test_an_interrupted_step_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from hotloop.training.plans import runtime

    hl.manual_seed(0)
    model, stopped, sound = Steps(), Kept(), Kept()
    tokens = np.array([[1, 2], [3, 4]])
    for cache in (stopped, sound):
        model(tokens, cache)

    left = [0]

    def interrupt() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(runtime, "SLICE_SECONDS", 1e-9)  # a region and no more
    monkeypatch.setattr(runtime, "pause", interrupt)
    left[0], made = 1000, None
    want = model(tokens, sound)
    for n in range(1000):  # behind each of its regions
        left[0] = n
        try:
            made = model(tokens, stopped)
            break
        except KeyboardInterrupt:
            pass
    assert n > 2
    np.testing.assert_array_equal(made, want)


def test_a_full_cache_is_named_before_anything_runs() -> None:
    model = models.gpt(vocab_size=11, block_size=4, n_layer=1, n_head=2, n_embd=16)
    cache, other = model.make_cache(1), model.make_cache(1)
    for each in (cache, other):
        model([[1, 2, 3]], each)
    with pytest.raises(
        hl.ShapeError,
        match=r"^KVCache: the rows of a step must fit its max_seq_len of 4 behind the 3 that it "
        r"holds, got 2; cache\.reset\(\) begins anew",
    ):
        model([[4, 5]], cache)
    np.testing.assert_array_equal(model([[4]], cache), model([[4]], other))
    with pytest.raises(hl.ShapeError, match="behind the 4 that it holds, got 1"):
        model([[5]], cache)
    cache.reset()
    assert model([[1, 2, 3, 4]], cache).shape == (1, 1, 11)


def test_wrong_arguments() -> None:
    model = Attends()
    with pytest.raises(hl.ConfigError, match=r"one nn.KVCache at most, got Linear; a module that"):
        model(rows(1), None, nn.Linear(2, 2))
    with pytest.raises(hl.ConfigError, match="at most, got Kept, Kept"):
        model(rows(1), Kept(), Kept())
    with pytest.raises(hl.ShapeError, match="must fit the cache's max_seq_len of 6, got 7 rows"):
        model(rows(7), cache=Kept())
