"""The config that a run records: that of its live objects too, by the names under which another
process can import or read them. An object without such a name is recorded as one of the program."""

import ast
import inspect
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mrlm.build.policies import LiveObjects, PlayPlan, origin_of
from mrlm.build.quantization import section_of
from mrlm.build.team_config import workflow_section
from mrlm.config import EnvironmentConfig, ExperimentConfig, normalize
from mrlm.config.comparison import plain
from mrlm.config.paths import DATA, PROGRAM
from mrlm.core import registry
from mrlm.core.environment import Environment, SimulatedEnvironment, SingleAgentEnvironment
from mrlm.core.errors import ConfigError, DataError
from mrlm.core.tiny_model import portable_name
from mrlm.data.sources import find
from mrlm.learn.checkpoint import writing

ROWS = "rows"
"""Folder of a run for rows that a program passed as objects."""


def recorded_config(plan: PlayPlan, folder: Path) -> ExperimentConfig:
    """The config with sections for the live objects of a run. Rows are written to files below
    `folder`. Raises `OSError`: they cannot be written."""
    config, parts, record = plan.config, plan.parts, _Record(folder)
    changes: dict[str, Any] = {}
    names = [spec.name for spec in plan.environments]
    set_values = config.given()
    if live := parts.environments:
        pairs = zip(live, names, strict=False)
        changes["environments"] = [record.environment(*pair) for pair in pairs]
    if live := parts.eval_environments:
        watched = set_values.get("evaluation", {}).get("environments", [])
        pairs = zip(live, names[-len(live) :], strict=True)
        entries = [record.environment(*pair) for pair in pairs]
        changes["evaluation"] = {"environments": [*watched, *entries]}
    if parts.rows is not None:
        changes["data"] = {"dataset": record.value("dataset", parts.rows)}
    if parts.workflow is not None:
        section = workflow_section(parts.workflow)
        name = record.reference(parts.workflow, section["name"])
        changes["workflow"] = section | {"name": name.split(" ")[0]}
    if parts.external_transition is not None:
        transition = record.value("external_transition", parts.external_transition)
        changes.setdefault("workflow", {})["external_transition"] = transition
    if parts.system_prompt is not None:
        entries = {agent: section.system_prompt for agent, section in config.agents.items()}
        changes["agents"] = {
            agent: {"system_prompt": parts.system_prompt}
            for agent in plan.assignment.policy_of
            if entries.get(agent) is None
        }
    if policies := {name: _model(plan, name) for name in parts.models}:
        changes["policies"] = policies
    if (kind := section_of(plan).quantization) != config.model.quantization:
        changes["model"] = {"quantization": kind}
    recorded, whole = config.model_copy(), normalize.merge(set_values, changes)
    for key in changes:
        setattr(recorded, key, whole[key])
    return recorded


def _model(plan: PlayPlan, name: str) -> dict[str, Any]:
    """The section of a policy whose model was given as an object or a path."""
    live, path, tokenizer, _ = origin_of(plan, name)
    if live is not None:
        path = portable_name(str(getattr(live, "name_or_path", "")))
        path = path or f"{PROGRAM}{type(live).__name__}"
    source = portable_name(str(getattr(tokenizer, "name_or_path", "")))
    return {"model": path} | ({"tokenizer": source} if source and source != path else {})


