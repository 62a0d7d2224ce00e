"""``hotloop train run.toml``: what a run file may say, that it is checked before anything runs, and
how the command ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import hotloop as hl
import numpy as np
import pytest
from hotloop import nn
from hotloop.interop.safetensors_file import read_safetensors
from hotloop.tools.cli import main
from hotloop.tools.runfile import read_run, train_file
from needs import take_library
from train.recipes import same_bits

NET = """\
import pathlib
pathlib.Path(__file__).with_name("imported").touch()
from hotloop import nn

class Net(nn.Sequential):
    def __init__(self, width: int, depth: int = 1, *, bias=True):
        layers = [nn.Linear(4 if i == 0 else width, width, bias=bias) for i in range(depth)]
        super().__init__(*layers, nn.ReLU(), nn.Linear(width, 3))

class Short(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)

def make(**options):
    return Net(**options)

def named(name):
    return nn.Linear(4, name, bias=False)

own = Short()
"""
RUN = """\
save = "net.safetensors"

[model]
name = "net.py:Net"
width = 8

[data]
X = "data.npz:x"
y = "data.npz:y"
val = 0.25

[training]
max_epochs = 2
lr = 0.01
enable_progress_bar = false
"""


@pytest.fixture
def folder(tmp_path: Path, rng: np.random.Generator) -> Path:
    """A folder with a model, data and a run file."""
    x = rng.standard_normal((120, 4)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=np.abs(x[:, :3]).argmax(1))
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", np.abs(x[:, :3]).argmax(1))
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path


def write(folder: Path, old: str, new: str) -> str:
    """The run file with a part replaced; its path."""
    assert RUN.count(old) == 1
    (folder / "run.toml").write_text(RUN.replace(old, new))
    return str(folder / "run.toml")


# ---- the model


def test_a_run_is_the_one_that_python_trains(folder: Path) -> None:
    result = train_file(folder / "run.toml")
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    data = hl.DataModule.from_arrays(np.load(folder / "x.npy"), np.load(folder / "y.npy"), val=0.25)
    expected = hl.train(model, data, max_epochs=2, lr=0.01, enable_progress_bar=False)
    assert same_bits(result.model.state_dict(), expected.model.state_dict())
    assert hl.load(folder / "net.safetensors") is not None


@pytest.mark.parametrize(
    ("model", "n"),
    [
        ('name = "net.py:Net"\nwidth = 8\ndepth = 2\nbias = false', 4 * 8 + 8 * 8 + 27),
        ('name = "net.py:make"\nwidth = 5', 4 * 5 + 5 + 18),
        ('class = "net.py:named"\nname = 7', 28),
        ('name = "net.py:Short"', 15),
        ('name = "net.py:own"', 15),
        ('name = "mlp"\nin_features = 4\nnum_classes = 3\nhidden_features = [6]', None),
    ],
)
def test_models(folder: Path, model: str, n: int | None) -> None:
    path = write(folder, 'name = "net.py:Net"\nwidth = 8', model)
    found, _, _ = read_run(path)
    made = hl.models.mlp(4, 3, [6])
    n = sum(p.numel() for p in made.parameters()) if n is None else n
    assert sum(p.numel() for p in found.parameters()) == n


def test_modules_are_found_beside_the_file_with_what_they_import(folder: Path) -> None:
    (folder / "run_parts").mkdir()
    (folder / "run_parts" / "nets.py").write_text(
        "from run_layers import width\nfrom hotloop import nn\n"
        "def make():\n    return nn.Linear(4, width)\n"
    )
    (folder / "run_layers.py").write_text("width = 3\n")
    path = write(folder, 'name = "net.py:Net"\nwidth = 8', 'name = "run_parts.nets:make"')
    model, _, _ = read_run(path)
    assert model.out_features == 3


def test_weights_of_a_known_model_lie_beside_the_file(folder: Path) -> None:
    hl.save(model := hl.models.mlp(4, 3, [6]), folder / "old.safetensors")
    text = 'name = "mlp"\nin_features = 4\nnum_classes = 3\nhidden_features = [6]\n'
    path = write(folder, 'name = "net.py:Net"\nwidth = 8', text + 'weights = "old.safetensors"')
    found, _, _ = read_run(path)
    assert same_bits(found.state_dict(), model.state_dict())


# ---- the data


def data_of(folder: Path, section: str) -> Any:
    text = RUN.replace('X = "data.npz:x"\ny = "data.npz:y"\nval = 0.25\n', section)
    (folder / "run.toml").write_text(text)
    return read_run(folder / "run.toml")[1]


def same_data(found: Any, expected: Any) -> bool:
    pairs = zip(found.train_batches(), expected.train_batches(), strict=True)
    return found.describe() == expected.describe() and all(
        np.array_equal(a["y"], b["y"]) for a, b in pairs
    )


def test_arrays(folder: Path) -> None:
    x, y = np.load(folder / "x.npy"), np.load(folder / "y.npy")
    np.save(folder / "w.npy", np.linspace(1, 2, 120))
    make = hl.DataModule.from_arrays
    found = data_of(
        folder,
        'constructor = "from_arrays"\nX = "x.npy"\ny = "data.npz:y"\nbatch_size = 7\n'
        'sample_weight = "w.npy"\nval = ["x.npy", "y.npy"]\n',
    )
    weight = np.linspace(1, 2, 120)
    assert same_data(found, make(x, y, batch_size=7, sample_weight=weight, val=(x, y)))
    found = data_of(folder, 'X = {a = "x.npy", b = "x.npy"}\ny = "y.npy"\nval = [1, 5]\n')
    assert same_data(found, make({"a": x, "b": x}, y, val=[1, 5]))
    found = data_of(folder, 'x = ["x.npy", "x.npy"]\ny = "y.npy"\n')
    assert same_data(found, make((x, x), y))


def test_files_of_arrays(folder: Path) -> None:
    found = data_of(folder, 'constructor = "from_npy"\nX = "x*.npy"\ny = "y.npy"\nval = 0.5\n')
    made = hl.DataModule.from_npy(str(folder / "x.npy"), str(folder / "y.npy"), val=0.5)
    assert same_data(found, made)


def test_tables(folder: Path) -> None:
    pandas = take_library("pandas")
    frame = pandas.DataFrame(np.load(folder / "x.npy"), columns=list("abcd"))
    frame.assign(kind=np.load(folder / "y.npy")).to_csv(folder / "t.csv", index=False)
    found = data_of(folder, 'constructor = "from_csv"\npath = "t*.csv"\ntarget = "kind"\nval = 9\n')
    assert same_data(found, hl.DataModule.from_csv(folder / "t.csv", "kind", val=9))
    text = 'constructor = "from_windows"\nseries = "t.csv"\nlength = 5\ntarget = "kind"\n'
    frame = pandas.read_csv(folder / "t.csv")
    assert same_data(data_of(folder, text), hl.DataModule.from_windows(frame, 5, target="kind"))


def test_windows_and_sequences_of_arrays(folder: Path) -> None:
    x, y = np.load(folder / "x.npy"), np.load(folder / "y.npy")
    text = (
        'constructor = "from_windows"\nseries = "x.npy"\ntarget = "y.npy"\nlength = 5\nval = 0.2\n'
    )
    assert same_data(data_of(folder, text), hl.DataModule.from_windows(x, 5, target=y, val=0.2))
    np.save(folder / "n.npy", np.full(30, 4))
    text = 'constructor = "from_sequences"\nX = "x.npy"\nlengths = "n.npy"\nbuckets = [4]\n'
    made = hl.DataModule.from_sequences(x, lengths=np.full(30, 4), buckets=[4])
    assert data_of(folder, text).describe() == made.describe()


def test_texts_and_cubes(folder: Path) -> None:
    (folder / "play.txt").write_text("to be, or not to be: " * 20)
    text = 'constructor = "from_text"\nsource = "play.txt"\nlength = 8\ntokenizer = "characters"\n'
    found = data_of(folder, text)
    made = hl.DataModule.from_text(folder / "play.txt", 8, tokenizer="characters")
    assert same_data(found, made)
    for i in range(3):
        np.save(folder / f"cube{i}.npy", np.full((2, 2, 4), i, np.float32))
    np.save(folder / "kinds.npy", np.array([0, 1, 1]))
    text = 'constructor = "from_cubes"\nfiles = "cube*.npy"\nlabels = "kinds.npy"\n'
    found = data_of(folder, text)
    made = hl.DataModule.from_cubes(str(folder / "cube*.npy"), labels=np.array([0, 1, 1]))
    assert same_data(found, made)


def test_images(folder: Path) -> None:
    image = take_library("PIL.Image")
    for kind in ("cat", "dog"):
        for part in ("pets", "held"):
            (folder / part / kind).mkdir(parents=True)
            for i in range(4):
                pixels = np.full((8, 8, 3), 40 * i, np.uint8)
                image.fromarray(pixels).save(folder / part / kind / f"{i}.png")
    text = 'constructor = "from_image_folder"\nroot = "pets"\nsize = 8\nval = "held"\n'
    made = hl.DataModule.from_image_folder(folder / "pets", 8, val=folder / "held")
    assert same_data(data_of(folder, text), made)
    lines = ["file,kind", *(f"pets/cat/{i}.png,a" for i in range(4)), "pets/dog/0.png,b"]
    (folder / "table.csv").write_text("\n".join(lines))
    text = 'constructor = "from_image_table"\ntable = "table.csv"\npath = "file"\nlabel = "kind"\n'
    made = hl.DataModule.from_image_table(folder / "table.csv", "file", "kind", 8)
    assert same_data(data_of(folder, text + "size = 8\n"), made)


OWN = """\
import numpy as np
import hotloop as hl

