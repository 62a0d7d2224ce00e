"""The list of mutants: a table per part of the project."""

from mutants import (
    attention,
    bindings,
    core,
    data,
    docs,
    generation,
    gpu,
    images,
    lengths,
    loops,
    pictures,
    recurrent,
    sequences,
    solving,
    sorting,
    training,
)

MUTANTS = [
    *training.MUTANTS,
    *loops.MUTANTS,
    *data.MUTANTS,
    *bindings.MUTANTS,
    *core.MUTANTS,
    *gpu.MUTANTS,
    *images.MUTANTS,
    *sequences.MUTANTS,
    *lengths.MUTANTS,
    *attention.MUTANTS,
    *solving.MUTANTS,
    *sorting.MUTANTS,
    *pictures.MUTANTS,
    *recurrent.MUTANTS,
    *docs.MUTANTS,
    *generation.MUTANTS,
]
