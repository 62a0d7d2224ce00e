"""Classifies images as in a competition: folds, predictions of rows not trained on, a submission.

    python images.py FOLDER                                  # small: ResNet-18 at 64 pixels
    python images.py FOLDER --preset full --device cuda:0 --weights convnext_small.safetensors

FOLDER has train/<class>/*.jpg, and images in test/, in folders of classes or not. README.md beside
this file says what the flags mean and what to expect.
"""

import argparse
import csv
from importlib.util import find_spec
from pathlib import Path

import hotloop as hl
import numpy as np
from hotloop import models

PRESETS = {
    "small": {
        "model": "resnet18", "size": 64, "batch_size": 64, "epochs": 6, "lr": 1e-3,
        "weight_decay": 0.05, "label_smoothing": 0.1, "ema": 0.98,
    },
    "full": {
        "model": "convnext_small", "size": 224, "batch_size": 32, "epochs": 10, "lr": 1e-4,
        "weight_decay": 0.01, "label_smoothing": 0.0, "ema": 0.0,
    },
}  # fmt: skip
MODELS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet_cifar", "convnext_tiny",
          "convnext_small", "convnext_base", "efficientnet_b0", "mobilenet_v3_small",
          "mobilenet_v3_large", "vit_tiny_patch16_224", "vit_small_patch16_224")  # fmt: skip
TRACKERS = ("csv", "jsonl", "tensorboard", "wandb", "mlflow", "trackio")
SIDE = 224  # of a ViT's images


def count_or_auto(text):
    """A number of the command line that is 1 at least, or 'auto'."""
    if text != "auto" and not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"must be a number of 1 at least, or 'auto', got {text!r}")
    return text if text == "auto" else int(text)


def share(text):
    """A number of the command line above 0 that is 1 at most."""
    if not 0 < (value := float(text)) <= 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and 1 at most, got {text}")
    return value


