"""``train`` and ``stepper``: the run from configuration to result, and what the user sees of it."""
