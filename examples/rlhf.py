"""Reinforcement learning from human feedback: a reward model from preferences, then a policy that
is trained against it."""

import mrlm
from mrlm import GRPOTrainer, RewardModel, RewardModelTrainer

prompts = ["Is it late?", "Is it far?", "Is it hot?", "Is it new?"]
preferences = [
    {"prompt": prompt, "chosen": chosen, "rejected": rejected}
    for prompt in prompts
    for chosen, rejected in [("yes", "no"), ("oh yes", "oh no"), ("yes yes", "not")]
]

judge = RewardModelTrainer(
    mrlm.default_model(),  # $MRLM_MODEL, else the embedded tiny model: a Hugging Face folder
    preferences,
    learning_rate=1e-3,
    batch_size=12,
    output_dir="outputs/judge",
    report_to="none",
).train(num_iterations=20)
print("accuracy", judge.metrics["rewards/accuracies"])

reward_model = RewardModel(judge.run_folder / "final")
good, bad = reward_model(["Is it old?"] * 2, ["yes", "no"])
print(f"yes {good:.2f}, no {bad:.2f}")

policy = GRPOTrainer(
    mrlm.default_model(),
    train_dataset=[{"prompt": prompt} for prompt in prompts],
    reward_func=reward_model,
    num_generations=8,
    max_new_tokens=4,
    learning_rate=5e-4,
    beta=0.02,  # stay near the model it began with
    batch_size=4,
    output_dir="outputs/policy",
    report_to="none",
)
result = policy.train(num_iterations=10)
print("reward", result.history[0]["reward/mean"], "->", result.metrics["reward/mean"])
