"""The list of mutants: a table per part of the project."""

from mutants import core, data, training

MUTANTS = [*training.MUTANTS, *data.MUTANTS, *core.MUTANTS]
