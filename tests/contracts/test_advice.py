"""The advice of a refusal is followed: no refusal leads to another one."""

import re
from typing import Any

import pytest
import yaml

import mrlm
from mrlm.config import parse_config
from mrlm.config.aliases import WORDS
from mrlm.config.errors import InvalidConfig
from mrlm.config.other_libraries import refused_classes, refused_settings
from mrlm.core import registry
from mrlm.trainer import Trainer

REASONS = {row.reason: name for name, row in sorted(refused_settings().items())}
REASONS |= {word.absent.reason: name for name, word in WORDS.items() if word.absent is not None}
REASONS |= {reason: name for name, reason in refused_classes().items()}
VALUES: dict[str, Any] = {
    "data.dataset": [{"prompt": "a", "completion": "b"}],
    "data.split": "train",
    "data.columns": {"prompt": "question"},
    "engine.base_url": "http://127.0.0.1:8000",
    "evaluation.keep_best": True,
    "model.lora": {},
    "training.critic_learning_rate": 1e-5,
    "training.learning_rate": 1e-5,
    "training.num_iterations": 3,
    "training.save_steps": 5,
    "training.schedule.turns": [["a"], ["b"]],
    "distributed.fsdp.sharding": "full",
}
"""Setting that an advice names -> a value, where its default is none."""
THEIRS = re.compile(r"In verl .*?; in MRLM")
"""Names of another library in a reason."""
PATH = re.compile(r"(?<![\w./])([a-z]+(?:\.[a-z_]+)+)(?:=(\[?[\w.]+\]?))?")
WORD = re.compile(r"(?<![\w.])([a-z][a-z_]*)=")
NAME = re.compile(r"\b(?:[A-Z]\w+Trainer\b|mrlm\.[A-Za-z_]\w+)")
LINE = re.compile(r"[a-z]+: [\[{].*[\]}]")


def default(path: str) -> Any:
    found: Any = parse_config({})
    for part in path.split("."):
        found = getattr(found, part)
    return found


def paths(reason: str) -> dict[str, Any]:
    """The settings that an advice names, each with a value."""
    text, found = THEIRS.sub("", reason), {}
    for path, value in PATH.findall(text):
        if path.split(".")[0] not in type(parse_config({})).model_fields:
            continue  # a file, or another library
        known = VALUES[path] if path in VALUES else default(path)
        found[path] = yaml.safe_load(value) if value else known
    return found


@pytest.mark.parametrize("reason", REASONS, ids=REASONS.values())
def test_the_advice_of_a_refusal_is_accepted(reason):
    given = paths(reason)
    parse_config({}, given)
    text = THEIRS.sub("", reason)
    for path in given:
        text = text.replace(path, "")
    for name in NAME.findall(text):
        assert hasattr(mrlm, name.removeprefix("mrlm.")), name
    known = Trainer.__init__.__annotations__.keys() | WORDS.keys()
    algorithms = [
        registry.load("algorithms", each) for each in ("grpo", "dpo", "ippo", "magrpo", "sft")
    ]
    for word in set(WORD.findall(text)) - {"tools", "resume_from_checkpoint"}:
        own = any(word in each.__dataclass_fields__ for each in algorithms)
        assert word in known or own, word
        assert word not in refused_settings() or word in WORDS, word


@pytest.mark.parametrize("reason", [r for r in REASONS if LINE.search(r)], ids=REASONS.get)
def test_lines_of_yaml_in_an_advice_are_accepted(reason):
    for line in LINE.findall(reason):
        if "..." in line or line.startswith("lora"):
            continue
        data = yaml.safe_load(line)
        parse_config({"policies": {"left": {}}, **data} if "agents" in data else data)


@pytest.mark.parametrize(
    ("wrong", "advice", "better"),
    [
        ({"eval_strategy": "epoch"}, "eval_strategy='steps' and eval_steps", ("steps", 2)),
        ({"save_strategy": "best"}, "save_strategy='steps' and save_steps", ("steps", 2)),
        ({"logging_strategy": "no"}, "report_to='none'", None),
        ({"eval_strategy": "no", "eval_steps": 1}, "set it to 'steps', or remove", ("steps", 1)),
    ],
)
def test_strategies_of_transformers(wrong, advice, better):
    with pytest.raises(InvalidConfig, match=advice):
        parse_config(wrong)
    name = next(iter(wrong))
    if better is None:
        parse_config({"report_to": "none"})
    else:
        parse_config({name: better[0], name.replace("strategy", "steps"): better[1]})
