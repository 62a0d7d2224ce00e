"""Mutants of batches that are read where they lie (csrc/plan/lend.c) and of rows in pieces."""

from mutants.mutant import Mutant, python

_TEST = python("tests/ops/test_batch_gather.py")

MUTANTS = [
    Mutant(
        "lent-rows-are-in-any-order",
        "kernels/cpu/index.c",
        "!= k + (i - first)) return NULL;",
        "< 0) return NULL;",
        _TEST,
    ),
    Mutant(
        "lent-rows-are-out-of-range",
        "kernels/cpu/index.c",
        "if (k < 0 || k + (last - first) >= s->N) return NULL;",
        "",
        _TEST,
    ),
    Mutant(
        "windows-are-lent-as-rows",
        "kernels/cpu/index.c",
        "(s->step != s->I && first != last))",
        "false)",
        _TEST,
    ),
    Mutant(
        "rows-lie-so-in-another-dtype",
        "kernels/cpu/index.c",
        "s->dtype != s->out_dtype || begin >= end",
        "begin >= end",
        _TEST,
    ),
    Mutant(
        "pieces-are-those-of-the-first-row",
        "kernels/cpu/index.c",
        "int64_t piece = s->I / s->pieces, first = begin % s->pieces;",
        "int64_t piece = s->I / s->pieces, first = 0;",
        _TEST,
    ),
    Mutant(
        "what-is-kept-is-lent",
        "csrc/plan/lend.c",
        "if (uses->kept[value]) return -1;",
        "",
        _TEST,
    ),
    Mutant(
        "what-is-read-later-is-lent",
        "csrc/plan/lend.c",
        "if (s < chain->first_task || s >= chain->first_task + chain->n_tasks) return -1;",
        "(void)s;",
        _TEST,
    ),
    Mutant(
        "all-blocks-are-the-first-one",
        "csrc/plan/lend.h",
        "(uintptr_t)at - (uintptr_t)(begin * lender->lent_bytes)",
        "(uintptr_t)at",
        _TEST,
    ),
]
