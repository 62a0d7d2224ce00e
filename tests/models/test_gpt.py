"""GPT: sizes, tied weights, learning, files, and going on from a prompt."""

import re
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import _core, models, nn
from hotloop.graph.trace import Trace
from hotloop.nn import functional as F
from hotloop.training import generation
from hotloop.training.plans.runtime import Runtime

SMALL = {"vocab_size": 17, "block_size": 12, "n_layer": 2, "n_head": 2, "n_embd": 16}


def small(**fields: Any) -> Any:
    """A model whose tokens are not all equally likely."""
    model = models.gpt(**{**SMALL, **fields})
    rng = np.random.default_rng(0)
    model.load_state_dict(
        {k: v + 0.3 * rng.standard_normal(v.shape) for k, v in model.state_dict().items()}
        | dict.fromkeys(
            ("transformer.wte.weight", "lm_head.weight"), 0.3 * rng.standard_normal((17, 16))
        )
    )
    return model


def prompts(n: int = 3, length: int = 4) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).integers(0, 17, (n, length))


def recomputed(model: Any, ids: Any, n_new: int, seed: int, **how: Any) -> Any:
    """Every token by the whole sequence before it, without a cache."""
    given = {"temperature": 1.0, "top_k": None, "top_p": None} | how
    drawn = [_core.random_uniform(seed, f"generate.{i}", n_new, 0.0, 1.0) for i in range(len(ids))]
    for i in range(n_new):
        logits = np.asarray(model(ids[:, -SMALL["block_size"] :]))[:, -1]
        new = generation.choose(logits, np.array(drawn)[:, i], **given)
        ids = np.concatenate([ids, new[:, None]], 1)
    return ids


# ---- the model


def test_documented_size_and_work() -> None:
    text = models.gpt.__doc__ or ""
    found = re.search(r"([\d,]+) parameters.*?([\d.]+) M multiply-adds", text, re.DOTALL)
    assert found
    model = models.gpt()
    assert sum(p.numel() for p in model.parameters()) == int(found[1].replace(",", ""))
    runtime = Runtime(model, _core.Device("null"))
    graph = _core.Graph()
    with Trace(graph, runtime.layout.leaf_for) as trace:
        output = model(trace.input("idx", "int64", (1, 1)))
        graph.output(output.id_in(trace))
    plan = _core.Plan(_core.Session(_core.Device("null")), graph, fuse=False)
    assert round(plan.info()["flops"] / 2e6, 1) == float(found[2])


def test_the_head_is_the_embedding() -> None:
    model = small()
    assert model.lm_head.weight is model.transformer["wte"].weight
    assert "lm_head.weight" in model.state_dict()
    result = hl.train(
        model, (prompts(8, 12), prompts(8, 12)), max_epochs=1, enable_progress_bar=False
    )
    state = result.model.state_dict()
    np.testing.assert_array_equal(state["lm_head.weight"], state["transformer.wte.weight"])


def test_it_learns() -> None:
    """The token behind each: one more than it."""
    x = np.random.default_rng(0).integers(0, 17, (64, 12))
    result = hl.train(
        models.gpt(**SMALL, dropout=0.1),
        hl.DataModule.from_arrays(x, (x + 1) % 17, val=0, batch_size=16),
        max_epochs=60, lr=1e-2, enable_progress_bar=False,
    )  # fmt: skip
    assert result.history["loss"][-1] < 0.3 < result.history["loss"][0]
    made = hl.generate(result, [[3]], 6, temperature=0)
    np.testing.assert_array_equal(made, [[3, 4, 5, 6, 7, 8, 9]])


def test_wrong_input() -> None:
    with pytest.raises(hl.ShapeError, match=r"at most block_size=12 positions long, got 13"):
        small()(prompts(1, 13))
    with pytest.raises(hl.ShapeError, match=r"idx must be \(N, T\) ids"):
        small()(prompts()[0])
    with pytest.raises(hl.ConfigError, match="n_embd must be a multiple of n_head, got 16, 3"):
        models.gpt(**{**SMALL, "n_head": 3})


