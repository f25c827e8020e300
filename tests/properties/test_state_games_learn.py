"""The configs of environments with a state, as they are: reward rises from every seed, a critic
explains returns, and a pair with a signal does what no agent can do without it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logged_rows import gain, lower_bound
from mrlm import load_config, run_experiment
from places import ROOT

pytestmark = pytest.mark.slow


def histories(name: str, folder: Path) -> list[list[dict[str, Any]]]:
    """The steps of the last stage, from three seeds."""
    found = []
    for seed in range(3):
        changes = [f"output_dir={folder / str(seed)}", f"training.seed={seed}"]
        config = load_config(
            ROOT / "configs" / f"{name}.yaml", [*changes, "training.report_to=none"]
        )
        rows = run_experiment(config).history
        found.append([row for row in rows if row["stage"] == len(config.stages) - 1])
    return found


def last(rows: list[dict[str, Any]], key: str, count: int = 10) -> float:
    """Mean of a metric over the last steps that have it."""
    return float(np.mean([row[key] for row in rows if row.get(key) is not None][-count:]))


def test_debaters_learn_what_the_verifier_accepts(tmp_path: Path) -> None:
    """Lower 95 % bound of the gain over three seeds is above 0."""
    runs = histories("noisy_debate", tmp_path)
    assert lower_bound([gain(rows) for rows in runs]) > 0


def test_a_critic_explains_the_contexts(tmp_path: Path) -> None:
    """Its explained variance, 0 where there is one state, is above .5."""
    runs = histories("contextual_matrix", tmp_path)
    assert lower_bound([gain(rows) for rows in runs]) > 0
    explained = [last(rows, "explained_variance") for rows in runs]
    assert min(explained) > 0.5, explained


def test_a_pair_agrees_on_signals(tmp_path: Path) -> None:
    """More answers are right than an agent could have right without the signal."""
    runs = histories("signalling", tmp_path)
    right = [last(rows, "reward/receiver/correct") for rows in runs]
    config = load_config(ROOT / "configs" / "signalling.yaml")
    states = config.resolved()["environments"][0]["states"]
    assert lower_bound([value - 1 / states for value in right]) > 0, right
