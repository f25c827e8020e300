"""The layout of the package, read from the source: one total order of folders in which imports go
to earlier names only, and one importer for a heavy library."""

import ast
import functools
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

import mrlm
from places import ROOT as PROJECT
from places import TESTS

ROOT = Path(mrlm.__file__).parent

ORDER = (
    "core",
    "config",
    "data",
    "sandbox",
    "play",
    "learn",
    "algorithms",
    "environments",
    "workflows",
    "selfplay",
    "record",
    "doctor",
    "rules",
    "tracking",
    "distributed",
    "serving",
    "app",
    "planning",
    "engines",
    "trackers",
    "training",
    "generate",
    "train",
    "build",
    "teams",
    "runs",
    "experiment",
    "replays",
    "trainer",
    "trl",
    "comlrl",
    "viewer",
    "cli",
    "__main__",
)
"""Folders and root modules. An import goes to an earlier name, also inside functions and for type
checkers."""

STRANGERS = {"play", "learn"}
"""The two halves: what plays episodes and what learns from them. They do not import each other."""

PLUG_INS = {
    "algorithms": {"core", "config", "learn"},
    "environments": {"core", "data", "sandbox", "play"},
    "workflows": {"core", "data", "play"},
    "engines": {"core", "data", "play", "learn", "serving"},
    "trackers": {"core", "tracking"},
    "rules": {"core", "doctor"},
}
"""Folder of plug-ins -> what it may import. Only the registry loads them; only siblings import each
other."""

FACE = "__init__.py"
"""It makes names when they are first used, and may import from everywhere but plug-ins."""

TORCH_FREE = (
    "core",
    "config",
    "data",
    "play",
    "sandbox",
    "environments",
    "workflows",
    "serving",
    "planning",
)
BRINGS_TORCH = {"torch", "transformers", "peft", "accelerate", "safetensors.torch"}

ONE_FILE_OF = {
    "datasets": "data",
    "peft": "learn",
    "bitsandbytes": "learn",
    "vllm": "engines",
    "openai": "engines",
    "tensorboardX": "trackers",
    "wandb": "trackers",
    "trackio": "trackers",
    "mlflow": "trackers",
    "math_verify": "environments",
    "bm25s": "environments",
    "rouge_score": "environments",
    "sacrebleu": "environments",
    "mcp": "environments",
    "pyseccomp": "sandbox",
    "reasoning_gym": "environments",
    "textarena": "environments",
    "gymnasium": "environments",
    "pettingzoo": "environments",
    "verifiers": "environments",
    "openenv": "environments",
}
"""Heavy library -> the room whose one file may import it."""

ONLY_IN = {
    "typer": {"cli"},
    "rich": {"cli", "tracking"},
    "pyarrow": {"data", "record"},
    "ray": {"distributed"},
    "grpc": {"serving"},
    "grpc_health": {"serving"},
    "prometheus_client": {"serving"},
}
"""Library -> the rooms that may import it, in any of their files."""


parse = functools.cache(ast.parse)
"""Several tests read the whole package."""


@dataclass(frozen=True)
class Import:
    file: str  # relative to the package
    line: int
    target: str
    at_start: bool  # runs when the module is imported
    for_types: bool

    @property
    def room(self) -> str:
        return Path(self.file).parts[0].removesuffix(".py")

    @property
    def other(self) -> str | None:
        """The room of this package that is imported; `""` is the face."""
        parts = self.target.split(".")
        return None if parts[0] != "mrlm" else parts[1] if len(parts) > 1 else ""

    def __str__(self) -> str:
        return f"src/mrlm/{self.file}:{self.line} imports {self.target}"


