"""Models by what they take: images have channels, the others features."""

import inspect

from hotloop import models

IMAGES = [
    name
    for name in models.__all__
    if "in_channels" in inspect.signature(getattr(models, name)).parameters
]
TABLES = ["gated_mlp", "mlp"]
SEQUENCES = [name for name in models.__all__ if name not in (*IMAGES, *TABLES)]
