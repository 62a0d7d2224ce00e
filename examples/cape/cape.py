"""Trains CAPE on figures of many categories and finds keypoints of categories it never saw.

    python examples/cape/cape.py                    # small: 64 pixels, minutes on two cores
    python examples/cape/cape.py --model full --device cuda:0 --weights resnet50.pth

README.md beside this file says what the flags mean and what to expect.
"""

import argparse
import copy
from pathlib import Path

import hotloop as hl
import numpy as np
from hotloop import nn
from model import Cape, Finder
from poses import make_poses, mark, write_png

SETTINGS = {
    "small": {
        "image_size": 64, "batch_size": 8, "queries": 4, "episodes": 800, "epochs": 10, "lr": 5e-4,
        "lr_backbone": 5e-4, "clip_max_norm": 1.0, "accumulation_steps": 1, "scheduler": "cosine",
        "points": 12,
    },
    "full": {
        "image_size": 256, "batch_size": 2, "queries": 2, "episodes": 1000, "epochs": 300,
        "lr": 1e-4, "lr_backbone": 1e-5, "clip_max_norm": 0.1, "accumulation_steps": 4,
        "scheduler": "multistep", "points": 199,
    },
}  # fmt: skip
SMALL = {
    "width": 128, "encoder_layers": 2, "support_layers": 2, "decoder_layers": 2,
    "encoder_hidden": 256, "decoder_hidden": 256, "dropout": 0.0, "backbone": "resnet18",
    "frozen_norm": False,
}  # fmt: skip
SCHEDULES = ("cosine", "multistep", "warm_restarts")


