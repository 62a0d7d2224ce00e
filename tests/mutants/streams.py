"""Mutants of samples that are made batch by batch: threads, processes, mixing, series."""

from mutants.mutant import Mutant, c, python

_DATA, _PLANS = "python/hotloop/data/", "python/hotloop/training/plans/"
_SETS, _WORK = "tests/data/test_datasets.py::", "tests/data/test_workers.py::"
_MIX, _SERIES = "tests/train/test_mixing.py::", "tests/train/test_series_augmentation.py::"
_AUTO = "tests/data/test_auto_workers.py::"

MUTANTS = [
    Mutant(
        "sources-see-the-first-epoch-alone",
        "csrc/data/feed.c",
        "hl_batch filled = {rows, n, feed->epoch, options->is_training};",
        "hl_batch filled = {rows, n, 0, options->is_training};",
        c("test_queue"),
    ),
    Mutant(
        "batches-are-made-for-evaluation",
        "csrc/data/feed.c",
        "hl_batch filled = {rows, n, feed->epoch, options->is_training};",
        "hl_batch filled = {rows, n, feed->epoch, false};",
        c("test_queue"),
    ),
    Mutant(
        "a-batch-that-is-not-made-is-taken",
        "csrc/data/feed.c",
        "    (void)wait_loaded(feed, -1);\n",
        "    (void)wait_loaded(feed, 0);\n",
        c("test_feed"),
    ),
    Mutant(
        "a-run-waits-beyond-its-deadline",
        "csrc/plan/runner.c",
        "        *out_over = !is_ready && is_over(call, out_end);\n",
        "        *out_over = false;\n",
        python(_SETS + "test_an_interrupt_while_data_is_waited_for"),
    ),
    Mutant(
        "a-micro-batch-is-counted-again",
        "csrc/plan/runner.c",
        "    state->is_between = false;\n    if (is_end)\n",
        "    if (is_end)\n",
        c("test_runner"),
        hangs=True,
    ),
    Mutant(
        "one-field-of-a-source",
        "csrc/plan/dataset.c",
        "    if (find_sourced(plan, source, 0) != input) return HL_OK;\n",
        "    if (find_sourced(plan, source, 0) == input) return HL_OK;\n",
        python(_SETS + "test_training_is_that_of_arrays"),
    ),
    Mutant(
        "what-a-sample-raises-is-lost",
        "python/src/errors.c",
        "    if (is_its) state->raised = NULL;\n",
        "    is_its = false;\n",
        python(_SETS + "test_a_wrong_sample"),
    ),
    Mutant(
        "bad-samples-count",
        _DATA + "datasets/samples.py",
        "weight = np.array([each is not None for each in used], np.float32)",
        "weight = np.ones(len(used), np.float32)",
        python(_SETS + "test_bad_samples_left_out_or_replaced"),
    ),
    Mutant(
        "any-number-of-samples-may-be-bad",
        _DATA + "datasets/samples.py",
        "        if len(found) > self._most:\n",
        "        if len(found) > self._n:\n",
        python(_SETS + "test_too_many_bad_samples"),
    ),
    Mutant(
        "a-sampler-keeps-its-first-order",
        _DATA + "datasets/objects.py",
        "            self._epoch, self._order = epoch, order\n",
        "            self._epoch = epoch\n",
        python(_SETS + "test_a_sampler"),
    ),
    Mutant(
        "a-generator-goes-on-over-epochs",
        _DATA + "datasets/objects.py",
        "            if self._epoch != self._wanted or index < self._at:\n",
        "            if self._epoch < 0:\n",
        python(_SETS + "test_a_generator"),
    ),
    Mutant(
        "processes-outlive-their-parent",
        _DATA + "datasets/workers.py",
        "        os._exit(1)\n",
        "        return\n",
        python(_WORK + "test_processes_end_with_their_parent"),
    ),
    Mutant(
        "both-targets-count-alike",
        _PLANS + "mixing.py",
        "        for loss, share in ((made, own), (other, 1.0 - own))\n",
        "        for loss, share in ((made, own), (other, own))\n",
        python(_MIX + "test_mixup"),
    ),
    Mutant(
        "a-box-of-half-the-width",
        _PLANS + "mixing.py",
        "(numbers < centre + reach)",
        "(numbers < centre)",
        python(_MIX + "test_areas_of_boxes"),
    ),
    Mutant(
        "validation-is-augmented",
        _PLANS + "steps.py",
        "        steps = self.data.augment_steps if training else ()\n",
        "        steps = self.data.augment_steps\n",
        python(_SERIES + "test_training_alone_is_augmented"),
    ),
    Mutant(
        "masks-are-as-long-as-may-be",
        _PLANS + "series.py",
        "    length = floor(drawn[:, 1:2] * float(most + 1)) * is_masked\n",
        "    length = is_masked * float(most)\n",
        python(_SERIES + "test_time_mask"),
    ),
    Mutant(
        "measuring-draws-shared-numbers",
        "python/hotloop/training/plans/loading.py",
        "            restore_random_states(before)\n",
        "            pass\n",
        python(_AUTO + "test_shared_random_numbers_are_as_without_measuring"),
    ),
    Mutant(
        "measuring-begins-the-epoch-unseen",
        "python/hotloop/training/plans/loading.py",
        "    if _enter(auto):\n",
        "    if auto:\n",
        python(_AUTO + "test_an_order_that_is_drawn_is_as_without_measuring"),
    ),
    Mutant(
        "threads-are-measured-each-time",
        "python/hotloop/training/plans/loading.py",
        "    auto.is_open = False\n",
        "",
        python(_AUTO + "test_it_is_measured_once"),
    ),
    Mutant(
        "samples-of-several-threads-are-believed",
        "python/hotloop/training/plans/loading.py",
        " and not _are_the_same(data, best, rates[best]):",
        " and best < 1:",
        python(_AUTO + "test_code_that_minds_threads_stays_with_one"),
    ),
]
