"""The build system in setup.py: what is compiled again, and what is refused, on a small tree."""

import importlib.util
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("setuptools", reason="setuptools is not installed (make build installs it)")
if shutil.which("gcc") is None:
    pytest.skip("gcc is not installed: it compiles what is tested", allow_module_level=True)

SETUP = Path(__file__).resolve().parents[2] / "setup.py"


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """setup.py as a module whose root is a tree of two files of csrc and two of kernels/cpu."""
    spec = importlib.util.spec_from_file_location("hotloop_setup", SETUP)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    names = ("CC", "CFLAGS", "CPPFLAGS", "LDFLAGS", "NVCC", "CUDA_HOME", "CUDA_PATH", "HL_SETS")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for path, text in {
        "csrc/base/one.h": "int hl_one(void);\n",
        "csrc/base/one.c": '#include "base/one.h"\nint hl_one(void) { return 1; }\n',
        "csrc/base/two.c": "int hl_two(void);\nint hl_two(void) { return 2; }\n",
        "kernels/cpu/device.c": "int hl_device(void);\nint hl_device(void) { return 0; }\n",
        "kernels/cpu/scale.c": "#define CAT_(a, b) a##b\n#define CAT(a, b) CAT_(a, b)\n"
        "int CAT(hl_scale_, HL_ISA)(void);\nint CAT(hl_scale_, HL_ISA)(void) { return 3; }\n",
        "python/src/module.c": "int hl_module(void);\n"
        '__attribute__((visibility("default"))) int hl_module(void) { return 4; }\n',
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return module


def compile_all(build, **env: str) -> tuple[set[str], Path]:
    """Names of the objects a build would compile now, and the library it then makes."""
    build.content_digest.cache_clear()
    toolchain = build.Toolchain(env)
    units = build.core_units(toolchain.machine) + build.extension_units()
    stale = {
        f"{unit.source.stem}{unit.tag}"
        for unit in units
        if not build.is_current(toolchain.object_of(unit))
    }
    return stale, build.ROOT / toolchain.link(toolchain.compile_stale(units, 2))


def edit(path: Path, text: str) -> None:
    """Writes a file and gives it an old time stamp: only its content can tell."""
    path.write_text(text)
    os.utime(path, (1, 1))


def test_only_what_changed_is_compiled_again(build) -> None:
    first, library = compile_all(build)
    assert {"one", "two", "device", "module", "scale-portable"} <= first
    assert library.exists()
    assert compile_all(build) == (set(), library)

    edit(build.ROOT / "csrc/base/one.h", "int hl_one(void);\nint hl_unused(void);\n")
    assert compile_all(build)[0] == {"one"}

    edit(build.ROOT / "csrc/base/two.c", "int hl_two(void);\nint hl_two(void) { return 5; }\n")
    before = library.read_bytes()
    assert compile_all(build) == ({"two"}, library)
    assert library.read_bytes() != before

    assert compile_all(build, CFLAGS="-DOTHER")[0] == first
    assert compile_all(build)[0] == set(), "another set of flags must not evict the first"


def test_chosen_instruction_sets(build, monkeypatch) -> None:
    """HL_SETS compiles kernels for these alone, and tells the file that chooses between them."""
    monkeypatch.setenv("HL_SETS", "portable")
    units = {unit.source.name + unit.tag: unit.flags for unit in build.core_units("x86_64-linux")}
    assert {name for name in units if name.startswith("scale")} == {"scale.c-portable"}
    assert units["device.c"] == ("-DHL_HAS_portable",)
    compiled, _ = compile_all(build)
    assert {name for name in compiled if name.startswith("scale")} == {"scale-portable"}
    monkeypatch.setenv("HL_SETS", "avx2,avx1024")
    with pytest.raises(build.SetupError, match="avx512, got 'avx1024'"):
        build.core_units("x86_64-linux")


def test_a_deleted_header_is_missed(build) -> None:
    compile_all(build)
    (build.ROOT / "csrc/base/one.h").unlink()
    with pytest.raises(build.CompileError, match=r"csrc/base/one\.c: failed"):
        compile_all(build)


def test_a_source_edited_during_compilation_has_no_record(build) -> None:
    toolchain = build.Toolchain({})
    unit = build.Unit(Path("csrc/base/two.c"))
    toolchain.compile(unit)
    output = toolchain.object_of(unit)
    assert build.record_of(output).exists() == build.is_current(output)
    made = build.ROOT / "made.o"
    made.write_bytes(b"")
    build.publish(Path("csrc/two.o"), made, ["csrc/base/two.c"], began_ns=0)
    assert not build.is_current(Path("csrc/two.o"))


def test_each_instruction_set_and_hidden_symbols(build) -> None:
    _, library = compile_all(build)
    table = subprocess.run(["nm", library], capture_output=True, text=True, check=True).stdout
    for name in build.instruction_sets(build.Toolchain({}).machine):
        assert f"hl_scale_{name}\n" in table
    dynamic = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    ).stdout
    assert [line.split()[-1] for line in dynamic.splitlines()] == ["hl_module"]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"HL_SANITIZE": "adress"}, r"HL_SANITIZE: must be of .*, got \['adress'\]"),
        ({"HL_SANITIZE": "address,thread"}, "exclude each other"),
        ({"CC": "no-such-compiler"}, "no-such-compiler must be on PATH.*install gcc"),
    ],
)
def test_a_wrong_request_is_a_sentence(build, env: dict[str, str], message: str) -> None:
    with pytest.raises(build.SetupError, match=message):
        build.Toolchain(env)


