"""Mutants of the augmentation of images."""

from mutants.mutant import Mutant, c, python

_DRAWN = "tests/data/test_augment.py::"
_VALUES = "tests/data/test_augment_values.py::"
_RESAMPLE = "csrc/data/resample.c"
_GEOMETRY = "csrc/data/geometry.c"
_AUGMENT = "csrc/data/augment.c"
_COLOUR = "csrc/data/colour.c"

MUTANTS = [
    Mutant(
        "reflected-images-repeat-their-edge",
        _RESAMPLE,
        "border == HL_BORDER_REFLECT ? 2 * n - 2 : 2 * n",
        "2 * n",
        c("test_augment"),
    ),
    Mutant(
        "reductions-alias",
        _RESAMPLE,
        "return a->step > 1 ? a->step : 1;",
        "return a->step > 1e9 ? a->step : 1;",
        python(_VALUES + "test_resizes_are_those_of_pillow"),
    ),
    Mutant(
        "columns-beyond-the-source-are-what-was-there",
        _RESAMPLE,
        "if (across->low < 0 || across->high > src->width) extend_row",
        "if (across->low < 0 && across->high > src->width) extend_row",
        c("test_augment"),
    ),
    Mutant(
        "warps-show-what-is-behind-a-perspective",
        _RESAMPLE,
        "return w > 0;",
        "return true;",
        c("test_augment"),
    ),
    Mutant(
        "warps-alias-behind-a-resize",
        _AUGMENT,
        "down = fmin(down, g->resized_down);",
        "down = 1;",
        python(_VALUES + "test_reductions_in_warps_do_not_alias"),
    ),
    Mutant(
        "warps-alone-are-smoothed",
        _AUGMENT,
        "across = fmin(across, g->resized_across);",
        "",
        python(_VALUES + "test_affines_are_those_of_torchvision"),
    ),
    Mutant(
        "every-step-draws-the-same",
        "csrc/data/draws.h",
        "(uint32_t)step << HL_DRAWS_BLOCK_BITS",
        "(uint32_t)(step & 0) << HL_DRAWS_BLOCK_BITS",
        python(_DRAWN + "test_flips_of_two_steps_are_independent"),
    ),
    Mutant(
        "epochs-beyond-32-bits-draw-the-same",
        "csrc/data/draws.h",
        "(uint32_t)(key->epoch >> 32) * 0x9E3779B9u",
        "0u",
        python(_DRAWN + "test_rows_epochs_and_seeds_draw_anew"),
    ),
    Mutant(
        "colours-change-outside-of-training",
        _GEOMETRY,
        "if (!key->is_training) return is_certain(at->kind);",
        "if (!key->is_training) return at->kind != HL_AUGMENT_RESIZED_CROP;",
        python(_DRAWN + "test_nothing_is_drawn_outside_of_training"),
    ),
    Mutant(
        "crops-miss-their-last-place",
        _GEOMETRY,
        "hl_draws_below(draws, free_across + 1)",
        "hl_draws_below(draws, free_across)",
        python(_DRAWN + "test_random_crops_are_everywhere"),
    ),
    Mutant(
        "keypoints-are-corners-of-pixels",
        _GEOMETRY,
        "out[2 * i] = (float)(u - 0.5);",
        "out[2 * i] = (float)u;",
        python(_DRAWN + "test_keypoints_of_a_resize_are_exact"),
    ),
    Mutant(
        "masks-have-the-size-of-their-images",
        _GEOMETRY,
        "m[i] *= (double)src->width / (double)geometry->src_width;",
        "",
        python(_DRAWN + "test_masks_may_have_another_size"),
    ),
    Mutant(
        "small-images-are-cropped-before-they-fit",
        "python/hotloop/data/augment.py",
        "return [_Fit(), RandomCrop(padding=4), RandomHorizontalFlip()]",
        "return [RandomCrop(padding=4), RandomHorizontalFlip()]",
        python(_DRAWN + "test_basic_moves_small_images_by_at_most_four_pixels"),
    ),
    Mutant(
        "an-alpha-is-a-colour",
        _COLOUR,
        "return planes->channels < 3 ? 1 : 3;",
        "return planes->channels;",
        python(_VALUES + "test_grey_images_and_alphas"),
    ),
    Mutant(
        "jitter-has-one-order",
        _AUGMENT,
        "int64_t j = hl_draws_below(draws, i + 1);",
        "int64_t j = i + 0 * hl_draws_below(draws, i + 1);",
        python(_VALUES + "test_jitter_is_done_in_some_order"),
    ),
    Mutant(
        "magnitudes-never-reach-the-last",
        "csrc/data/auto.c",
        "(double)bin / (double)(n - 1)",
        "(double)bin / (double)n",
        python(_VALUES + "test_automatic_operations_are_those_of_torchvision"),
    ),
]