class Reader(ast.NodeVisitor):
    """Collects every import of a file, and remembers where it stands."""

    def __init__(self, file: str) -> None:
        self.file, self.at_start, self.for_types = file, True, False
        self.found: list[Import] = []

    def add(self, node: ast.stmt, target: str) -> None:
        self.found.append(Import(self.file, node.lineno, target, self.at_start, self.for_types))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.add(node, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level:
            module = "." * node.level + module
        for alias in node.names:
            whole = f"{module}.{alias.name}"
            path = ROOT.joinpath(*whole.split(".")[1:])
            is_module = module.startswith("mrlm") and (
                path.is_dir() or path.with_suffix(".py").exists()
            )
            self.add(node, whole if is_module or whole == "safetensors.torch" else module)

    def visit_If(self, node: ast.If) -> None:
        before = self.for_types
        self.for_types = before or ast.unparse(node.test).endswith("TYPE_CHECKING")
        for child in node.body:
            self.visit(child)
        self.for_types = before
        for child in node.orelse:
            self.visit(child)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        before, self.at_start = self.at_start, False
        self.generic_visit(node)
        self.at_start = before

    visit_AsyncFunctionDef = visit_FunctionDef


@functools.cache
def read(source: str, file: str) -> list[Import]:
    reader = Reader(file)
    reader.visit(parse(source))
    return reader.found


def all_imports() -> list[Import]:
    files = sorted(ROOT.rglob("*.py"))
    assert len(files) > 20
    return [
        found
        for path in files
        for found in read(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix())
    ]


def broken(imports: list[Import]) -> list[str]:
    """Sentences about the imports that break rules 1 to 3."""
    complaints = []
    for one in imports:
        if reason := wrong_direction(one):
            complaints.append(f"{one}: {reason}")
        torch = one.target in BRINGS_TORCH or one.target.split(".")[0] in BRINGS_TORCH
        if torch and one.at_start and not one.for_types and one.room in TORCH_FREE:
            complaints.append(
                f"{one}: {one.room} must start without torch; import it in a function"
            )
    return complaints


def wrong_direction(one: Import) -> str | None:
    if one.target.startswith("."):
        return "write absolute imports"
    if one.other is None or one.other == one.room:
        return None
    if one.other == "":
        return None if one.room == "cli" else "the face is for users; import from the room itself"
    if one.other in PLUG_INS:
        return "plug-ins are loaded by name through core/registry.py"
    if one.file == FACE:
        return None
    unknown = {one.other, one.room} - set(ORDER)
    if unknown:
        return f"put {min(unknown)!r} into ORDER of tests/contracts/test_layout.py"
    if ORDER.index(one.other) > ORDER.index(one.room):
        return f"{one.other} comes after {one.room} in the order of folders"
    if {one.other, one.room} <= STRANGERS:
        return f"{one.room} and {one.other} do not know each other"
    if one.other not in PLUG_INS.get(one.room, {one.other}):
        return f"{one.room} may import {', '.join(sorted(PLUG_INS[one.room]))} only"
    return None


def crowded(imports: list[Import]) -> list[str]:
    """Sentences about the imports that break rule 4: one heavy library, one importer."""
    importers: dict[str, dict[str, Import]] = defaultdict(dict)
    for one in imports:
        importers[one.target.split(".")[0]].setdefault(one.file, one)
    complaints = []
    for library, files in importers.items():
        rooms = {ONE_FILE_OF[library]} if library in ONE_FILE_OF else ONLY_IN.get(library)
        if rooms is not None:
            complaints += [
                f"{one}: only {', '.join(sorted(rooms))} may"
                for one in files.values()
                if one.room not in rooms
            ]
        if library in ONE_FILE_OF and len(files) > 1:
            complaints.append(f"{library} has more than one importer: {', '.join(sorted(files))}")
    return complaints


def test_imports_go_down_only_and_plug_ins_are_loaded_by_name() -> None:
    assert broken(all_imports()) == []


def test_a_heavy_library_has_one_importer() -> None:
    assert crowded(all_imports()) == []


def test_every_folder_and_root_module_has_its_place() -> None:
    found = {path.stem for path in ROOT.glob("*.py")} | {
        path.parent.name for path in ROOT.glob("*/__init__.py")
    }
    assert found - {"__init__"} == set(ORDER)


def test_the_root_holds_few_files() -> None:
    files = [path.name for path in ROOT.iterdir() if path.is_file() and path.suffix != ".pyc"]
    assert len(files) <= 10, files


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("core/types.py", "from mrlm.config import words"),
        ("play/agent.py", "import mrlm.learn.data.batch"),
        ("learn/data/batch.py", "def f():\n    from mrlm.play import agent"),
        ("learn/data/batch.py", "from mrlm import train"),
        ("train.py", "if TYPE_CHECKING:\n    from mrlm.trainer import Trainer"),
        ("build/run.py", "from mrlm.algorithms.ppo import PPO"),
        ("cli/__init__.py", "from mrlm.environments.math import world"),
        ("environments/math/environment.py", "from mrlm.workflows.turns import Turns"),
        ("environments/programs/code.py", "from mrlm.learn import ops"),
        ("workflows/turns.py", "from mrlm.train import Run"),
        ("trackers/wandb.py", "from mrlm.train import Run"),
        ("algorithms/grpo.py", "from mrlm import Trainer"),
        ("algorithms/grpo.py", "def f():\n    from mrlm.trainer import Trainer"),
        ("algorithms/grpo.py", "from mrlm.play.agent import Agent"),
        ("__init__.py", "from mrlm.algorithms.ppo import PPOTrainer"),
        ("play/agent.py", "from .engine import Engine"),
        ("play/agent.py", "import torch.nn as nn"),
        (
            "core/chat.py",
            "try:\n    from transformers import AutoTokenizer\nexcept ImportError: ...",
        ),
        ("core/tiny_model.py", "class A:\n    from safetensors.torch import save_file"),
    ],
)
def test_the_law_sees(file: str, source: str) -> None:
    assert len(broken(read(source, file))) == 1


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("algorithms/magrpo.py", "from mrlm.algorithms.grpo import GRPO"),
        ("engines/hf.py", "import torch\nfrom mrlm.learn.policy.policy import Policy"),
        ("config/aliases.py", "from mrlm.core.errors import ConfigError"),
        ("__init__.py", "def f():\n    from mrlm.trainer import Trainer"),
        ("data/tasks.py", "def f():\n    import torch"),
        ("cli/__init__.py", "from mrlm import trainer"),
    ],
)
def test_the_law_allows(file: str, source: str) -> None:
    assert broken(read(source, file)) == []


