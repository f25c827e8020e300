"""Config classes of trainers (an algorithm's settings and the flat words), and the conversion of
their words to settings and config paths."""

import dataclasses
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import cache
from typing import Any, get_type_hints

from pydantic import ValidationError, model_validator
from pydantic.dataclasses import dataclass
from pydantic_core import ArgsKwargs

from mrlm.config.aliases import REFERENCE_KL, UNSET, WORDS, FlatWords, Word
from mrlm.config.compatible import as_here, compatible_faces, counted, of_sequences
from mrlm.config.errors import InvalidConfig, Problem, did_you_mean, problems_of, show, unknown_key
from mrlm.config.other_libraries import refused_settings, refused_text
from mrlm.config.sections import TrainingConfig
from mrlm.core import registry
from mrlm.core.errors import ConfigError
from mrlm.core.faces import faces

LOADING = (
    *("dtype", "torch_dtype", "attn_implementation", "trust_remote_code", "quantization_config"),
    *("load_in_4bit", "load_in_8bit"),
)
"""Words inside `model_init_kwargs`."""
STRATEGIES = {f"{what}_strategy": f"{what}_steps" for what in ("eval", "save", "logging")}
"""Words of transformers that say whether others count."""


@cache
def config_class(name: str, library: str = "") -> type[Any]:
    """The class `XConfig` of a public name (`mrlm.core.faces`), made once; with the defaults of
    another library (`mrlm.config.compatible`), if one is named."""
    face = (compatible_faces(library) if library else faces())[name]
    algorithm = registry.load("algorithms", face.algorithm)
    hints = get_type_hints(algorithm, include_extras=True) if face.defaults else {}
    hints = {key: word.kind | None for key, word in WORDS.items()} | hints
    body = {
        "__doc__": f"Settings of `{name.removesuffix('Config')}Trainer`: those of "
        f"`{algorithm.__name__}`, and the flat words of other trainers.",
        "__module__": f"mrlm.{library}" if library else algorithm.__module__,
        "__qualname__": name,
        "__annotations__": {key: hints[key] for key in face.defaults},
        "face_of": face,
        "_in_one_message": model_validator(mode="wrap")(
            classmethod(_in_one_message)  # pyright: ignore[reportArgumentType]
        ),
        "__setattr__": _assign,
        **face.defaults,
    }
    return dataclass(kw_only=True, config=algorithm.__pydantic_config__)(
        type(name, (FlatWords, algorithm), body)
    )


def without_neutral(
    arguments: Mapping[str, object], own_fields: set[str], title: str
) -> tuple[dict[str, Any], list[Problem]]:
    """Keyword arguments without those of other libraries that have no effect here, and the problem
    of each that has an effect there and no equivalent here; `own_fields` are names of our settings,
    `title` is the name of the class, for the problems."""
    remaining: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, value in arguments.items():
        refused = None if name in own_fields else refused_settings().get(name)
        if refused is None:
            remaining[name] = value
        elif not refused.accepts(value):
            problems.append(Problem(f"{title}.{name}", str(refused_text(name))))
    return remaining, problems


def _assign(settings: Any, name: str, value: object) -> None:
    """Sets an attribute of a config object with the effect of the keyword of its name."""
    kind = type(settings)
    if "_made" not in vars(settings):  # by its own constructor
        return object.__setattr__(settings, name, value)
    words = as_here(kind.face_of, {name: value})
    field_names = {field.name for field in dataclasses.fields(kind)}
    remaining, problems = without_neutral(words, field_names, kind.__name__)
    if not problems and not field_names >= remaining.keys():
        problems = [unknown_key(name, field_names, kind.__name__)]
    if problems:
        raise InvalidConfig(problems)
    vars(settings).update(remaining or dict.fromkeys(field_names & {name}))


def _with_folder(arguments: ArgsKwargs) -> ArgsKwargs:
    """Arguments whose only one without a name, a text or a path, is `output_dir`, as in TRL."""
    match arguments.args:
        case (str() | os.PathLike() as folder,) if "output_dir" not in (arguments.kwargs or {}):
            return ArgsKwargs((), {**(arguments.kwargs or {}), "output_dir": folder})
        case _:
            return arguments


