"""A router over frozen models of other families and sizes: which one is worth a math question?

    python router_r1_math_qwen.py --models Qwen/Qwen2.5-0.5B-Instruct path/to/another
    python router_r1_math_qwen.py --endpoint http://localhost:8000/v1 --endpoint-model some-model

The more a model costs, the less a right answer of it is worth. Without arguments three small models
are built on the spot (Qwen2, Qwen3 and Llama, of three sizes) and shown some sums while the router
is shown the form; models of your own stay as they are from the beginning. Prints the reward on
held-out questions before, in between and after: -1 for a broken form, 1 for a right answer.
"""

import argparse
from pathlib import Path

import transformers

import mrlm
from mrlm.config import ExperimentConfig
from mrlm.environments.math import MathProblemGenerator, MathReasoningEnvironment
from mrlm.experiment import run_experiment

FAMILIES = (("Qwen2", 32), ("Qwen3", 64), ("Llama", 96))


def random_model(family, hidden):
    """A small model of a family, with the embedded tokenizer."""
    folder = Path("outputs/models") / f"{family}-{hidden}".lower()
    tokenizer = transformers.AutoTokenizer.from_pretrained(mrlm.default_model())
    settings = getattr(transformers, f"{family}Config")(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    getattr(transformers, f"{family}ForCausalLM")(settings).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def experts(chosen):
    """Policies that are asked, the cheapest first."""
    frozen = {"trainable": False}
    found = {f"m{i}": {"model": path, **frozen} for i, path in enumerate(chosen.models, 1)}
    if chosen.endpoint is not None:
        endpoint = {"base_url": chosen.endpoint, "model": chosen.endpoint_model}
        found["remote"] = {"endpoint": endpoint | {"api_key_env": chosen.key}}
    built = {} if found else {family.lower(): (family, hidden) for family, hidden in FAMILIES}
    return found | {name: {"model": random_model(*each)} for name, each in built.items()}


def questions(easy):
    """Sums, or all kinds of questions where models can speak, with their right answers."""
    if easy:
        return [{"question": f"{a}+{b}=", "answer": a + b} for a in range(10) for b in range(10)]
    world = MathReasoningEnvironment(MathProblemGenerator(difficulty_range=(1, 2), seed=0))
    tasks = [world.task(seed) for seed in range(1000)]
    return [{"question": task.info["question"], "answer": task.answer} for task in tasks]


def experiment(chosen):
    asked = experts(chosen)
    stages = [
        {
            "name": "form",
            "training": {"algorithm": "sft", "num_iterations": chosen.shown, "learning_rate": 2e-3},
            "sft": {"teacher": "expert"},
        },
        {
            "name": "routes",
            "policies": {name: {"trainable": False} for name in asked},
            "training": {"algorithm": "router_r1", "num_iterations": chosen.steps},
            "router_r1": {"cost_coef": 0.1},
        },
    ]
    world = {
        "env_type": "search_qa",
        "dataset": questions(easy=not (chosen.models or chosen.endpoint)),
        "models": {name: {"price": 0.1 * 3**i} for i, name in enumerate(asked)},
        "max_turns": 1,
        "max_observation": chosen.tokens * 4,
        "prompts": "full" if chosen.explained else "short",
    }
    return ExperimentConfig(
        experiment_name="router_r1_math_qwen",
        model={"model_name_or_path": chosen.router or mrlm.default_model()},
        environments=[world],
        policies={"router": {}, **asked},
        agents={name: {"generation": {"max_new_tokens": chosen.tokens}} for name in asked},
        generation={"max_new_tokens": 64 + chosen.tokens},
        evaluation={"episodes": 16},
        training={"report_to": "none", "batch_size": 16, "adam_beta2": 0.95},
        stages=stages if chosen.shown else stages[1:],
    )


def main(given=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--router", help="folder or hub id of the model that is trained")
    parser.add_argument("--models", nargs="*", default=[], help="folders or hub ids to be asked")
    parser.add_argument("--endpoint", help="URL of an OpenAI-compatible server, up to /v1")
    parser.add_argument("--endpoint-model", default="default", help="the model's name there")
    parser.add_argument("--key", help="environment variable that holds the server's key")
    parser.add_argument("--explained", action="store_true", help="tell the router the rules")
    parser.add_argument("--shown", type=int, default=60, help="steps of imitation; 0 for none")
    parser.add_argument("--steps", type=int, default=4, help="of Router-R1")
    parser.add_argument("--tokens", type=int, default=4, help="that a model may answer with")
    result = run_experiment(experiment(parser.parse_args(given)))
    rewards = [row["eval/reward/mean"] for row in result.history if "eval/reward/mean" in row]
    print("reward", " -> ".join(f"{reward:.2f}" for reward in [*rewards[:2], rewards[-1]]))
    for name in ("form", "routes", "cost"):
        print(name, result.metrics[f"reward/router/{name}"])


if __name__ == "__main__":
    main()
