"""The house rules as functions from text to faults.

Each rule takes the text of one file (or its path and text) and returns faults, one sentence each
with a line number, so that test_rules.py can hold the tree to them and test_rules_fail.py can
show that each of them fails. What ruff, mypy and the compiler hold already is not repeated here.
"""

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

MAX_COLUMNS = 100
MAX_LINES = 900

# A folder of csrc may include these and itself. python/src and tests stand on top of all.
LAYERS: dict[str, set[str]] = {
    "base": set(),
    "ir": {"base"},
    "ops": {"base", "ir"},
    "backend": {"base", "ir"},
    "data": {"base", "ir"},
    "passes": {"base", "ir", "ops", "backend"},
    "plan": {"base", "ir", "ops", "backend", "passes", "data"},
}
KERNEL_LAYERS = {"base", "ir", "backend"}

OS_HEADERS = re.compile(
    r"(pthread|unistd|sched|fcntl|dlfcn|signal|poll|semaphore|dirent)\.h|(sys|linux|mach)/.*"
)
PRINT_CALLS = re.compile(
    r"\b(printf|fprintf|vprintf|vfprintf|dprintf|puts|fputs|putchar|perror"
    r"|exit|_exit|_Exit|quick_exit|abort)\s*\("
)
STATIC_OBJECT = re.compile(
    r"^(?:static|_Thread_local)\b[\w\s]*\b(Py\w*Object)\s*(\*)?\s*\w+\s*(?:=|;|\[|,)", re.MULTILINE
)
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
# Folders of developers' machines; written so that this file does not hold them.
MACHINE_PATHS = re.compile(r"(?<![\w.}])/(?:work|farm|root|home/\w+|tmp/bash_jobs)\b/?")


_IR = Path(__file__).resolve().parents[2] / "csrc" / "ir"
_OPS = (_IR / "ops.def", _IR / "pointwise.def")


def line_of(text: str, position: int) -> int:
    """The 1-based line of a position."""
    return text.count("\n", 0, position) + 1


def strip_c(text: str, keep_strings: bool = False) -> str:
    """C text with comments (and strings, unless kept) blanked; lines and columns stay."""

    def blank(match: re.Match[str]) -> str:
        token = match.group()
        if token[0] in "\"'" and keep_strings:
            return token
        return re.sub(r"[^\n]", " ", token)

    pattern = r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
    return re.sub(pattern, blank, text, flags=re.DOTALL)


def c_functions(text: str) -> Iterator[tuple[int, str]]:
    """Each function body of a C file (line, text), by this project's layout: braces in column 0."""
    code = strip_c(text)
    for match in re.finditer(r"\)\n\{\n(.*?)^\}", code, flags=re.DOTALL | re.MULTILINE):
        yield line_of(code, match.start(1)), match.group(1)


# ---------------------------------------------------------------------------- C


def check_includes(path: str, text: str) -> list[str]:
    """Arrows point one way; Python.h is known to python/src alone."""
    parts = PurePosixPath(path).parts
    faults = []
    code = strip_c(text, keep_strings=True)
    for match in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', code, re.MULTILINE):
        kind, target = match.groups()
        where = f"line {line_of(code, match.start())}: {target}"
        if kind == "<":
            if target == "Python.h" or target.startswith("numpy/"):
                faults.append(f"{where}: only python/src may include it")
            continue
        first, _, rest = target.partition("/")
        if parts[0] == "csrc":
            layer = parts[1]
            if first == "kernels":
                faults.append(f"{where}: csrc must not include kernels")
            elif rest and first != layer and first not in LAYERS[layer]:
                faults.append(f"{where}: csrc/{layer} may include {sorted(LAYERS[layer])}")
        elif first == "kernels":
            if not rest.startswith((f"{parts[1]}/", "host/")):
                faults.append(f"{where}: kernels/{parts[1]} must not include other kernels")
        elif rest and first not in KERNEL_LAYERS and not (first == "simd" and parts[1] == "cpu"):
            faults.append(f"{where}: kernels may include {sorted(KERNEL_LAYERS)} of csrc")
    return faults


def includes_of(paths: Collection[str], path: str, text: str) -> Iterator[str]:
    """The files among the paths that a C file includes."""
    code = strip_c(text, keep_strings=True)
    folders = ("csrc", "", "kernels/cpu", str(PurePosixPath(path).parent))
    for match in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', code, re.MULTILINE):
        candidates = (str(PurePosixPath(folder) / match.group(1)) for folder in folders)
        found = next((candidate for candidate in candidates if candidate in paths), None)
        if found is not None:
            yield found


