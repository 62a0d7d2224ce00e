"""The list of mutants: a table per part of the project."""

from mutants import bindings, core, data, docs, gpu, images, training

MUTANTS = [
    *training.MUTANTS,
    *data.MUTANTS,
    *bindings.MUTANTS,
    *core.MUTANTS,
    *gpu.MUTANTS,
    *images.MUTANTS,
    *docs.MUTANTS,
]