def test_files_of_hugging_face(tmp_path: Path) -> None:
    """Their matrices are the other way round, and masks lie beside them."""
    from safetensors.numpy import save_file

    model = small()
    state = {k: np.array(v) for k, v in model.state_dict().items() if k != "lm_head.weight"}
    for name in state:
        if re.search(r"(c_attn|c_proj|c_fc)\.weight", name):
            state[name] = np.ascontiguousarray(state[name].T)
    for i in range(2):
        state[f"transformer.h.{i}.attn.bias"] = np.ones((1, 1, 12, 12), np.float32)
    state["lm_head.weight"] = state["transformer.wte.weight"].copy()
    save_file(state, tmp_path / "gpt.safetensors")
    loaded = models.gpt(**SMALL, weights=tmp_path / "gpt.safetensors")
    np.testing.assert_array_equal(loaded(prompts()), model(prompts()))


# ---- going on


@pytest.mark.parametrize(
    "how", [{}, {"temperature": 0.7, "top_k": 3}, {"top_p": 0.5}, {"temperature": 0}]
)
def test_the_cache_changes_nothing(how: dict[str, Any]) -> None:
    """The tokens are those of the whole sequence computed anew for each."""
    model = small()
    made = hl.generate(model, prompts(), 8, seed=5, **how)
    np.testing.assert_array_equal(made, recomputed(model, prompts(), 8, 5, **how))
    np.testing.assert_array_equal(hl.generate(model, prompts(), 8, seed=5, **how), made)


def test_a_full_cache_goes_on_with_the_last_tokens() -> None:
    """With the whole length as context each token is that of a window that moves along."""
    model = small()
    made = hl.generate(model, prompts(2), 30, seed=3, context=12)
    np.testing.assert_array_equal(made, recomputed(model, prompts(2), 30, 3))
    long = hl.generate(model, prompts(2, 20), 3, seed=3, context=12)
    np.testing.assert_array_equal(long, recomputed(model, prompts(2, 20), 3, 3))
    assert hl.generate(model, prompts(2, 20), 30, context=6).shape == (2, 50)


class Rows(nn.Module):
    """Attention of tokens that may be NaN each."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(4, 8), nn.Linear(8, 4)

    def make_cache(self, n: int) -> nn.KVCache:
        return nn.KVCache(1, n, 1, max_seq_len=8, head_dim=8)

    def forward(self, idx: Any, cache: Any) -> Any:
        x = self.table(idx).unsqueeze(1)
        k, v = cache.update(x, x, 0)
        y = F.scaled_dot_product_attention(x, k, v, cache.mask(idx.shape[1]))
        return self.head(y.squeeze(1))


def test_a_failed_generation_leaves_nothing() -> None:
    """Rows that no later one sees have a weight of 0, which does not hide a NaN."""
    model = Rows()
    table = model.table.weight.numpy().copy()
    table[3] = np.nan
    model.table.weight.copy_(table)
    want = hl.generate(model, [[1]], 5, temperature=0)
    with pytest.raises(hl.NotFiniteError, match="largest of sequence 0"):
        hl.generate(model, [[1, 1, 3]], 3)
    np.testing.assert_array_equal(hl.generate(model, [[1]], 5, temperature=0), want)


def test_tokens_that_do_not_fit_are_refused_before_numbers_are_drawn() -> None:
    with pytest.raises(hl.ShapeError, match="must fit the cache's 12 positions"):
        hl.generate(small(), prompts(1), 10**13)


def test_numbers_are_those_that_were_drawn_at_once() -> None:
    draws = generation._Draws(5, 2, 3000)
    at_once = np.array([_core.random_uniform(5, f"generate.{i}", 3000, 0.0, 1.0) for i in range(2)])
    np.testing.assert_array_equal(np.stack([draws.of(i) for i in range(3000)], 1), at_once)


def test_a_sequence_depends_on_no_other() -> None:
    model = small()
    alone = hl.generate(model, prompts()[:1], 8, seed=5)
    np.testing.assert_array_equal(hl.generate(model, prompts(), 8, seed=5)[:1], alone)
    np.testing.assert_array_equal(hl.generate(model, prompts()[0], 8, seed=5), alone[0])
    assert (hl.generate(model, prompts()[:1], 8, seed=6) != alone).any()


def test_new_weights_count() -> None:
    model, other = small(), small()
    hl.generate(model, prompts(), 2)
    state = {k: 0.5 * v for k, v in model.state_dict().items()}
    model.load_state_dict(state)
    other.load_state_dict(state)
    made = hl.generate(model, prompts(), 8)
    np.testing.assert_array_equal(made, hl.generate(other, prompts(), 8))


def test_rows_are_written_where_the_cache_lies() -> None:
    """A step of one token moves no whole cache, and the state is the plan's alone."""
    model = small(block_size=512)
    hl.generate(model, prompts(1), 4)
    generator = generation._generators[model]
    text = str(generator.planned[1].plan)
    assert text.count(".index_assign.") == 4  # keys and values of two layers
    assert ".index_copy." not in text
    assert ".assign." not in text
    homes = re.findall(r"float32\(1, 2, 512, 8\)@(\w+)", text)
    assert set(homes) == {"buffer"}
    assert generator.cache.position.numpy() == 0
    assert list(model.state_dict()) == list(small().state_dict())


