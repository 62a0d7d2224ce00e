"""The command line: ``hotloop demo | train | plan | doctor | inspect``.

Each command is a function of its parsed arguments that returns the exit status, and imports what
it needs itself, so that ``hotloop --help`` and ``hotloop inspect`` start at once. An error of
hotloop's is one sentence and status 1; a mistake in the command line is argparse's status 2, for a
flag of ``train`` too; Ctrl-C is 130 and SIGTERM 143, as a shell expects. ``train``, whose flags are
the fields of TrainingConfig, reads its own arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence

__all__ = ["main"]


def _demo(arguments: argparse.Namespace) -> int:
    from hotloop.tools.demo import run_demo

    return run_demo(arguments.plot)


def _train(arguments: argparse.Namespace) -> int:
    from hotloop.errors import TrainingInterrupted
    from hotloop.tools.flags import UsageError, describe_flags, read_flags
    from hotloop.tools.runfile import train_file

    try:
        flags = read_flags(arguments.rest)
    except UsageError as error:
        print(f"hotloop train: error: {error}", file=sys.stderr)
        return 2
    if flags is None:
        print(describe_flags())
        return 0
    try:
        with _ending_by_signal():
            result = train_file(flags.file, flags.overrides, flags.resume)
    except TrainingInterrupted as error:
        path = error.result.last_path
        goes_on = "" if path is None else f"; --resume goes on from {path}"
        print(f"hotloop: training was interrupted{goes_on}", file=sys.stderr)
        return 130
    return 130 if result.stop_reason == "interrupted" else 0


@contextlib.contextmanager
def _ending_by_signal() -> Iterator[None]:
    """SIGTERM exits with 143. Training saves first, and then sends the signal again. Without a
    handler the first process of a container would ignore it.
    """
    number = signal.SIGTERM
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(number) is signal.SIG_IGN:
        yield
        return
    old = signal.signal(number, lambda *_: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(number, old)


def _plan(arguments: argparse.Namespace) -> int:
    from hotloop.tools.planning import plan_demo, plan_file

    device = arguments.device
    if arguments.file is None:
        found = plan_demo(device)
    else:
        found = plan_file(arguments.file, arguments.batch, device)
    print(found)
    if arguments.instructions:
        print(f"\n{found.text}")
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from hotloop.tools.machine import doctor

    print(doctor())
    return 0


def _inspect(arguments: argparse.Namespace) -> int:
    from hotloop.tools.inspection import inspect_file

    print(inspect_file(arguments.file))
    return 0


def _parser() -> argparse.ArgumentParser:
    from hotloop._version import __version__

    parser = argparse.ArgumentParser(
        prog="hotloop", description="Trains neural networks, fast by default."
    )
    parser.add_argument("--version", action="version", version=f"hotloop {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    demo = commands.add_parser("demo", help="train a model on real data, in seconds")
    demo.add_argument(
        "--plot",
        metavar="FILE",
        default="digits.png",
        help="where to draw loss and accuracy, if matplotlib is installed (default: %(default)s)",
    )
    demo.set_defaults(run=_demo)

    commands.add_parser("train", help="train as a TOML file says")  # main reads its arguments

    plan = commands.add_parser(
        "plan", help="print the plan of the demo's step, of a run.toml's, or of a saved model"
    )
    plan.add_argument(
        "file", nargs="?", metavar="FILE", help="a model that hotloop saved, or a run.toml"
    )
    plan.add_argument(
        "--batch", type=int, default=256, help="rows of the saved model's batch (default: 256)"
    )
    plan.add_argument(
        "--device",
        help="cpu, cuda, cuda:1, or a GPU that need not be in this machine: T4, A100, H200",
    )
    plan.add_argument(
        "--instructions", action="store_true", help="list every instruction with its operands"
    )
    plan.set_defaults(run=_plan)

    doctor = commands.add_parser("doctor", help="what this machine and this installation can do")
    doctor.set_defaults(run=_doctor)

    inspect = commands.add_parser("inspect", help="what a saved model file holds")
    inspect.add_argument("file", metavar="FILE", help="a safetensors file")
    inspect.set_defaults(run=_inspect)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Parameters
    ----------
    argv : sequence of str, optional
        Without the program's name; by default the process's own arguments.

    Returns
    -------
    int
        The exit status.
    """
    from hotloop.errors import HotloopError, TrainingInterrupted

    given = sys.argv[1:] if argv is None else list(argv)
    if given[:1] == ["train"]:
        arguments = argparse.Namespace(run=_train, rest=given[1:])
    else:
        arguments = _parser().parse_args(given)
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except TrainingInterrupted as error:
        print(f"hotloop: {error}", file=sys.stderr)
        return 130
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # `hotloop plan | head`: the reader has what it wanted, and Python's own flush at exit
        # must not meet the closed pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except HotloopError as error:
        print(f"hotloop: error: {error}", file=sys.stderr)
        return 1
    return status
