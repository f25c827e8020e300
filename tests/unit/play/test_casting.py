"""Who speaks with which weights: no copy of a model is made that another policy could lend."""

from typing import Any

import pytest

from mrlm.build.policies import LiveObjects, PlayPlan, PolicyAssignment, bases_of, load_policies
from mrlm.config import ExperimentConfig, PolicyConfig
from mrlm.core import tiny_model
from mrlm.learn.policy.loading import load_model, load_tokenizer

FROZEN: dict[str, Any] = {"trainable": False}
LORA: dict[str, Any] = {"lora": {"r": 2}}


@pytest.mark.parametrize(
    ("policies", "together"),
    [
        ({"ann": LORA, "ben": LORA, "judge": FROZEN}, [{"ann", "ben", "judge"}]),
        ({"judge": FROZEN, "ann": LORA, "ben": LORA}, [{"ann", "ben", "judge"}]),
        ({"judge": FROZEN, "ann": {}, "watcher": FROZEN}, [{"judge", "watcher"}, {"ann"}]),
        ({"ann": {}, "ben": {}, "cleo": LORA}, [{"ann"}, {"ben"}, {"cleo"}]),
    ],
)
def test_a_model_is_there_once_for_all_who_leave_it_as_it_is(
    policies: dict[str, Any], together: list[set[str]]
) -> None:
    config = ExperimentConfig(environments=[{"env_type": "qa"}], policies=policies)
    cast = PolicyAssignment(
        {}, {name: PolicyConfig(**section) for name, section in policies.items()}
    )
    plan = PlayPlan(config=config, parts=LiveObjects(), assignment=cast)
    loaded = load_policies(plan)
    assert list(loaded) == list(policies)
    models: dict[int, set[str]] = {}
    for name, policy in loaded.items():
        models.setdefault(id(policy.model), set()).add(name)
    assert sorted(map(sorted, models.values())) == sorted(map(sorted, together))
    assert sorted(map(sorted, bases_of(plan))) == sorted(map(sorted, together))


def test_a_frozen_policy_of_a_live_model_stays_as_it_is_beside_a_trained_one() -> None:
    model = load_model(tiny_model.NAME)
    given = {name: (model, load_tokenizer(tiny_model.NAME)) for name in ("ann", "judge")}
    cast = PolicyAssignment({}, {"ann": PolicyConfig(), "judge": PolicyConfig(trainable=False)})
    plan = PlayPlan(config=ExperimentConfig(), parts=LiveObjects(models=given), assignment=cast)
    loaded = load_policies(plan)
    assert loaded["ann"].model is model
    assert loaded["judge"].model is not model
