"""``generate``: a model of sequences goes on from a prompt, token by token.

A step is a plan of its own whose state is the model's cache: it takes the new tokens, reads what
the cache has of those before, and leaves the cache a token longer. The prompt is one step of all
its tokens, so that there are two plans: of the prompt's length and of one token. The next token is
chosen here from the step's logits. ``model(x, cache)`` is such a step by itself, for models whose
steps are no tokens.

Rejected: choosing inside the plan. It would save a copy of the logits, and every way of choosing
would be traced anew.
"""

from __future__ import annotations

import weakref
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from hotloop import _core
from hotloop.base.memory import allocating
from hotloop.base.rules import number, whole
from hotloop.base.structure import Constant, flatten
from hotloop.base.watching import pause
from hotloop.errors import ConfigError, DataError, NotFiniteError, ShapeError, TraceError
from hotloop.graph.seeds import seed_or
from hotloop.nn.cache import KVCache
from hotloop.nn.module import Module
from hotloop.training.plans.accelerator import losing_device
from hotloop.training.plans.fitted import PredictOnly, check_model, exclusive
from hotloop.training.predictor import CachedSteps, Planned

__all__ = ["choose", "generate"]

Array: TypeAlias = npt.NDArray[Any]


class _Generator:
    """The steps of a model that goes on from prompts, and its cache."""

    def __init__(self, model: Module, batch_size: int) -> None:
        cache: Any = model.make_cache(batch_size)
        if not isinstance(cache, KVCache):
            raise ConfigError(
                f"generate: make_cache must return an nn.KVCache, got {type(cache).__name__}"
            )
        self.cache = cache
        self.steps = CachedSteps(model, cache)
        self.planned: dict[int, Planned] = {}  # of this call, by their rows

    def begin(self) -> None:
        """The cache is empty; steps are of the model's values of now."""
        self.planned.clear()
        self.steps.empty()

    def step(self, ids: Array) -> Array:
        """Logits behind the last of these tokens."""
        planned = self.planned.get(ids.shape[1])
        if planned is None:
            spec = flatten((ids, Constant(self.cache)))[1]
            planned = self.planned[ids.shape[1]] = self.steps.find([ids], spec, None)
        logits: Any = self.steps.run_planned(planned, [ids])
        if not isinstance(logits, np.ndarray) or logits.ndim != 3 or len(logits) != len(ids):
            is_array = isinstance(logits, np.ndarray)
            got = f"shape {logits.shape}" if is_array else type(logits).__name__
            raise TraceError(
                f"generate: forward(idx, cache) must return logits ({len(ids)}, T, tokens), got "
                f"{got}"
            )
        return logits[:, -1].astype(np.float32)


class _Draws:
    """A number in [0, 1) for each token of each sequence, drawn as far as tokens are made.

    A stream's numbers do not depend on how many are drawn; each time there are twice as many.
    """

    def __init__(self, seed: int, n_sequences: int, most: int) -> None:
        self._seed, self._n, self._most = seed, n_sequences, most
        self._drawn: Array = np.empty((n_sequences, 0))

    def of(self, token: int) -> Array:
        """Those of the sequences' token of that number, from 0 on."""
        if token >= self._drawn.shape[1]:
            count = min(max(2 * token, 1024), self._most)
            streams = (f"generate.{i}" for i in range(self._n))
            self._drawn = np.array(
                [_core.random_uniform(self._seed, stream, count, 0.0, 1.0) for stream in streams]
            )
        return self._drawn[:, token]


_generators: weakref.WeakKeyDictionary[Module, _Generator] = weakref.WeakKeyDictionary()


def choose(
    logits: Array, drawn: Array, temperature: float, top_k: int | None, top_p: float | None
) -> Array:
    """Tokens by their probabilities.

    Parameters
    ----------
    logits : ndarray
        ``(N, tokens)``.
    drawn : ndarray
        ``(N,)``, uniform in ``[0, 1)``.
    temperature : float
        0: the likeliest.
    top_k : int, optional
        Of so many likeliest; equal ones count as one.
    top_p : float, optional
        Of the fewest whose probabilities sum to it.

    Returns
    -------
    ndarray
        ``(N,)``, int64.
    """
    largest = logits.max(1)
    if not np.isfinite(largest).all():
        row = int(np.flatnonzero(~np.isfinite(largest))[0])
        raise NotFiniteError(
            f"generate: logits must be finite, got {largest[row]} as the largest of sequence "
            f"{row}; look for NaN in the weights"
        )
    if temperature == 0:
        likeliest: Array = logits.argmax(1)
        return likeliest
    scaled = (logits.astype(np.float64) - largest[:, None]) / temperature
    n = scaled.shape[1]
    if top_k is not None and top_k < n:
        least = np.partition(scaled, n - top_k, 1)[:, n - top_k, None]
        scaled[scaled < least] = -np.inf
    p = np.exp(scaled)
    if top_p is not None and top_p < 1:
        order = np.argsort(-p, 1, kind="stable")
        falling = np.take_along_axis(p, order, 1)
        before = np.cumsum(falling, 1) - falling
        falling[before >= top_p * falling.sum(1, keepdims=True)] = 0
        np.put_along_axis(p, order, falling, 1)
    sums = np.cumsum(p, 1)
    at = drawn * sums[:, -1]
    # The first token whose sum is beyond `at`; rounding may put `at` on the last sum.
    found = [np.searchsorted(row, min(x, np.nextafter(row[-1], 0)), "right")
             for row, x in zip(sums, at)]  # fmt: skip
    return np.array(found, np.int64)


