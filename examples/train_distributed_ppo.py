"""PPO in one process or in several, from the same program.

    python train_distributed_ppo.py
    torchrun --nproc_per_node=2 train_distributed_ppo.py
    torchrun --nproc_per_node=2 train_distributed_ppo.py --strategy fsdp

Started by torchrun, every process plays its share of the tasks and computes its share of the
gradient, and the numbers are those of one process. The first process writes the run folder and
prints how many there are, and the reward before and after.
"""

import argparse
import os

import mrlm
from mrlm import ExperimentConfig, distributed, run_experiment


def main(given=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--strategy", choices=("ddp", "fsdp"), default="ddp", help="under torchrun")
    chosen = parser.parse_args(given)
    if chosen.strategy == "fsdp" and "RANK" not in os.environ:
        parser.error("--strategy fsdp cuts models over processes; start it with torchrun")
    config = ExperimentConfig(
        experiment_name="train_distributed_ppo",
        model={"model_name_or_path": mrlm.default_model()},
        environments=[{"env_type": "matrix", "game": "bandit", "teaches": "any"}],
        distributed={"enabled": chosen.strategy == "fsdp", "strategy": chosen.strategy},
        generation={"max_new_tokens": 1},
        training={"report_to": "none", "threads": chosen.threads, "learning_rate": 1e-3},
        evaluation={"episodes": 64, "greedy": False},
        stages=[
            {
                "name": "words",
                "training": {"algorithm": "sft", "num_iterations": chosen.steps, "batch_size": 16},
                "sft": {"teacher": "expert"},
            },
            {
                "name": "play",
                "training": {"algorithm": "ppo", "num_iterations": chosen.steps, "batch_size": 32},
            },
        ],
    )
    history = run_experiment(config).history
    rewards = [row[key] for row in history if (key := "eval/reward/mean") in row]
    if distributed.is_main():
        print(f"{distributed.world_size()} process(es), {chosen.threads} thread(s) each")
        print(f"reward {rewards[0]:.2f} -> {rewards[-1]:.2f}")


if __name__ == "__main__":
    main()
