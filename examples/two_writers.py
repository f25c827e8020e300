"""Two writers and one post, with MAGRPO: who is brief, and who goes into detail?

They write at once, without seeing what the other writes, and are paid together, at most 3, for how
their two texts fit: lengths, different words, a transition, and the quality of both. First a policy
is shown two good texts for each post, for either writer alike; then the two writers, a policy each,
find out who should write which. Prints the reward before and after, and what they write at last.
"""

import argparse

import mrlm
from mrlm import MAGRPOTrainer, SFTTrainer
from mrlm.environments.texts.writing import WritingEnvironment

POSTS = [
    {
        "document": "Every evening I water the peas behind our house. This morning the hen of my "
        "uncle dug them all up.",
        "texts": ["A hen ate our peas.", "I water the peas every evening, but a hen dug them up."],
    },
    {
        "document": "We wanted to drive to the lake with a friend on Sunday. The van broke down "
        "and we waited in the rain.",
        "texts": ["Our van broke down.", "We set out for the lake, but we sat in the rain."],
    },
]


def main(given=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12, help="of MAGRPO")
    parser.add_argument("--shown", type=int, default=90, help="steps of imitation before them")
    chosen = parser.parse_args(given)
    world = WritingEnvironment(
        "short",
        POSTS,
        eval_dataset=POSTS,
        instructions=["short", "long"],
        rules={"words": [3, 16]},
    )
    tasks = [world.task(number) for number in range(len(POSTS))]
    either = [
        {"agent": agent, "prompt": seen.messages, "completion": text}
        for task in tasks
        for agent, seen in world.reset(task).observations.items()
        for text in task.answer
    ]
    common = {"max_new_tokens": 72, "temperature": 0.7, "report_to": "none", "adam_beta2": 0.95}
    shown = SFTTrainer(
        mrlm.default_model(),
        either,
        agents=dict.fromkeys(world.agents, mrlm.default_model()),
        batch_size=8,
        learning_rate=2e-3,
        output_dir="outputs/two_writers/shown",
        **common,
    ).train(num_iterations=chosen.shown)
    team = MAGRPOTrainer(
        shown.run_folder / "final",
        world,
        num_generations=8,
        batch_size=2,
        learning_rate=3e-4,
        output_dir="outputs/two_writers/team",
        **common,
    )
    before = team.evaluate(2, samples=12, greedy=False).metrics["eval/reward/mean"]
    team.train(num_iterations=chosen.steps)
    after = team.evaluate(2, samples=12, greedy=False)
    print(f"reward {before:.2f} -> {after.metrics['eval/reward/mean']:.2f}")
    for agent, rollout in after.episodes[0].rollouts.items():
        print(f"  {agent}: {rollout.messages[-1].content}")


if __name__ == "__main__":
    main()
