"""A model on a device: which device, the traced steps, their plans, and checks before they run."""