def _in_one_message(cls: type[Any], arguments: Any, make: Callable[[Any], Any]) -> Any:
    """A config object; all its problems are one `ConfigError` with a line each, those of words that
    a trainer would convert too. Settings of other libraries that have no effect here are dropped,
    others refused with the reason."""
    if isinstance(arguments, ArgsKwargs):
        arguments = _with_folder(arguments)
    words = dict(arguments.kwargs or {}) if isinstance(arguments, ArgsKwargs) else {}
    words = as_here(cls.face_of, words)
    field_names = {field.name for field in dataclasses.fields(cls)}
    remaining, problems = without_neutral(words, field_names, cls.__name__)
    if isinstance(arguments, ArgsKwargs):
        arguments = ArgsKwargs(arguments.args, remaining)
    try:
        made = make(arguments)
        split_config(made)
        vars(made)["_made"] = True
    except ValidationError as error:
        problems += problems_of(error, cls, cls.__name__)
        wrong = {str(entry["loc"][0]) for entry in error.errors(include_url=False) if entry["loc"]}
        if wrong & remaining.keys():  # the others have problems of their own
            rest = {name: value for name, value in remaining.items() if name not in wrong}
            problems += _problems(lambda: cls(**rest))
    except InvalidConfig as error:
        problems += error.problems
    except ConfigError as error:
        problems.append(Problem(cls.__name__, str(error)))
    if problems:
        raise InvalidConfig(problems)
    return made


def _problems(make: Callable[[], object]) -> list[Problem]:
    """The problems that a call raises."""
    try:
        make()
    except InvalidConfig as error:
        return error.problems
    return []


def algorithm_fields(algorithm: type[Any]) -> dict[str, Any]:
    """The settings of an algorithm (or config) class without the flat words: name -> default."""
    defaults: dict[str, Any] = {}
    for base in reversed(algorithm.__mro__):
        if base is FlatWords or not dataclasses.is_dataclass(base):
            continue
        if issubclass(base, FlatWords):
            annotations = inspect.get_annotations(base)
            described = {n: base.__pydantic_fields__[n] for n in annotations if n in defaults}  # type: ignore[attr-defined]
        else:
            described = base.__dict__.get("__pydantic_fields__", {})
        for name, field in described.items():
            defaults[name] = field.get_default(call_default_factory=True)
    return defaults


def changed_fields(settings: Any) -> dict[str, Any]:
    """The settings of an algorithm (or config) object that differ from their defaults, or from the
    values implied by other settings (a preset)."""
    kind = type(settings)
    defaults = algorithm_fields(kind)
    values = {name: getattr(settings, name) for name in defaults}
    changes: dict[str, Any] = {}
    for name, value in values.items():
        others = {key: other for key, other in values.items() if key != name}
        if value != kind.implied(others).get(name, defaults[name]):
            changes[name] = value
    return changes


def flat_words(settings: object) -> dict[str, Any]:
    """The flat words that were given to a config object."""
    if not isinstance(settings, FlatWords):
        return {}
    fields = algorithm_fields(type(settings))
    values = {name: getattr(settings, name) for name in WORDS if name not in fields}
    return {name: value for name, value in values.items() if value is not None}


