"""Which models take images; the others take tokens, and have tests of their own."""

from hotloop import models

OF_TOKENS = ("gpt",)
OF_IMAGES = [name for name in models.__all__ if name not in OF_TOKENS]