def test_free_threaded_python_is_refused(build, monkeypatch: pytest.MonkeyPatch) -> None:
    build.check_python()
    monkeypatch.setattr(build.sysconfig, "get_config_var", lambda name: int("GIL" in name))
    with pytest.raises(build.SetupError, match="with the GIL is needed, got a free-threaded one"):
        build.check_python()


def test_sanitizer_and_coverage_keep_assertions(build) -> None:
    assert "-DNDEBUG" in build.choose_flags({})[0]
    for env in ({"HL_SANITIZE": "address,undefined"}, {"HL_COVERAGE": "1"}):
        compile_flags, link_flags = build.choose_flags(env)
        assert "-DNDEBUG" not in compile_flags
        assert len(link_flags) == 3


def run_make(root: Path, **variables: str) -> set[str]:
    """Makes the C tests of a tree; names of the objects that were compiled."""
    made = root / "build/c-tests/release"
    before = {path: path.stat().st_mtime_ns for path in made.glob("*.o")}
    words = [f"{name}={value}" for name, value in variables.items()]
    command = ["make", "-s", "-C", str(root / "tests/c"), f"PYTHON={sys.executable}", *words]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HL_", "MAKE", "MFLAGS"))}
    done = subprocess.run(
        [*command, "all"], env=env | {"HL_CUDA": "0"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {p.stem for p in made.glob("*.o") if before.get(p) != p.stat().st_mtime_ns}


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_a_header_compiles_the_c_tests_that_include_it(build, tmp_path) -> None:
    program = "int main(void) { return 0; }\n"
    for path, text in {
        "setup.py": SETUP.read_text(),
        "tests/c/Makefile": (SETUP.parent / "tests/c/Makefile").read_text(),
        "tests/c/shared.h": '#include "base/one.h"\n',
        "tests/c/test_one.c": '#include "tests/c/shared.h"\n' + program,
        "tests/c/test_two.c": program,
        "kernels/cpu/scale.h": "\n",
        "tests/c/test_scale.c": '#include "kernels/cpu/scale.h"\n' + program,
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    sets = {f"test_scale-{name}" for name in build.instruction_sets(build.Toolchain({}).machine)}
    assert run_make(tmp_path) == {"test_one", "test_two"} | sets
    assert run_make(tmp_path) == set()
    with (tmp_path / "csrc/base/one.h").open("a") as header:
        header.write("int hl_unused(void);\n")
    assert run_make(tmp_path) == {"test_one"}
    with (tmp_path / "kernels/cpu/scale.h").open("a") as header:
        header.write("int hl_unused(void);\n")
    (best,) = run_make(tmp_path, SETS="one")
    assert best in sets, "the best of this machine alone"
    assert run_make(tmp_path) == sets - {best}


def make_nvcc(folder: Path, status: int) -> str:
    """A stand-in for nvcc that ends with a status."""
    folder.mkdir()
    path = folder / "nvcc"
    path.write_text(f"#!/bin/sh\nexit {status}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_cuda_is_chosen_or_refused_in_words(build, tmp_path, monkeypatch) -> None:
    sources = [Path("kernels/cuda/matmul.cu")]
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert build.choose_cuda("0", sources) == (None, "HL_CUDA=0: CPU-only")
    assert build.choose_cuda("auto", []) == (None, "no CUDA sources in this version: CPU-only")
    nvcc, line = build.choose_cuda("auto", sources)
    assert nvcc is None
    assert line.startswith("nvcc was not found")
    assert line.endswith("CPU-only")
    with pytest.raises(build.SetupError, match="install the CUDA toolkit"):
        build.choose_cuda("1", sources)
    with pytest.raises(build.SetupError, match="auto, 0 or 1"):
        build.choose_cuda("yes", sources)

    monkeypatch.setenv("NVCC", make_nvcc(tmp_path / "broken", 3))
    assert build.choose_cuda("auto", sources)[0] is None
    with pytest.raises(build.SetupError, match="failed with status 3"):
        build.choose_cuda("1", sources)

    good = make_nvcc(tmp_path / "good", 0)
    monkeypatch.setenv("NVCC", good)
    assert build.choose_cuda("1", sources) == (good, f"CUDA by {good}")
    with pytest.raises(build.SetupError, match="no CUDA sources"):
        build.choose_cuda("1", [])


NVCC = """#!/bin/sh
# Stands in for nvcc: knows three architectures, and makes a "fatbin" of its options and source.
case "$1" in
--version) echo "Cuda compilation tools, release RELEASE, V1"; exit 0;;
--list-gpu-arch) echo compute_75; echo compute_90; echo compute_50; exit 0;;
esac
gencode=""
while [ $# -gt 1 ]; do
    case "$1" in
    -gencode) gencode="$gencode $2"; shift;;
    -o) out=$2; shift;;
    --compress-mode=*) gencode="$gencode $1";;
    -MF) depfile=$2; shift;;
    *.cu) source=$1;;
    esac
    shift
done
case "$1" in *.cu) source=$1;; esac
[ "$depfile" ] || depfile=$1
grep -q broken "$source" && { echo "$source: a mistake"; exit 2; }
echo "ptxas info    : Used 8 registers"
echo "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"
echo "$source: a warning"
echo "$gencode" > "$out"
cat "$source" >> "$out"
echo "$out: $source" > "$depfile"
"""


def make_cuda_tree(build, tmp_path: Path, monkeypatch, release: str = "13.0") -> None:
    """Two kernels, what embeds them, and an nvcc."""
    folder = build.ROOT / "kernels/cuda"
    folder.mkdir(parents=True)
    (folder / "one.cu").write_text("kernel one\n")
    (folder / "two.cu").write_text("kernel two\n")
    shutil.copy(SETUP.parent / "kernels/cuda/build.c", folder)
    text = folder.joinpath("build.c").read_text()
    (folder / "build.c").write_text(
        text[: text.index("const hl_cuda_build")].replace("#include", "//")
    )
    nvcc = tmp_path / "nvcc-bin/nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text(NVCC.replace("RELEASE", release))
    nvcc.chmod(0o755)
    monkeypatch.setenv("NVCC", str(nvcc))
    monkeypatch.setattr(build, "find_archs", lambda: set())


def test_fatbins_are_made_once_and_embedded(build, tmp_path, monkeypatch, capfd) -> None:
    make_cuda_tree(build, tmp_path, monkeypatch)
    unit = build.make_cuda({"HL_CUDA_ARCHS": "all"}, 2)
    said = capfd.readouterr().err
    assert "nvcc made 2 of 2 fatbins (sm_75, sm_90)" in said
    assert "two.cu: a warning" in said
    assert "registers" not in said
    assert "stack frame" not in said
    assert "-DHL_CUDA_TOOLKIT=13000" in unit.flags
    embedded = (build.ROOT / unit.inputs[0]).read_bytes()
    first, second = embedded.index(b"kernel one"), embedded.index(b"kernel two")
    assert first < second
    for name in ("one", "two"):
        (kept,) = (build.ROOT / build.OBJECTS / "kernels/cuda").glob(f"{name}-*.ptxas")
        assert "Used 8 registers" in kept.read_text()
        assert "0 bytes stack frame" in kept.read_text()
        assert "warning" not in kept.read_text()
    assert len(embedded) % 64 == 0
    assert embedded.count(b"arch=compute_90,code=sm_90 arch=compute_90,code=compute_90") == 2
    toolchain = build.Toolchain({})
    assert unit in build.core_units(toolchain.machine, unit)
    toolchain.compile(unit)
    assert b"kernel two" in (build.ROOT / toolchain.object_of(unit)).read_bytes()
    assert build.is_current(toolchain.object_of(unit))

    build.content_digest.cache_clear()
    edit(build.ROOT / "kernels/cuda/two.cu", "kernel TWO\n")
    again = build.make_cuda({"HL_CUDA_ARCHS": "all"}, 2)
    assert "nvcc made 1 of 2 fatbins" in capfd.readouterr().err
    build.content_digest.cache_clear()
    assert again == unit, "the same request"
    assert not build.is_current(toolchain.object_of(unit)), "of other kernels"
    assert build.make_cuda({"HL_CUDA_ARCHS": "90"}, 2) != unit


@pytest.mark.parametrize(("release", "mode"), [("12.8", "speed"), ("13.0", "size")])
def test_fatbins_that_the_oldest_driver_reads(build, tmp_path, monkeypatch, release, mode) -> None:
    """Driver 525 loads what CUDA 12's nvcc makes, but no zstd (from 550 on)."""
    make_cuda_tree(build, tmp_path, monkeypatch, release)
    unit = build.make_cuda({}, 1)
    assert f"--compress-mode={mode} ".encode() in (build.ROOT / unit.inputs[0]).read_bytes()


def test_kernels_that_do_not_compile(build, tmp_path, monkeypatch, capfd) -> None:
    make_cuda_tree(build, tmp_path, monkeypatch)
    edit(build.ROOT / "kernels/cuda/two.cu", "broken\n")
    assert build.make_cuda({}, 1) is None
    assert "kernels/cuda/two.cu: failed" in capfd.readouterr().err
    with pytest.raises(build.CompileError, match=r"two\.cu: failed"):
        build.make_cuda({"HL_CUDA": "1"}, 1)


def test_an_old_nvcc(build, tmp_path, monkeypatch, capfd) -> None:
    make_cuda_tree(build, tmp_path, monkeypatch, release="12.4")
    assert build.make_cuda({}, 1) is None
    assert "must be of CUDA 12.8 or newer, got 'release 12.4': CPU-only" in capfd.readouterr().err


def test_architectures(build, monkeypatch) -> None:
    known = {50, 75, 80, 90, 120}
    monkeypatch.setattr(build, "find_archs", lambda: set())
    assert build.choose_archs("", known) == [75]
    assert build.choose_archs("90;75", known) == [75, 90]
    monkeypatch.setattr(build, "find_archs", lambda: {90, 61})
    assert build.choose_archs("", known) == [90]
    assert build.choose_archs("all", known) == [75, 80, 90, 120]
    for wrong in ("sm_90", "50", "95"):
        with pytest.raises(build.SetupError, match="HL_CUDA_ARCHS: must be all or numbers"):
            build.choose_archs(wrong, known)


def test_turbojpeg_inside(build) -> None:
    table = "csrc/data/turbojpeg.c"
    (build.ROOT / "csrc/data").mkdir()
    (build.ROOT / table).write_text(
        "#ifdef HL_TURBOJPEG_STATIC\n"
        "const char *hl_version(void);\n"
        "int tjInit(void);\n"
        'const char *hl_version(void) { return tjInit() ? HL_TURBOJPEG_STATIC : ""; }\n'
        "#endif\n"
    )
    source = build.ROOT / "tj.c"
    source.write_text(
        'int tjInit(void);\nconst char words[] = "libjpeg-turbo version 3.1.2 (build 1)";\n'
        "int tjInit(void) { return words[0]; }\n"
    )
    archive = build.ROOT / "libturbojpeg.a"
    subprocess.run(["gcc", "-fPIC", "-c", source, "-o", build.ROOT / "tj.o"], check=True)
    subprocess.run(["ar", "rcs", archive, build.ROOT / "tj.o"], check=True)

    assert build.find_turbojpeg({}) is None
    found = build.find_turbojpeg({"HL_TURBOJPEG": str(archive)})
    assert found == (archive, "3.1.2")
    toolchain = build.Toolchain({})
    units = build.with_turbojpeg(build.core_units(toolchain.machine), "3.1.2")
    library = build.ROOT / toolchain.link(toolchain.compile_stale(units, 2), (archive,))
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True
    )
    assert "tjInit" not in symbols.stdout, "its symbols must not meet those of another copy"
    assert b"3.1.2" in library.read_bytes()
    for wrong in [build.ROOT / "none.a", source.with_suffix(".o")]:
        if wrong.suffix == ".o":
            wrong.write_bytes(b"another archive")
        with pytest.raises(build.SetupError, match="HL_TURBOJPEG: must be"):
            build.find_turbojpeg({"HL_TURBOJPEG": str(wrong)})
