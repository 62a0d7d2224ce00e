"""Mutants of what is monitored: which epoch is best, when a run stops early, the plateau's rate."""

from mutants.mutant import Mutant, python

_TRAINING = "python/hotloop/training/"
_MONITOR = _TRAINING + "run/monitor.py"
_JUDGED = "tests/train/test_judgement.py::"

MUTANTS = [
    Mutant(
        "bad-rounds-add-up-over-improvements",
        _MONITOR,
        "self.n_bad = 0 if is_best else self.n_bad + 1",
        "self.n_bad = self.n_bad if is_best else self.n_bad + 1",
        python(_JUDGED + "test_the_best_epoch"),
    ),
    Mutant(
        "patience-is-one-longer",
        _MONITOR,
        "self._stopping.n_bad >= self._patience",
        "self._stopping.n_bad > self._patience",
        python(_JUDGED + "test_the_best_epoch"),
    ),
    Mutant(
        "min-delta-is-enough",
        _MONITOR,
        "return gain > self._min_delta",
        "return gain >= self._min_delta",
        python(_JUDGED + "test_the_best_epoch"),
    ),
    Mutant(
        "infinity-is-the-best",
        _MONITOR,
        "        if not math.isfinite(value):\n            return False\n        if self.best",
        "        if self.best",
        python(_JUDGED + "test_the_best_epoch"),
    ),
    Mutant(
        "plateau-watches-the-monitor",
        _MONITOR,
        "self._plateau.update(row[self._plateau_name])",
        "self._plateau.update(row[self.name])",
        python(_JUDGED + "test_a_plateau_watches_its_own"),
    ),
    Mutant(
        "early-stopping-watches-the-monitor",
        _MONITOR,
        'watched["early_stopping"] = (stopping.monitor or config.monitored, stopping.mode)',
        'watched["early_stopping"] = (config.monitored, stopping.mode)',
        python(_JUDGED + "test_early_stopping_watches_its_own"),
    ),
    Mutant(
        "early-stopping-says-which-is-best",
        _MONITOR,
        "is_best = self._best.judge(epoch, row[self.name])",
        "is_best = (self._stopping or self._best).judge(epoch, row[self.name])",
        python(_JUDGED + "test_the_best_epoch"),
    ),
    Mutant(
        "the-mode-of-the-monitor-is-that-of-all",
        _TRAINING + "config/config.py",
        'mode = mode or (self.mode if monitor == self.monitored else "auto")',
        "mode = self.mode if mode in (None, 'auto') else mode",
        python(_JUDGED + "test_early_stopping_watches_its_own"),
    ),
    Mutant(
        "settings-of-one-value-may-disagree",
        _MONITOR,
        "        if then != mode:\n",
        "        if False:\n",
        python(_JUDGED + "test_settings_that_watch_one_value_have_one_direction"),
    ),
    Mutant(
        "alias-of-a-metric-has-no-direction",
        _TRAINING + "config/config.py",
        "metric if isinstance(metric, str) else monitor",
        "monitor",
        python(_JUDGED + "test_a_metric_under_another_name_keeps_its_direction"),
    ),
]
