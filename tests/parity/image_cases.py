"""Cases of modules for images: expression in both nn, and the shapes of float inputs."""

LINE, IMAGE, CUBE = (2, 6, 8), (2, 6, 5, 7), (2, 4, 4, 5, 6)
OF_DIMS = {1: LINE, 2: IMAGE, 3: CUBE}

CASES: dict[str, tuple[int, ...]] = {
    "GroupNorm(1, 6)": IMAGE,
    "GroupNorm(3, 6, eps=1e-2)": IMAGE,
    "GroupNorm(6, 6, affine=False)": LINE,
    "GroupNorm(2, 6, bias=False)": LINE,
    "GroupNorm(2, 6) of rows": (4, 6),
    "LocalResponseNorm(3, 0.5, 0.75, 2.0)": IMAGE,
    "LocalResponseNorm(4, 0.5)": LINE,
    "CrossMapLRN2d(3, 0.5, 0.75, 2.0)": IMAGE,
    "CrossMapLRN2d(4, 0.5)": IMAGE,
    "CrossMapLRN2d(5, 2.0, 0.5)": (2, 9, 3, 4),
    "CrossMapLRN2d(11, 0.5)": IMAGE,
    "SyncBatchNorm(6, affine=False)": IMAGE,
    "PixelShuffle(2)": (2, 8, 3, 4),
    "PixelUnshuffle(2)": (2, 2, 4, 6),
    "ChannelShuffle(3)": IMAGE,
    "Fold((5, 7), 2)": (2, 12, 24),
    "Fold((5, 7), (2, 3), padding=1, stride=(1, 2))": (2, 12, 24),
    "Fold((5, 7), 2) of one": (12, 24),
    "Unfold(2)": IMAGE,
    "Unfold((2, 3), dilation=2, padding=(1, 2), stride=2)": IMAGE,
    "Unfold(2) of one": IMAGE[1:],
    "Dropout2d(0.0)": IMAGE,
    "Dropout3d(0.0)": CUBE,
    "FeatureAlphaDropout(0.0)": IMAGE,
    "Upsample(scale_factor=2)": IMAGE,
    "Upsample((3, 11), mode='nearest')": IMAGE,
    "UpsamplingNearest2d(scale_factor=2)": IMAGE,
    "UpsamplingBilinear2d((9, 4))": IMAGE,
    "Upsample((9, 4), mode='bilinear')": IMAGE,
    "Upsample((9, 4), mode='bicubic', align_corners=True)": IMAGE,
    "Upsample(scale_factor=1.5, mode='linear')": LINE,
    "Upsample(scale_factor=1.5, mode='trilinear')": CUBE,
    "Conv2d(6, 4, 3, padding='same', padding_mode='reflect')": IMAGE,
    "Conv2d(6, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=6)": IMAGE,
    "Conv2d(6, 9, 3, groups=3, padding=1, padding_mode='circular', bias=False)": IMAGE,
    "Conv2d(6, 4, 2, padding='same', padding_mode='replicate')": IMAGE,
    "ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1, groups=2)": IMAGE,
    "ConvTranspose2d(6, 6, 3, stride=(3, 1), dilation=2, groups=6, bias=False)": IMAGE,
    "MaxPool2d((3, 2), stride=(1, 2), padding=(1, 0), ceil_mode=True)": IMAGE,
    "MaxPool2d(2, dilation=2)": IMAGE,
    "AvgPool2d((3, 2), stride=2, padding=1, ceil_mode=True, count_include_pad=False)": IMAGE,
    "AvgPool2d(2, divisor_override=3)": IMAGE,
    "AdaptiveAvgPool2d((None, 3))": IMAGE,
    "AdaptiveMaxPool2d((None, 3))": IMAGE,
    "InstanceNorm2d(6, affine=True, bias=False, track_running_stats=True)": IMAGE,
    "InstanceNorm2d(6) of one": IMAGE[1:],
    "BatchNorm2d(6, momentum=None)": IMAGE,
}

for _n, _shape in OF_DIMS.items():
    _c = _shape[1]
    _given = {
        "Conv": f"{_c}, 4, 3", "ConvTranspose": f"{_c}, 4, 3", "LazyConv": "4, 3",
        "LazyConvTranspose": "4, 3", "BatchNorm": f"{_c}", "InstanceNorm": f"{_c}",
        "LazyBatchNorm": "", "LazyInstanceNorm": "", "MaxPool": "2", "AvgPool": "3, 2, 1",
        "AdaptiveAvgPool": "3", "AdaptiveMaxPool": "3", "LPPool": "2, 2",
    }  # fmt: skip
    for _name, _text in _given.items():
        CASES[f"{_name}{_n}d({_text})"] = _shape
    for _name in ("Conv", "ConvTranspose", "MaxPool", "AvgPool", "AdaptiveMaxPool"):
        CASES[f"{_name}{_n}d({_given[_name]}) of one"] = _shape[1:]
    CASES[f"AdaptiveMaxPool{_n}d(2, return_indices=True)"] = _shape
    CASES[f"MaxPool{_n}d(2, return_indices=True)"] = _shape