def test_too_long_is_an_error_before_anything_is_written() -> None:
    model = small()
    rule = r"the prompt's 4 tokens and max_new_tokens=10 must fit the cache's 12 positions"
    with pytest.raises(hl.ShapeError, match=rule):
        hl.generate(model, prompts(), 10)
    assert not generation._generators[model].planned
    assert hl.generate(model, prompts(), 9).shape == (3, 13)
    with pytest.raises(hl.ConfigError, match="context must be at most the cache's 12 positions"):
        hl.generate(model, prompts(), 10, context=13)


@pytest.mark.parametrize(
    ("prompt", "fields", "error", "words"),
    [
        ([[1.5]], {}, hl.DataError, "prompt must hold ids, integers, got float64"),
        ([[]], {}, hl.DataError, "prompt must hold ids"),
        (np.zeros((2, 0), int), {}, hl.ShapeError, r"must be \(T,\) or \(N, T\) ids"),
        ([[1], [2, 3]], {}, hl.ShapeError, "prompts must have one length"),
        ([[17]], {}, hl.DataError, "must be at least 0 and below 17, got 17"),
        ([[1]], {"temperature": -1}, hl.ConfigError, "temperature: must be at least 0"),
        ([[1]], {"top_k": 0}, hl.ConfigError, "top_k: must be at least 1"),
        ([[1]], {"top_p": 1.5}, hl.ConfigError, "top_p: must be at most 1"),
        ([[1]], {"top_p": 0}, hl.ConfigError, "top_p: must be greater than 0"),
        ([[1]], {"seed": -1}, hl.ConfigError, "seed: must be at least 0"),
        ([[1]], {"context": 0}, hl.ConfigError, "context: must be at least 1"),
    ],
)
def test_wrong_prompts(prompt: Any, fields: dict[str, Any], error: Any, words: str) -> None:
    model = small()
    with pytest.raises(error, match=words):
        hl.generate(model, prompt, 4, **fields)
    assert hl.generate(model, [[1]], 4).shape == (1, 5)


