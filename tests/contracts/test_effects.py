"""Every setting changes something in the run it is given to, or is refused with the reason.

The settings of all algorithms are varied one by one on episodes, credit and loss. Whatever is
neither refused nor declared idle (`matters`) must change what the algorithm computes, and what is
declared idle must not. A setting without a case fails.
"""

import random
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from another_value import another
from effects import case
from mrlm.config import ExperimentConfig, play_sections, sections
from mrlm.config.flat_words import algorithm_fields
from mrlm.core import registry
from mrlm.core.errors import ConfigError, MRLMError
from mrlm.core.matters import RunFacts, conditions, judged
from mrlm.experiment import dry_run
from places import file_of
from played import Prefix, fill, learn, moved, play, whole

NAMES = registry.names("algorithms")
LOOP = {"group_size", "update_epochs", "num_minibatches", "target_kl"}
"""Settings that the loop reads, shown by runs below."""
FACTS = RunFacts(lags=True, truncates=True)
"""The episodes of the probe: two agents, two joint steps, older weights, truncated sampling."""

Values = tuple[Any, dict[str, Any]]
CISPO = {"loss_type": "cispo"}
CASES: dict[str, Values] = {
    "loss_type": case("dr_grpo"),
    "privileged": case(["partners"]),
    "teacher_endpoint": case({"base_url": "http://localhost:1/v1", "model": "big"}),
    "preset": case("other"),
    "baseline_by": case("other"),
    "value_normalization": case("not"),
    "aggregation": case("sequence_mean_token_sum"),
    "constant_length": case(3, aggregation="constant"),
    "clip_range": case(0.02, loss_type="ppo"),
    "clip_range_high": case(0.02, loss_type="ppo"),
    "dual_clip": case(1.01, loss_type="ppo"),
    "delta": case(1.021, loss_type="ppo", clip_range=0.02),
    "cispo_cap": case(1.01, **CISPO),
    "cispo_cap_mode": case("relative", **CISPO, clip_range=0.02),
    "kl_coef": case(0.3),
    "kl_estimator": case("k2", kl_coef=0.3),
    "kl_bias_correction": case(True, kl_coef=0.3, loss_type="ppo"),
    "entropy_coef": case(0.1),
    "importance": case("sequence", loss_type="ppo"),
    "importance_cap": case(1.01, importance="token", loss_type="ppo"),
    "importance_floor": case(0.99, importance="icepop", loss_type="ppo"),
    "recompute_old": case(True, loss_type="ppo"),
    "shaping": case("margin"),
    "shaping_coef": case(0.2, shaping="margin"),
    "outcome_coef": case(0.5),
    "gamma": case(0.7),
    "gamma_token": case(0.7, level="token"),
    "gae_lambda": case(0.5),
    "whiten_advantages": case("not"),
    "critic": case("separate"),
    "critic_warmup": case(2, critic="separate"),
    "critic_epochs": case(3, critic="separate"),
    "value_clip_range": case(0.01),
    "bootstrap_on_truncation": case(True),
    "level": case("other"),
    "vf_coef": case(0.9, critic="shared"),
    "kl_target": case(0.01, kl_coef=0.3),
    "kl_horizon": case(10.0, kl_coef=0.3, kl_target=0.01),
    "estimator": case("n_step"),
    "n_steps": case(1, estimator="n_step"),
    "scale_rewards": case("none"),
    "key": case({"a": "one", "b": "one"}),
    "rewards": case("other"),
    "mask_truncated": case(True),
    "overlong_max_length": case(3),
    "overlong_cache": case(2, overlong_max_length=4),
    "dynamic_sampling": case(True),
    "max_refills": case(3, dynamic_sampling=True),
    "alpha": case(0.5),
    "filter": case("variance", filter_ratio=0.5),
    "filter_ratio": case(0.9, filter="variance"),
    "swap_freq": case(2),
    "kl_penalty": case("full"),
    "score_scaling": case(False),
    "score_norm": case(False),
    "beta": case(0.7),
    "rpo_alpha": case(0.5),
    "label_smoothing": case(0.2),
    "normalize_lengths": case(False, loss_type="ipo"),
    "ref_update_freq": case(2),
    "dedupe_per_episode": case(True),
    "invalid_penalty": case(0.5),
    "factor": case("exact"),
    "factor_range": case(None),
    "on_shared": case("simultaneous"),
    "ties": case("first"),
    "baseline": case("other"),
    "returns": case("independent"),
    "joint_mode": case("cross"),
    "cross_credit": case("sum", joint_mode="cross"),
    "max_joint_actions": case(2, joint_mode="cross"),
    "threshold": case(-0.5),
    "pairing": case("threshold", threshold=-0.2),
    "sft_coef": case(0.2),
    "dpo_coef": case(0.2),
    "influence_gamma": case(0.9),
    "reward_mode": case("last"),
    "score_of": case("individual"),
    "parity": case(True, alpha=(0.5, 0.4, 0.3, 0.2)),
    "normalization": case("token", level="turn"),
    "planner": case("b"),
    "mode": case("other"),
    "improve": case("dpo", mode="bon"),
    "whiten_by": case("agent"),
    "target_rate": case(0.5),
    "mixing_size": case(8),
    "hypernet_layers": case(1),
    "hypernet_size": case(8),
    "state_size": case(8),
    "whiten": case(True),
    "mask_unfinished": case(False),
    "center_rewards_coefficient": case(0.5),
    "cost_coef": case(0.5),
    "auto_alpha": case(False),
    "target_entropy": case(1.0),
    "target_entropy_ratio": case(0.1),
    "bc_weight": case(0.3, mode="combined"),
    "world_model_weight": case(0.3, mode="combined"),
    "filter_low_reward": case(True),
    "min_reward_threshold": case(0.5, filter_low_reward=True),
    "collect_every": case(3),
    "teacher": case("expert"),
    "teacher_model": case("folder"),
    "rows_per_round": case(20),
    "passes_per_round": case(2),
    "use_previous": case(False),
    "decay": case(0.5),
    "debias": case(False),
    "per_sample_update": case(True),
    "ignore_no_eos": case(True),
    "drop_zeros": case(False),
    "alternatives": case(2),
    "decisions": case(2),
    "silent": case(2),
    "team_coef": case(0.5),
    "credit_coef": case(0.5, team_coef=1.0),
    "credit_by": case("marginal"),
    "tool": case("cost"),
    "tool_coef": case(0.3, tool="cost"),
    "calls": case(3),
    "planner_coef": case(0.1),
}
OTHERS: dict[tuple[str, str], Values] = {
    ("baseline_by", "rloo"): case("role"),
    ("alpha", "maporl"): case((0.5, 0.4, 0.3, 0.2)),
    ("baseline", "reinforce_pp"): case("group", group_size=4),
    ("loss_type", "spin"): case("hinge"),
    ("loss_type", "dpo"): case("hinge"),
    ("loss_type", "madpo"): case("hinge"),
    ("loss_type", "malt"): case("hinge"),
    ("loss_type", "online_dpo"): case("hinge"),
    ("loss_type", "marft"): case("grpo", level="token"),
    ("label_smoothing", "spin"): case(0.2),
    ("rewards", "matpo"): case("team"),
    ("critic", "marft"): case("shared"),
    ("critic", "router_r1"): case("shared"),
    ("aggregation", "reinforce"): case("token_mean"),
    ("aggregation", "remax"): case("token_mean"),
    ("critic_epochs", "qmix"): case(3),
    ("critic_epochs", "vdn"): case(3),
}
"""Cases of single algorithms."""