def count(text):
    """A number of the command line that is 1 at least."""
    if (n := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 at least, got {n}")
    return n


def read_flags(argv=None):
    """The command line; what it leaves open is that of the setting."""
    first = argparse.ArgumentParser(add_help=False)
    first.add_argument("--model", choices=SETTINGS, default="small")
    parser = argparse.ArgumentParser(parents=[first], description=__doc__.partition("\n")[0])
    switch = argparse.BooleanOptionalAction
    parser.add_argument("--use_amp", action=switch, default=True,
                        help="mixed precision, where the device is fast at it")  # fmt: skip
    parser.add_argument("--cudnn_benchmark", action=switch, default=True)
    parser.add_argument("--cudnn_deterministic", action=switch, default=False)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1")
    parser.add_argument("--resume", help="a checkpoint or the folder of a run; 'auto'")
    parser.add_argument("--output_dir", default="runs/cape", type=Path)
    parser.add_argument("--weights", help="a local file of torchvision's weights of the ResNet")
    parser.add_argument("--num_workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    for name, kind in (("image_size", count), ("batch_size", count), ("queries", count),
                       ("episodes", count), ("points", count), ("epochs", count),
                       ("accumulation_steps", count), ("lr", float), ("lr_backbone", float),
                       ("clip_max_norm", float)):  # fmt: skip
        parser.add_argument(f"--{name}", type=kind)
    parser.add_argument("--scheduler", choices=SCHEDULES)
    parser.add_argument("--categories", type=count, nargs=3, default=[300, 20, 20],
                        help="of training, validation and test")  # fmt: skip
    parser.add_argument("--pictures", type=count, default=10, help="of each category")
    parser.set_defaults(**SETTINGS[first.parse_known_args(argv)[0].model])
    return parser.parse_args(argv)


def divide(categories, counts):
    """Rows that train, validate and test, by the numbers of their categories."""
    ends = np.cumsum(counts)
    wanted = (
        f"categories: must be numbers from 0 to {ends[-1] - 1}, one for each image, the first "
        f"{counts[0]} to train, {counts[1]} to validate and {counts[2]} to test"
    )
    if not np.issubdtype(categories.dtype, np.integer):
        raise hl.DataError(
            f"{wanted}, got {categories.tolist()[0]!r} for image 0; number them by "
            "np.unique(names, return_inverse=True)[1]"
        )
    if (is_none := (categories < 0) | (categories >= ends[-1])).any():
        row = np.argmax(is_none)
        raise hl.DataError(
            f"{wanted}, got {categories[row]} for image {row}; give --categories whose sum is that "
            "of all categories"
        )
    rows = [np.flatnonzero((categories >= end - n) & (categories < end))
            for n, end in zip(counts, ends)]  # fmt: skip
    for n, end, own in zip(counts, ends, rows):
        if not len(own):
            raise hl.DataError(
                f"{wanted}, got no image of {end - n} to {end - 1}; give other --categories"
            )
    return rows


def make_data(images, points, categories, counts, flags):
    """Episodes of pictures; the last categories validate and test."""
    categories = np.asarray(categories)
    is_outside = (points[..., 2] > 0) & ((points[..., :2] < 0) | (points[..., :2] > 1)).any(2)
    if is_outside.any():
        row, i = np.argwhere(is_outside)[0]
        raise hl.DataError(
            f"points: must lie in the image, 0 to 1 in x and y, got {points[row, i, :2]} for point "
            f"{i} of image {row}; give a third number of 0 to a point that is not to be seen"
        )
    if not (seen := points[..., 2].any(1)).all():
        raise hl.DataError(
            f"points: each image must have one to be seen at least, got none for image "
            f"{np.argmin(seen)}; leave it out"
        )
    rows = divide(categories, counts)
    source = hl.DataModule.from_arrays(images, points, val=rows[1], test=rows[2], seed=flags.seed)
    return hl.DataModule.episodes(
        source, support=1, query=flags.queries, by=categories, n=flags.episodes,
        n_val=max(flags.episodes // 8, 1), n_test=max(flags.episodes // 4, 1),
        batch_size=flags.batch_size, num_workers=flags.num_workers, seed=flags.seed,
    )  # fmt: skip


def make_model(flags):
    """The model of a setting."""
    own = SMALL if flags.model == "small" else {}
    size = {"positions": flags.points + 1, "image_size": flags.image_size}
    return Cape(**own, **size, weights=flags.weights)


def goals_of(batch):
    """The points that count, ``(images, points, 3)``: support and query have them."""
    goal = batch["y"].copy()
    goal[..., 2] *= batch["x"]["support_y"][..., 2] > 0
    return goal.reshape(-1, *goal.shape[2:])


def score(finder, batches):
    """PCK@0.2: the share of points that were found, of each image, and their mean."""
    found, goals = zip(*((finder(batch["x"]), goals_of(batch)) for batch in batches))
    pairs = np.concatenate(found), np.concatenate(goals)
    loss = {"distance": lambda found, goal: (found - goal[..., :2]).abs().mean()}
    return hl.evaluate(nn.Identity(), pairs, loss=loss, metrics=["pck@0.2"])["pck@0.2"]


class Scoring:
    """After each validation the score of its episodes, by which the best weights are kept."""

    log_names = ("val_pck",)

    def __init__(self, data):
        self.data, self.finder = data, None

    def on_validation_end(self, run):
        if self.finder is None:
            self.finder = Finder(copy.deepcopy(run.model))
        self.finder.model.load_state_dict(run.model.state_dict())
        run.log("val_pck", score(self.finder, self.data.val_batches()))


def make_schedule(flags):
    """The learning rate's: steps behind 200 and 250 of 300 epochs, and of others in proportion."""
    if flags.scheduler == "multistep":
        milestones = sorted({max(flags.epochs * k // 6, 1) for k in (4, 5)})
        return hl.SchedulerConfig("multistep", milestones=milestones, gamma=0.1)
    if flags.scheduler == "warm_restarts":
        return hl.SchedulerConfig("warm_restarts", T_0=20, T_mult=2)
    return flags.scheduler


def make_config(flags, data):
    """How it trains."""
    return hl.TrainingConfig(
        epochs=flags.epochs, lr=flags.lr, weight_decay=1e-4, clip_max_norm=flags.clip_max_norm,
        accumulation_steps=flags.accumulation_steps, scheduler=make_schedule(flags),
        param_groups=[{"params": "encoder.backbone.*", "lr": flags.lr_backbone}],
        unfreeze="encoder.backbone.*" if flags.model == "small" else None,  # it begins at random
        monitor="val_pck", mode="max", early_stopping=20, callbacks=[Scoring(data)],
        device=flags.device, cudnn_benchmark=flags.cudnn_benchmark, seed=flags.seed,
        cudnn_deterministic=flags.cudnn_deterministic, output_dir=flags.output_dir, save_every=1,
        verbose="lines", use_amp=flags.use_amp,
    )  # fmt: skip


def draw_findings(finder, batch, path, rows=4):
    """A row for each of some episodes: the support, and the queries with what was found."""
    x, found, goals = batch["x"], finder(batch["x"]), goals_of(batch)
    queries = x["query"].shape[1]
    drawn = []
    for i in range(min(len(x["query"]), rows)):
        pictures = [mark(x["support"][i, 0], x["support_y"][i, 0])]
        for j in range(queries):
            goal = goals[i * queries + j]
            shown = np.column_stack([found[i * queries + j], goal[:, 2]])
            pictures.append(mark(x["query"][i, j], shown, goal))
        drawn.append(np.concatenate(pictures, 1))
    write_png(path, np.concatenate(drawn))


def main(argv=None):
    """Trains, and says how well keypoints of new categories are found."""
    flags = read_flags(argv)
    made = make_poses(sum(flags.categories), flags.pictures, flags.image_size, flags.seed,
                      flags.points)  # fmt: skip
    data = make_data(*made, flags.categories, flags)
    result = hl.train(make_model(flags), data, make_config(flags, data), resume=flags.resume)
    finder = Finder(result.model)
    pck = score(finder, data.test_batches())
    print(f"PCK@0.2 on categories that were never trained on: {pck:.3f}")
    picture = Path(result.last_path).parents[1] / "poses.png"
    draw_findings(finder, next(data.test_batches()), picture)
    print(f"model {result.best_path}, picture {picture}")
    return result


if __name__ == "__main__":
    main()
