"""Data with an order: windows of series and of text, sequences of several lengths."""
