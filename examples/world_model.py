"""Practice in a world model: an agent learns in what a language model imagines, and is tried in the
real environment.

A lift has five floors. A model first watches somebody press buttons at random, and learns which
words there are (`up`, `down`) and what is seen next (mode `combined` of supervised learning). Then
it is the environment itself, frozen, while a second copy of it learns by PPO to go to the top.
Prints how many of the ten moves the world model foresees, and the reward in the real lift before
and after.
"""

import argparse
import random

import mrlm
from mrlm import Environment, LLMEnvironment, Message, PPOTrainer, SFTTrainer
from mrlm.core.types import Observation, Reward, StepResult

FLOORS, TURNS = 5, 3
COMMON = {"max_new_tokens": 4, "report_to": "none", "adam_beta2": 0.95}


def moved(floor, word):
    return min(FLOORS - 1, max(0, floor + {"up": 1, "down": -1}.get(word.strip(), 0)))


class Lift(Environment):
    """A lift; pays 1 for every turn that ends at the top."""

    blocking = False
    max_turns = TURNS

    def reset(self, task=None, seed=None):
        self.random = random.Random(f"{task.id if task else ''} {seed}")
        self.floor, self.turn = self.random.randrange(FLOORS), 0
        return StepResult({"agent": Observation([Message(f"floor {self.floor}")])})

    def step(self, actions):
        self.floor, self.turn = moved(self.floor, actions["agent"].content), self.turn + 1
        over = self.turn == TURNS
        seen = Observation([Message(f"floor {self.floor}")], done=over)
        reward = Reward(float(self.floor == FLOORS - 1))
        return StepResult({"agent": seen}, {"agent": reward}, done=over)

    def expert(self, agent, messages):
        return self.random.choice(("up", "down"))


def top(prompts, completions, observation, **columns):
    """The reward in the world model: what it says the agent sees."""
    return [float(seen == f"floor {FLOORS - 1}") for seen in observation]


def foreseen(world):
    """How many moves a world model knows."""
    right = 0
    for floor in range(FLOORS):
        for word in ("up", "down"):
            world.reset(mrlm.Task(f"{floor} {word}", f"floor {floor}"))
            said = world.step(Message(word)).messages[-1].content
            right += said == f"floor {moved(floor, word)}"
    return right


def main(given=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=15, help="of PPO in the world model")
    parser.add_argument("--shown", type=int, default=60, help="steps of learning the world before")
    chosen = parser.parse_args(given)
    watched = SFTTrainer(
        mrlm.default_model(),
        Lift(),
        mode="combined",
        teacher="expert",
        batch_size=32,
        learning_rate=2e-3,
        output_dir="outputs/world_model/watched",
        **COMMON,
    ).train(num_iterations=chosen.shown)
    model = watched.run_folder / "final"
    world = LLMEnvironment(
        model,
        mode="client",
        dataset=[{"prompt": f"floor {floor}"} for floor in range(FLOORS)],
        max_turns=TURNS,
        reward_fn=top,
        generation_config={"max_new_tokens": 8, "temperature": 0.5},
    )
    print(f"foreseen: {foreseen(world)} of {2 * FLOORS} moves")
    practised = PPOTrainer(
        model,
        world,
        batch_size=32,
        learning_rate=5e-4,
        critic_learning_rate=1e-3,
        output_dir="outputs/world_model/practised",
        **COMMON,
    ).train(num_iterations=chosen.steps)
    rewards = []
    for folder in (model, practised.run_folder / "final"):
        trainer = PPOTrainer(
            folder, Lift(), learning_rate=5e-4, output_dir="outputs/world_model/tried", **COMMON
        )
        rewards.append(trainer.evaluate(64, greedy=False).metrics["eval/reward/mean"])
    print("in the real lift: reward", " -> ".join(f"{each:.2f}" for each in rewards))


if __name__ == "__main__":
    main()
