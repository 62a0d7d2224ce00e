"""Mutants of what competitions need: views in prediction, metrics of training, sizes of batches."""

from mutants.mutant import Mutant, python

_INFERENCE = "python/hotloop/training/inference.py"
_STEPS = "python/hotloop/training/plans/steps.py"
_VIEWS = "python/hotloop/training/plans/views.py"
_IMAGES = "tests/train/test_images_example.py::"
_CAPE = "tests/train/test_cape.py::"
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
    Mutant(
        "folders-of-the-test-have-numbers-of-their-own",
        "examples/images/images.py",
        "labels = np.array([names.index(path.parent.name) for path in paths])",
        "labels = np.unique([path.parent.name for path in paths], return_inverse=True)[1]",
        python(_IMAGES + "test_classes_of_the_test_have_trainings_numbers"),
    ),
    Mutant(
        "a-hidden-file-is-the-test",
        "examples/images/images.py",
        """if "/." not in f"/{path.relative_to(folder).as_posix()}\"""",
        "if True",
        python(_IMAGES + "test_classes_of_the_test_have_trainings_numbers"),
    ),
    Mutant(
        "the-test-is-looked-at-after-training",
        "examples/images/images.py",
        "    of_test = make_test(flags)  # what is wrong there shows before training\n"
        "    results, rows, fold, proba = train_folds(flags, data)\n",
        "    results, rows, fold, proba = train_folds(flags, data)\n"
        "    of_test = make_test(flags)\n",
        python(_IMAGES + "test_what_is_wrong_with_a_folder_shows_before_training"),
    ),
    Mutant(
        "few-episodes-have-no-validation",
        "examples/cape/cape.py",
        "n_val=max(flags.episodes // 8, 1)",
        "n_val=flags.episodes // 8",
        python(_CAPE + "test_few_episodes_are_validated_and_scored_all_the_same"),
    ),
    Mutant(
        "categories-beyond-the-last-are-trained",
        "examples/cape/cape.py",
        "(is_none := (categories < 0) | (categories >= ends[-1])).any()",
        "(is_none := categories < 0).any()",
        python(_CAPE + "test_wrong_categories"),
    ),
    Mutant(
        "the-end-of-a-sequence-weighs-as-a-point",
        "examples/cape/model.py",
        "weight = np.array([1, 1, 20], np.float32)",
        "weight = np.array([1, 1, 1], np.float32)",
        python(_CAPE + "test_the_losses_are_those_of_their_definition"),
    ),
    Mutant(
        "positions-behind-the-end-count",
        "examples/cape/model.py",
        "hl.where(at == length, END, -100)",
        "hl.where(at >= length, END, -100)",
        python(_CAPE + "test_the_losses_are_those_of_their_definition"),
    ),
    Mutant(
        "the-encoder-is-as-wide-as-the-decoder",
        "examples/cape/model.py",
        "encoder_hidden=1024, decoder_hidden=2048",
        "encoder_hidden=2048, decoder_hidden=2048",
        python(_CAPE + "test_numbers_of_the_whole"),
    ),
]
