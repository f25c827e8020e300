"""One scale for a team's counterfactual advantages, measured against the true gradient of games."""

import numpy as np
import pytest

from mrlm.algorithms.vdn import VDN
from mrlm.learn import ops
from mrlm.learn.credit.team_values import whiten_together

CLIMBING = (np.array([[11.0, -30, 0], [-30, 7, 6], [0, 0, 5]]) + 30) / 41
GAMES = {
    "climbing": CLIMBING,
    "xor": np.array([[0.0, 1.0], [1.0, 0.0]]),
    "irrelevant": np.tile(np.array([[0.0], [0.5], [1.0]]), (1, 3)),
}


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum()


def scored(
    table: np.ndarray, batches: int, size: int = 64, seed: int = 3
) -> dict[str, tuple[float, float]]:
    """Cosine with the true gradient and signal-to-noise ratio, over batches of a matrix game, of
    the policy gradient by factored advantages (utilities fitted by least squares to the batch),
    whitened in either way, and by the team's whitened reward."""
    rng = np.random.default_rng(seed)
    policies = [softmax(rng.normal(0, 0.5, count)) for count in table.shape]
    worth = [table @ policies[1], policies[0] @ table]
    value = policies[0] @ worth[0]
    true = np.concatenate([p * (q - value) for p, q in zip(policies, worth, strict=True)])
    sums: dict[str, tuple[np.ndarray, float]] = {}
    for _ in range(batches):
        acts = [rng.choice(len(p), size, p=p) for p in policies]
        rewards = table[acts[0], acts[1]]
        chosen = [np.eye(len(p))[a] for p, a in zip(policies, acts, strict=True)]
        columns = np.concatenate([np.ones((size, 1)), *chosen], 1)
        ridge = 1e-3 * np.eye(columns.shape[1])
        beta = np.linalg.solve(columns.T @ columns + ridge, columns.T @ rewards)
        cut = 1 + len(policies[0])
        found = {"a": chosen[0] @ beta[1:cut], "b": chosen[1] @ beta[cut:]}
        team = ops.whiten(rewards)
        estimates = {
            by: whiten_together(found, VDN(whiten_by=by).whiten_by) for by in ("team", "agent")
        }
        estimates["shared"] = {"a": team, "b": team}
        for name, advantages in estimates.items():
            parts = zip(advantages.values(), chosen, policies, strict=True)
            gradient = np.concatenate([(a[:, None] * (c - p)).mean(0) for a, c, p in parts])
            mean, square = sums.get(name, (np.zeros(len(true)), 0.0))
            sums[name] = mean + gradient / batches, square + gradient @ gradient / batches
    norms = {name: np.linalg.norm(mean) * np.linalg.norm(true) for name, (mean, _) in sums.items()}
    return {
        name: (mean @ true / norms[name], mean @ mean / (square - mean @ mean))
        for name, (mean, square) in sums.items()
    }


@pytest.mark.parametrize("game", GAMES)
def test_one_scale_for_the_team_keeps_the_direction_of_the_gradient(game: str) -> None:
    """What one agent does hardly matters in `irrelevant`, and in `climbing` matters less: a scale
    of its own would make as much of it as of the other's."""
    found = scored(GAMES[game], batches=600)
    (cosine, ratio), (_, alone), (_, shared) = found["team"], found["agent"], found["shared"]
    assert cosine > 0.999
    assert ratio > alone
    if game != "xor":  # a sum of utilities knows nothing of what pays only together
        assert ratio > 0.95 * shared
