"""The list of mutants, by what they change."""

from mutants import training

MUTANTS = [*training.MUTANTS]
