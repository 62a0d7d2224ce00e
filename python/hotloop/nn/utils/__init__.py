"""torch.nn.utils: what is about layers and is none."""

from hotloop.nn.utils import rnn as rnn

__all__ = ["rnn"]
