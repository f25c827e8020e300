"""Loading of an `ExperimentConfig` from a file and command line overrides."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mrlm.config import normalize, paths, yaml
from mrlm.config.aliases import PER_DEVICE, UNSET
from mrlm.config.errors import InvalidConfig, Problem, show
from mrlm.config.experiment import ExperimentConfig
from mrlm.config.trust import check, is_trusted
from mrlm.core import registry
from mrlm.core.errors import ConfigError
from mrlm.core.log import log

Overrides = Sequence[str] | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Override:
    """One `key=value` of a command line."""

    path: str
    value: object
    text: str


def load_config(
    path: str | os.PathLike[str], overrides: Overrides = (), *, trust: bool = False
) -> ExperimentConfig:
    """Read a YAML file and apply overrides. Paths of data and models are relative to the file's
    folder (or, if they do not exist there, to the current folder); those of overrides to the
    current folder.

    Args:
        overrides: `training.num_iterations=50`, `environments.0.difficulty_range=[1, 2]`,
            `num_generations=4`; values are YAML. Or a mapping of such keys to values.
        trust: accept a pulled file that names code, commands or addresses.

    Raises:
        ConfigError: the file cannot be read, or it (or an override) is invalid: one line per
            problem, with its dotted key; or it was pulled and needs trust.
    """
    path = Path(path).expanduser()
    data, known = read_settings(path, trust=trust), paths.known_paths(path.parent)
    return parse_config(paths.absolute(data, path.parent, known), overrides, str(path))


def read_settings(path: str | os.PathLike[str], *, trust: bool = False) -> dict[str, Any]:
    """The settings of a YAML file as written, if they may be used (`trust`: of any author). Modules
    in its folder can be imported from now on, if it is trusted. Raises `ConfigError`: the file
    cannot be read, is not a mapping, or needs trust."""
    where = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"{where}: this file does not exist; give the path of a YAML file"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: it is not UTF-8 text (byte {error.start})") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: it cannot be read: {error}") from error
    data = yaml.read(text, where)
    if data is None:
        data = {}
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where}: a config is a mapping of keys to values, not {show(data)}")
    if not trust:
        check(data, where, Path(path), "add --trust (in Python: trust=True)")
    if trust or is_trusted(Path(path)):
        registry.search(Path(path).parent)
    return dict(data)


def parse_config(
    data: Mapping[str, Any], overrides: Overrides = (), where: str = ""
) -> ExperimentConfig:
    """Like `load_config`, for data already read; `where` is its name in messages."""
    listed = [overrides] if isinstance(overrides, str) else overrides
    parsed = list(map(_parsed, listed.items() if isinstance(listed, Mapping) else listed))
    applied: dict[str, Override] = {}
    try:
        name = normalize.algorithm_name(data)
        for override in parsed:
            names_it = override.path in ("training.algorithm", "algorithm")
            if names_it and isinstance(override.value, str):
                name = override.value
        tree = normalize.normalise(data, algorithm=name)
        for override in parsed:
            applied[_apply(tree, override, name)] = override
        config = ExperimentConfig(**tree)
        if config.stages:
            _check_stages(config, tree, applied)
        return config
    except InvalidConfig as error:
        problems = [_placed(problem, applied) for problem in error.problems]
        raise InvalidConfig(problems, where) from None
    except RecursionError:
        raise ConfigError(f"{where}: it is nested too deeply") from None


def _parsed(item: str | tuple[str, object]) -> Override:
    if isinstance(item, tuple):
        return Override(item[0], _placed_here(item[0], item[1]), f"{item[0]}={show(item[1])}")
    path, equals, text = item.partition("=")
    path = path.strip().lstrip("-")
    if not equals or not path or "" in path.split("."):
        raise ConfigError(f"override {show(item)}: write it as key=value, such as training.seed=1")
    return Override(path, _placed_here(path, yaml.read(text, f"override {show(item)}")), item)


def _placed_here(path: str, value: object) -> object:
    """The value of an override, whose paths are relative to the current folder."""
    keys = [key for key in path.split(".") if not key.isdecimal()]
    return paths.absolute({keys[-1]: value}, Path())[keys[-1]] if keys else value


def _apply(tree: dict[str, Any], override: Override, algorithm: str) -> str:
    """Write one override into the canonical config; returns the path it was written to."""
    section = normalize.section_key(algorithm)
    parts: list[str] = override.path.split(".")
    if parts[0] == "eval_envs":
        parts[0] = "environments"
    if parts == ["algorithm"] and isinstance(override.value, str):
        parts = ["training", "algorithm"]
    elif parts[0] == "algorithm":
        parts[0] = section
    value = override.value
    head = parts[0] if len(parts) == 2 else ""
    if len(parts) == 1 or head in ("training", section):
        fields = normalize.known_fields(algorithm) or {}
        word = normalize.word_at(head, parts[-1], algorithm, fields)
        if word is not None and word.path != PER_DEVICE:
            value = word.value(value)
            if value is UNSET:
                return override.path
            parts = word.path.split(".")
            if parts[0] == "algorithm":
                parts[0] = section
        elif word is not None:
            tree.get("training", {}).pop("batch_size", None)
            parts = [*PER_DEVICE.split(".")]
    _set(tree, parts, value, override)
    return ".".join(parts)


def _set(tree: dict[str, Any], parts: list[str], value: object, override: Override) -> None:
    """Set a value at a path; missing mappings on the way are created, list items are not."""
    node: Any = tree
    for depth, part in enumerate(parts):
        last = depth == len(parts) - 1
        if isinstance(node, list):
            key: Any = _index(node, part, parts[:depth], override)
        elif isinstance(node, dict):
            key = part
            if not last and node.get(part) is None:
                node[part] = {}
        else:
            above = ".".join(parts[:depth])
            text = f"{above} is {show(node)}, so it has no {part!r}"
            raise ConfigError(f"override {show(override.text)}: {text}")
        if last:
            node[key] = value
        else:
            node = node[key]


def _index(items: list[object], part: str, above: list[str], override: Override) -> int:
    count = len(items)
    if not part.isdecimal() or len(part) > 9 or int(part) >= count:
        indices = [str(index) for index in range(count)]
        hint = f" (known: {', '.join(indices)})" if indices else ""
        text = f"{'.'.join(above)} is a list of {count}, so {part!r} is not an index of it{hint}"
        raise ConfigError(f"override {show(override.text)}: {text}")
    return int(part)


# -- overrides and stages --------------------------------------------------------------------------


def _check_stages(
    config: ExperimentConfig, tree: Mapping[str, Any], applied: Mapping[str, Override]
) -> None:
    """Report overrides that a stage's own settings override in turn."""
    problems: list[Problem] = []
    for written, override in applied.items():
        path = "training.batch_size" if written == PER_DEVICE else written
        if path.split(".")[0] in ("stages", "experiment_name", "output_dir"):
            continue
        shared = normalize.NestedSettings(dict(tree)).get(path)
        differing, reached = _own_settings(config, path, shared)
        names = ", ".join(f"{config.stages[i].name} ({show(value)})" for i, value in differing)
        value = override.text.partition("=")[2]
        instead = " ".join(f"stages.{index}.{path}={value}" for index, _ in differing)
        text = f"stages have settings of their own, which take precedence: {names}; write {instead}"
        if reached and differing:
            log.warning("override %s: %s", show(override.text), text)
        elif not reached:
            unread = "no stage uses this section, so it changes nothing"
            why = text if differing else f"{unread}; write stages.<number>.<key>"
            problems.append(Problem(path, why))
    if problems:
        raise InvalidConfig(problems)


