"""Images from files: what they are, how batches of them are made, and what is kept of them."""
