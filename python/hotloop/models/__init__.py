"""Models of images, text, tables and sequences: structure and names are those of their origin, if
they have one, whose weights they load.

>>> from hotloop import models
>>> model = models.resnet18(num_classes=10)
>>> sum(p.numel() for p in model.parameters())
11181642

``weights=`` takes a local file of the origin's weights, safetensors or what ``torch.save`` wrote;
nothing is downloaded.
"""

from hotloop.models.bert import bert as bert
from hotloop.models.convnext import convnext_base as convnext_base
from hotloop.models.convnext import convnext_small as convnext_small
from hotloop.models.convnext import convnext_tiny as convnext_tiny
from hotloop.models.deformable import deformable_encoder as deformable_encoder
from hotloop.models.efficientnet import efficientnet_b0 as efficientnet_b0
from hotloop.models.gpt import gpt as gpt
from hotloop.models.mlp import gated_mlp as gated_mlp
from hotloop.models.mlp import mlp as mlp
from hotloop.models.mobilenet import mobilenet_v3_large as mobilenet_v3_large
from hotloop.models.mobilenet import mobilenet_v3_small as mobilenet_v3_small
from hotloop.models.recurrent import gru_classifier as gru_classifier
from hotloop.models.recurrent import lstm_classifier as lstm_classifier
from hotloop.models.resnet import resnet18 as resnet18
from hotloop.models.resnet import resnet34 as resnet34
from hotloop.models.resnet import resnet50 as resnet50
from hotloop.models.resnet import resnet101 as resnet101
from hotloop.models.resnet import resnet_cifar as resnet_cifar
from hotloop.models.tcn import tcn as tcn
from hotloop.models.transformer import transformer_classifier as transformer_classifier
from hotloop.models.unet import unet as unet
from hotloop.models.vit import vit_base_patch16_224 as vit_base_patch16_224
from hotloop.models.vit import vit_small_patch16_224 as vit_small_patch16_224
from hotloop.models.vit import vit_tiny_patch16_224 as vit_tiny_patch16_224

__all__ = [
    "bert", "convnext_base", "convnext_small", "convnext_tiny", "deformable_encoder",
    "efficientnet_b0", "gated_mlp", "gpt", "gru_classifier", "lstm_classifier", "mlp",
    "mobilenet_v3_large", "mobilenet_v3_small", "resnet101", "resnet18", "resnet34", "resnet50",
    "resnet_cifar", "tcn", "transformer_classifier", "unet", "vit_base_patch16_224",
    "vit_small_patch16_224", "vit_tiny_patch16_224",
]  # fmt: skip