def read_flags(argv=None):
    """The command line; what it leaves open is that of the preset."""
    first = argparse.ArgumentParser(add_help=False)
    first.add_argument("--preset", choices=PRESETS, default="small")
    parser = argparse.ArgumentParser(parents=[first], description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=lambda path: Path(path).resolve(), help="of the images")
    parser.add_argument("--classes", nargs="+", help="these alone")
    parser.add_argument("--share", type=share, default=1.0, help="of each class's training images")
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--size", type=int, help="height and width of the model's images")
    parser.add_argument("--weights", help="a local file, safetensors or of torch.save")
    parser.add_argument("--batch_size", type=count_or_auto,
                        help="images, or 'auto': the most that --memory holds")  # fmt: skip
    parser.add_argument("--memory", help="that a training step may take: '8 GB'")
    for name, kind in (("epochs", int), ("lr", float), ("weight_decay", float),
                       ("label_smoothing", float), ("ema", float)):  # fmt: skip
        parser.add_argument(f"--{name}", type=kind)
    parser.add_argument("--folds", type=int, default=5, help="1: a tenth of the images validates")
    parser.add_argument("--augment", choices=("none", "basic", "strong"), default="basic")
    parser.add_argument("--mixup", type=float, default=0.0, help="0.2, say")
    parser.add_argument("--cutmix", type=float, default=0.0, help="1.0, say")
    parser.add_argument("--tta", choices=("none", "hflip", "vflip", "flips", "d4"), default="hflip")
    parser.add_argument("--accumulation_steps", type=int, default=1)
    parser.add_argument("--clip_max_norm", type=float, default=1.0)
    parser.add_argument("--layer_decay", type=float, help="0.75: lower rates for earlier layers")
    parser.add_argument("--use_amp", action=argparse.BooleanOptionalAction, default=True,
                        help="mixed precision, where the device is fast at it")  # fmt: skip
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1")
    parser.add_argument("--cache", choices=("none", "ram", "disk"), default="none")
    parser.add_argument("--num_workers", type=lambda n: n if n == "auto" else int(n),
                        default="auto", help="threads that make batches")  # fmt: skip
    parser.add_argument("--tracker", nargs="+", choices=TRACKERS, default=["csv"])
    parser.add_argument("--output_dir", type=Path, default=Path("runs/images"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bench_workers", action="store_true",
                        help="only times how fast threads make batches")  # fmt: skip
    parser.add_argument("--batches_of", nargs="+", metavar="GPU",
                        help="only says how many images fit: T4 A100 H200")  # fmt: skip
    parser.set_defaults(**PRESETS[first.parse_known_args(argv)[0].preset])
    flags = parser.parse_args(argv)
    if flags.model.startswith("vit") and flags.size != SIDE:
        parser.error(f"argument --size: {flags.model} takes images of {SIDE} pixels, got "
                     f"{flags.size}; give --size {SIDE}")  # fmt: skip
    return flags


# ---- data


def find_files(folder, pattern):
    """Files in a fixed order, but for hidden ones and those of hidden folders: .DS_Store."""
    found = sorted(path for path in folder.glob(pattern) if path.is_file())
    return [path for path in found if "/." not in f"/{path.relative_to(folder).as_posix()}"]


def list_images(flags):
    """The images of training, the class of each by number, and the classes' names."""
    folder = flags.folder / "train"
    paths = find_files(folder, "*/*")
    if not paths:
        raise hl.DataError(f"FOLDER: must have images as {folder}/<class>/<name>.jpg, got none")
    known = sorted({path.parent.name for path in paths})
    if unknown := sorted(set(flags.classes or ()) - set(known)):
        raise hl.DataError(f"--classes: must be of {', '.join(known)}, got {', '.join(unknown)}")
    names = sorted(set(flags.classes or known))
    kept = [path for path in paths if path.parent.name in names]
    return kept, np.array([names.index(path.parent.name) for path in kept]), names


def make_data(flags):
    """The images of training, decoded while the model trains."""
    paths, labels, names = list_images(flags)
    data = hl.DataModule.from_image_table(
        {"image": paths, "label": labels}, "image", "label", flags.size,
        classes=names, augment=flags.augment, val=0.1 if flags.folds == 1 else None,
        batch_size=32 if flags.batch_size == "auto" else flags.batch_size, seed=flags.seed,
        cache=None if flags.cache == "none" else flags.cache, num_workers=flags.num_workers,
    )  # fmt: skip
    if flags.share < 1:
        data = data.subset(flags.share)
    if flags.batch_size == "auto":
        data = data.with_batch_size(find_batch_size(flags, data, memory_limit=flags.memory))
        print(f"batches of {data.batch_size} images")
    return data


def find_batch_size(flags, data, **room):
    """The most images of a batch that a training step has room for."""
    fold = data if flags.folds == 1 else data.fold(0, flags.folds)
    return hl.find_batch_size(make_model(flags, data), fold, make_config(flags), **room)


def make_test(flags):
    """Test images with their paths, and their classes by training's numbers where they lie in
    folders of these; None: there is no test."""
    folder = flags.folder / "test"
    if not folder.is_dir():
        return None
    paths, in_folders, labels = find_files(folder, "*"), find_files(folder, "*/*"), None
    if bool(paths) == bool(in_folders):
        raise hl.DataError(
            f"FOLDER: images of the test must lie in {folder}, or else all in {folder}/<class>, "
            f"got {'both' if paths else 'none'}"
        )
    *_, names = list_images(flags)
    if in_folders:
        known = {path.parent.name for path in find_files(flags.folder / "train", "*/*")}
        if unknown := sorted({path.parent.name for path in in_folders} - known):
            raise hl.DataError(
                f"FOLDER: folders of {folder} must be classes of training, "
                f"{', '.join(sorted(known))}, got {', '.join(unknown)}"
            )
        paths = [path for path in in_folders if path.parent.name in names]
        labels = np.array([names.index(path.parent.name) for path in paths])
    if not paths:
        raise hl.DataError(f"--classes: {folder} must have images of {', '.join(names)}, got none")
    data = hl.DataModule.from_image_table(
        {"image": paths}, "image", size=flags.size, augment="none",
        num_workers=flags.num_workers,
    )  # fmt: skip
    return data, paths, labels


# ---- training


def make_model(flags, data):
    """A model of the zoo; the file's last layer, which is of other classes, stays out."""
    make = getattr(models, flags.model)
    return make(data.n_classes, weights=flags.weights, replace_head=flags.weights is not None)


def make_config(flags):
    """How each fold is trained; the best epoch's weights are kept, in the run's folder too."""
    return hl.TrainingConfig(
        epochs=flags.epochs, lr=flags.lr, weight_decay=flags.weight_decay, scheduler="cosine",
        label_smoothing=flags.label_smoothing, mixup=flags.mixup, cutmix=flags.cutmix,
        ema=flags.ema or False, layer_decay=flags.layer_decay, use_amp=flags.use_amp,
        clip_max_norm=flags.clip_max_norm, accumulation_steps=flags.accumulation_steps,
        metrics=["accuracy"], train_metrics=True, monitor="val_accuracy", device=flags.device,
        seed=flags.seed, output_dir=flags.output_dir, logger=flags.tracker,
    )  # fmt: skip


def tta_of(flags):
    """Over which views predictions are averaged."""
    return None if flags.tta == "none" else flags.tta


def predict(flags, result, data, split):
    """Probabilities of a split's images."""
    return hl.predict(result, data, split=split, proba=True, tta=tta_of(flags))


def train_folds(flags, data):
    """The folds' results, and of each image that validated one: row, fold, probabilities."""
    config = make_config(flags)
    if flags.folds == 1:
        result = hl.train(make_model(flags, data), data, config)
        rows = data.rows("val")
        return [result], rows, np.zeros(len(rows), int), predict(flags, result, data, "val")
    found = hl.cross_validate(
        lambda: make_model(flags, data), data, config, flags.folds, tta=tta_of(flags)
    )  # fmt: skip
    print(found)
    return found.results, found.rows, found.fold, found.predictions


# ---- what is written


def write_table(path, names, columns):
    """A CSV file."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(zip(*columns))


def draw_confusion(path, classes, counts, title):
    """A row for each true class, a column for each that was predicted, in per cent of the row."""
    from matplotlib.figure import Figure
    from PIL import Image  # without which there is no matplotlib

    shares = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    side = 1.6 + 0.36 * len(classes)
    figure = Figure(figsize=(side, side), dpi=90, layout="constrained")
    axes = figure.subplots()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    for (i, j), share in np.ndenumerate(shares):
        if share >= 2:
            colour = "white" if share > 60 else "black"
            axes.text(j, i, f"{share:.0f}", ha="center", va="center", color=colour, fontsize=8)
    axes.set(xlabel="predicted", ylabel="true", title=title)
    axes.set_xticks(range(len(classes)), classes, rotation=60, ha="right", fontsize=8)
    axes.set_yticks(range(len(classes)), classes, fontsize=8)
    figure.savefig(path)
    # Few colours make a small file.
    Image.open(path).convert("RGB").quantize(32).save(path, optimize=True)


def count_pairs(truth, predicted, n):
    """How often a class is predicted as another."""
    counts = np.zeros((n, n), int)
    np.add.at(counts, (truth, predicted), 1)
    return counts


def main(argv=None):
    """Trains the folds, and writes what they predict."""
    flags = read_flags(argv)
    data = make_data(flags)
    if flags.bench_workers:
        return hl.bench_data(data, [0, 1, 2, 4, 8])
    if flags.batches_of:
        found = {gpu: find_batch_size(flags, data, device=gpu) for gpu in flags.batches_of}
        for gpu, n in found.items():
            print(f"{gpu:<6}{flags.model} at {flags.size} pixels: {n} images")
        return found
    of_test = make_test(flags)  # what is wrong there shows before training
    results, rows, fold, proba = train_folds(flags, data)
    paths, labels, names = list_images(flags)
    classes, truth, found, out = np.array(names), labels[rows], proba.argmax(1), flags.output_dir
    images = [paths[row].relative_to(flags.folder) for row in rows]
    columns = [images, classes[truth], fold + 1, classes[found], *proba.T]
    write_table(out / "oof.csv", ["image", "label", "fold", "predicted", *names], columns)
    accuracy = (found == truth).mean()
    print(f"out of fold: accuracy {accuracy:.4f} of {len(rows):,} images")
    if find_spec("matplotlib"):
        counts = count_pairs(truth, found, len(names))
        draw_confusion(out / "confusion.png", names, counts, f"out of fold, {accuracy:.1%}")
    print("models:", *(result.best_path for result in results), sep="\n  ")
    if of_test is not None:
        test, paths, labels = of_test
        each = [predict(flags, result, test, "train") for result in results]
        found = np.mean(each, axis=0).argmax(1)
        images = [path.relative_to(flags.folder) for path in paths]
        write_table(out / "submission.csv", ["image", "label"], [images, classes[found]])
        if labels is not None:
            accuracy = (found == labels).mean()
            print(f"test: accuracy {accuracy:.4f} of {len(labels):,} images")
    print(f"written to {out}")
    return results


if __name__ == "__main__":
    main()
