"""What every setting of every algorithm is by default and which values it takes, in one table: a
default that changes is news for users, a bound that is lost lets nonsense in. Where a change is
meant, `python tests/contracts/test_algorithm_settings.py` writes the table anew."""

import math
from collections.abc import Collection
from dataclasses import fields
from typing import Any

import pytest
import yaml

from mrlm.algorithms.grpo import GroupRelative
from mrlm.core import registry
from mrlm.core.errors import ConfigError
from mrlm.core.matters import RunFacts, judged
from places import FIXTURES

TABLE = FIXTURES / "algorithm_settings.yaml"
"""setting -> what it says, or where algorithms differ: what it says -> which of them."""


def classes() -> dict[str, Any]:
    return {name: registry.load("algorithms", name) for name in registry.names("algorithms")}


def bounds(field: Any) -> dict[str, float]:
    """`ge`, `gt`, `le` and `lt` of a setting, as far as it has them."""
    kinds = ("ge", "gt", "le", "lt")
    return {k: getattr(m, k) for m in field.metadata for k in kinds if hasattr(m, k)}


def described(field: Any) -> str:
    limits = "".join(f", {kind} {value:g}" for kind, value in sorted(bounds(field).items()))
    default = field.default if field.default_factory is None else field.default_factory()
    return f"{default}{limits}"


def named(rows: Any) -> set[str]:
    """The algorithms that a table names."""
    if isinstance(rows, dict):
        return set().union(*map(named, rows.values()))
    return set(rows) if isinstance(rows, list) else set()


def table(algorithms: Collection[str]) -> dict[str, Any]:
    found: dict[str, dict[str, list[str]]] = {}
    for algorithm, cls in sorted(classes().items()):
        if algorithm not in algorithms:
            continue
        for name, field in cls.__pydantic_fields__.items():
            found.setdefault(name, {}).setdefault(described(field), []).append(algorithm)
    return {
        name: next(iter(rows)) if len(rows) == 1 else rows for name, rows in sorted(found.items())
    }


def test_defaults_and_bounds_are_those_of_the_table() -> None:
    """Those of new algorithms are in no table yet; nothing has relied on them."""
    known = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    assert table(named(known)) == known


@pytest.mark.parametrize("algorithm", sorted(registry.names("algorithms")))
def test_values_beyond_the_bounds_are_refused(algorithm: str) -> None:
    cls = classes()[algorithm]
    for name, field in cls.__pydantic_fields__.items():
        for kind, bound in bounds(field).items():
            whole = isinstance(bound, int) and field.annotation is int
            beyond = {
                "ge": bound - 1 if whole else math.nextafter(bound, -math.inf),
                "le": bound + 1 if whole else math.nextafter(bound, math.inf),
                "gt": bound,
                "lt": bound,
            }[kind]
            with pytest.raises((ConfigError, ValueError), match=name):
                cls(**{name: beyond})


# -- when a setting changes anything ---------------------------------------------------------------

