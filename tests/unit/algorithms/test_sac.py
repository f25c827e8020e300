"""SAC over tokens: what is soft about its returns, its gradient, and how the price of entropy
moves."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from logged_rows import logged
from mrlm import load_config, run_experiment
from mrlm.algorithms.ppo import PPO
from mrlm.algorithms.sac import SAC
from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ConfigError, MRLMError
from mrlm.core.types import Rollout, Task, Turn
from mrlm.learn.data.batch import Outputs, merge, pack

ALPHA, TARGET = 0.1, 1.5


def group(entropies: list[list[float]], values: list[list[float]], paid: float) -> Group:
    """One agent, one episode, a turn for each list; it is paid at the end."""
    turns = []
    for index, (row, known) in enumerate(zip(entropies, values, strict=True)):
        turn = Turn("a", "p", [1] * (index + 1), [2] * len(row), [-1.0] * len(row), index=index)
        turn.entropies, turn.values, turn.step = row, known, index
        turns.append(turn)
    turns[-1].reward = paid
    rollout = Rollout("a", "p", "t", turns)
    return Group([Episode("e", Task("t"), {"a": rollout}, paid, status="done")], "t")


def written(found: Group, name: str) -> list[float]:
    (episode,) = found
    return [float(x) for turn in episode.turns for x in np.asarray(getattr(turn, name))]


@pytest.mark.parametrize("lam", [0.0, 0.95, 1.0])
def test_values_learn_soft_returns_and_the_policy_soft_advantages(lam: float) -> None:
    entropies, values = [[2.0, 1.0], [0.5, 3.0, 1.5]], [[0.3, -0.2], [0.1, 0.4, 0.0]]
    gamma = 0.9  # from turn to turn
    algorithm = SAC(alpha=ALPHA, target_entropy=TARGET, gae_lambda=lam, gamma=gamma)
    found = group(entropies, values, 2.0)
    algorithm.credit([found])
    h, v = ([x for row in table for x in row] for table in (entropies, values))
    discounts = [1.0, gamma, 1.0, 1.0, 0.0]
    rewards = [0.0, 0.0, 0.0, 0.0, 2.0]
    expected, following, after = [0.0] * 5, 0.0, 0.0
    for t in reversed(range(5)):
        soft = rewards[t] + ALPHA * (h[t] - TARGET)
        expected[t] = soft + discounts[t] * ((1 - lam) * after + lam * following)
        following, after = expected[t], v[t]
    assert written(found, "returns") == pytest.approx(expected, abs=1e-9)
    advantages = [y - x for y, x in zip(expected, v, strict=True)]
    assert written(found, "advantages") == pytest.approx(advantages, abs=1e-9)


def test_at_the_target_it_is_ppo_that_is_not_whitened() -> None:
    """A long answer earns nothing for its length where its tokens have the target's entropy."""
    values = [[0.3, -0.2], [0.1, 0.4, 0.0]]
    soft, plain = (group([[TARGET] * len(row) for row in values], values, 1.0) for _ in range(2))
    SAC(alpha=5.0, target_entropy=TARGET).credit([soft])
    PPO(level="token", whiten_advantages=False).credit([plain])
    for name in ("returns", "advantages"):
        assert written(soft, name) == pytest.approx(written(plain, name))


