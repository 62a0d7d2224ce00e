"""Mutants of folds, of rows drawn with replacement, and of arrays, cubes and text on disk."""

from mutants.mutant import Mutant, c, python

_DATA = "python/hotloop/data/"
_FOLDS, _DRAWS = "tests/data/test_folds.py::", "tests/data/test_sampling.py::"
_LOADERS = "tests/data/test_loaders.py::"
_NPY, _CUBES = "tests/data/test_npy.py::", "tests/data/test_cubes.py::"
_EPISODES = "tests/data/test_episodes.py::"
_TEXT, _IMAGES = "tests/data/test_text.py::", "tests/data/test_image_data.py::"

MUTANTS = [
    Mutant(
        "a-column-is-not-filled-up",
        "csrc/data/sampler.c",
        "scaled[large] + scaled[small] - 1;",
        "scaled[large] - scaled[small];",
        c("test_feed"),
    ),
    Mutant(
        "the-second-number-is-the-first",
        "csrc/data/sampler.c",
        "share = (uint64_t)word[3] << 32 | word[2];",
        "share = (uint64_t)word[1] << 32 | word[0];",
        c("test_feed"),
    ),
    Mutant(
        "every-epoch-draws-the-same",
        "csrc/data/sampler.c",
        "(uint32_t)order->epoch,",
        "0,",
        c("test_feed"),
    ),
    Mutant(
        "classes-of-folds-as-they-come",
        _DATA + "folds.py",
        '            order = order[np.argsort(self.ids[self.pool][order], kind="stable")]\n',
        "            pass\n",
        python(_FOLDS + "test_classes_have_their_share"),
    ),
    Mutant(
        "groups-to-any-fold",
        _DATA + "folds.py",
        "fold_of[group] = np.argmin(sizes)",
        "fold_of[group] = group % wish.n",
        python(_FOLDS + "test_groups_go_whole"),
    ),
    Mutant(
        "no-gap-between-folds",
        _DATA + "folds.py",
        "return [(begin - gap, begin, end)",
        "return [(begin, begin, end)",
        python(_FOLDS + "test_walk_forward_cuts"),
    ),
    Mutant(
        "fractions-of-a-subset-are-the-first-rows",
        _DATA + "folding.py",
        "rows = {name: None if of is None else among[of] for name, of in rows.items()}",
        "pass",
        python(_LOADERS + "test_a_fraction_of_a_subset_is_of_its_rows"),
    ),
    Mutant(
        "folds-of-a-subset-are-of-the-first-rows",
        _DATA + "folding.py",
        "            pool = among[pool]\n",
        "",
        python(_LOADERS + "test_a_fraction_of_a_subset_is_of_its_rows"),
    ),
    Mutant(
        "groups-of-a-subset-are-of-the-first-rows",
        _DATA + "folding.py",
        "of_all[among] = group_of",
        "of_all[: len(among)] = group_of",
        python(_LOADERS + "test_groups_of_samples_go_whole"),
    ),
    Mutant(
        "a-row-trains-and-validates",
        _DATA + "folds.py",
        "np.sort(self.pool if self.sources is None else self.sources[self.pool])",
        "np.sort(self.pool)",
        python(_LOADERS + "test_rows_that_a_subset_has_twice_are_not_divided"),
    ),
    Mutant(
        "a-fold-keeps-what-was-fitted",
        _DATA + "folding.py",
        "        made._transforms = None\n",
        "",
        python(_FOLDS + "test_standardised_by_the_training_rows_of_the_fold"),
    ),
    Mutant(
        "a-fold-keeps-its-levels",
        _DATA + "images/pictures.py",
        "            made._refit()\n",
        "            pass\n",
        python(_IMAGES + "test_levels_of_a_fold_are_those_of_its_training_images"),
    ),
    Mutant(
        "a-fold-was-checked-before",
        _DATA + "folding.py",
        "{name for name in self._checked if name not in rows}",
        "set(self._checked)",
        python(_FOLDS + "test_a_row_that_no_fold_may_hold_is_found_in_its_fold"),
    ),
    Mutant(
        "rows-before-the-test-validate",
        _DATA + "partition.py",
        "return np.delete(pool, _rows_before(pool, test, gap)) if gap else pool",
        "return pool",
        python(_FOLDS + "test_training_never_sees_the_future"),
    ),
    Mutant(
        "balanced-is-any-row",
        _DATA + "sampling.py",
        "weights = shares[codes.reshape(-1)]",
        "weights = np.ones(len(codes))",
        python(_DRAWS + "test_balanced"),
    ),
    Mutant(
        "weights-of-other-rows",
        _DATA + "sampling.py",
        "weights = sampling.weights[numbers]",
        "weights = sampling.weights[: len(numbers)]",
        python(_DRAWS + "test_a_fold_is_balanced_by_its_own_rows"),
    ),
    Mutant(
        "evaluation-draws-rows",
        _DATA + "batching.py",
        "weights=part.weights if is_training else None",
        "weights=part.weights",
        python(_DRAWS + "test_evaluation_sees_each_training_row_once"),
    ),
    Mutant(
        "part10-before-part2",
        _DATA + "stored/npy.py",
        'return [int(part) if part.isdigit() else part for part in re.split(r"(\\d+)", path)]',
        "return [path]",
        python(_NPY + "test_several_files_are_one_array"),
    ),
    Mutant(
        "files-are-kept-mapped",
        _DATA + "stored/npy.py",
        "maxsize=_MOST_MAPPED",
        "maxsize=None",
        python(_NPY + "test_more_files_than_stay_mapped"),
    ),
    Mutant(
        "interleaves-the-other-way-round",
        _DATA + "stored/cubes.py",
        "in_file.transpose(np.argsort(image.order))",
        "in_file.transpose(image.order)",
        python(_CUBES + "test_envi_layouts"),
    ),
    Mutant(
        "a-byte-order-is-not-read",
        _DATA + "stored/envi.py",
        '("<" if order == "0" else ">")',
        '"<"',
        python(_CUBES + "test_envi_layouts"),
    ),
    Mutant(
        "a-file-names-another",
        _DATA + "stored/cubes.py",
        "if data.external or data.is_virtual:",
        "if False:",
        python(_CUBES + "test_hdf5_and_matlab"),
    ),
    Mutant(
        "the-target-is-the-input",
        _DATA + "sequential/text.py",
        "windows_of(ids[1:], length)",
        "windows_of(ids[:-1], length)",
        python(_TEXT + "test_text_comes_back"),
    ),
    Mutant(
        "windows-reach-over-their-span",
        _DATA + "sequential/text.py",
        "np.arange(begin, end - self.length, self.stride)",
        "np.arange(begin, end, self.stride)",
        python(_TEXT + "test_windows_lie_in_their_spans"),
    ),
    Mutant(
        "ids-behind-a-window-count",
        _DATA + "splits.py",
        "    np.add.at(steps, begins + window, -1)\n",
        "",
        python(_TEXT + "test_counts_of_classes"),
    ),
    Mutant(
        "validation-draws-other-episodes",
        _DATA + "episodes.py",
        "        epoch = epoch if is_training else 0\n",
        "        epoch = epoch if is_training else int(np.random.default_rng().integers(99))\n",
        python(_EPISODES + "test_the_same_for_a_seed_and_others_in_each_epoch"),
    ),
    Mutant(
        "a-query-is-in-its-support",
        _DATA + "episodes.py",
        "query.append(rows[order[self.support : self.support + self.query]])",
        "query.append(rows[order[: self.query]])",
        python(_EPISODES + "test_rows_of_an_episode"),
    ),
    Mutant(
        "queries-stand-category-by-category",
        _DATA + "episodes.py",
        "np.concatenate([ways[0], ways[1][mixed]])",
        "np.concatenate(ways)",
        python(_EPISODES + "test_rows_of_an_episode"),
    ),
]
