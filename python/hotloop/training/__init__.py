"""Training: its configuration, schedules, the loop around the step plan, and its results."""
