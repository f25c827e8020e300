"""An algorithm of your own: who earned what, and what to minimise. Twenty lines.

`BestOfGroup` plays every task several times and imitates whichever episode earned most, if it
earned more than the others: no baseline, no ratio. Everything else (playing, batches, optimisers,
checkpoints) is the library's. Prints the reward of a bandit with three arms before and after.
"""

import argparse

from pydantic import Field

import mrlm
from mrlm import Algorithm, Loss, SFTTrainer, Trainer
from mrlm.core.registry import load
from mrlm.learn import ops
from mrlm.learn.bases.algorithm import settings


@settings
class BestOfGroup(Algorithm):
    """Imitate the best of `group_size` episodes of a task."""

    group_size: int = Field(default=8, ge=2)
    weight: float = 1.0

    def credit_group(self, group):
        rewards = [episode.reward for episode in group.valid]
        for episode in group.valid:
            best = episode.reward == max(rewards) > min(rewards)
            for turn in episode.turns:
                turn.advantages = self.weight if best else 0.0

    def loss(self, batch, outputs):
        total = ops.aggregate(-batch.advantages * outputs.logprobs, batch, "token_mean")
        return Loss(total, {"policy_loss": total.detach()})


class BestOfGroupTrainer(Trainer):
    algorithm = f"{__name__}:BestOfGroup"  # in YAML, too: `algorithm: my_module:BestOfGroup`


def main(given=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=15)
    steps = parser.parse_args(given).steps
    world = load("environments", "matrix")("bandit", teaches="any")
    common = {"learning_rate": 1e-3, "max_new_tokens": 1, "report_to": "none"}
    words = SFTTrainer(  # which answers there are, not what they are worth
        mrlm.default_model(),
        world,
        teacher="expert",
        batch_size=16,
        output_dir="outputs/custom_algorithm/words",
        **common,
    ).train(num_iterations=2 * steps)
    trainer = BestOfGroupTrainer(
        words.run_folder / "final",
        world,
        batch_size=4,
        output_dir="outputs/custom_algorithm/play",
        **common,
    )
    before = trainer.evaluate(64, greedy=False).metrics["eval/reward/mean"]
    trainer.train(num_iterations=steps)
    after = trainer.evaluate(64, greedy=False).metrics["eval/reward/mean"]
    print(f"reward {before:.2f} -> {after:.2f}")


if __name__ == "__main__":
    main()