def test_its_gradient_is_that_of_the_exact_expectation_over_the_vocabulary() -> None:
    """`E_a[loss]` has the gradient of `sum_a pi(a) (alpha log pi(a) - Q(a))`: the sum over the
    whole vocabulary that discrete SAC writes."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, generator=generator, dtype=torch.float64, requires_grad=True)
    q = torch.randn(5, generator=generator, dtype=torch.float64)
    logp = logits.log_softmax(-1)
    pi = logp.exp()
    exact = torch.autograd.grad((pi * (ALPHA * logp - q)).sum(), logits, retain_graph=True)[0]
    entropy = -(pi * logp).sum()
    baseline = (pi.detach() * q).sum().item()
    algorithm = SAC(alpha=ALPHA, critic="separate", auto_alpha=False)
    total = torch.zeros(5, dtype=torch.float64)
    for action in range(5):
        turn = Turn("a", "p", [1], [action], [logp[action].item()])
        turn.advantages = float(q[action]) - baseline
        batch = pack(merge([turn]))
        batch.old_logprobs = logp[action : action + 1].detach()
        loss = algorithm.loss(batch, Outputs(logp[action : action + 1], entropy[None]))
        slope = torch.autograd.grad(loss.total, logits, retain_graph=True)[0]
        total += pi[action].item() * slope
    torch.testing.assert_close(total, exact, atol=1e-6, rtol=1e-5)


def test_entropy_costs_more_while_there_is_too_little_of_it() -> None:
    algorithm = SAC(alpha=ALPHA, target_entropy=TARGET)
    for entropy, expected in ((1.0, math.log(ALPHA) + 0.025), (2.0, math.log(ALPHA))):
        algorithm.credit([group([[entropy] * 2, [entropy]], [[0.0] * 2, [0.0]], 1.0)])
        assert algorithm.next_log_alphas["p"] == pytest.approx(expected)
    fixed = SAC(alpha=ALPHA, target_entropy=TARGET, auto_alpha=False)
    fixed.credit([group([[0.1]], [[0.0]], 1.0)])
    assert fixed.alpha_of("p") == pytest.approx(ALPHA) and "p" not in fixed.log_alphas


def test_rewards_and_loss_of_an_iteration_have_one_alpha() -> None:
    algorithm = SAC(alpha=ALPHA, target_entropy=TARGET)
    for alpha in (ALPHA, ALPHA * math.exp(0.05 * (TARGET - 1.0))):
        found = group([[1.0], [1.0]], [[0.0], [0.0]], 0.0)
        algorithm.credit([found])
        assert written(found, "returns")[-1] == pytest.approx(alpha * (1.0 - TARGET))
        batch = pack(merge(found.episodes[0].turns))
        entropy = torch.ones(len(batch), requires_grad=True)
        outputs = Outputs(batch.old_logprobs, entropy, torch.zeros(len(batch)))
        algorithm.loss(batch, outputs).total.backward()
        assert entropy.grad is not None
        torch.testing.assert_close(entropy.grad.sum().item(), -alpha, atol=1e-6, rtol=1e-5)
        assert algorithm.metrics["alpha"] == pytest.approx(alpha)


def test_the_target_is_a_share_of_the_first_entropy_and_is_kept() -> None:
    algorithm = SAC(target_entropy_ratio=0.25)
    algorithm.credit([group([[2.0, 4.0], [6.0]], [[0.0] * 2, [0.0]], 1.0)])
    assert algorithm.targets == {"p": 1.0}
    algorithm.credit([group([[0.5]], [[0.0]], 1.0)])
    assert algorithm.targets == {"p": 1.0}
    again = SAC(target_entropy_ratio=0.25)
    again.load_state_dict(json.loads(json.dumps(algorithm.state_dict())))
    assert again.targets == algorithm.targets
    assert again.next_log_alphas == algorithm.next_log_alphas


def test_policies_have_a_price_of_their_own() -> None:
    one, two = group([[1.0]], [[0.0]], 1.0), group([[3.0]], [[0.0]], 1.0)
    for turn in two.episodes[0].turns:
        turn.policy = "other"
    algorithm = SAC(target_entropy_ratio=0.5)
    algorithm.credit([one, two])
    algorithm.targets["p"] = 2.0
    algorithm.credit([one, two])
    algorithm.credit([one, two])
    known = {policy: algorithm.alpha_of(policy) for policy in ("p", "other")}
    assert known["p"] > algorithm.alpha > known["other"]
    noted = {name: x for name, x in algorithm.metrics.items() if "al" in name or "tar" in name}
    noted = {name: x for name, x in noted.items() if not name.startswith("value")}
    assert noted == pytest.approx(
        {
            "alpha": (known["p"] + known["other"]) / 2,
            "alpha/p": known["p"],
            "alpha/other": known["other"],
            "target_entropy": (2.0 + 1.5) / 2,
            "target_entropy/p": 2.0,
            "target_entropy/other": 1.5,
        }
    )
    algorithm.credit([one])
    assert {name for name in algorithm.metrics if "/" in name} == set()
    assert algorithm.metrics["target_entropy"] == 2.0


@pytest.mark.parametrize(
    ("lora", "critic"),
    [
        (False, "shared"),
        pytest.param(True, "separate", marks=pytest.mark.slow),
        pytest.param(False, "separate", marks=pytest.mark.slow),
        pytest.param(True, "shared", marks=pytest.mark.slow),
    ],
)
def test_two_steps_from_end_to_end_and_a_stop_between(
    critic: str, lora: bool, tmp_path: Path
) -> None:
    written: dict[str, Any] = {
        "environments": [{"env_type": "relay"}],
        "policies": {"first": {}, "second": {"lora": {"r": 4}} if lora else {}},
        "training": {
            "algorithm": "sac",
            "num_iterations": 2,
            "batch_size": 2,
            "learning_rate": 1e-3,
            "save_steps": 1,
            "report_to": "none",
        },
        "sac": {"critic": critic, "update_epochs": 2},
        "generation": {"max_new_tokens": 3, "top_k": 50},
    }
    path = tmp_path / "in.yaml"
    path.write_text(yaml.safe_dump(written))
    whole = load_config(path, [f"output_dir={tmp_path / 'whole'}"])
    result = run_experiment(whole)
    row = result.history[-1]
    assert row["alpha/first"] != 0.01 and row["target_entropy/second"] > 0
    assert math.isfinite(row["loss"]) and row["grad_norm"] > 0
    half = load_config(path, [f"output_dir={tmp_path / 'half'}", "training.num_iterations=1"])
    run_experiment(half)
    longer = load_config(path, [f"output_dir={tmp_path / 'half'}"])
    run_experiment(longer, resume=tmp_path / "half")
    assert logged(tmp_path / "half") == logged(tmp_path / "whole")


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="alpha"):
        SAC(entropy_coef=0.1)
    from mrlm.core import registry

    with pytest.raises(MRLMError, match="continuous actions"):
        registry.load("algorithms", "ddpg")