GROUP_MAX = {"loss_type": "ppo", "baseline": "group_max"}
MATTERS: dict[tuple[str, str], tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    ("a2c", "gae_lambda"): ([{}], [{"estimator": "n_step"}]),
    ("a2c", "n_steps"): ([{"estimator": "n_step"}], [{}]),
    ("at_grpo", "filter_ratio"): (
        [{"filter": "variance"}, {"filter": "deviation"}],
        [{}, {"filter": "zero_variance"}],
    ),
    ("cory", "kl_penalty"): ([{}], [{"kl_coef": 0.0}]),
    ("cory", "score_norm"): ([{}], [{"score_scaling": False}]),
    ("dpo", "label_smoothing"): (
        [{}, {"loss_type": "robust"}],
        [{"loss_type": "hinge"}, {"loss_type": "ipo"}],
    ),
    ("dpo", "normalize_lengths"): ([{"loss_type": "ipo"}], [{}]),
    ("grpo", "overlong_cache"): ([{"overlong_max_length": 9}], [{}]),
    ("grpo", "max_refills"): ([{"dynamic_sampling": True}], [{}]),
    ("happo", "recompute_old"): ([], [{}]),
    ("magrpo", "clip_range_high"): ([{"loss_type": "ppo"}], [{}, GROUP_MAX]),
    ("magrpo", "cross_credit"): ([{"joint_mode": "cross"}], [{}]),
    ("magrpo", "max_joint_actions"): ([{"joint_mode": "cross"}], [{}]),
    ("malt", "beta"): ([{}], [{"dpo_coef": 0.0}]),
    ("malt", "loss_type"): ([{}], [{"dpo_coef": 0.0}]),
    ("malt", "pairing"): ([{}], [{"dpo_coef": 0.0}]),
    ("malt", "threshold"): (
        [{}, {"sft_coef": 0.0, "pairing": "threshold"}, {"dpo_coef": 0.0}],
        [{"sft_coef": 0.0}, {"sft_coef": 0.0, "dpo_coef": 0.0, "pairing": "threshold"}],
    ),
    ("maporl", "influence_gamma"): (
        [{}, {"turns": 2}],
        [{"turns": 1}, {"reward_mode": "last"}, {"reward_mode": "current", "turns": 1}],
    ),
    ("maporl", "parity"): ([{"alpha": (0.0, 0.0, 0.0, 0.5)}], [{}]),
    ("marft", "normalization"): ([{"level": "turn"}], [{"level": "token"}]),
    ("online_dpo", "rewards"): (
        [{}, {"agents": 1, "rows": True}, {"agents": 2, "rows": True}],
        [{"agents": 1}],
    ),
    ("ppo", "gamma_token"): ([{"level": "token"}], [{"level": "turn"}]),
    ("ppo", "vf_coef"): ([{}], [{"critic": "separate"}]),
    ("ppo", "kl_horizon"): ([{"kl_coef": 0.1, "kl_target": 6.0}], [{"kl_coef": 0.1}]),
    ("qmix", "hypernet_size"): ([{}], [{"hypernet_layers": 1}]),
    ("reinforce", "baseline"): ([{}], [{"whiten": True}]),
    ("sac", "target_entropy_ratio"): ([{}], [{"target_entropy": 1.0}]),
    ("sft", "bc_weight"): ([{"mode": "combined"}], [{}, {"mode": "world_model"}]),
    ("sft", "world_model_weight"): ([{"mode": "combined"}], [{}, {"mode": "world_model"}]),
    ("sft", "min_reward_threshold"): (
        [{"filter_low_reward": True}],
        [{}, {"rows": True}, {"filter_low_reward": True, "rows": True}],
    ),
    ("vdn", "improve"): ([{"mode": "bon"}], [{}, {"mode": "vdac"}]),
    ("vdn", "clip_range"): (
        [{}, {"mode": "vdac"}],
        [{"mode": "bon"}, {"loss_type": "reinforce"}, {"mode": "bon", "loss_type": "reinforce"}],
    ),
    ("vdn", "clip_range_high"): ([{}], [{"mode": "bon"}, {"loss_type": "reinforce"}]),
}
"""(algorithm, setting) -> settings and facts of runs in which it changes something, and of such in
which it does not."""
ABOUT_THE_RUN = {"planner", "returns", "joint_mode", "key", "group_size"} | {
    "filter_low_reward",
    "collect_every",
    "teacher",
}
"""Settings whose condition stands in `core/matters.py`."""


@pytest.mark.parametrize(("algorithm", "setting"), MATTERS)
def test_a_setting_changes_something_where_it_says_so(algorithm: str, setting: str) -> None:
    facts = {field.name for field in fields(RunFacts)}
    for matters, runs in zip((True, False), MATTERS[algorithm, setting], strict=True):
        for run in runs:
            settings = classes()[algorithm](**{k: v for k, v in run.items() if k not in facts})
            known = RunFacts(**{k: v for k, v in run.items() if k in facts})
            assert (judged(settings, [setting], known)[setting] is None) is matters, run


BASES = {"grpo": (GroupRelative,)}
"""Base classes whose settings an algorithm was the first to have."""


def test_every_condition_of_a_setting_has_a_case() -> None:
    known = named(yaml.safe_load(TABLE.read_text(encoding="utf-8")))
    own = {
        (algorithm, setting)
        for algorithm in known
        for made in (classes()[algorithm], *BASES.get(algorithm, ()))
        for setting in vars(made).get("matters", {})
        if setting not in ABOUT_THE_RUN
    }
    assert own - {("grpo", "rewards")} == set(MATTERS)


if __name__ == "__main__":
    found = table(named(yaml.safe_load(TABLE.read_text(encoding="utf-8"))))
    TABLE.write_text(yaml.safe_dump(found, width=100, default_flow_style=None), encoding="utf-8")