def other(cls: type[Any], name: str, value: Any) -> Any:
    """`not` and `other` stand for a value that is not the default of this algorithm."""
    default = algorithm_fields(cls)[name]
    if name == "preset":
        return next(iter(cls.presets))
    if name == "value_normalization":
        return not getattr(cls(), "normalizes", False)
    if value == "not":
        return not default
    if value != "other":
        return value
    options = {
        "level": ("token", "turn"),
        "baseline_by": ("episode", "batch", "role"),
        "rewards": ("own", "team"),
        "baseline": ("mean", "none"),
        "mode": ("vdac", "world_model"),
    }[name]
    text = repr(cls.__pydantic_fields__[name].annotation)
    return next(o for o in options if o != default and repr(o) in text)


# -- what an algorithm computes --------------------------------------------------------------------


def episodes(algorithm: Any, seed: int) -> Any:
    """Groups with all that settings are about: answers that were cut, episodes that were, equal
    rewards, invalid actions, costs, older weights, a tail that the environment wrote."""
    groups = play(algorithm, seed, num_groups=4)
    rng = random.Random(seed)
    for number, group in enumerate(groups):
        for place, episode in enumerate(group):
            if number == 3:  # a group whose members are all equal
                episode.reward, episode.step_rewards = 1.0, [0.5, 0.5]
            episode.step_rewards = [0.75 * paid - 0.4 for paid in episode.step_rewards]
            episode.reward = sum(episode.step_rewards)
            if place == 1:
                episode.status = "truncated"
            for turn in episode.turns:
                turn.finish_reason = "length" if rng.random() < 0.4 else "stop"
                turn.components = {"valid": float(rng.random() < 0.5), "cost": rng.random()}
                turn.lag, turn.reward = 1, turn.reward - 0.4
                if number == 3:
                    turn.reward = 0.5
            if algorithm.spec.sampling.cross is not None:
                episode.answers = dict.fromkeys("ab", place)
    return groups