def test_a_second_importer_is_seen() -> None:
    found = read("import wandb", "trackers/wandb.py")
    assert crowded(found) == []
    assert len(crowded(found + read("import wandb.sdk", "trackers/other.py"))) == 1
    assert len(crowded(read("def f():\n    import ray", "train.py"))) == 1


def test_worlds_start_without_torch() -> None:
    code = f"""
import importlib.util, pkgutil, sys
import mrlm
heavy = {{"torch", "transformers", "peft", "datasets", "sympy", "math_verify"}}
assert not heavy & set(sys.modules), f"import mrlm brought {{heavy & set(sys.modules)}}"
for room in {TORCH_FREE!r}:
    if importlib.util.find_spec(f"mrlm.{{room}}") is None:
        continue
    package = importlib.import_module(f"mrlm.{{room}}")
    for module in pkgutil.walk_packages(getattr(package, "__path__", []), f"mrlm.{{room}}."):
        importlib.import_module(module.name)
        assert not heavy & set(sys.modules), f"{{module.name}} brought {{heavy & set(sys.modules)}}"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def module_imports() -> dict[str, set[str]]:
    """Module -> modules of the package that it imports, also for type checkers; without the lazy
    faces, which make names when they are first used."""
    modules = {
        "mrlm." + path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."): path
        for path in ROOT.rglob("*.py")
    }
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    found: dict[str, set[str]] = {}
    for name, path in modules.items():
        source = path.read_text(encoding="utf-8")
        targets = {one.target for one in read(source, path.relative_to(ROOT).as_posix())}
        found[name] = (targets & modules.keys()) - {name, "mrlm", "mrlm.core", "mrlm.config"}
    return found


def circles(imports: dict[str, set[str]]) -> list[list[str]]:
    """Modules that can reach themselves, circle by circle."""
    reached: dict[str, set[str]] = {}
    for start in imports:
        seen: set[str] = set()
        waiting = list(imports[start])
        while waiting:
            module = waiting.pop()
            if module not in seen:
                seen.add(module)
                waiting += imports.get(module, ())
        reached[start] = seen
    inside = {name for name, seen in reached.items() if name in seen}
    together = {
        frozenset(other for other in inside & reached[name] if name in reached[other])
        for name in inside
    }
    return sorted(map(sorted, together))


def test_no_modules_import_each_other() -> None:
    assert circles(module_imports()) == []


def test_a_circle_is_seen() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_a_class_name_means_one_thing_and_has_few_levels() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    bases: dict[str, list[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and "mrlm_pb2" not in path.name:
                places[node.name].append(path.relative_to(ROOT).as_posix())
                texts = [ast.unparse(base).split("[")[0] for base in node.bases]
                bases[node.name] = [text.rpartition(".")[2] for text in texts]
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
    deep = {name: levels(bases, name) for name in bases}
    assert [name for name, number in deep.items() if number > 4] == []
    assert len([name for name, number in deep.items() if number == 4]) <= 20


def levels(bases: dict[str, list[str]], name: str) -> int:
    """Classes of our own in the longest line from a class to a base without one, both counted."""
    return 1 + max((levels(bases, base) for base in bases[name] if base in bases), default=0)


def test_levels_are_counted_along_the_longest_line() -> None:
    bases = {"A": ["Exception"], "B": ["A"], "Part": [], "C": ["Part", "B"]}
    assert [levels(bases, name) for name in bases] == [1, 2, 1, 3]


def private(source: str) -> set[str]:
    """Names with one underscore in front that a module takes from another module of the package."""
    modules: set[str] = set()
    found: set[str] = set()
    tree = parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mrlm"):
            modules |= {each.asname or each.name for each in node.names if each.name.islower()}
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") in modules:
            found.add(node.attr)
    return {name for name in found if re.match("_(?!_)", name)}


def test_a_private_name_stays_in_its_module() -> None:
    assert private("from mrlm.core import _x, chat as c\nc._y, c.z, c.__doc__") == {"_x", "_y"}
    found = {
        path.relative_to(ROOT).as_posix(): names
        for path in sorted(ROOT.rglob("*.py"))
        if (names := private(path.read_text(encoding="utf-8")))
    }
    assert found == {}


def test_a_module_that_a_docstring_names_exists() -> None:
    folders = ("src", "examples", "benchmarks", "tests")
    known = {path.name for each in folders for path in (PROJECT / each).rglob("*.py")}
    named = {
        (str(path.relative_to(ROOT)), name)
        for path in sorted(ROOT.rglob("*.py"))
        for name in re.findall(r"`([a-z_]+\.py)`", path.read_text(encoding="utf-8"))
    }
    assert named
    assert not {each for each in named if each[1] not in known}


LINES, FUNCTION, METHODS = 400, 60, 20
"""The most lines of a file, of a function, and the most methods of a class."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def too_large(source: str, file: str) -> dict[str, int]:
    """Files, functions and classes beyond the limits, with their sizes."""
    found = {file: size} if (size := len(source.splitlines())) > LINES else {}
    for node in ast.walk(parse(source)):
        if isinstance(node, Function):
            size, limit = (node.end_lineno or 0) - node.lineno + 1, FUNCTION
        elif isinstance(node, ast.ClassDef):
            size, limit = sum(isinstance(each, Function) for each in node.body), METHODS
        else:
            continue
        if size > limit:
            found[f"{file} {node.name}"] = size
    return found


