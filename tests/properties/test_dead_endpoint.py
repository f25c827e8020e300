"""A permanent error of an engine ends the run, whatever the workflow was doing when it came."""

from pathlib import Path
from typing import Any

import pytest

from every_workflow import SPECS, WORKFLOWS, Talk, config_of
from every_workflow import small as small
from grids import quick
from mrlm.build.policies import LiveObjects
from mrlm.build.run import build
from mrlm.core.errors import EndpointError
from mrlm.engines.lean.engine import LeanEngine
from mrlm.runs import run_to_end

__all__ = ["small"]


@pytest.mark.parametrize("answered", [0, 1])
@pytest.mark.parametrize("name", quick(WORKFLOWS, 2))
def test_a_dead_endpoint_ends_the_run(
    name: str, answered: int, small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    async def dying(self: Any, requests: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > answered:
            raise EndpointError("the key was withdrawn")
        return await real(self, requests)

    real = LeanEngine.generate
    monkeypatch.setattr(LeanEngine, "generate", dying)
    config = config_of(name, small, tmp_path / "run").merged({"evaluation.every": None})
    world = Talk(("player",) if SPECS[name].single_agent else tuple(config.agents))
    with pytest.raises(EndpointError, match="the key was withdrawn"):
        run_to_end(build(config, LiveObjects(environments=[world])))
    assert calls <= answered + 3  # nothing is asked on and on
