"""What training gives: the result with its history and plots, and saved models."""