class Squares:
    def __len__(self):
        return 40

    def __getitem__(self, i):
        return np.float32([i, 1, 2, 3]), i % 3

def numbers(epoch):
    for i in range(100):
        yield np.full(4, i, np.float32), i % 3

def halves(samples):
    return np.stack([x for x, _ in samples]) / 2, np.array([y for _, y in samples])

def make(n, val=0.2):
    x = np.arange(4.0 * n).reshape(n, 4)
    return hl.DataModule.from_arrays(x, np.arange(n) % 3, val=val)

def pair():
    return np.zeros((60, 4)), np.arange(60) % 3
"""


def test_datasets_generators_and_functions_of_ones_own(folder: Path) -> None:
    (folder / "own.py").write_text(OWN)
    names: dict[str, Any] = {}
    exec(OWN, names)
    found = data_of(
        folder,
        'constructor = "from_datasets"\ntrain = "own.py:Squares"\ncollate_fn = "own.py:halves"\n'
        "val = 0.25\nbatch_size = 5\nnum_workers = 1\n",
    )
    made = hl.DataModule.from_datasets(
        names["Squares"](), val=0.25, collate_fn=names["halves"], batch_size=5, num_workers=1
    )
    assert same_data(found, made)
    np.save(folder / "groups.npy", np.arange(len(names["Squares"]())) // 3)
    found = data_of(
        folder,
        'constructor = "from_datasets"\ntrain = "own.py:Squares"\ngroups = "groups.npy"\n'
        "val = 0.25\n",
    )
    assert not {*found.rows("train") // 3} & {*found.rows("val") // 3}
    text = 'constructor = "from_generator"\nmake = "own.py:numbers"\nn = 50\n'
    assert same_data(data_of(folder, text), hl.DataModule.from_generator(names["numbers"], 50))
    found = data_of(folder, 'constructor = "own.py:make"\nn = 50\nval = 0.5\n')
    assert len(found.rows("val")) == 25
    assert len(data_of(folder, 'constructor = "own.py:pair"\n').rows("val")) == 12


# ---- what is refused, before anything is imported


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[training]", "[trianing]", "keys are model, save, plot, data, training, got 'trianing'"),
        ("save =", "sav =", "did you mean 'save'?"),
        ("save = \"net", "save = \"no/net", "save must be in a folder that exists"),
        ("width = 8", "widht = 8", "[model]: Net has no argument 'widht'; did you mean 'width'?"),
        ("width = 8", "", "[model]: Net needs width, got no arguments"),
        ("width = 8", "width = 8\nself = 1", "[model]: Net has no argument 'self'"),
        ("net.py:Net", "nets.py:Net", "[model] name: must be \"file.py:Name\""),
        ("net.py:Net", "nets.py:Net", "did you mean 'net.py'?"),
        ("net.py:Net", "net.py:Nett", "must define Nett, got Net, Short, make, named; did"),
        ("net.py:Net", "net.py", "[model] name: must be \"file.py:Name\""),
        ("net.py:Net", "nett:Net", "can be imported, got 'nett:Net'; did you mean 'net'?"),
        ("net.py:Net", "no.such.module:Net", "got 'no.such.module:Net'"),
        ("net.py:Net", "resnet19", "[model] name: must be \"file.py:Name\", \"module:Name\" or a"),
        ("net.py:Net", "resnet19", "did you mean 'resnet18'?"),
        ('name = "net.py:Net"\nwidth = 8', 'name = "mlp"\nin_feature = 4\nnum_classes = 3',
         "[model]: mlp has no argument 'in_feature'; did you mean 'in_features'?"),
        ('name = "net.py:Net"', 'nam = "net.py:Net"', "[model] name: must be"),
        ("net.py:Net", "broken.py:Net", "is no Python: invalid syntax (broken.py, line 2)"),
        ("val = 0.25", 'name = "data.py:make"', "[data]: there is no name as in [model]; write co"),
        ("val = 0.25", "vall = 0.25", "[data] vall: from_arrays: there is no option 'vall'; did"),
        ("val = 0.25", "random_state = 1", "write seed=..."),
        ("val = 0.25", 'constructor = "from_array"', "did you mean 'from_arrays'?"),
        ("val = 0.25", 'constructor = "from_pandas"', "write constructor = 'from_csv'"),
        ("val = 0.25", 'constructor = "from_npy"', "[data] X: there is no file 'data.npz:x'"),
        ("val = 0.25", 'constructor = "own.py:make"', "[data] constructor: must be \"file"),
        ("data.npz:x", "dota.npz:x", "[data] X: there is no file 'dota.npz' in"),
        ("data.npz:x", "dota.npz:x", "did you mean 'data.npz'?"),
        ('X = "data.npz:x"\n', "", "[data] X: from_arrays needs it, got y, val"),
        ("val = 0.25", 'val = ["x.npy", "no.npy"]', "[data] val: there is no file 'no.npy'"),
        ("lr = 0.01", "lr = -1", "[training]: lr: must be greater than 0, got -1"),
        ("lr = 0.01", 'lr = "fast"', "[training]: lr: a number is needed, got 'fast'"),
        ("max_epochs", "max_epoch", "[training]: there is no setting 'max_epoch'; did you mean"),
        ("max_epochs", "resume", "[training] resume: is a flag, hotloop train"),
        ("lr = 0.01", 'lr = 0.01\noptimizer = {name = "adm"}', "did you mean 'adam'?"),
        ("lr = 0.01", "lr = 0.01\nlr = 0.02", "cannot be read: Cannot overwrite a value"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_before_anything_is_imported(
    folder: Path, capsys: Any, old: str, new: str, words: str
) -> None:
    (folder / "broken.py").write_text("import sys\nclass Net(:\n")
    path = write(folder, old, new)
    assert main(["train", path]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"hotloop: error: {path}: ")
    assert error.count("\n") == 1
    assert words in error
    assert not (folder / "imported").exists()


def test_a_key_of_the_arrays_file_is_named_before_the_model_is_imported(
    folder: Path, capsys: Any
) -> None:
    assert main(["train", write(folder, "data.npz:x", "data.npz:z")]) == 1
    assert "[data]: X: data.npz holds the arrays x, y; write" in capsys.readouterr().err
    assert not (folder / "imported").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise KeyError('gone')", "net.py:Net: KeyError: 'gone' (net.py, line 1)"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        (
            "class Net:\n    def __init__(self, width):\n        raise OSError('a\\nb')",
            "net.py:Net: OSError: a b (net.py, line 3)",
        ),
        ("def Net(width):\n    return 3", "must make a hotloop.nn.Module, got int"),
        (
            "import functools\nNet = functools.partial(dict, width=1)",
            "must make a hotloop.nn.Module",
        ),
        (
            "from hotloop import nn\nclass Net(nn.Linear): ...",
            "[model] name: Net has no argument 'width'; it has in_features, out_features, bias",
        ),
    ],
)
def test_what_the_users_code_raises_is_one_line_with_its_place(
    folder: Path, capsys: Any, text: str, words: str
) -> None:
    if "no_such" in text:
        text += "\nNet = no_such_module.Net"
    if text.startswith("raise"):
        text += "\nclass Net: ..."
    (folder / "net.py").write_text(text)
    assert main(["train", str(folder / "run.toml")]) == 1
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert "Traceback" not in error


def test_a_plot_needs_matplotlib_before_training(
    folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hotloop.tools.runfile.find_spec", lambda _: None)
    assert main(["train", write(folder, "save =", 'plot = "net.png"\nsave =')]) == 1
    assert "plot needs matplotlib, got none installed" in capsys.readouterr().err
    assert not (folder / "imported").exists()


def test_paths_of_the_file_begin_at_its_folder(
    folder: Path, tmp_path_factory: Any, monkeypatch: Any
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    path = write(folder, "lr = 0.01", 'lr = 0.01\noutput_dir = "logs"')
    assert main(["train", path]) == 0
    assert list((folder / "logs" / "1" / "checkpoints").glob("step-*"))
    assert main(["train", path, "--output_dir", "here"]) == 0  # a flag's is relative to where it is
    assert list((elsewhere / "here" / "1" / "checkpoints").glob("step-*"))
    assert main(["train", path, "--no-enable_checkpointing", "--logger", "none"]) == 0
    assert [one.name for one in (folder / "logs").iterdir()] == ["1"]


# ---- how it ends

RUNNING = """\
[model]
name = "slow.py:Net"