def test_models_that_do_not_go_on(tmp_path: Path) -> None:
    with pytest.raises(hl.ConfigError, match=r"must have make_cache\(batch_size\) and forward"):
        hl.generate(nn.Linear(3, 3), [[1]], 4)
    result = hl.train(small(), (prompts(8), prompts(8)), max_epochs=1, enable_progress_bar=False)
    result.save(tmp_path / "gpt.safetensors")
    with pytest.raises(hl.ConfigError, match=r"load_state_dict\(loaded.state_dict\(\)\)"):
        hl.generate(hl.load(tmp_path / "gpt.safetensors"), [[1]], 4)


def test_weights_that_are_nan() -> None:
    model = small()
    model.transformer["ln_f"].bias.fill_(float("nan"))
    with pytest.raises(hl.NotFiniteError, match=r"finite, got nan .* sequence 0"):
        hl.generate(model, prompts(), 2)


# ---- choosing


def test_choices_have_their_probabilities() -> None:
    logits = np.log(np.array([[0.5, 0.2, 0.2, 0.1]], np.float32))
    drawn = (np.arange(1000) + 0.5) / 1000

    def shares(temperature: float = 1.0, top_k: Any = None, top_p: Any = None) -> list[float]:
        made = generation.choose(np.repeat(logits, 1000, 0), drawn, temperature, top_k, top_p)
        return (np.bincount(made, minlength=4) / 1000).tolist()

    assert shares() == [0.5, 0.2, 0.2, 0.1]
    assert shares(top_k=1) == [1, 0, 0, 0]
    assert shares(0.0) == [1, 0, 0, 0]
    # Equal ones are in together where they are the k-th largest.
    np.testing.assert_allclose(shares(top_k=2), [5 / 9, 2 / 9, 2 / 9, 0], atol=1e-3)
    np.testing.assert_allclose(shares(top_p=0.5), [1, 0, 0, 0], atol=1e-3)
    np.testing.assert_allclose(shares(top_p=0.6), [5 / 7, 2 / 7, 0, 0], atol=1e-3)
    squared = np.array([0.25, 0.04, 0.04, 0.01]) / 0.34
    np.testing.assert_allclose(shares(0.5), squared, atol=1e-3)


def test_the_last_token_is_the_last_to_be_chosen() -> None:
    """Whatever rounding does to the largest number that is drawn."""
    logits = np.zeros((1, 3), np.float32)
    logits[0, 2] = -np.inf
    made = generation.choose(logits, np.array([np.nextafter(1.0, 0.0)]), 1.0, None, None)
    np.testing.assert_array_equal(made, [1])


def test_another_model_goes_on() -> None:
    """Whatever has a cache and takes it."""

    class Last(nn.Module):
        """One head of attention over the tokens' vectors."""

        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(17, 8), nn.Linear(8, 17)

        def make_cache(self, batch_size: int) -> nn.KVCache:
            return nn.KVCache(1, batch_size, 1, 10, 8)

        def forward(self, idx: Any, cache: Any = None) -> Any:
            x = self.table(idx).unsqueeze(1)
            if cache is None:
                y = nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
            else:
                k, v = cache.update(x, x, 0)
                mask = cache.mask(idx.shape[1])
                y = nn.functional.scaled_dot_product_attention(x, k, v, attn_mask=mask)
            return self.head(y.squeeze(1))

    model = Last()
    made = hl.generate(model, prompts(), 5, seed=2)
    np.testing.assert_array_equal(made, recomputed(model, prompts(), 5, 2))


def test_a_step_that_the_cache_does_not_hold() -> None:

    class Short(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(17, 8)

        def make_cache(self, batch_size: int) -> nn.KVCache:
            return nn.KVCache(1, batch_size, 1, 10, 8)

        def forward(self, idx: Any, cache: Any) -> Any:
            x = self.table(idx).unsqueeze(1)
            cache.update(hl.cat([x] * 11, 2), hl.cat([x] * 11, 2), 0)
            return x.squeeze(1)

    with pytest.raises(hl.ShapeError, match="must fit the cache's max_seq_len of 10, got 11 rows"):
        hl.generate(Short(), [[1]], 1)
