"""Mutants of going on from a prompt: the cache, its plans, choices; positions and bags."""

from mutants.mutant import Mutant, c, python

_GPT = "tests/models/test_gpt.py"
_POSITIONS = "tests/api/test_positions.py"

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
        "full-cache-goes-on-with-too-few",
        "python/hotloop/training/generation.py",
        "filled, first = 0, end - (context or most)",
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