def find_way(arrows: dict[str, set[str]], start: str, end: str) -> list[str]:
    """The shortest way along at least one arrow, both ends included; []: none."""
    ways = [[start]]
    seen = set[str]()
    for way in ways:  # grows while it is read
        for module in sorted(arrows.get(way[-1], set()) - seen):
            if module == end:
                return [*way, end]
            seen.add(module)
            ways.append([*way, module])
    return []


def check_circles(texts: dict[str, str]) -> list[str]:
    """No module includes one that includes it: foo.c, foo.cu, foo.h and foo.def are one module."""
    arrows: dict[str, set[str]] = {}
    for path, text in texts.items():
        module = path.rpartition(".")[0]
        targets = {found.rpartition(".")[0] for found in includes_of(texts, path, text)}
        arrows.setdefault(module, set()).update(targets - {module})
    faults = list[str]()
    reported = set[str]()
    for module in sorted(arrows):
        circle = [] if module in reported else find_way(arrows, module, module)
        reported.update(circle)
        if circle:
            faults.append(f"a circle of includes: {' -> '.join(circle)}")
    return faults


# What a pass builds, or looks for because it builds its replacement.
PASS_OPS: dict[str, set[str]] = {
    "amp": {"CAST"},
    "broadcast": {"EXPAND"},
    "epilogue": {
        "RESHAPE", "GELU", "GELU_GRAD", "RELU", "RELU_GRAD", "CAST", "WHERE", "GT", "MOMENTS",
        "BATCH_NORM"
    },
    "feed": {"CAST"},
    "fold": {"MUL", "DIV", "ADD", "SUB"},
    "fuse": {"CAST"},
    "hoist": {"EXPAND"},
    "layout": {"CAST", "PERMUTE", "EXPAND"},
    "guard": {
        "CONTROL_BEGIN", "CONTROL_MICRO", "CONTROL_APPLY", "CONCAT", "ADD", "MUL", "ACCUMULATE",
        "ASSIGN", "EMA", "INDEX_COPY", "INDEX_ASSIGN"
    },
    "pack": {"CAST", "MATMUL", "MATMUL_PACK", "MATMUL_PACKED"},
    "reassociate": {"MATMUL"},
    "recompute": {"CONTROL_MICRO"},
    "relu": {"RELU_GRAD", "CAST", "MUL", "DROPOUT_MASK"},
    "rewrite": {"CAST"},
    "rounded": {"CAST", "ASSIGN"},
    "step": {
        "ADD", "MUL", "DIV", "EQ", "WHERE", "MAXIMUM", "MINIMUM", "WRITE_PARTS", "ASSIGN",
        "ACCUMULATE", "GRADIENT_NORM", "SGD", "ADAM", "RMSPROP", "EMA", "CONTROL_BEGIN",
        "CONTROL_MICRO", "CONTROL_APPLY"
    },
}  # fmt: skip


def find_op_names(code: str) -> Iterator[tuple[int, str, str]]:
    """Where C without comments names an op, itself, as a micro-op or by its attributes: the place,
    the word, and the op's name in capitals."""
    table = "".join(path.read_text(encoding="utf-8") for path in _OPS)
    ops = set(re.findall(r"^HL_(?:OP|PW|PW_CAST|PW_DRAW)\((\w+)", table, re.MULTILINE))
    for match in re.finditer(r"\bHL_(?:OP|PW)_(\w+)|\bhl_(\w+)_attrs\b", code):
        name = match.group(1) or match.group(2).upper()
        if name in ops:
            yield match.start(), match.group(), name


def check_op_names(path: str, text: str) -> list[str]:
    """Ops are facts of the table: plans, backends and data name none, a pass those it builds."""
    parts = PurePosixPath(path)
    if parts.parts[:2] == ("csrc", "passes"):
        allowed = PASS_OPS.get(parts.stem, set())
    elif parts.parts[:2] in {("csrc", "plan"), ("csrc", "backend"), ("csrc", "data")}:
        allowed = set()
    else:
        return []
    code = strip_c(text)
    return [
        f"line {line_of(code, at)}: {word} is named; ask the op table"
        for at, word, name in find_op_names(code)
        if name not in allowed
    ]


def check_no_output(text: str) -> list[str]:
    """The core never prints and never ends the process."""
    code = strip_c(text)
    return [
        f"line {line_of(code, match.start())}: {match.group(1)} in the core"
        for match in PRINT_CALLS.finditer(code)
    ]


