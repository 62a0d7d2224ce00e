"""Mutants of what competitions need: views in prediction, metrics of training, sizes of batches."""

from mutants.mutant import Mutant, python

_INFERENCE = "python/hotloop/training/inference.py"
_STEPS = "python/hotloop/training/plans/steps.py"
_VIEWS = "python/hotloop/training/plans/views.py"
_IMAGES = "tests/train/test_images_example.py::"
_OF_VIEWS = "tests/train/test_views.py::"

MUTANTS = [
    Mutant(
        "pixels-of-a-turned-image-stay-turned",
        _VIEWS,
        "return mirrored.swapaxes(-1, -2) if self.is_turned else mirrored",
        "return mirrored",
        python(_OF_VIEWS + "test_pixels_go_the_way_back"),
    ),
    Mutant(
        "labels-of-mean-probabilities-are-cut-as-logits",
        _INFERENCE,
        "if is_proba or target.link",
        "if target.link",
        python(_OF_VIEWS + "test_one_output_of_two_classes_is_cut_at_a_half"),
    ),
    Mutant(
        "streamed-images-have-one-view",
        _INFERENCE,
        'options["tta"] = tta',
        'options["tta"] = None',
        python(_OF_VIEWS + "test_of_files_and_folds"),
    ),
    Mutant(
        "metrics-of-training-are-in-scaled-units",
        _STEPS,
        "output = self.target_scale.undo(made.output)",
        "output = made.output",
        python("tests/train/test_train_metrics.py::test_values_are_in_the_targets_units"),
    ),
    Mutant(
        "every-batch-fits",
        "python/hotloop/tools/batch_size.py",
        "            return False\n",
        "            return True\n",
        python("tests/train/test_batch_size.py"),
    ),
    Mutant(
        "small-categories-go-without-a-word",
        "python/hotloop/data/episodes.py",
        "if small and not skips:",
        "if small and False:",
        python("tests/data/test_episodes.py::test_small_categories_are_named"),
    ),
    Mutant(
        "weights-of-other-classes-want-their-head",
        "examples/images/images.py",
        "replace_head=flags.weights is not None",
        "replace_head=False",
        python(_IMAGES + "test_weights_of_other_classes"),
    ),
    Mutant(
        "out-of-fold-labels-are-of-the-first-rows",
        "examples/images/images.py",
        "labels[rows], proba",
        "labels[: len(rows)], proba",
        python(_IMAGES + "test_a_flat_folder_of_test_images"),
    ),
]