class _Record:
    """Describes objects of a program."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / ROWS
        self._written: set[str] = set()

    def environment(self, env: Any, name: str) -> dict[str, Any]:
        """The section of an environment, a class or a function that makes one."""
        env = env.env if isinstance(env, SingleAgentEnvironment) else env
        target = env if inspect.isclass(env) or inspect.isfunction(env) else type(env)
        made = isinstance(env, Environment | SimulatedEnvironment)
        arguments = _arguments(env) if made else {}
        reference = _plugin_name(target) or self.reference(target, registry.source_of(target))
        section = {"env_type": reference.split(" ")[0], "name": name}
        values = {key: self.value(key, value) for key, value in arguments.items()}
        try:
            if not made and target is not env:
                raise ConfigError("it is of another kind")
            return plain(EnvironmentConfig(**section, **values).model_dump(exclude_unset=True))
        except (ConfigError, TypeError):  # an argument has the name of a setting
            return {"env_type": f"{PROGRAM}{type(env).__name__}", "name": name}

    def value(self, key: str, value: Any) -> Any:
        if isinstance(value, str | Path):
            return str(value)
        if key in DATA and value is not None:
            return self._rows(key, value)
        if isinstance(value, Mapping):
            return {str(name): self.value("", inner) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.value("", inner) for inner in value]
        if value is None or isinstance(value, bool | int | float):
            return plain(value)
        return self.reference(value, registry.source_of(value))

    def reference(self, target: Any, name: str) -> str:
        """`module:name` of an object that can be imported, else its description."""
        importable = _importable(target)
        if importable is not None:
            return importable
        named = getattr(target, "__qualname__", type(target).__name__)
        file = Path(getattr(sys.modules.get(name.partition(":")[0]), "__file__", None) or "?").name
        return f"{PROGRAM}{named.split('.')[-1].strip('<>')} in {file}"

    def _rows(self, key: str, source: Any) -> str:
        """Writes rows, and returns the path of their file."""
        path = self._folder / f"{key}.jsonl"
        number = 2
        while path.name in self._written:
            path, number = self._folder / f"{key}-{number}.jsonl", number + 1
        self._written.add(path.name)
        try:
            rows = find(source).rows(None, False)
            lines = [json.dumps(row, ensure_ascii=False) for _, row in rows]
        except (DataError, TypeError, ValueError):  # splits by name, or values without a JSON form
            count = f" of {len(source)}" if hasattr(source, "__len__") else ""
            return f"{PROGRAM}{key}{count}"
        with writing(path):
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return os.path.abspath(path)


def _arguments(env: Any) -> dict[str, Any]:
    """The arguments of an environment's constructor that differ from the defaults."""
    made = getattr(env, "constructed_with", None)
    if made is None:
        return {}
    bound = inspect.signature(type(env)).bind(*made.positional, **made.named)
    values: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name]
        if kind.kind is kind.VAR_KEYWORD:
            values |= value
        elif value is not kind.default:
            values[name] = value
    return values


def _plugin_name(target: Any) -> str | None:
    """The name of an environment of the library."""
    package, _, rest = target.__module__.partition("mrlm.environments.")
    name = rest.split(".")[0]
    builtin = not package and name in registry.names("environments")
    return name if builtin and registry.load("environments", name) is target else None


def _importable(target: Any) -> str | None:
    """`module:name` of a class or function, where importing it gives it and does nothing else."""
    target = getattr(target, "function", target)  # that of a workflow
    name, module = getattr(target, "__qualname__", ""), getattr(target, "__module__", None)
    target_found: Any = sys.modules.get(str(module))
    file = getattr(target_found, "__file__", None)
    for part in name.split("."):
        target_found = getattr(target_found, part, None)
    if target_found is not target or not name:
        return None
    if module != "__main__":
        return f"{module}:{name}"
    if file is None or not Path(file).stem.isidentifier() or not _guarded(Path(file)):
        return None
    return f"{Path(file).stem}:{name}"


def _guarded(script: Path) -> bool:
    """Whether a script runs its program only as `__main__`, so that it can be imported."""
    try:
        body = ast.parse(script.read_text(encoding="utf-8")).body
    except (OSError, SyntaxError, ValueError):
        return False
    tests = [ast.unparse(node.test) for node in body if isinstance(node, ast.If)]
    return any("__name__" in node and "__main__" in node for node in tests)


def refuse_program(config: ExperimentConfig, parts: LiveObjects | None = None) -> None:
    """Refuses a recorded config with live objects of a program that are not given again, as
    `parts`. Raises `ConfigError`: names them."""
    parts, set_values = parts or LiveObjects(), config.given()
    live = {
        "environments": bool(parts.environments),
        "workflow": parts.workflow is not None,
        "evaluation": False,
        "data": parts.rows is not None,
    }
    sections = {key: set_values.get(key) for key, again in live.items() if not again}
    policies = set_values.get("policies", {}).items()
    sections["policies"] = {key: section for key, section in policies if key not in parts.models}
    if objects := list(_program(sections)):
        raise ConfigError(
            f"this run had live objects of a program ({', '.join(objects)}); continue it there"
        )


def _program(value: Any, key: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _program(inner, str(name))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _program(inner, key)
    elif isinstance(value, str) and value.startswith(PROGRAM):
        yield f"{key} {value.removeprefix(PROGRAM)}"
