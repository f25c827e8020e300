r"""A world on a server: the trainer asks it over gRPC, and nothing else changes.

Starts two servers as processes of their own, as other machines would run them
(`mrlm serve --environments math`). A policy is shown by the world's expert how answers look, and
then practises with PPO; every episode is played on a server. In the middle one server is replaced
by the other, which the run does not notice. Prints the reward before, in between and after.
"""

import argparse
import os
import re
import subprocess
import sys

import mrlm
from mrlm import Callback, PPOTrainer, RemoteEnvironment, ServerPool, SFTTrainer

COMMON = {"max_new_tokens": 12, "report_to": "none", "adam_beta2": 0.95}


def start():
    """A server on this machine: the process and its address."""
    words = ["-m", "mrlm", "serve", "--environments", "math", "--port", "0", "--workers", "1"]
    process = subprocess.Popen(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    said = re.search(r"serving on (\S+):", process.stdout.readline())
    assert said, "the server did not start"
    return process, said[1]


class Replace(Callback):
    """Replaces a server while the run goes on: what is played there is played to its end."""

    def __init__(self, pool, old, new):
        self.pool, self.old, self.new = pool, old, new

    def on_step_end(self, run, metrics):
        if self.old in self.pool.addresses:
            self.pool.add(self.new)
            self.pool.remove(self.old)


def main(given=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10, help="of PPO")
    parser.add_argument("--shown", type=int, default=30, help="steps of imitation")
    chosen = parser.parse_args(given)
    (first, here), (second, there) = start(), start()
    try:
        pool = ServerPool(here)
        world = RemoteEnvironment("math", server=pool, difficulty_range=[1, 1])
        pupil = SFTTrainer(
            mrlm.default_model(),
            world,
            teacher="expert",
            batch_size=32,
            learning_rate=2e-3,
            output_dir="outputs/remote_environment/shown",
            **COMMON,
        )
        rewards = [pupil.evaluate(64, greedy=False)]
        shown = pupil.train(num_iterations=chosen.shown)
        practice = PPOTrainer(
            shown.run_folder / "final",
            world,
            batch_size=64,
            learning_rate=5e-4,
            gamma=1.0,
            critic_learning_rate=1e-3,
            callbacks=[Replace(pool, here, there)],
            output_dir="outputs/remote_environment/practised",
            **COMMON,
        )
        rewards.append(practice.evaluate(64, greedy=False))
        practice.train(num_iterations=chosen.steps)
        rewards.append(practice.evaluate(64, greedy=False))
    finally:
        for process in (first, second):
            process.terminate()
            process.wait()
    print("reward", " -> ".join(f"{each.metrics['eval/reward/mean']:.2f}" for each in rewards))
    print("played on", here, "and then on", ", ".join(pool.addresses))


if __name__ == "__main__":
    main()
