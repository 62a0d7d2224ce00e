"""Samples that Python makes: datasets, loaders, generators and functions."""
