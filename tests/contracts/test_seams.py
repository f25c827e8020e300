"""Where parts meet, signatures have types: no `Any` in the interfaces that plug-ins implement and
users call."""

import ast
from collections.abc import Iterator

import pytest

from places import ROOT

SEAMS = {
    "Algorithm": "learn/bases/algorithm.py",
    "Workflow": "play/workflow.py",
    "Environment": "core/environment.py",
    "Engine": "play/engine.py",
    "RemoteEngine": "play/engine.py",
    "Placement": "training/run.py",
    "Tracker": "tracking/run_log.py",
    "RunLog": "tracking/run_log.py",
    "Trainer": "trainer.py",
}
STATES = {"state_dict", "load_state_dict", "state", "back", "history"}
"""What a checkpoint or a log holds: as with `torch.nn.Module.state_dict`, its reader knows it."""


def annotations(owner: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """Public fields, and arguments and results of public methods."""
    for node in owner.body:
        if isinstance(node, ast.AnnAssign):
            yield ast.unparse(node.target), node.annotation
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name in STATES or (node.name.startswith("_") and node.name != "__init__"):
                continue
            given = node.args
            every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
            for each in every:
                if each is not None and each.annotation is not None and each.arg != "state":
                    yield f"{node.name}({each.arg})", each.annotation
            if node.returns is not None:
                yield f"{node.name}()", node.returns


def untyped(owner: ast.ClassDef) -> list[str]:
    """The places of a class whose type is unknown."""
    return [
        place
        for place, annotation in annotations(owner)
        if any(isinstance(part, ast.Name) and part.id == "Any" for part in ast.walk(annotation))
    ]


@pytest.mark.parametrize("name", SEAMS)
def test_an_interface_has_types(name: str) -> None:
    tree = ast.parse((ROOT / "src" / "mrlm" / SEAMS[name]).read_text(encoding="utf-8"))
    (owner,) = (
        node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name
    )
    assert len(list(annotations(owner))) > 1
    assert untyped(owner) == []


def test_an_unknown_type_is_seen() -> None:
    source = """
class Seam:
    model: Any
    def run(self, task: Task, found: list[Any]) -> dict[str, Any]: ...
    def _own(self, found: Any) -> Any: ...
"""
    (owner,) = ast.parse(source).body
    assert isinstance(owner, ast.ClassDef)
    assert untyped(owner) == ["model", "run(found)", "run()"]
