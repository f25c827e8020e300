"""The divergences of `distill`, and their gradients, are those of TRL's distillation on the same
logits in one process."""

from typing import Any

import pytest
import torch

pytest.importorskip("trl", reason="make test-extras installs TRL")

from trl.experimental.gkd import GKDTrainer  # pyright: ignore[reportMissingImports]

from mrlm.algorithms.distill import Distill
from mrlm.learn.fast.lm_head import Distributions, compare

TITLE = "TRL's distillation"
JUDGE = "TRL 1.16.0"
DIFFERENCES = (
    "beta of 0 and 1 are the divergences `forward` and `reverse`, because a mixture of nothing has "
    "no gradient",
)
KINDS = [("forward", 0.5, 0.0), ("reverse", 0.5, 1.0), *(("jsd", b, b) for b in (0.1, 0.5, 0.9))]
SPREADS = [0.1, 1.0, 10.0, 40.0]


@pytest.mark.parametrize(("kind", "beta", "theirs"), KINDS)
def test_divergences_are_those_of_trl(
    kind: Any, beta: float, theirs: float, record_property: Any
) -> None:
    algorithm = Distill(divergence=kind, beta=beta)
    torch.manual_seed(0)
    for spread in SPREADS:
        logits = (spread * torch.randn(1, 12, 50, dtype=torch.float64)).requires_grad_()
        teacher = spread * torch.randn(1, 12, 50, dtype=torch.float64)
        labels = torch.where(torch.arange(12) < 4, -100, 1)[None]
        loss = GKDTrainer.generalized_jsd_loss(
            logits, teacher, labels, theirs, temperature=0.7, num_items_in_batch=8
        )
        (expected,) = torch.autograd.grad(loss, logits)
        p, q = (Distributions(x[0, 4:] / 0.7) for x in (logits, teacher))
        distance = compare(p, q, algorithm._measure).mean()
        (gradient,) = torch.autograd.grad(distance, logits)
        assert distance.item() == pytest.approx(loss.item(), rel=1e-9)
        torch.testing.assert_close(gradient, expected, rtol=1e-7, atol=1e-9)
    record_property("cases", len(SPREADS))
