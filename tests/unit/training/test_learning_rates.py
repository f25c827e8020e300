"""Learning rates that are ten times off are named, by what is trained."""

from types import SimpleNamespace
from typing import Any

import pytest

from mrlm import ExperimentConfig
from mrlm.build.learning_rates import check_rates
from mrlm.build.policies import LiveObjects
from mrlm.build.run import plan_of


@pytest.mark.parametrize(
    ("rate", "lora", "size", "training", "word"),
    [
        (None, False, 1e5, {}, "hardly changes"),
        (1e-3, False, 1e5, {}, ""),
        (None, False, 1e8, {}, ""),
        (1e-3, False, 1e8, {}, "above what trains all weights"),
        (1e-8, False, 1e8, {}, "below what trains all weights"),
        (None, True, 1e8, {}, "1e-06 (the default of grpo) is far below what trains an adapter"),
        (2e-4, True, 1e8, {}, ""),
        (1e-2, True, 1e8, {}, "above what trains an adapter"),
        (1.0, True, 1e8, {"optimizer": "sgd"}, ""),
    ],
)
def test_a_rate_is_warned_of(
    rate: float | None,
    lora: bool,
    size: float,
    training: dict[str, Any],
    word: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = ExperimentConfig(
        environments=[{"env_type": "math"}],
        policies={"agent": {"lora": {"r": 2}} if lora else {}},
        training={"algorithm": "grpo", "learning_rate": rate, **training},
    )
    learner: Any = SimpleNamespace(policy="agent", weights_of=SimpleNamespace(size=size))
    check_rates(plan_of(config, LiveObjects()), [learner])
    assert (word in caplog.text) if word else not caplog.text