def computed(algorithm: Any) -> Iterator[dict[str, str]]:
    """What can be seen of an algorithm, in three parts: what it asks of the loop; credit, loss and
    gradient, and the critic's loss, of two iterations."""
    spec = algorithm.spec
    found: dict[str, Any] = {"spec": replace(spec, columns=tuple(sorted(spec.columns)))}
    found["renews"] = [spec.renews_reference(step, 100, 10) for step in range(12)]
    found["warmup"] = algorithm.state_dict().get("warmup_left")
    found["cast"] = _outcome(lambda: algorithm.check_agents({"a": "p", "b": "p"}, 2))
    yield {name: repr(value) for name, value in found.items()}
    for seed in (0, 1):
        torch.manual_seed(seed)
        policy = Prefix()
        groups = episodes(algorithm, seed)
        fill(groups, algorithm, policy, moved(policy))
        algorithm.credit(groups)
        later = moved(moved(policy))  # as it is in a second epoch, with another value
        with torch.no_grad():
            later.value += 0.4
        turns = [turn for group in groups for episode in group for turn in episode.turns]
        columns = [[_listed(turn.advantages), _listed(turn.returns)] for turn in turns]
        total, gradient, metrics = learn(algorithm, later, whole(algorithm, groups))
        found = {"credit": [columns, total, gradient.tolist(), metrics]}
        if algorithm.spec.critic.topology in ("separate", "central"):
            batch = whole(algorithm, groups)[0]
            found["value"] = algorithm.value_loss(batch, later(batch).values).item()
        found["state"] = algorithm.state_dict()
        yield {name: repr(value) for name, value in found.items()}


def _listed(column: Any) -> Any:
    return None if column is None else np.asarray(column, dtype=float).tolist()


def _outcome(call: Any) -> str:
    try:
        return repr(call())
    except MRLMError as error:
        return str(error)


@cache
def fields() -> list[tuple[str, str]]:
    return [
        (name, field)
        for name in NAMES
        for field in algorithm_fields(registry.load("algorithms", name))
        if field not in LOOP
    ]


