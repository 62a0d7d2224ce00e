"""Arrays in files that need not fit memory."""
