"""Mutants of what is trained in some epochs alone, and of moments that begin within a run."""

from mutants.mutant import Mutant, c, cuda, header, python

_CHECKPOINTS = "python/hotloop/training/checkpoints/"
_CONFIG, _RUN = "python/hotloop/training/config/", "python/hotloop/training/run/"
_MOMENTS, _TESTS = "tests/train/test_moments.py::", "tests/train/test_freezing.py::"

MUTANTS = [
    Mutant(
        "young-moments-have-the-runs-powers",
        "csrc/ir/control.h",
        "if (age == control->applied) return control->power[i];",
        "if (age > 0) return control->power[i];",
        header("test_control"),
    ),
    Mutant(
        "young-moments-have-the-runs-correction",
        "csrc/ir/control.h",
        "bool is_whole = age == control->applied;",
        "bool is_whole = age <= control->applied;",
        header("test_control"),
    ),
    Mutant(
        "sgd-has-one-first-step",
        "kernels/cpu/optim.c",
        ".is_first = s->age == 1,",
        ".is_first = s->control->applied == 1,",
        c("test_cpu_update"),
    ),
    Mutant(
        "corrections-are-those-of-the-first-segment",
        "kernels/cuda/optim.cu",
        "corrections + 2 * finder};",
        "corrections};",
        cuda("test_kernels_update"),
    ),
    Mutant(
        "segments-join-over-ages",
        "python/hotloop/training/plans/steps.py",
        "segments[-1][1:] == (begin, scale, decay, began)",
        "segments[-1][1:4] == (begin, scale, decay)",
        python(_MOMENTS + "test_what_joins_late_begins_its_count"),
    ),
    Mutant(
        "a-checkpoint-forgets-ages",
        _CHECKPOINTS + "snapshot.py",
        "return {name: ages.get(name, steps) for name in known}",
        "return {name: steps for name in known}",
        python(_MOMENTS + "test_moments_keep_their_count_in_checkpoints"),
    ),
    Mutant(
        "moments-of-another-optimizer-are-taken",
        "python/hotloop/training/run/fit.py",
        "        resumed = with_own_state(resumed, config)\n",
        "",
        python(_MOMENTS + "test_another_optimizer_begins_anew"),
    ),
    Mutant(
        "patterns-end-an-epoch-early",
        _CONFIG + "phases.py",
        "if end is None or end >= first",
        "if end is None or end > first",
        python(_TESTS + "test_each_pattern_holds_for_its_epochs"),
    ),
    Mutant(
        "moments-of-what-rests-are-lost",
        _RUN + "records.py",
        "        tensors.update(self._resting)\n",
        "",
        python(_MOMENTS + "test_what_rests_goes_on_where_it_was"),
    ),
    Mutant(
        "what-rests-grows-older",
        _RUN + "records.py",
        "            | self._ages,\n",
        "            | {},\n",
        python(_MOMENTS + "test_what_rests_goes_on_where_it_was"),
    ),
    Mutant(
        "any-moments-may-be-missing",
        _CHECKPOINTS + "snapshot.py",
        "is_new = _is_moment(prefix) and name in joining",
        "is_new = _is_moment(prefix)",
        python(_TESTS + "test_only_what_joins_may_lack_its_moments"),
    ),
    Mutant(
        "swa-forgets-what-rests",
        _RUN + "weights.py",
        'trained, mean = self._all_trained(), session.read("param", "float64")\n'
        "        if n:  # of frozen ones too, which may have been trained in an earlier epoch\n"
        '            before = session.read("swa.param", "float64")',
        "trained, mean = self._all_trained(), self._trained()\n"
        "        if n:\n"
        '            before = session.read("swa.param", "float64", 0, len(mean))',
        python(_TESTS + "test_the_average_of_swa_is_of_all_its_epochs"),
    ),
    Mutant(
        "the-average-begins-anew-with-a-phase",
        _RUN + "loop.py",
        "        self._weights.n_averaged = n_averaged\n",
        "",
        python(_TESTS + "test_the_same_as_two_fits"),
    ),
    Mutant(
        "later-phases-are-not-planned-ahead",
        _RUN + "planner.py",
        "if each >= first]):",
        "if each == first]):",
        python(_TESTS + "test_a_limit_holds_for_each_phase"),
    ),
    Mutant(
        "graphs-of-a-phase-outlive-it",
        _RUN + "planner.py",
        "            del self.anomalies  # which holds graphs\n",
        "            pass\n",
        python(_TESTS + "test_a_phase_begins_with_the_memory_of_the_first"),
    ),
    Mutant(
        "a-run-goes-on-in-its-first-phase",
        _RUN + "planner.py",
        'snapshot.run["epoch"] + 1',
        "1",
        python(_TESTS + "test_going_on_from_the_end_of_an_epoch"),
    ),
    Mutant(
        "warnings-come-with-each-phase",
        _RUN + "planner.py",
        "with once(self._told), watching()",
        "with once(set()), watching()",
        python(_TESTS + "test_warnings_come_once"),
    ),
    Mutant(
        "loggers-read-the-last-phase",
        _RUN + "records.py",
        "        self.log.follow(self._planner.runtime.session)\n",
        "",
        python(_TESTS + "test_every_step_is_logged_once"),
    ),
    Mutant(
        "a-pattern-may-end-in-vain",
        _RUN + "phases.py",
        "if self.trained(before).keys() != self.trained(first).keys():",
        "if before:",
        python(_TESTS + "test_patterns_that_cannot_be"),
    ),
    Mutant(
        "a-phase-that-fails-saves-nothing",
        _RUN + "loop.py",
        "                    self._records.finish(self._between)\n",
        "                    pass\n",
        python(_TESTS + "test_a_phase_that_cannot_be_planned_loses_nothing"),
    ),
]
