"""A router learns whom to ask (Router-R1): one of two frozen models, of which one costs more.

Stage 1 shows the router how asking and answering look, and the models how sums are answered, in the
words of the world's own expert, which asks anybody. In stage 2 the models are frozen and the router
learns from the reward: -1 for a transcript whose form is broken, else 1 for the right answer, and
among right answers cheaper ones are worth more. Prints the reward on held-out questions before, in
between and after, and what asking cost. Half a minute teaches models that began with random weights
the form and some sums.
"""

import argparse

import mrlm
from mrlm.config import ExperimentConfig
from mrlm.experiment import run_experiment

SUMS = [{"question": f"{a}+{b}=", "answer": a + b} for a in range(10) for b in range(10)]


def experiment(path, shown, steps):
    frozen = {"trainable": False}  # or {"endpoint": {"base_url": ..., "model": ...}}
    return ExperimentConfig(
        experiment_name="router_r1_training",
        model={"model_name_or_path": path},
        environments=[
            {
                "env_type": "search_qa",
                "models": {
                    "small": {"price": 0.1, "latency": 0.002, "about": "quick"},
                    "large": {"price": 1.0, "latency": 0.02, "about": "thorough"},
                },
                "dataset": SUMS,
                "max_turns": 1,
                "max_observation": 20,
                "prompts": "short",
            }
        ],
        policies={"router": {}, "small": {}, "large": {}},
        agents={name: {"generation": {"max_new_tokens": 4}} for name in ("small", "large")},
        generation={"max_new_tokens": 64},
        evaluation={"episodes": 16},
        training={"report_to": "none", "batch_size": 16, "adam_beta2": 0.95},
        stages=[
            {
                "name": "form",
                "training": {"algorithm": "sft", "num_iterations": shown, "learning_rate": 2e-3},
                "sft": {"teacher": "expert"},
            },
            {
                "name": "routes",
                "policies": {"small": frozen, "large": frozen},
                "training": {"algorithm": "router_r1", "num_iterations": steps},
                "router_r1": {"cost_coef": 0.1},
            },
        ],
    )


def main(given=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4, help="of Router-R1")
    parser.add_argument("--shown", type=int, default=60, help="steps of imitation")
    chosen = parser.parse_args(given)
    path = mrlm.default_model()  # $MRLM_MODEL, else the embedded tiny model
    result = run_experiment(experiment(path, chosen.shown, chosen.steps))
    rewards = [row["eval/reward/mean"] for row in result.history if "eval/reward/mean" in row]
    print("reward", " -> ".join(f"{reward:.2f}" for reward in [*rewards[:2], rewards[-1]]))
    for name in ("form", "routes", "cost", "latency"):
        print(name, result.metrics[f"reward/router/{name}"])


if __name__ == "__main__":
    main()