UNSEEN = {
    ("teacher_endpoint", "distill"): "test_teachers.py",
    ("privileged", "distill"): "test_teachers.py",
    ("factor", "happo"): "test_happo.py",
    ("factor_range", "happo"): "test_happo.py",
    ("shaping", "at_grpo"): "test_shared_credit.py",
    ("shaping_coef", "at_grpo"): "test_shared_credit.py",
    ("drop_zeros", "spiral"): "test_group_credit.py",
    ("whiten_by", "vdn"): "test_team_scale.py",
    ("whiten_by", "qmix"): "test_team_scale.py",
    ("max_joint_actions", "mareinforce"): "test_plans.py",
    **{
        ("cross_credit", name): "test_plans.py"
        for name in ("magrpo", "mareinforce", "maremax", "marloo")
    },
}
"""(setting, algorithm) of which the probe sees nothing, and the tests that show it."""


BASES: dict[tuple[str, str], tuple[list[Any], Iterator[Any]]] = {}
"""(algorithm, context of a case) -> what was computed so far, and what goes on computing."""


def observed(algorithm: Any) -> Iterator[Any]:
    """Parts of what an algorithm computes; where it is refused on the way, the reason."""
    parts = computed(algorithm)
    while True:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                part = next(parts, None)
            except MRLMError as error:  # refused later than by its constructor
                part = {"refused": str(error)}
        if part is None:
            return
        yield part


def differs(key: tuple[str, str], base: Any, varied: Any) -> bool:
    """Whether two algorithms compute different things; a base is computed once."""
    known, parts = BASES.setdefault(key, ([], observed(base)))
    for place, part in enumerate(observed(varied)):
        if place == len(known):
            known.append(next(parts, None))
        if known[place] != part:
            return True
    return False


def verdict(name: str, field: str) -> str:
    """`refused`, `idle`, `effect` or what is wrong."""
    cls = registry.load("algorithms", name)
    usual = CASES.get(field) or case(another(algorithm_fields(cls)[field]))
    value, context = OTHERS.get((field, name), usual)
    known = algorithm_fields(cls)
    context = {key: each for key, each in context.items() if key in known}
    try:
        value = other(cls, field, value)
        base, varied = cls(**context), cls(**{**context, field: value})
    except (ConfigError, ValueError, StopIteration):
        return "refused"
    if getattr(base, field) == getattr(varied, field):
        return "the case does not vary it"
    differ: set[str] = set()
    if field == "preset":
        differ = {n for n in known if n != field and getattr(base, n) != getattr(varied, n)}
        if differ & LOOP or not differ:  # the loop's, or the paper's numbers are the defaults
            return "effect"
    idle = judged(varied, [field], FACTS)[field]
    same = not differs((name, repr(sorted(context.items()))), base, varied)
    if field == "preset" and same and all(getattr(base, each) is None for each in differ):
        return "effect"  # it spells out what its loss has anyway
    if idle:
        return "idle" if same else f"declared idle ({idle}), and it has an effect"
    return "no effect, and nothing says so" if same else "effect"


def test_every_setting_of_an_algorithm_has_a_case() -> None:
    settings = {field: name for name, field in fields()}
    assert set(CASES) <= set(settings)
    for field in settings.keys() - set(CASES):
        cls = registry.load("algorithms", settings[field])
        assert another(algorithm_fields(cls)[field]) is not None, field