[data]
X = "x.npy"
y = "y.npy"
val = 0.25
batch_size = 8

[training]
max_epochs = 60
ema = true
output_dir = "logs"
save_every = "5 steps"
"""
SLOW = """\
from hotloop import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 3000), nn.Dropout(0.2), nn.ReLU(), nn.Linear(3000, 3))
"""


def start(folder: Path, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "hotloop", "train", str(folder / "run.toml"), *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def start_and_wait(folder: Path) -> subprocess.Popen[str]:
    """A run that has written a checkpoint."""
    (folder / "run.toml").write_text(RUNNING)
    (folder / "slow.py").write_text(SLOW)
    child = start(folder)
    deadline = time.monotonic() + 60
    while not list(folder.glob("logs/1/checkpoints/step-*")):
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return child


def state_of(folder: Path, epochs: int = 60) -> dict[str, bytes]:
    """All that the last checkpoint holds, time taken apart."""
    last = max((folder / "logs/1/checkpoints").glob("step-*"))
    assert last.stem == f"step-{epochs * 12:09d}"
    tensors, _ = read_safetensors(str(last))
    return {name: np.asarray(value).tobytes() for name, value in tensors.items()}


def test_a_killed_run_goes_on_with_the_bits_that_it_would_have_had(folder: Path) -> None:
    child = start_and_wait(folder)
    child.kill()
    child.communicate(timeout=30)
    with pytest.raises(AssertionError):
        state_of(folder)  # it was killed before its end
    child = start(folder, "--resume")
    _, error = child.communicate(timeout=120)
    assert child.returncode == 0, error
    resumed = state_of(folder)
    assert len(list((folder / "logs").iterdir())) == 1  # in the same folder
    os.rename(folder / "logs", folder / "killed")
    child = start(folder)
    assert child.wait(timeout=120) == 0, child.communicate()
    assert state_of(folder) == resumed


def test_resume_of_a_path_and_of_nothing(folder: Path, capsys: Any) -> None:
    path = write(folder, "lr = 0.01", 'lr = 0.01\noutput_dir = "logs"')
    assert main(["train", path, "--resume"]) == 1
    assert "there is no checkpoint in" in capsys.readouterr().err
    assert main(["train", path, "--resume", "auto"]) == 0
    assert main(["train", "--resume", path, "--max_epochs", "3"]) == 0
    capsys.readouterr()
    first = str(folder / "logs" / "1")
    assert main(["train", path, f"--resume={first}", "--max-epochs=4", "--output_dir", first]) == 0
    assert main(["train", path, "--resume", first, "--lr", "0.5", "--max_epochs=5"]) == 1
    assert "lr 0.5 (then 0.01)" in capsys.readouterr().err
    assert [one.name for one in (folder / "logs").iterdir()] == ["1"]


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "SIGTERM"]
)
def test_signals_save_and_have_their_status(folder: Path, number: Any, status: int) -> None:
    child = start_and_wait(folder)
    child.send_signal(number)
    _, error = child.communicate(timeout=30)
    assert child.returncode == status
    assert "Traceback" not in error
    if number == signal.SIGINT:
        last = max((folder / "logs" / "1" / "checkpoints").glob("step-*"))
        said = error.splitlines()[-1]
        assert said == f"hotloop: training was interrupted; --resume goes on from {last}"
    assert start(folder, "--resume").wait(timeout=120) == 0
    state_of(folder)


def test_sigterm_before_training_has_its_status(folder: Path) -> None:
    (folder / "slow.py").write_text(
        "print('here', flush=True)\nimport time\ntime.sleep(60)\nNet = 3"
    )
    (folder / "run.toml").write_text(RUNNING)
    child = start(folder)
    assert child.stdout is not None
    assert child.stdout.readline() == "here\n"
    child.terminate()
    assert child.wait(timeout=30) == 143


def test_an_interrupt_that_returns_has_its_status_too(folder: Path, monkeypatch: Any) -> None:
    child = start_and_wait(folder)
    child.kill()
    child.communicate(timeout=30)
    child = start(folder, "--resume", "--on_interrupt", "return", "--max_epochs", "100000")
    assert child.stderr is not None
    while "epoch" not in child.stderr.readline():
        assert child.poll() is None
    child.send_signal(signal.SIGINT)
    _, error = child.communicate(timeout=30)
    assert (child.returncode, "interrupted after" in error) == (130, True), error


def test_handlers_are_put_back(folder: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert main(["train", str(folder / "run.toml")]) == 0
    assert signal.getsignal(signal.SIGTERM) is before