def check_os_calls(path: str, text: str) -> list[str]:
    """Operating system headers and pthread only in csrc/base/os_*.c."""
    if re.fullmatch(r"csrc/base/os_\w+\.[ch]", path):
        return []
    code = strip_c(text)
    faults = [
        f"line {line_of(code, match.start())}: <{match.group(1)}> belongs in csrc/base/os_*.c"
        for match in re.finditer(r"#[ \t]*include[ \t]*<([^>]+)>", code)
        if OS_HEADERS.fullmatch(match.group(1))
    ]
    faults += [
        f"line {line_of(code, match.start())}: {match.group()} belongs in csrc/base/os_*.c"
        for match in re.finditer(r"\bpthread_\w+", code)
    ]
    return faults


def check_cleanup(text: str) -> list[str]:
    """Between the first HL_GOTO of a function and its cleanup label nothing returns."""
    faults = []
    for line, body in c_functions(text):
        first = re.search(r"\bHL_GOTO\b|\bgoto\s+cleanup\b", body)
        if first is None:
            continue
        label = re.search(r"^\s*cleanup\s*:", body, re.MULTILINE)
        end = label.start() if label else len(body)
        for match in re.finditer(r"\b(return|HL_TRY)\b", body[first.end() : end]):
            at = line + body.count("\n", 0, first.end() + match.start())
            faults.append(f"line {at}: {match.group()} between HL_GOTO and cleanup:")
        if label is None:
            faults.append(f"line {line}: HL_GOTO without a cleanup label")
        elif len(re.findall(r"\breturn\b", body[label.end() :])) > 1:
            faults.append(f"line {line}: more than one return after cleanup:")
    return faults


def check_no_static_objects(text: str) -> list[str]:
    """Python objects live in module state, types on the heap: neither is a static variable."""
    code = strip_c(text)
    return [
        f"line {line_of(code, match.start())}: static {match.group(1)}: use the module state"
        for match in STATIC_OBJECT.finditer(code)
    ]


# ---------------------------------------------------------------------------- any text


def check_layout(text: str) -> list[str]:
    """Line length, file length, tabs and blanks at the end."""
    lines = text.splitlines()
    faults = [f"{len(lines)} lines, at most {MAX_LINES}"] if len(lines) > MAX_LINES else []
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_COLUMNS:
            faults.append(f"line {number}: {len(line)} columns, at most {MAX_COLUMNS}")
        if line != line.rstrip():
            faults.append(f"line {number}: blanks at the end")
        if "\t" in line:
            faults.append(f"line {number}: tab")
    return faults


def check_finished(text: str) -> list[str]:
    """No work left as a mark in the source."""
    return [
        f"line {line_of(text, match.start())}: {match.group()}"
        for match in UNFINISHED.finditer(text)
    ]


def check_machine_paths(text: str) -> list[str]:
    """No path of a developer's machine."""
    return [
        f"line {line_of(text, match.start())}: path of a machine: {match.group()}"
        for match in MACHINE_PATHS.finditer(text)
    ]


# ---------------------------------------------------------------------------- Python

_BELOW_TRAINING = {"base", "graph", "data", "nn", "stats"}
_BELOW_RUNS = {*_BELOW_TRAINING, "training.config", "training.scoring", "training.plans"}
# A folder or file of python/hotloop may import these and itself, in functions and for types too.
# errors, _core and _version are below all; what is not named here stands on top of all.
PYTHON_LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "_version": set(),
    "base": set(),
    "graph": {"base"},
    "ops": {"graph"},
    "linalg": {"graph"},
    "data": {"base"},
    "nn": {"base", "graph"},
    "interop": {"base"},
    "models": {"graph", "interop", "nn"},
    "stats": {"base", "graph", "nn"},
    "training.config": {"base"},
    "training.scoring": {*_BELOW_TRAINING, "training.config"},
    "training.plans": {*_BELOW_TRAINING, "training.config", "training.scoring"},
    "training.predictor": _BELOW_RUNS,
    "training.inference": {*_BELOW_RUNS, "training.predictor"},
    "training.generation": {*_BELOW_RUNS, "training.predictor"},
    "training.result": {*_BELOW_RUNS, "interop", "training.inference", "training.predictor"},
    "training.checkpoints": {*_BELOW_RUNS, "interop", "training.inference", "training.result"},
    "training.loggers": {*_BELOW_RUNS, "training.checkpoints", "training.result"},
    "training.run": {
        *_BELOW_RUNS,
        "training.checkpoints",
        "training.inference",
        "training.loggers",
        "training.result",
    },
}
PYTHON_BASE = {"errors", "_core", "_version"}
# A module's call on arrays is a prediction, and its device is that of predictions: what points up.
PYTHON_UPWARD = {
    ("python/hotloop/nn/module.py", "hotloop.training.inference"),
    ("python/hotloop/nn/placement.py", "hotloop.training.inference"),
}


