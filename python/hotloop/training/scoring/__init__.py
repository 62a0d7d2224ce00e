"""What a model is judged by: losses and metrics."""
