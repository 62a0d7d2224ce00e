"""Data frames and files of tables, encoded as arrays."""
