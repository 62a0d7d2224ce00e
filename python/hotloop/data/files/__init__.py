"""Data that ships with hotloop; a package, so that wheels take its files along."""
