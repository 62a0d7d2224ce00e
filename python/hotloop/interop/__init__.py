"""Files that other libraries write, read without running what is in them."""
