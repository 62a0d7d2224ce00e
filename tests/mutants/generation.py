"""Mutants of going on from a prompt: the cache, its plans, choices; positions and bags."""

from mutants.mutant import Mutant, c, python

_GPT = "tests/models/test_gpt.py"
_POSITIONS = "tests/api/test_positions.py"
_STEPS = "tests/train/test_steps_beside_a_cache.py::"
_CACHE = "python/hotloop/nn/cache.py"

MUTANTS = [
    Mutant(
        "cache-that-somebody-sees-as-it-was-is-written",
        "csrc/passes/guard.c",
        "(node != write || j > 0))",
        "node == write && j > 0)",
        c("test_passes"),
    ),
    Mutant(
        "prediction-keeps-weights-of-before",
        "csrc/plan/runner.c",
        "plan->begun_by == hl_session_count_changes(session, plan->graph);",
        "plan->begun_by != -2;",
        c("test_begin"),
    ),
    Mutant(
        "prediction-keeps-what-another-plan-overwrote",
        "csrc/plan/runner.c",
        "session->resident == plan->number &&",
        "session->resident != 0 &&",
        c("test_begin"),
    ),
    Mutant(
        "cache-forgets-in-prediction",
        "python/hotloop/graph/trace.py",
        "if self.training or key in self._kept:",
        "if self.training:",
        python(f"{_GPT}::test_the_cache_changes_nothing"),
    ),
    Mutant(
        "row-sees-the-one-behind-it",
        "python/hotloop/nn/cache.py",
        "arange(self.max_seq_len) <= reshape(",
        "arange(self.max_seq_len) - 1 <= reshape(",
        python(f"{_GPT}::test_the_cache_changes_nothing"),
    ),
    Mutant(
        "cache-stays-where-it-is",
        _CACHE,
        "            self.advance(max(self._written.values()))\n",
        "            pass\n",
        python(_STEPS + "test_steps_are_the_whole"),
    ),
    Mutant(
        "cache-moves-on-by-rows-of-the-step-before",
        _CACHE,
        "        self._written.clear()\n        yield\n",
        "        yield\n",
        python(_STEPS + "test_what_writes_no_row_does_not_move_on"),
    ),
    Mutant(
        "failed-step-moves-the-cache-on",
        "python/hotloop/training/predictor.py",
        "for slot, values in zip(slots, before, strict=True):",
        "for slot, values in []:",
        python(_STEPS + "test_a_step_that_fails_changes_nothing"),
    ),
    Mutant(
        "failed-step-leaves-its-rows",
        "python/hotloop/training/predictor.py",
        "            self._clear_rows(runtime, writes, at)\n",
        "",
        python(_STEPS + "test_a_step_that_fails_changes_nothing"),
    ),
    Mutant(
        "interrupted-step-is-taken-for-whole",
        "python/hotloop/training/predictor.py",
        "        except BaseException:  # an",
        "        except Exception:  # an",
        python(_STEPS + "test_an_interrupted_step_changes_nothing"),
    ),
    Mutant(
        "full-cache-takes-a-step",
        "python/hotloop/training/predictor.py",
        "at + writes.n_rows > cache.max_seq_len:",
        "at > cache.max_seq_len:",
        python(_STEPS + "test_a_full_cache_is_named_before_anything_runs"),
    ),
    Mutant(
        "failed-generation-leaves-its-cache",
        "python/hotloop/training/generation.py",
        "        del _generators[model]\n        generator.steps.close()\n",
        "",
        python(f"{_GPT}::test_a_failed_generation_leaves_nothing"),
    ),
    Mutant(
        "cache-goes-on-with-another-model",
        "python/hotloop/training/predictor.py",
        "if steps is None or not steps.is_of(model):",
        "if steps is None:",
        python(_STEPS + "test_values_that_were_set_and_other_models_begin_anew"),
    ),
    Mutant(
        "step-takes-what-training-had",
        "python/hotloop/training/predictor.py",
        'Inputs("model(...)", args, cache, kwargs)',
        'Inputs("model(...)", args, model, kwargs)',
        python(_STEPS + "test_a_trained_model_takes_steps_that_training_knows_nothing_of"),
    ),
    Mutant(
        "values-of-pixels-are-made-twice",
        "python/hotloop/nn/deformable.py",
        "        value = self.value_proj(input_flatten)\n        if input_padding",
        "        value = self.value_proj(self.value_proj(input_flatten))\n        if input_padding",
        python("tests/parity/test_transformer_models.py::test_deformable_attention_layer"),
    ),
    Mutant(
        "tokens-are-chosen-by-numbers-of-others",
        "python/hotloop/training/generation.py",
        "return self._drawn[:, token]",
        "return self._drawn[:, token % 1024]",
        python(f"{_GPT}::test_numbers_are_those_that_were_drawn_at_once"),
    ),
    Mutant(
        "full-cache-goes-on-with-too-few",
        "python/hotloop/training/generation.py",
        "filled, first = 0, end - context",
        "filled, first = 0, end - 1",
        python(f"{_GPT}::test_a_full_cache_goes_on_with_the_last_tokens"),
    ),
    Mutant(
        "nucleus-leaves-out-the-token-that-fills-it",
        "python/hotloop/training/generation.py",
        "np.cumsum(falling, 1) - falling",
        "np.cumsum(falling, 1)",
        python(f"{_GPT}::test_choices_have_their_probabilities"),
    ),
    Mutant(
        "rotary-turns-backwards",
        "python/hotloop/nn/functional/positions.py",
        "[a * c - b * s, b * c + a * s]",
        "[a * c + b * s, b * c - a * s]",
        python(f"{_POSITIONS}::test_rotary"),
    ),
    Mutant(
        "bag-counts-padding",
        "python/hotloop/nn/functional/embeddings.py",
        "counts = _sums(ones if counted is None else cast(counted, dtypes.float32), bags, n_bags)",
        "counts = _sums(ones, bags, n_bags)",
        python("tests/parity/test_modules.py::test_module"),
    ),
]
