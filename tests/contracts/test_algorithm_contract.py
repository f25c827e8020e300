"""The contract of an algorithm: which names a subclass may override, and that whatever runs one
reads no others."""

import ast
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields, is_dataclass
from pathlib import Path
from typing import Any, cast

import pytest

import mrlm
from another_value import flat
from mrlm.core import registry
from mrlm.learn.bases.algorithm import Algorithm
from mrlm.learn.bases.spec import SamplingPlan
from played import play

ROOT = Path(mrlm.__file__).parent
CONTRACT = {
    "spec",
    "implied",
    "check_agents",
    "credit",
    "credit_group",
    "samples",
    "loss",
    "value_loss",
    "state_dict",
    "load_state_dict",
}
"""What a subclass may override. Ten names are enough: what only one paper needs is a part of the
spec, or a step of its own (`learn/bases/steps.py`)."""
FACTS = {"presets", "matters", "default_learning_rate", "face", "also"}
"""What a plug-in says of itself, the same for all settings."""
SETTINGS = {field.name for field in fields(cast(Any, Algorithm))}
RESULTS = {"metrics", "waiting", "learning_rate"}
"""What an algorithm says without being overridden."""
NAMES = registry.names("algorithms")


def public(cls: type) -> set[str]:
    own = vars(cls).keys() | vars(cls).get("__annotations__", {}).keys()
    return {name for name in own if not name.startswith("_")} - SETTINGS


def test_ten_names_may_be_overridden() -> None:
    assert len(CONTRACT) <= 10
    final = {
        name
        for name, value in vars(Algorithm).items()
        if getattr(getattr(value, "fget", value), "__final__", False)
    }
    assert final == {"learning_rate"}
    assert public(Algorithm) - final == CONTRACT | FACTS


@pytest.mark.parametrize("name", NAMES)
def test_an_algorithm_overrides_no_other_name_of_the_base(name: str) -> None:
    for cls in registry.load("algorithms", name).__mro__:
        if issubclass(cls, Algorithm) and cls is not Algorithm:
            assert (public(cls) & public(Algorithm)) <= CONTRACT | FACTS, cls


@pytest.mark.parametrize("name", NAMES)
def test_a_spec_is_data_that_stays(name: str) -> None:
    algorithm = registry.load("algorithms", name)()
    spec = algorithm.spec
    assert spec == algorithm.spec and hash(spec) == hash(algorithm.spec)
    with pytest.raises(FrozenInstanceError):
        spec.unit = "turn"
    assert not [value for value in _inside(spec) if callable(value)]


def test_the_algorithm_of_the_docs_keeps_to_the_contract() -> None:
    page = (ROOT.parent.parent / "docs" / "algorithms.md").read_text(encoding="utf-8")
    start = page.index("# my_package/mine.py")
    found: dict[str, Any] = {}
    exec(page[start : page.index("```", start)], found)
    algorithm = found["Mine"](sharpness=2.0)
    assert public(found["Mine"]) & public(Algorithm) == {"spec", "credit_group"}
    assert algorithm.spec.sampling == SamplingPlan(siblings=True)
    groups = play(algorithm)
    algorithm.credit(groups)
    for group in groups:
        best = max(group, key=lambda episode: episode.rollouts["a"].reward)
        assert {turn.advantages for turn in best.rollouts["a"].turns} == {2.0}


def _inside(value: Any) -> Iterator[Any]:
    if is_dataclass(value):
        for field in fields(value):
            yield from _inside(getattr(value, field.name))
    else:
        yield value


