"""Mutants of the command line: what a run file says, what flags do, how the command ends."""

from mutants.mutant import Mutant, python

_TOOLS = "python/hotloop/tools/"
_FILE, _DATA = _TOOLS + "runfile.py", _TOOLS + "rundata.py"
_FLAGS, _REFERENCES, _CLI = _TOOLS + "flags.py", _TOOLS + "references.py", _TOOLS + "cli.py"
_RUNS, _OF_FLAGS = "tests/train/test_run_files.py::", "tests/train/test_flags.py::"
_CHECKED = _RUNS + "test_what_is_wrong_is_named_before_anything_is_imported"

MUTANTS = [
    Mutant(
        "run-file-s-model-arguments-are-not-checked",
        _FILE,
        "if found.signature is not None:",
        "if False:",
        python(_CHECKED),
    ),
    Mutant(
        "run-file-s-names-are-found-when-they-run",
        _REFERENCES,
        'if name not in defined and "*" not in defined and "__getattr__" not in defined:',
        "if False:",
        python(_CHECKED),
    ),
    Mutant(
        "run-file-s-files-are-missed-when-they-are-read",
        _DATA,
        "    elif not path.exists():\n",
        "    elif False:\n",
        python(_CHECKED),
    ),
    Mutant(
        "run-file-s-options-are-not-checked",
        _DATA,
        "    known = {*own, *passed} - ",
        "    known = {*own, *passed, *given} - ",
        python(_CHECKED),
    ),
    Mutant(
        "run-file-s-training-is-checked-last",
        _FILE,
        "        config = TrainingConfig(**table)\n",
        "        config = TrainingConfig(**{k: v for k, v in table.items() if k != 'lr'})\n",
        python(_RUNS + "test_a_run_is_the_one_that_python_trains"),
    ),
    Mutant(
        "run-file-s-output-lies-where-it-is-started",
        _FILE,
        "owner[key] = str(path.parent / owner[key])",
        "pass",
        python(_RUNS + "test_paths_of_the_file_begin_at_its_folder"),
    ),
    Mutant(
        "run-file-s-weights-lie-where-it-is-started",
        _FILE,
        'given["weights"] = str(path.parent / given["weights"])',
        "pass",
        python(_RUNS + "test_weights_of_a_known_model_lie_beside_the_file"),
    ),
    Mutant(
        "run-file-s-own-validation-data-is-a-list",
        _DATA,
        'return tuple(made) if is_tuple and section.constructor != "from_sequences" else made',
        "return made",
        python(_RUNS + "test_arrays"),
    ),
    Mutant(
        "run-file-s-modules-do-not-find-their-neighbours",
        _REFERENCES,
        "            sys.path.insert(0, str(self.root))",
        "            pass",
        python(_RUNS + "test_modules_are_found_beside_the_file_with_what_they_import"),
    ),
    Mutant(
        "run-file-s-code-ends-in-a-traceback",
        _REFERENCES,
        "        try:\n            return made(**arguments)\n        except Exception as error:",
        "        try:\n            return made(**arguments)\n        except KeyError as error:",
        python(_RUNS + "test_what_the_users_code_raises_is_one_line_with_its_place"),
    ),
    Mutant(
        "command-does-not-resume",
        _FILE,
        "data, run.config, resume=resume)",
        "data, run.config)",
        python(_RUNS + "test_a_killed_run_goes_on_with_the_bits_that_it_would_have_had"),
    ),
    Mutant(
        "command-interrupted-has-no-status",
        _CLI,
        'return 130 if result.stop_reason == "interrupted" else 0',
        "return 0",
        python(_RUNS + "test_an_interrupt_that_returns_has_its_status_too"),
    ),
    Mutant(
        "command-ends-by-the-signal-itself",
        _CLI,
        "    old = signal.signal(number, lambda *_: sys.exit(128 + number))",
        "    old = signal.getsignal(number)",
        python(_RUNS + "test_sigterm_before_training_has_its_status"),
    ),
    Mutant(
        "command-keeps-its-handler",
        _CLI,
        "        signal.signal(number, old)",
        "        pass",
        python(_RUNS + "test_handlers_are_put_back"),
    ),
    Mutant(
        "flags-are-forgotten",
        _FILE,
        "return config.replace(**overrides)",
        "return config",
        python(_OF_FLAGS + "test_a_flag_goes_before_the_file"),
    ),
    Mutant(
        "flags-take-the-run-file",
        _FLAGS,
        ' or left[0].endswith(".toml")\n',
        "\n",
        python(_OF_FLAGS + "test_the_file_may_stand_anywhere"),
    ),
    Mutant(
        "flags-resume-takes-the-run-file",
        _FLAGS,
        'text = "" if left[0].endswith(".toml") else left.pop(0)',
        "text = left.pop(0)",
        python(_OF_FLAGS + "test_the_file_may_stand_anywhere"),
    ),
    Mutant(
        "flags-are-read-as-texts-alone",
        _FLAGS,
        "    value = _value(text)\n    yield value\n",
        "    value = text\n    yield value\n",
        python(_OF_FLAGS + "test_values"),
    ),
    Mutant(
        "flags-no-longer-turn-off",
        _FLAGS,
        "            overrides[off] = False",
        "            overrides[off] = True",
        python(_OF_FLAGS + "test_values"),
    ),
]
