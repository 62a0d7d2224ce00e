"""CAPE: keypoints of a category that was never trained on, by one annotated example of it.

The image goes through a ResNet and a deformable encoder; the support, the example's keypoints,
through an encoder of its own. A causal decoder then writes the keypoints one after the other: each
position gets the point before it, looks at the positions before, at the support and at the image,
and says what it is (a point, a hidden point, the end) and where.
"""

import hotloop as hl
import numpy as np
from hotloop import models, nn
from hotloop.nn import functional as F

POINT, HIDDEN, END = range(3)
GRID, WORDS = 44, 2000  # cells of the image to a side, and what the vocabulary has in all
START, UNKNOWN = GRID * GRID, GRID * GRID + 1


class PointEmbedding(nn.Module):
    """A point as the bilinear mix of the four cells around it, or a word for what is none."""

    def __init__(self, width):
        super().__init__()
        self.words = nn.Embedding(WORDS, width)

    def forward(self, points, word):
        """``(N, T, 2)`` in [0, 1], and the number of a word to take its place, or 0, ``(N, T)``."""
        at = points.clamp(0.0, 1.0) * (GRID - 1)
        low = at.floor().clamp(max=GRID - 2.0)
        high, cell = at - low, low.long()
        made = 0.0
        for right in (0, 1):
            for down in (0, 1):
                share = (1 - right - high[..., :1]).abs() * (1 - down - high[..., 1:]).abs()
                made += share * self.words((cell[..., 1] + down) * GRID + cell[..., 0] + right)
        return hl.where((word > 0).unsqueeze(-1), self.words(word), made)


class Attention(nn.Module):
    """Heads of attention, whose keys and values may be made once for many queries."""

    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def split(self, x, parts):
        """``(N, T, parts * E)`` as parts of ``(N, heads, T, E / heads)``."""
        x = x.reshape(*x.shape[:2], parts, self.heads, -1).permute(2, 0, 3, 1, 4)
        return [x[i] for i in range(parts)]

    def keys(self, x):
        """Keys and values of rows."""
        return self.split(self.key_value(x), 2)

    def forward(self, x, key, value, mask=None):
        """Without a mask each row sees those before it, and itself."""
        (query,) = self.split(self.query(x), 1)
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(query, key, value, mask, p, is_causal=mask is None)
        return self.out(y.transpose(1, 2).flatten(2))


class DecoderLayer(nn.Module):
    """Attention to the positions before, to the support and to the image, and two linear maps."""

    def __init__(self, width, heads, hidden, dropout, levels):
        super().__init__()
        self.before = Attention(width, heads, dropout)
        self.support = Attention(width, heads, dropout)
        self.image = nn.MultiScaleDeformableAttention(width, levels, heads)
        self.maps = nn.Sequential(
            nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, width)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.dropout = nn.Dropout(dropout)
        self.types = nn.Linear(width, 3)
        self.points = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, 2),
        )  # fmt: skip
        nn.init.zeros_(self.points[-1].weight)
        nn.init.zeros_(self.points[-1].bias)

    def forward(self, x, place, at, before, memory, sizes):
        """Rows, their places in the sequence and in the image; what ``before`` makes of their keys
        and values are those of all rows so far, and a mask.
        """
        support_key, support_value, is_there, pixels = memory
        y = self.before(x + place, *before(*self.before.keys(x + place)))
        x = self.norms[0](x + self.dropout(y))
        y = self.support(x + place, support_key, support_value, is_there)
        x = self.norms[1](x + self.dropout(y))
        levels = at.unsqueeze(2).expand(*at.shape[:2], len(sizes), 2)
        x = self.norms[2](x + self.dropout(self.image(x + place, levels, pixels, sizes)))
        x = self.norms[3](x + self.dropout(self.maps(x)))
        return x, self.types(x), F.sigmoid(self.points(x) + hl.logit(at, 1e-4))