def test_files_functions_and_classes_are_small() -> None:
    found: dict[str, int] = {}
    for path in sorted(ROOT.rglob("*.py")):
        if "mrlm_pb2" not in path.name:  # made by a generator
            file = path.relative_to(ROOT).as_posix()
            found |= too_large(path.read_text(encoding="utf-8"), file)
    assert found == {}, "make two of it"


def test_what_is_too_large_is_seen() -> None:
    body = "\n".join("    pass" for _ in range(FUNCTION))
    assert too_large(f"def f():\n{body}", "a.py") == {"a.py f": FUNCTION + 1}
    methods = "\n".join(f"    async def m{i}(self): ..." for i in range(METHODS + 1))
    assert too_large(f"class A:\n{methods}", "a.py") == {"a.py A": METHODS + 1}
    assert too_large("\n" * (LINES + 1), "a.py") == {"a.py": LINES + 1}
    assert too_large("def f():\n    pass\n" * (LINES // 2), "a.py") == {}


def test_the_loop_knows_no_implementation() -> None:
    source = (ROOT / "train.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 160
    names = {node.id for node in ast.walk(parse(source)) if isinstance(node, ast.Name)}
    assert not names & {"isinstance", "issubclass", "type", "hasattr", "getattr"}
    rooms = {one.other for one in read(source, "train.py")} - {None}
    assert rooms == {"core", "learn", "training"}, "a source answers for itself"


def test_tests_import_no_tests() -> None:
    importing = re.compile(r"^ *(?:import|from) test_", re.MULTILINE)
    assert importing.search("def f():\n    from test_some import one")
    files = [*TESTS.rglob("*.py")]
    assert len(files) > 300
    assert not [file.name for file in files if importing.search(file.read_text())]
