"""The list of mutants: a table per part of the project."""

from mutants import bindings, core, data, docs, gpu, images, loops, training

MUTANTS = [
    *training.MUTANTS,
    *loops.MUTANTS,
    *data.MUTANTS,
    *bindings.MUTANTS,
    *core.MUTANTS,
    *gpu.MUTANTS,
    *images.MUTANTS,
    *docs.MUTANTS,
]
