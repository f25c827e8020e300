"""PPO on programs: an agent writes very short Python functions, which are run against tests in a
sandbox.

The tasks are rows in the form of MBPP; a file or a data set of the hub with the same columns works
the same way. First the model is shown functions of the right form, right and wrong ones alike;
then it is paid for tests: -0.5 if one raises an error, up to 2 if all pass. Prints the reward
before the practice and after, and how programs were shut in.
"""

import argparse
import json

import mrlm
from mrlm import PPOTrainer, SFTTrainer
from mrlm.environments.programs.code import CodeExecutionEnvironment

PAIRS = [(5, 3), (2, 9), (7, 4)]
ROWS = [
    {"prompt": f"f = {name}", "test_list": [f"assert f({a}, {b}) == {a + b}" for a, b in PAIRS]}
    for name in ("add", "sum", "plus")
]


def main(given=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10, help="of PPO")
    parser.add_argument("--shown", type=int, default=60, help="steps of imitation before them")
    chosen = parser.parse_args(given)
    world = CodeExecutionEnvironment(
        dataset=ROWS, eval_dataset=ROWS, instruction="", num_visible=0, max_attempts=1
    )
    tasks = [world.task(number) for number in range(len(ROWS))]
    solutions = [
        {"prompt": task.prompt[0].content, "completion": f"def f(a, b): return a {sign} b"}
        for task in tasks
        for sign in "+-*"
    ]
    shown = SFTTrainer(
        mrlm.default_model(),
        solutions,
        batch_size=9,
        learning_rate=2e-3,
        adam_beta2=0.95,
        output_dir="outputs/train_code_ppo/shown",
        report_to="none",
    ).train(num_iterations=chosen.shown)
    trainer = PPOTrainer(
        shown.run_folder / "final",
        world,
        batch_size=24,
        learning_rate=2e-4,
        critic_learning_rate=1e-3,
        gamma=1.0,
        max_new_tokens=32,
        output_dir="outputs/train_code_ppo/practised",
        report_to="none",
    )
    before = trainer.evaluate(3, samples=16, greedy=False).metrics
    result = trainer.train(num_iterations=chosen.steps)
    after = trainer.evaluate(3, samples=16, greedy=False)
    print(f"reward {before['eval/reward/mean']:.2f} -> {after.metrics['eval/reward/mean']:.2f}")
    for message in after.episodes[0].rollouts["agent"].messages:
        print(f"  {message.role}: {message.content}")
    print("sandbox", json.loads((result.run_folder / "sandbox.json").read_text()))


if __name__ == "__main__":
    main()
