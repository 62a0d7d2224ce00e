"""Mutants of what is trained in some epochs alone, and of moments that begin within a run."""

from mutants.mutant import Mutant, c, cuda, header, python

_CHECKPOINTS = "python/hotloop/training/checkpoints/"
_MOMENTS = "tests/train/test_moments.py::"

MUTANTS = [
    Mutant(
        "young-moments-have-the-runs-powers",
        "csrc/ir/control.h",
        "if (age == control->applied) return control->power[i];",
        "if (age > 0) return control->power[i];",
        header("test_control"),
    ),
    Mutant(
        "young-moments-have-the-runs-correction",
        "csrc/ir/control.h",
        "bool is_whole = age == control->applied;",
        "bool is_whole = age <= control->applied;",
        header("test_control"),
    ),
    Mutant(
        "sgd-has-one-first-step",
        "kernels/cpu/optim.c",
        ".is_first = s->age == 1,",
        ".is_first = s->control->applied == 1,",
        c("test_cpu_update"),
    ),
    Mutant(
        "corrections-are-those-of-the-first-segment",
        "kernels/cuda/optim.cu",
        "corrections + 2 * finder};",
        "corrections};",
        cuda("test_kernels_update"),
    ),
    Mutant(
        "segments-join-over-ages",
        "python/hotloop/training/plans/steps.py",
        "segments[-1][1:] == (begin, scale, decay, began)",
        "segments[-1][1:4] == (begin, scale, decay)",
        python(_MOMENTS + "test_what_joins_late_begins_its_count"),
    ),
    Mutant(
        "a-checkpoint-forgets-ages",
        _CHECKPOINTS + "snapshot.py",
        "steps - ages.get(name, steps) if name in known",
        "0 if name in known",
        python(_MOMENTS + "test_moments_keep_their_count_in_checkpoints"),
    ),
    Mutant(
        "moments-of-another-optimizer-are-taken",
        "python/hotloop/training/run/fit.py",
        "        resumed = with_own_moments(resumed, config)\n",
        "",
        python(_MOMENTS + "test_another_optimizer_begins_anew"),
    ),
]
