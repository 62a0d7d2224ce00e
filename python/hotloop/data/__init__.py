"""Data: arrays as they are, divided into splits, checked once, handed to the core by row number."""
