"""Play with a model as it is, look at what came of it, keep what was good, and learn from that.

This is rejection sampling by hand: `collect_trajectories` plays, the best conversations are written
to a JSON file (as `mrlm collect` does), and supervised learning reads them back. Prints the reward
with its components before and after, and how many of the conversations were kept.
"""

import argparse
import json
from pathlib import Path

import mrlm
from mrlm import ExperimentConfig, run_experiment
from mrlm.core.messages import write_message
from mrlm.runs import collect_trajectories, evaluate_model

WORLD = {"env_type": "relay", "max_number": 3}  # the first adds a+b, the second adds c to that


def config_of(model, **sections):
    """Two agents with one policy add three numbers."""
    return ExperimentConfig(
        model={"model_name_or_path": str(model)},
        environments=[WORLD],
        policies={"adder": {}},
        agents={"first": {"policy": "adder"}, "second": {"policy": "adder"}},
        generation={"max_new_tokens": 4},
        **sections,
    )


def trained(model, name, steps, rate, **sections):
    """The folder of a model after some steps of supervised learning."""
    training = {
        "algorithm": "sft",
        "num_iterations": steps,
        "batch_size": 32,
        "learning_rate": rate,
        "report_to": "none",
    }
    folder = f"outputs/evaluate_and_collect/{name}"
    config = config_of(model, training=training, output_dir=folder, **sections)
    return run_experiment(config).run_folder / "final"


def main(given=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--episodes", type=int, default=400, help="that are collected")
    chosen = parser.parse_args(given)
    model = trained(
        mrlm.default_model(), "shown", 3 * chosen.steps, 2e-3, sft={"teacher": "expert"}
    )
    before = evaluate_model(config_of(model), episodes=64, samples=1, greedy=False).metrics

    episodes = collect_trajectories(config_of(model), chosen.episodes)
    rows = [
        {"agent": agent, "messages": [write_message(message) for message in rollout.messages]}
        for episode in episodes
        if not episode.failed and episode.reward == 1.0
        for agent, rollout in episode.rollouts.items()
    ]
    if not rows:
        raise SystemExit("nobody was right, so there is nothing to learn from; raise --steps")
    file = Path("outputs/evaluate_and_collect/good.json")
    file.write_text(json.dumps(rows))
    print(f"{len(rows)} of {2 * len(episodes)} conversations are right and kept")

    model = trained(model, "refined", chosen.steps, 3e-4, data={"dataset": str(file)})
    after = evaluate_model(config_of(model), episodes=64, samples=1, greedy=False).metrics
    for name in sorted(after):
        if name.startswith("eval/reward/") and not name.endswith("std"):
            print(f"{name} {before[name]:.2f} -> {after[name]:.2f}")


if __name__ == "__main__":
    main()
