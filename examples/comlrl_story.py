"""The quick start of CoMLRL, with the import changed, in one turn and in several.

Two agents tell a story; the reward is highest where the second text is two to three times as long
as the first. With `--turns 2` they revise what they wrote: `external_transition` writes the prompts
of the next turn, and the reward function is called after every turn. Prints the mean reward of the
first and the last quarter of the steps.
"""

import argparse
import math
from functools import partial

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

import mrlm
from mrlm import MAGRPOConfig, MAGRPOTrainer, RewardProcessors

train_data = {
    "prompt": [
        "Describe a city in the clouds:",
        "Invent a new holiday and explain it:",
        "Write a bedtime story for a dragon:",
        "Explain how teleportation might work:",
        "Tell a joke about dinosaurs:",
        "Describe a world without electricity:",
        "Create a superhero with a unique power:",
        "Write a scene where the moon talks:",
        "Invent a new type of fruit:",
        "Design a playground on Mars:",
    ]
}


def length_ratio_reward(completions1, completions2, target_min=2.0, target_max=3.0):
    """1 where the second text is `target_min` to `target_max` times as long, and less outside."""
    rewards = []
    for c1, c2 in zip(completions1, completions2, strict=True):
        if len(c1) == 0:
            rewards.append(0.0)
            continue
        ratio = len(c2) / len(c1)
        distance = max(target_min - ratio, ratio - target_max, 0.0)
        rewards.append(math.exp(-distance))
    return rewards


def revise(
    prompt,
    agent_completions,
    num_agents,
    prompt_history_per_agent=None,
    response_history_per_agent=None,
):
    """The prompts of the next turn: the task, and what the agent wrote."""
    return [
        f"{prompt}\nPrevious attempt: {agent_completions[i]}\nPlease revise."
        for i in range(num_agents)
    ]


def main(given=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--turns", type=int, default=1)
    chosen = parser.parse_args(given)
    model_name = mrlm.default_model()
    tokenizer = AutoTokenizer.from_pretrained(model_name)
    agents = [AutoModelForCausalLM.from_pretrained(model_name) for _ in range(2)]
    config = MAGRPOConfig(
        max_steps=chosen.steps,
        agent_learning_rate=2e-3,  # of a tiny model; CoMLRL's quick start has 5e-5
        logging_steps=10,
        num_generations=8,
        num_turns=chosen.turns,
        max_new_tokens=24,
    )
    trainer = MAGRPOTrainer(
        agents=agents,
        reward_func=partial(length_ratio_reward, target_min=2, target_max=3),
        reward_processor=RewardProcessors.scale(factor=100.0),
        external_transition=revise if chosen.turns > 1 else None,
        args=config,
        train_dataset=Dataset.from_dict(train_data),
        tokenizer=tokenizer,
    )
    result = trainer.train()
    trainer.save_model("outputs/comlrl_story/models")
    rewards = [step["reward/mean"] for step in result.history]
    part = max(1, len(rewards) // 4)
    print(f"reward {sum(rewards[:part]) / part:.1f} -> {sum(rewards[-part:]) / part:.1f}")


if __name__ == "__main__":
    main()
