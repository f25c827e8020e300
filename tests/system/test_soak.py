"""A short form of `make soak`."""

import sys

import pytest

from mrlm.sandbox import LocalSandbox, SandboxError, SandboxUnavailableError, probe
from mrlm.sandbox.tiers import TIER_A, TIER_B, Tier
from places import TESTS

sys.path.insert(0, str(TESTS / "safety"))
import soak


@pytest.mark.parametrize("tier", [TIER_A, TIER_B], ids=lambda tier: tier.name)
def test_many_programs_leave_nothing(tier: Tier) -> None:
    sandbox = LocalSandbox(tier, workers=2)
    try:
        probe(sandbox)
    except (SandboxError, SandboxUnavailableError) as error:
        pytest.skip(str(error))
    found = soak.campaign(sandbox, 150, seed=1)
    sandbox.close()
    assert (found.wrong, found.left) == ([], [])
    assert found.late <= 60  # other tests run beside it; `make soak` allows half a second
    assert found.growth < 0.1  # of so few; `make soak` allows 2 %