ASKED: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    ("cory", {"swap_freq": None}, {"swap_every": "None"}),
    ("cory", {"kl_penalty": "full"}, {"columns": "['full_kl', 'values']"}),
    ("cory", {"kl_penalty": "full", "kl_coef": 0.0}, {"columns": "['values']"}),
    ("dpo", {"ref_update_freq": 3}, {"renew_reference": "3"}),
    ("grpo", {"max_refills": 3}, {}),
    ("grpo", {"max_refills": 3, "dynamic_sampling": True}, {"sampling.refills": "3"}),
    ("magrpo", {"baseline": "none"}, {"sampling.siblings": "False"}),
    (
        "magrpo",
        {"baseline": "remax_greedy"},
        {"sampling.siblings": "False", "sampling.greedy": "True"},
    ),
    ("magrpo", {"baseline_by": "node"}, {"sampling.tree": "True"}),
    ("magrpo", {"joint_mode": "cross", "max_joint_actions": 9}, {"sampling.cross": "9"}),
    ("magrpo", {"max_joint_actions": 9}, {}),
    ("reinforce_pp", {"baseline": "group", "group_size": 2}, {"sampling.siblings": "True"}),
    ("remax", {"kl_coef": 0.1}, {"columns": "['ref_logprobs']"}),
    ("sft", {"teacher": "expert", "collect_every": 3}, {
        "sampling.collection.demonstrate": "True",
        "sampling.collection.every": "3",
    }),
    ("sac", {"critic": "separate"}, {"critic.topology": "'separate'"}),
    ("sft", {"min_reward_threshold": 0.5}, {}),
    (
        "sft",
        {"min_reward_threshold": 0.5, "filter_low_reward": True},
        {"sampling.collection.min_reward": "0.5"},
    ),
    ("spin", {"rows_per_round": 20, "passes_per_round": 2, "use_previous": False}, {
        "sampling.rounds.rows": "20",
        "sampling.rounds.passes": "2",
        "sampling.rounds.previous": "False",
    }),
    ("vdn", {"improve": "dpo"}, {}),
    ("vdn", {"mode": "bon"}, {"sampling.siblings": "True", "critic.mixing.mode": "'bon'"}),
    ("vdn", {"mode": "bon", "improve": "dpo"}, {
        "sampling.siblings": "True",
        "critic.mixing.mode": "'bon'",
        "columns": "['ref_logprobs', 'values']",
        "unit": "'pair'",
    }),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings", "expected"), ASKED, ids=str)
def test_what_a_spec_asks_follows_from_settings(
    name: str, settings: dict[str, Any], expected: dict[str, str]
) -> None:
    """These entries change, and no others."""
    cls = registry.load("algorithms", name)
    usual, found = flat(cls().spec), flat(cls(**settings).spec)
    assert {key: value for key, value in found.items() if usual.get(key) != value} == expected


# -- who reads what --------------------------------------------------------------------------------

STRINGS = {"training", "plan", "face", "section"}
"""What holds the name of an algorithm, where others hold the algorithm."""


def is_algorithm(node: ast.expr) -> bool:
    """Whether an expression is an algorithm, by the names that the package gives it."""
    if isinstance(node, ast.Call):
        made = ("algorithm_settings", "_settings")
        return isinstance(node.func, ast.Attribute) and node.func.attr in made
    if isinstance(node, ast.Attribute):
        owner = ast.unparse(node.value).rsplit(".", 1)[-1]
        return node.attr == "algorithm" and owner not in STRINGS
    return isinstance(node, ast.Name) and node.id == "algorithm"


def reads(tree: ast.AST) -> set[str]:
    """The names that a file reads of algorithms but those of Python; `getattr` is one of them."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_algorithm(node.value):
            found |= set() if node.attr.startswith("__") else {node.attr}
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            found |= {ast.unparse(node.func)} if is_algorithm(node.args[0]) else set()
    return found


def files() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def test_what_runs_an_algorithm_reads_spec_contract_and_shared_settings() -> None:
    found = {
        str(path.relative_to(ROOT)): reads(ast.parse(path.read_text(encoding="utf-8")))
        for path in files()
        if not path.is_relative_to(ROOT / "algorithms")
        and not path.is_relative_to(ROOT / "learn" / "bases")
    }
    known = CONTRACT | FACTS | SETTINGS | RESULTS
    assert {path: names - known for path, names in found.items() if names - known} == {}
    assert {"spec", "credit", "loss", "group_size"} <= set().union(*found.values())


def test_no_algorithm_is_asked_whether_it_has_a_name() -> None:
    for path in (*(ROOT / "algorithms").glob("*.py"), *(ROOT / "learn" / "bases").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                assert name != "hasattr" and (name != "getattr" or len(node.args) == 2), path


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("run.algorithm.swap_every", {"swap_every"}),
        ("self.algorithm.spec.unit", {"spec"}),
        ("config.algorithm_settings().refills", {"refills"}),
        ("getattr(algorithm, 'level', 'turn')", {"getattr"}),
        ("config.training.algorithm.upper()", set()),
    ],
)
def test_readers_are_found(source: str, names: set[str]) -> None:
    assert reads(ast.parse(source)) == names