class Cache(nn.KVCache):
    """Of each layer keys and values so far, and its memory of support and image."""

    def __init__(self, layers, images, heads, positions, width, points, pixels):
        super().__init__(layers, images, heads, positions, width)
        shapes = {
            "key": (images, heads, points, width), "value": (images, heads, points, width),
            "is_there": (images, 1, 1, points), "pixels": (images, pixels, heads, width),
        }  # fmt: skip
        self.names = [[f"support_{name}{i}" for name in shapes] for i in range(layers)]
        for names in self.names:
            for name, shape in zip(names, shapes.values()):
                dtype = "bool" if "is_there" in name else "float32"
                self.register_buffer(name, np.zeros(shape, dtype), persistent=False)

    def keep(self, memory):
        """In forward: keeps what each layer looks at for the steps to come."""
        for names, values in zip(self.names, memory):
            for name, value in zip(names, values):
                getattr(self, name).assign(value)

    def recall(self):
        """In forward: what was kept."""
        return [[getattr(self, name) for name in names] for names in self.names]


class Cape(nn.Module):
    """Images and the support's keypoints in, types and places of the images' keypoints out."""

    def __init__(
        self, width=256, heads=8, encoder_layers=6, support_layers=3, decoder_layers=6,
        encoder_hidden=1024, decoder_hidden=2048, positions=200, dropout=0.1, image_size=256,
        backbone="resnet50", frozen_norm=True, weights=None, noise=0.03,
    ):  # fmt: skip
        super().__init__()
        self.encoder = models.deformable_encoder(
            backbone, hidden_dim=width, nheads=heads, enc_layers=encoder_layers,
            dim_feedforward=encoder_hidden, dropout=dropout, frozen_norm=frozen_norm,
        )  # fmt: skip
        if weights is not None:
            state = hl.read_weights(weights)
            own = {name: array for name, array in state.items() if not name.startswith("fc.")}
            self.encoder.backbone[0].body.load_state_dict(own)
        self.sizes = self.encoder.sizes(image_size, image_size)
        self.width, self.heads, self.positions, self.noise = width, heads, positions, noise
        self.places = nn.Embedding(positions, width)
        self.point = nn.Linear(2, width)
        layer = nn.TransformerEncoderLayer(width, heads, decoder_hidden, dropout, batch_first=True)
        self.support = nn.TransformerEncoder(layer, support_layers)
        self.words = PointEmbedding(width)
        self.start = nn.Linear(width, 2)
        self.layers = nn.ModuleList(
            DecoderLayer(width, heads, decoder_hidden, dropout, len(self.sizes))
            for _ in range(decoder_layers)
        )
        self.register_buffer("mean", np.array([[[123.7]], [[116.3]], [[103.5]]], np.float32))
        self.register_buffer("std", np.array([[[58.4]], [[57.1]], [[57.4]]], np.float32))

    def make_cache(self, images, points):
        """A cache for so many images at a time, each with so many points in its support."""
        pixels = sum(height * width for height, width in self.sizes)
        width = self.width // self.heads
        sizes = (self.positions, width, points, pixels)
        return Cache(len(self.layers), images, self.heads, *sizes)

    def remember(self, x):
        """What each layer of the decoder looks at: the support's keys and values, which of it is
        there, and the image's values."""
        images = x["query"].flatten(0, 1)
        pixels = self.encoder((images - self.mean) / self.std)
        points = x["support_y"].expand(*x["query"].shape[:2], *x["support_y"].shape[2:])
        points = points.flatten(0, 1)
        is_there = points[..., 2] > 0
        places = self.places.weight[: points.shape[1]]
        tokens = self.support(self.point(points[..., :2]) + places, None, ~is_there) + places
        mask = is_there.unsqueeze(1).unsqueeze(1)
        return [
            (*layer.support.keys(tokens), mask, layer.image.values(pixels)) for layer in self.layers
        ]

    def decode(self, before, memory, cache=None):
        """Of each layer types ``(N, T, 3)`` and points ``(N, T, 2)``, given what stands before each
        position: points and the number of a word in their place, ``(N, T, 3)``."""
        rows = before.shape[1]
        mask = None if cache is None else cache.mask(rows)
        place = self.places(hl.arange(rows) if cache is None else cache.positions(rows))
        x, found = self.words(before[..., :2], before[..., 2].long()), []
        at = F.sigmoid(self.start(x + place))
        for i, (layer, own) in enumerate(zip(self.layers, memory)):

            def join(key, value, layer=i):
                both = (key, value) if cache is None else cache.update(key, value, layer)
                return *both, mask

            x, types, at = layer(x, place, at, join, own, self.sizes)
            found.append((types, at))
            at = at.detach()
        return found

    def forward(self, x=None, before=None, cache=None):
        """Types and points of the positions that ``before`` stands before, of the first one without
        it. A cache keeps what x gave and all positions so far for the next calls."""
        memory = cache.recall() if x is None else self.remember(x)
        if x is not None and cache is not None:
            cache.keep(memory)
        if before is None:
            images = x["query"].shape[0] * x["query"].shape[1]
            before = hl.cat([hl.zeros(images, 1, 2), hl.full((images, 1, 1), START)], 2)
        return self.decode(before, memory, cache)[-1]

    def training_step(self, batch):
        """The losses of all layers: of types cross-entropy, of points the distance."""
        x, goal = batch["x"], batch["y"].flatten(0, 1)
        support = x["support_y"].expand(*batch["y"].shape).flatten(0, 1)[..., 2]
        images, count, _ = goal.shape
        is_point = goal[..., 2] * support > 0  # as in the score, both have the keypoint
        at = hl.arange(count + 1)
        length = ((support > 0) * (at[:-1] + 1)).amax(1, keepdim=True)
        is_point = hl.cat([is_point, hl.zeros(images, 1) > 0], 1)
        types = hl.where(is_point, POINT, hl.where(at < length, HIDDEN,
                         hl.where(at == length, END, -100)))  # fmt: skip
        points = hl.cat([goal[..., :2], hl.zeros(images, 1, 2)], 1)
        word = hl.cat([hl.full((images, 1), START), hl.where(is_point, 0.0, UNKNOWN)[:, :-1]], 1)
        before = hl.cat([hl.zeros(images, 1, 2), goal[..., :2]], 1)
        if self.training and self.noise:  # points that were found are not exact either
            before = before + self.noise * hl.randn(*before.shape)
        before = hl.cat([before, word.unsqueeze(2)], 2)
        # Plain numbers, divided here: losses that carry denominators of their own have a backward
        # pass each where the gradients of several batches are summed.
        weight = np.array([1, 1, 20], np.float32)
        n_types = hl.where(types == END, 20.0, (types >= 0).float()).sum()
        n_points = is_point.sum().clamp(min=1)
        of_types = of_points = 0.0
        for logits, found in self.decode(before, self.remember(x)):
            off = F.cross_entropy(logits.transpose(1, 2), types, weight, reduction="sum")
            of_types += off / n_types
            of_points += (is_point.unsqueeze(2) * (found - points).abs()).sum() / n_points
        return {"types": of_types, "points": 5 * of_points}


class Finder:
    """Finds keypoints one after the other with a model, whose cache it keeps."""

    def __init__(self, model):
        self.model, self.cache = model, None

    def __call__(self, x):
        """``(images, points, 2)`` of an episode's queries, whose supports are beside them."""
        images, count = x["query"].shape[0] * x["query"].shape[1], x["support_y"].shape[2]
        last = np.flatnonzero(x["support_y"][..., 2].any((0, 1)))[-1]
        if self.cache is None or self.cache.batch_size != images:
            self.cache = self.model.make_cache(images, count)
        self.cache.reset()
        found = np.zeros((images, count, 2), np.float32)
        types, point = self.model(x, cache=self.cache)
        for i in range(last + 1):
            found[:, i : i + 1] = point
            if i < last:
                word = np.where(types.argmax(-1) == HIDDEN, UNKNOWN, 0)
                before = np.concatenate([point, word[..., None]], 2, dtype=np.float32)
                types, point = self.model(before=before, cache=self.cache)
        return found