def python_imports(text: str, *, types: bool = True) -> Iterator[tuple[int, str]]:
    """The modules of hotloop that a file imports, with the line; `from a import b` is `a.b`.

    Without `types`, those for type checkers alone are left out.
    """

    def walk(node: ast.AST) -> Iterator[tuple[int, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                branch = [*(child.body if types else []), *child.orelse]
                yield from walk(ast.Module(branch, []))
            elif isinstance(child, ast.Import):
                yield from ((child.lineno, alias.name) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                module = "." * child.level + (child.module or "")
                yield from ((child.lineno, f"{module}.{alias.name}") for alias in child.names)
            else:
                yield from walk(child)

    for line, name in walk(ast.parse(text)):
        if name.split(".")[0] in ("hotloop", ""):
            yield line, name


def layer_of(name: str) -> str:
    """The layer of a module, "training.run" of "hotloop.training.run.fit.train"; "": the top."""
    parts = name.split(".")[1:]
    layers = (".".join(parts[:n]) for n in (2, 1))
    return next((one for one in layers if one in PYTHON_LAYERS or one in PYTHON_BASE), "")


def module_of(path: str) -> str:
    """The dotted name of a file below python/."""
    stem = path.removeprefix("python/").removesuffix(".py").removesuffix("/__init__")
    return stem.replace("/", ".")


def check_python_imports(path: str, text: str) -> list[str]:
    """Arrows between the package's folders point one way."""
    own = layer_of(module_of(path))
    if not own:
        return []
    allowed = PYTHON_LAYERS[own] | PYTHON_BASE | {own}
    faults = []
    for line, name in python_imports(text):
        if name.startswith("."):
            faults.append(f"line {line}: {name}: write the module's whole name")
        elif layer_of(name) not in allowed and (path, name.rpartition(".")[0]) not in PYTHON_UPWARD:
            faults.append(f"line {line}: {name}: {own} may import {sorted(PYTHON_LAYERS[own])}")
    return faults


def check_python_circles(texts: dict[str, str]) -> list[str]:
    """No module imports one that imports it, in functions neither; types alone may."""
    known = {module_of(path): path for path in texts}
    arrows: dict[str, set[str]] = {}
    for path, text in texts.items():
        upward = {target for source, target in PYTHON_UPWARD if source == path}
        own = module_of(path)
        found = set[str]()
        for _, name in python_imports(text, types=False):
            module = name if name in known else name.rpartition(".")[0]
            if module in known and module not in upward:
                found.add(module)
        arrows[own] = found - {own}
    ways = (find_way(arrows, module, module) for module in sorted(arrows, reverse=True))
    circles = {frozenset(way): way for way in ways if way}  # each from its first module
    return [f"a circle of imports: {' -> '.join(way)}" for way in circles.values()]


# Overrides whose contract stands once, in the base class.
INHERITED_CONTRACT = {"forward", "extra_repr"}


def check_docstrings(text: str) -> list[str]:
    """Every public function, method and class of a module has a docstring."""
    faults = []

    def is_exempt(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        names = {ast.unparse(decorator).split("(")[0] for decorator in node.decorator_list}
        return any(n.rpartition(".")[2] in {"overload", "setter", "deleter"} for n in names)

    def walk(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.If | ast.Try):
                walk(node.body, prefix)
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if node.name.startswith("_"):
                continue
            is_class = isinstance(node, ast.ClassDef)
            exempt = not is_class and (
                is_exempt(node) or (prefix != "" and node.name in INHERITED_CONTRACT)
            )
            if not exempt and ast.get_docstring(node) is None:
                faults.append(f"line {node.lineno}: {prefix}{node.name} has no docstring")
            if is_class:
                walk(node.body, f"{prefix}{node.name}.")

    walk(ast.parse(text).body, "")
    return faults


# ---------------------------------------------------------------------------- tests

# As repr() ends what has no other name; another process has another number.
ADDRESS = re.compile(r" at 0x[0-9a-f]{4,}")


def check_test_ids(text: str) -> list[str]:
    """One id a line: each is the same in every process, as pytest-xdist and --last-failed ask."""
    return [
        f"{line}: holds an address; give the parameter a name (ids=)"
        for line in text.splitlines()
        if ADDRESS.search(line)
    ]
