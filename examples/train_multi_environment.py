"""One policy, three environments: short programs, sums and questions for a tool, together.

Tasks come from each environment in turn, and every environment has metrics of its own. The model
is shown answers of the right form first, right and wrong ones alike; then PPO pays tests that pass
(-0.5 to 2), right sums (-0.3 to 1), and prices that were looked up (0 to 0.87). Prints the reward
in each environment on the way, and before and after.
"""

import argparse

import mrlm
from mrlm import PPOTrainer, SFTTrainer
from mrlm.environments.math import MathReasoningEnvironment
from mrlm.environments.programs.code import CodeExecutionEnvironment
from mrlm.environments.tools import ToolRegistry, ToolUseEnvironment

PRICES = {"ink": 48, "pen": 12, "cup": 35, "hat": 70}
PROGRAMS = [
    {"prompt": f"f = {name}", "test_list": [f"assert f({a}, {b}) == {a + b}" for a, b in PAIRS]}
    for PAIRS in [[(5, 3), (2, 9), (7, 4)]]
    for name in ("add", "sum", "plus")
]
SUMS = [{"question": f"{a}+{b}?", "answer": str(a + b)} for a in range(1, 4) for b in range(1, 4)]
QUESTIONS = [
    {"prompt": f"price of {item}", "answer": str(cents), "required": ["price"]}
    for item, cents in PRICES.items()
]


def price(item: str) -> int:
    """Price of an item in cents.

    Args:
        item: what is bought
    """
    return PRICES[item]


def environments():
    code = CodeExecutionEnvironment(
        dataset=PROGRAMS, eval_dataset=PROGRAMS, instruction="", num_visible=0, max_attempts=1
    )
    math = MathReasoningEnvironment(dataset=SUMS, eval_dataset=SUMS, instruction="")
    tools = ToolUseEnvironment(
        ToolRegistry([price]), QUESTIONS, max_turns=3, eval_tasks=QUESTIONS, call_format="short"
    )
    code.name, math.name, tools.name = "code", "math", "tools"
    return [code, math, tools]


def said(*texts):
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]}


def shown(code, math):
    """Answers of the right form, so that there is something to pay."""
    programs = [code.task(number).prompt[0].content for number in range(len(PROGRAMS))]
    rows = [said(asked, f"def f(a, b): return a {sign} b") for asked in programs for sign in "+-*"]
    sums = {math.task(number).prompt[-1].content for number in range(len(SUMS))}
    rows += [said(asked, f"\\boxed{{{n}}}") for asked in sorted(sums) for n in range(2, 7)]
    rows += [
        said(f"price of {item}", f'price("{item}")', f"price: {cents}", f"={cents}")
        for item, cents in PRICES.items()
        for _ in range(3)  # two turns take longer to learn
    ]
    return rows


def main(given=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12, help="of PPO")
    parser.add_argument("--shown", type=int, default=60, help="steps of imitation before them")
    chosen = parser.parse_args(given)
    worlds = environments()
    pupil = SFTTrainer(
        mrlm.default_model(),
        shown(*worlds[:2]),
        batch_size=16,
        learning_rate=2e-3,
        adam_beta2=0.95,
        output_dir="outputs/train_multi_environment/shown",
        report_to="none",
    ).train(num_iterations=chosen.shown)
    trainer = PPOTrainer(
        pupil.run_folder / "final",
        worlds,
        batch_size=48,
        learning_rate=3e-4,
        critic_learning_rate=1e-3,
        gamma=1.0,
        max_new_tokens=32,
        output_dir="outputs/train_multi_environment/practised",
        report_to="none",
    )
    before = trainer.evaluate(16, samples=16, greedy=False).metrics
    history = trainer.train(num_iterations=chosen.steps).history
    after = trainer.evaluate(16, samples=16, greedy=False).metrics
    for row in history[:: max(1, len(history) // 5)]:
        numbers = (f"{world.name} {row[f'{world.name}/reward/mean']:.2f}" for world in worlds)
        print(f"step {row['step']}: mean rewards {', '.join(numbers)}")
    for world in worlds:
        key = f"eval/{world.name}/reward/mean"
        print(f"{world.name}: reward {before[key]:.2f} -> {after[key]:.2f}")


if __name__ == "__main__":
    main()