def wrong(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {
        f"{name}.{field}": said
        for name, field in pairs
        if (field, name) not in UNSEEN
        and (said := verdict(name, field)) not in ("refused", "idle", "effect")
    }


FIRST = {field: (name, field) for name, field in reversed(fields())}
"""Every setting in the first algorithm that has it."""


def test_a_setting_has_an_effect_or_is_refused() -> None:
    assert wrong(FIRST.values()) == {}


@pytest.mark.slow  # the same settings, in the other algorithms
@pytest.mark.parametrize("name", NAMES)
def test_a_setting_has_an_effect_or_is_refused_in(name: str) -> None:
    assert wrong(pair for pair in fields() if pair[0] == name) == {}


# -- what is refused -------------------------------------------------------------------------------

RELAY = {"env_type": "relay", "max_number": 5}
ROWS = [{"prompt": "2+2=", "completion": str(answer)} for answer in range(4)]


def problems_of(**changes: Any) -> str:
    base: dict[str, Any] = {
        "training": {"algorithm": "grpo", "num_iterations": 1, "report_to": "none"},
        "environments": [RELAY],
    }
    return "\n".join(dry_run(ExperimentConfig(**base).merged(changes))[1])


IDLE: dict[str, dict[str, Any]] = {
    "grpo.max_refills": {"grpo": {"max_refills": 3}},
    "grpo.cispo_cap": {"grpo": {"cispo_cap": 3.0}},
    "grpo.target_kl": {"grpo": {"target_kl": 0.1}},
    "training.critic_learning_rate": {"training": {"critic_learning_rate": 1e-3}},
    "training.optimizer_offload": {"training": {"optimizer": "sgd", "optimizer_offload": True}},
    "training.adam_beta1": {"training": {"optimizer": "sgd", "adam_beta1": 0.5}},
    "training.master_weights": {"training": {"master_weights": False}},
    "training.rollback_factor": {"training": {"rollback_factor": 0.2}},
    "policies.second.learning_rate": {
        "policies": {"first": {}, "second": {"trainable": False, "learning_rate": 1e-3}}
    },
    "data.max_rows": {"data": {"max_rows": 3}},
    "asynchrony.partial": {"asynchrony": {"partial": False}},
    "distributed.fsdp": {"distributed": {"fsdp": {"cpu_offload": True}}},
    "environments.0.weight": {"environments": [{**RELAY, "weight": 2.0}]},
    "engine.cache_mib": {"engine": {"name": "hf", "cache_mib": 5}},
    "evaluation.every": {"evaluation": {"every": 2}},
    "opponents.games": {"opponents": {"games": 2}},
    "generation.top_p": {
        "training": {"algorithm": "ppo"},
        "generation": {"temperature": 0.0, "top_p": 0.5},
    },
    "workflow.max_turns": {"workflow": {"max_turns": 9}},
    "workflow.transition_mode": {"workflow": {"transition_mode": "append"}},
}
"""Key -> changes to a run of GRPO on `relay` in which it has no effect."""


@pytest.mark.parametrize("key", IDLE)
def test_a_setting_without_effect_is_an_error_that_says_why(key: str) -> None:
    found = problems_of(**IDLE[key])
    assert f"{key}: changes nothing because " in found, found


def test_defaults_are_never_refused() -> None:
    assert problems_of() == ""
    written = ExperimentConfig(
        training={"algorithm": "grpo", "num_iterations": 1, "report_to": "none"},
        environments=[RELAY],
    ).resolved()
    assert dry_run(ExperimentConfig(**written))[1] == []


def test_stages_may_share_what_one_of_them_does_not_read() -> None:
    """A key above the stages is refused only where none of them reads it."""
    sft = {"name": "form", "training": {"algorithm": "sft"}, "data": {"dataset": ROWS}}
    shared = {"training": {"critic_learning_rate": 1e-3, "num_iterations": 1}}
    ppo = {"name": "play", "training": {"algorithm": "ppo"}}
    assert "changes nothing" not in problems_of(**shared, stages=[sft, ppo])
    grpo = {"name": "play"}
    assert "training.critic_learning_rate: changes nothing" in problems_of(
        **shared, stages=[sft, grpo]
    )


def test_what_is_unseen_is_tested_elsewhere() -> None:
    for (field, _), file in UNSEEN.items():
        assert re.search(rf"\b{field}\b", file_of(file).read_text(encoding="utf-8")), field


def test_every_declared_condition_is_about_a_setting() -> None:
    for name in NAMES:
        cls = registry.load("algorithms", name)
        assert set(conditions(cls)) <= set(algorithm_fields(cls)), name
    for module in (sections, play_sections):
        for section in vars(module).values():
            if isinstance(section, type) and "matters" in section.__dict__:
                assert set(section.matters) <= set(section.model_fields), section