def split_config(settings: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a config object into the algorithm's settings and all others.

    Args:
        settings: such as `GRPOConfig(num_generations=4, learning_rate=1e-5)`.

    Returns:
        The algorithm's fields that differ from their defaults (`{"group_size": 4}`), and config
        path -> value (`{"training.learning_rate": 1e-5}`).

    Raises:
        ConfigError: one setting with two values, or a word without a setting of the algorithm.
    """
    title = type(settings).__name__
    fields, paths = changed_fields(settings), {}
    source = {f"algorithm.{name}": f"{title}.{name}" for name in fields}
    algorithm_settings = algorithm_fields(type(settings))
    words = flat_words(settings)
    face = type(settings).face_of if isinstance(settings, FlatWords) else None
    if face is not None and face.library:
        fields, words = of_sequences(face, fields, words)
        words = counted(face, words, fields)
        paths = {path: words.pop(path) for path in list(words) if "." in path}
        source |= dict.fromkeys(paths, title)
    problems: list[Problem] = []
    for _, name, raw in folded([(title, *word) for word in words.items()], problems):
        path, value = WORDS[name].path, WORDS[name].value(raw)
        where = f"{title}.{name}"
        try:
            if value is UNSET or not applies(WORDS[name], value, algorithm_settings, where):
                continue
        except InvalidConfig as error:
            problems += error.problems
            continue
        target, key = paths, path
        if path.startswith("algorithm."):
            target, key = fields, path.removeprefix("algorithm.")
        if key in target and target[key] != value:
            problems.append(twice(path, (target[key], source[path]), (value, where)))
        target[key] = value
        source[path] = where
    training = {path.removeprefix("training."): value for path, value in paths.items()}
    training = {key: value for key, value in training.items() if key in TrainingConfig.model_fields}
    for problem in _problems(lambda: TrainingConfig(**training)):
        key = problem.key.replace("TrainingConfig.", "training.", 1)
        problems.append(Problem(source.get(key, key), problem.text))
    if problems:
        raise InvalidConfig(problems)
    return fields, paths


def library_defaults(kind: type[FlatWords] | None) -> dict[str, Any]:
    """Config path -> value, of what a config class of another library sets when nothing is given;
    empty for a class of this one."""
    face = None if kind is None else kind.face_of
    if kind is None or face is None or not face.library:
        return {}
    fields, paths = split_config(kind())
    usual = {f"algorithm.{name}": value for name, value in fields.items()}
    return dict(face.settings) | usual | paths


def setting_of(word: str) -> str:
    """The algorithm's setting of a keyword; the keyword itself if it is not one of them."""
    return WORDS[word].path.removeprefix("algorithm.") if word in WORDS else word


def applies(word: Word, value: object, fields: Mapping[str, object], source: str) -> bool:
    """Whether the run has the setting of a word that was written at `source`, among the settings of
    its algorithm (`fields`); `False` if the converted value is the behaviour of an algorithm
    without it. Raises `ConfigError`: the algorithm does not have the setting; the message contains
    the fix."""
    name = word.path.removeprefix("algorithm.")
    if name == word.path or name in fields:
        return True
    if word.absent is None:
        hint = did_you_mean(name, fields)
        text = f"it means the algorithm's {name!r}, which this algorithm does not have{hint}"
        raise InvalidConfig([Problem(source, text)])
    if not word.absent.accepts(value):
        raise InvalidConfig([Problem(source, word.absent.reason)])
    return False


def folded(
    words: Iterable[tuple[str, str, object]], problems: list[Problem] | None = None
) -> list[tuple[str, str, object]]:
    """Words (place, name, value), with dependent ones combined into one. `problems` gets the
    problems of transformers' strategies, which are else raised. Raises `ConfigError`: one of them
    without the other."""
    of_strategies: list[Problem] = [] if problems is None else problems
    plain_words = _without_strategies(list(_opened(words)), of_strategies)
    if problems is None and of_strategies:
        raise InvalidConfig(of_strategies)
    switches = [value for _, name, value in plain_words if name == "reference_kl_enabled"]
    weights = [section for section, name, _ in plain_words if name == "reference_kl_coef"]
    if weights and not switches:
        text = "it has an effect only with reference_kl_enabled: true; or set kl_coef"
        raise InvalidConfig([Problem(f"{weights[0]}.reference_kl_coef".lstrip("."), text)])
    combined: list[tuple[str, str, object]] = []
    for section, name, value in plain_words:
        if name == "reference_kl_enabled":
            if value and not weights:
                combined.append((section, "reference_kl_coef", REFERENCE_KL))
        elif name != "reference_kl_coef" or switches[0]:
            combined.append((section, name, value))
    return combined


def _opened(words: Iterable[tuple[str, str, object]]) -> Iterator[tuple[str, str, object]]:
    """Words, with those inside TRL's `model_init_kwargs` in its place."""
    for section, name, value in words:
        if name != "model_init_kwargs" or not isinstance(value, Mapping):
            yield section, name, value
            continue
        for key, setting in value.items():
            if key not in LOADING:
                text = f"only {', '.join(LOADING)} are read; load the model with it and pass model="
                raise InvalidConfig([Problem(f"{section}.{name}.{key}".lstrip("."), text)])
            dtype = "dtype" in key and setting is not None
            yield section, key, str(setting).removeprefix("torch.") if dtype else setting


def _without_strategies(
    words: list[tuple[str, str, object]], problems: list[Problem]
) -> list[tuple[str, str, object]]:
    """Words without transformers' strategies, which say whether their steps count; a strategy that
    is not here, or steps that it makes idle, are problems.
    """
    values = {name: value for _, name, value in words}
    remaining = [word for word in words if word[1] not in STRATEGIES]
    for section, name, setting in words:
        steps = STRATEGIES.get(name)
        if steps is None or setting is None:
            continue
        plain = setting.value if isinstance(setting, Enum) else setting  # transformers' own
        value, where = str(plain), f"{section}.{name}".lstrip(".")
        if value not in ("no", "steps") or (value == "no" and name == "logging_strategy"):
            instead = "report_to='none'" if value == "no" else f"{name}='steps' and {steps}"
            problems.append(Problem(where, f"{value!r} is not supported; set {instead}"))
        elif value == "no" and name == "save_strategy":
            remaining = [word for word in remaining if word[1] != steps] + [(section, steps, None)]
        elif value == "no" and values.get(steps) is not None:
            text = f"it is 'no', so {steps} changes nothing; set it to 'steps', or remove {steps}"
            problems.append(Problem(where, text))
        elif name == "eval_strategy" and value == "steps" and values.get(steps) is None:
            remaining.append((section, steps, values.get("logging_steps") or 1))
    return remaining


def twice(path: str, one: tuple[object, str], other: tuple[object, str]) -> Problem:
    """The problem of one setting with two values; each is (value, where it was written)."""
    (a, here), (b, there) = one, other
    text = f"it has two values: {show(a)} ({here}) and {show(b)} ({there}); keep one of them"
    return Problem(path, text)