def _own_settings(
    config: ExperimentConfig, path: str, value: object
) -> tuple[list[tuple[int, object]], bool]:
    """(number, value) of the stages that set a path to another value, and whether any stage uses
    the value outside the stages."""
    base = {key: setting for key, setting in config.given().items() if key != "stages"}
    first = path.split(".")[0]
    differing: list[tuple[int, object]] = []
    reached = False
    stages = zip(config.stages, config.stage_configs(), strict=True)
    for index, (stage, (_, run)) in enumerate(stages):
        section = normalize.section_key(run.training.algorithm)
        if first not in normalize.SECTIONS and first != section:
            continue
        changes = normalize.normalise(stage.changes, base=base)
        pairs = _pairs(changes, path.split("."), value)
        stage_value = next((theirs for theirs, ours in pairs if theirs != ours), UNSET)
        if stage_value is UNSET:
            reached = True
        else:
            differing.append((index, stage_value))
    return differing, reached


def _pairs(changes: object, parts: Sequence[str], value: object) -> Iterator[tuple[object, object]]:
    """Pairs of a stage's own value at a path (or at a prefix of it) and the overriding value."""
    for depth, part in enumerate(parts):
        if not isinstance(changes, Mapping):
            yield changes, None if depth else value
            return
        if part not in changes:
            return
        changes = changes[part]
    if isinstance(changes, Mapping) and isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _pairs(changes, [str(key)], inner)
    else:
        yield changes, value


def _placed(problem: Problem, applied: Mapping[str, Override]) -> Problem:
    """A problem, extended by the override that caused it."""
    for path, override in applied.items():
        if problem.key == path or problem.key.startswith(f"{path}."):
            text = f"{problem.text} (from the override {show(override.text)})"
            return Problem(problem.key, text)
    return problem