def _check_prompt(prompt: Any) -> Array:
    try:
        ids = np.asarray(prompt)
    except ValueError:
        raise ShapeError(
            "generate: prompts must have one length, got lists of several; call generate for each"
        ) from None
    if ids.dtype.kind not in "iu":
        raise DataError(f"generate: prompt must hold ids, integers, got {ids.dtype}")
    if ids.ndim not in (1, 2) or not ids.size:
        raise ShapeError(
            f"generate: prompt must be (T,) or (N, T) ids, at least one each, got shape {ids.shape}"
        )
    return ids.astype(np.int64)


def generate(
    model: Module,
    prompt: Any,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    *,
    context: int | None = None,
    seed: int | None = None,
) -> Any:
    """Lets a model of sequences go on from a prompt.

    Parameters
    ----------
    model : Module or TrainResult
        One with ``make_cache(batch_size)``, which gives an :class:`hotloop.nn.KVCache`, and with
        ``forward(idx, cache)``, as :func:`hotloop.models.gpt` makes it. It runs in evaluation mode
        on the device of ``hl.predict``.
    prompt : array of integers
        ``(N, T)`` ids of N prompts of T tokens, or ``(T,)``.
    max_new_tokens : int
        How many follow.
    temperature : float
        Logits are divided by it: below 1 likely tokens become more likely. 0 takes the likeliest.
    top_k : int, optional
        Only so many likeliest tokens may follow (Fan et al. 2018).
    top_p : float, optional
        Only the fewest tokens whose probabilities sum to it may follow (Holtzman et al. 2020).
    context : int, optional
        Where the sequence fills the cache, the last so many tokens go on in an empty one. With the
        cache's whole length each further token sees as many before it and costs as much as a
        prompt; with half of it, tokens cost little. Without it, a sequence that does not fit is an
        error.
    seed : int, optional
        Of the choice; :func:`hotloop.manual_seed`'s by default, else 42. A sequence's choices
        depend on its number among the prompts and on no other prompt.

    Returns
    -------
    ndarray
        Prompt and new tokens, ``(N, T + max_new_tokens)`` or ``(T + max_new_tokens,)``, int64.

    Raises
    ------
    ConfigError
        If the model does not have a cache, or an argument is out of range.
    ShapeError
        If the sequence does not fit the cache.
    OutOfMemoryError
        If there is less memory than the tokens need.
    DataError
        If the prompt does not hold integers, or one that the model has no row for.
    NotFiniteError
        If logits are NaN.

    Notes
    -----
    Repeats bit for bit, as :func:`hotloop.predict` does. A token takes one run of the model on one
    position: the keys and values of those before are state of the plan.

    Examples
    --------
    >>> model = hl.models.gpt(vocab_size=65, block_size=32, n_layer=2, n_head=2, n_embd=32)
    >>> hl.generate(model, [[1, 2, 3], [4, 5, 6]], 10, temperature=0.8, top_k=20).shape
    (2, 13)
    """
    found: Any = check_model("generate", model, loaded=True)
    if isinstance(found, PredictOnly) or not callable(getattr(found, "make_cache", None)):
        fix = (
            "build the module and load_state_dict(loaded.state_dict())"
            if isinstance(found, PredictOnly)
            else "hl.models.gpt has one; see nn.KVCache"
        )
        raise ConfigError(
            "generate: the model must have make_cache(batch_size) and forward(idx, cache), got "
            f"{type(found).__name__}; {fix}"
        )
    ids = _check_prompt(prompt)
    n_new = whole(0)("max_new_tokens", max_new_tokens)
    temperature = number(at_least=0)("temperature", temperature)
    top_k = None if top_k is None else whole(1)("top_k", top_k)
    top_p = None if top_p is None else number(above=0, at_most=1)("top_p", top_p)
    context = None if context is None else whole(1)("context", context)
    by = seed_or(None) if seed is None else whole(0)("seed", seed)
    rows = ids.reshape(-1, ids.shape[-1])
    draws = _Draws(by, len(rows), n_new)
    with exclusive(found, "generate"), losing_device():
        made = _generate(found, rows, n_new, draws, (temperature, top_k, top_p), context)
    return made.reshape(*ids.shape[:-1], -1)


def _generate(
    model: Module, prompt: Array, n_new: int, draws: _Draws, how: Any, context: int | None
) -> Array:
    n, length = prompt.shape
    generator = _generators.get(model)
    if generator is None or generator.cache.batch_size != n:
        generator = _generators[model] = _Generator(model, n)
    generator.begin()
    most = generator.cache.max_seq_len
    if context is None and length + n_new - 1 > most:
        raise ShapeError(
            f"generate: the prompt's {length} tokens and max_new_tokens={n_new} must fit the "
            f"cache's {most} positions, the last token apart, got {length + n_new - 1}; with "
            f"context={max(most // 2, 1)} the last so many tokens go on in an empty cache"
        )
    if context is not None and context > most:
        raise ConfigError(
            f"generate: context must be at most the cache's {most} positions, got {context}"
        )
    try:
        return _go_on(generator, prompt, n_new, draws, how, context or most)
    except BaseException:  # what it leaves may be NaN, which a weight of 0 does not hide
        del _generators[model]
        generator.steps.close()
        raise


def _go_on(
    generator: _Generator, prompt: Array, n_new: int, draws: _Draws, how: Any, context: int
) -> Array:
    n, length = prompt.shape
    most = generator.cache.max_seq_len
    with allocating("generate", (n, length + n_new), np.int64):
        made = np.concatenate([prompt, np.zeros((n, n_new), np.int64)], 1)
    filled, first = 0, 0 if length <= most else length - context
    for i in range(n_new):
        end = length + i
        if filled + end - first > most:
            generator.steps.empty()
            filled, first = 0, end - context
        logits = generator.step(np.ascontiguousarray(made[:, first:end]))
        filled, first = filled + end - first, end
        made[:, end] = choose(logits, draws.of(i), *how)
        pause()
    return made
