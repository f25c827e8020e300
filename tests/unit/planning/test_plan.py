"""`--dry-run` says what a run will do; the counts must be those the run then has."""

import asyncio
import json
from typing import Any

import pytest

from mrlm.build.environments import make_environments
from mrlm.build.policies import LiveObjects
from mrlm.config import ExperimentConfig, LoraConfig
from mrlm.core import registry
from mrlm.core.chat import Chat
from mrlm.core.types import SamplingParams
from mrlm.planning.model_shape import ModelShape, known_shape, shape_of
from mrlm.planning.plan import arithmetic
from mrlm.play.agent import AgentSettings
from mrlm.play.sources.play import Play

SHAPE = ModelShape(
    hidden=10, layers=2, vocab=100, intermediate=20, query_width=10, kv_width=5, tied=True
)
LAYER = 10 * 10 + 2 * 10 * 5 + 10 * 10 + 3 * 10 * 20


def plan_of(shape: ModelShape | None = SHAPE, agents=1, trained=1, **data: Any):
    config = ExperimentConfig(**data)
    names = list(config.policies) or ["policy"]
    shapes = dict.fromkeys(names, shape) if shape else None
    return arithmetic(config, num_agents=agents, trained_agents=trained, shapes=shapes)


def test_counts_of_an_iteration_and_a_run():
    plan = plan_of(
        agents=3,
        trained=2,
        training={"algorithm": "ppo", "batch_size": 8, "num_iterations": 5},
        ppo={"group_size": 4, "update_epochs": 3, "num_minibatches": 2},
        workflow={"name": "turns", "max_turns": 6},
    )
    assert (plan.episodes, plan.sequences, plan.model_calls) == (32, 64, 32 * 3 * 6)
    assert plan.optimizer_steps == 6
    text = str(plan)
    assert "8 tasks x 4 = 32 episodes" in text
    assert "5 iterations, 30 optimizer steps per policy" in text


def test_micro_batches_hold_the_token_limit():
    data = {
        "training": {"batch_size": 8, "max_tokens_per_microbatch": 1000},
        "grpo": {"group_size": 4},
        "generation": {"max_new_tokens": 100, "max_prompt_tokens": 100},
        "environments": [{"env_type": "math", "max_turns": 1}],
    }
    plan = plan_of(**data)
    assert (plan.tokens, plan.microbatches) == (200, 7)
    assert not any("not counted" in note for note in plan.notes)
    data["training"]["gradient_accumulation_steps"] = 8
    assert plan_of(**data).microbatches == 8


def test_pairs_are_rows_and_nothing_is_sampled():
    plan = plan_of(training={"algorithm": "dpo", "batch_size": 4})
    assert plan.rows and (plan.sequences, plan.model_calls) == (8, 0)
    assert "kv_cache" not in plan.memory["policy"]


@pytest.mark.parametrize("algorithm", ["dpo", "grpo"])
def test_an_evaluation_is_in_the_memory(algorithm: str) -> None:
    """An evaluation samples, also where rows are trained on, and more at once than a step."""
    data: dict[str, Any] = {"training": {"algorithm": algorithm, "batch_size": 4}}
    data["generation"] = {"max_new_tokens": 6, "max_prompt_tokens": 4}
    data["evaluation"] = {"episodes": 50, "samples": 2, "greedy": False}
    plan = plan_of(**data)
    assert plan.model_calls < 100
    assert plan.memory["policy"]["kv_cache"] == 100 * plan.tokens * 2 * 5 * 2 * 4


def test_rows_wait_for_memory_of_keys_and_the_host_keeps_moments():
    """Beyond `engine.kv_mib` nothing is planned; moments leave the device but for some weights."""
    large = ModelShape(
        hidden=1024, layers=24, vocab=1000, intermediate=4096, query_width=1024, kv_width=512,
        tied=True,
    )  # fmt: skip
    data: dict[str, Any] = {"training": {"batch_size": 64}, "grpo": {"group_size": 8}}
    data["generation"] = {"max_new_tokens": 1000, "max_prompt_tokens": 1000}
    data["engine"] = {"batch_size": 512}
    whole = plan_of(large, **data)
    data["engine"]["kv_mib"] = 100
    bounded = plan_of(large, **data)
    needed = 512 * whole.tokens * 2 * 512 * 24 * 4
    assert whole.memory["policy"]["kv_cache"] == needed
    assert bounded.memory["policy"]["kv_cache"] == 100 << 20
    assert sum("engine.kv_mib" in note for note in whole.notes) == 1, "the formula"
    (note,) = [each for each in bounded.notes if "rows wait until they fit" in each]
    assert "keys and values of all rows of policy would take" in note
    data["training"]["optimizer_offload"] = True
    found = plan_of(large, **data)
    moments = 8 * large.parameters
    assert bounded.memory["policy"]["optimizer"] == moments > 8 * (1 << 26)
    assert "optimizer" not in found.memory["policy"]
    assert found.memory["policy"]["moments"] == 8 * (1 << 26)
    assert bounded.total_memory - found.total_memory > moments / 2
    assert any(each.startswith("the host keeps ") for each in found.notes)


def test_memory_of_weights_gradients_and_optimizer():
    count = 2 * LAYER + 100 * 10
    assert SHAPE.parameters == count
    memory = plan_of(grpo={"kl_coef": 0.1}).memory["policy"]
    assert memory["weights"] == memory["gradients"] == memory["reference"] == 4 * count
    assert memory["optimizer"] == 8 * count
    half = plan_of(model={"torch_dtype": "bfloat16"}, training={"optimizer": "sgd"}).memory[
        "policy"
    ]
    assert half["weights"] == 2 * count and half["optimizer"] == 0 and "reference" not in half


def test_adapters_train_few_weights_and_need_no_reference():
    data = {"model": {"lora": {"r": 2}}, "grpo": {"kl_coef": 0.1}}
    memory = plan_of(SHAPE, **data).memory["policy"]
    adapter = 2 * 2 * (20 + 15 + 15 + 20 + 30 + 30 + 30)
    assert SHAPE.adapter(LoraConfig(r=2)) == adapter
    assert memory["gradients"] == 4 * adapter and "reference" not in memory


def test_a_teacher_is_an_adapter_beside_the_policys_or_a_second_model(tiny_path, tmp_path):
    """Of an adapter of another base that is a whole model; on a server it takes nothing."""
    for name, base in (("same", tiny_path), ("other", "Qwen/Qwen2.5-0.5B")):
        (tmp_path / name).mkdir()
        config = {"r": 3, "peft_type": "LORA", "base_model_name_or_path": base}
        (tmp_path / name / "adapter_config.json").write_text(json.dumps(config))
    shape = shape_of(tiny_path)
    assert shape is not None
    large = known_shape("Qwen/Qwen2.5-0.5B")
    assert large is not None
    adapter = 4 * shape.adapter(LoraConfig(r=3))
    endpoint = {"base_url": "http://localhost/v1", "model": "x"}
    for distill, lora, expected in [
        ({"teacher_model": str(tmp_path / "same")}, {"r": 2}, adapter),
        ({"teacher_model": str(tmp_path / "same")}, None, 4 * shape.parameters),
        ({"teacher_model": str(tmp_path / "other")}, {"r": 2}, 4 * large.parameters),
        ({"teacher_model": "stage:team/last"}, None, 4 * shape.parameters),
        ({"teacher_endpoint": endpoint, "divergence": "sampled"}, None, 0),
    ]:
        model = {"model_name_or_path": tiny_path} | ({"lora": lora} if lora else {})
        data = {"model": model, "distill": distill, "training": {"algorithm": "distill"}}
        memory = plan_of(shape, **data).memory["policy"]
        assert memory.get("reference", 0) == expected, distill


def test_a_frozen_policy_only_needs_its_weights_and_cache():
    policies = {"a": {}, "judge": {"trainable": False}}
    plan = plan_of(agents=2, trained=1, policies=policies)
    assert plan.policies == 1
    assert set(plan.memory["judge"]) == {"weights", "kv_cache"}


def test_a_critic_with_a_network_of_its_own_is_counted_where_it_starts_from():
    policies = {"a": {}, "b": {"lora": {"r": 4}}}
    separate = uses("ppo", critic="separate")
    memory = plan_of(agents=2, trained=2, policies=policies, **separate).memory
    whole = memory["a"]
    assert whole["critic"] == whole["weights"] + whole["gradients"] + whole["optimizer"]
    adapter = memory["b"]
    assert adapter["critic"] == 2 * adapter["gradients"] + adapter["optimizer"]
    joint = plan_of(agents=2, trained=2, policies=policies, **uses("mappo")).memory
    assert joint["a"]["critic"] == whole["critic"] and "critic" not in joint["b"]
    shared = plan_of(agents=2, trained=2, policies=policies, **uses("ppo")).memory
    assert "critic" not in shared["a"]


def uses(algorithm: str, **settings: Any) -> dict[str, Any]:
    return {"training": {"algorithm": algorithm}, algorithm: settings}


def test_checkpointing_keeps_fewer_activations():
    kept = plan_of().memory["policy"]["activations"]
    again = plan_of(training={"gradient_checkpointing": True}).memory["policy"]["activations"]
    assert again < kept


def test_the_embedded_model_is_known_without_building_it():
    shape = shape_of("mrlm/tiny")
    assert shape is not None and shape.parameters == pytest.approx(0.43e6, rel=0.1)
    assert shape_of("some/hub-id") is None


def test_a_folder_is_read_and_an_unknown_model_is_said_to_be(tmp_path):
    text = '{"hidden_size": 8, "num_hidden_layers": 1, "vocab_size": 9, "intermediate_size": 4, '
    text += '"num_attention_heads": 2, "tie_word_embeddings": false}'
    (tmp_path / "config.json").write_text(text)
    shape = shape_of(str(tmp_path))
    assert shape == ModelShape(8, 1, 9, 4, 8, 8, False)
    plan = plan_of(shape=None, model={"model_name_or_path": "some/hub-id"})
    assert plan.memory == {} and any("some/hub-id" in note for note in plan.notes)
    config = ExperimentConfig(model={"model_name_or_path": "some/hub-id"})
    known = arithmetic(config, num_agents=1, trained_agents=1, parameters={"policy": 1000})
    assert known.memory["policy"]["weights"] == 4000


def test_the_counts_agree_with_what_the_model_really_has():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from mrlm.core.tiny_model import ARCHITECTURE

    model = Qwen3ForCausalLM(Qwen3Config(**ARCHITECTURE, vocab_size=259))
    real = sum(weight.numel() for weight in model.parameters())
    shape = shape_of("mrlm/tiny")
    assert shape is not None and abs(shape.parameters - real) / real < 0.01


@pytest.mark.parametrize("agents", [2, 4])
@pytest.mark.parametrize(
    ("workflow", "turns"),
    [
        ({"name": "turns"}, 2), ({"name": "majority_vote", "samples": 3}, 2),
        ({"name": "summarize"}, 2), ({"name": "chain"}, 2), ({"name": "refine", "rounds": 2}, 2),
        ({"name": "mixture", "layers": 4}, 2), ({"name": "manager"}, 2), ({"name": "router"}, 2),
        ({"name": "propose_solve", "attempts": 3}, 2), ({"name": "debate", "rounds": 3}, 1),
        ({"name": "malt", "branches": 2}, 1),
    ],
)  # fmt: skip
def test_completions_are_those_that_the_workflow_asks_for(
    workflow: dict[str, Any], turns: int, agents: int, tokenizer: Any
) -> None:
    alone = workflow["name"] == "turns"
    names = [f"a{i}" for i in range(1 if alone else agents)]
    rows = [{"prompt": f"{i}+1=?", "answer": f"{i + 1}"} for i in range(3)]
    config = ExperimentConfig(
        environments=[{"env_type": "math", "dataset": rows, "max_attempts": turns}],
        agents={name: {} for name in names},
        policies={"p": {}},
        workflow=workflow,
        training={"algorithm": "ppo", "batch_size": 2},
        ppo={"group_size": 2},
    )
    plan = arithmetic(config, num_agents=len(names), trained_agents=len(names), max_turns=turns)
    engine = registry.load("engines", "scripted")(lambda request: "no", tokenizer)
    chat, sampling = Chat(tokenizer), SamplingParams(max_new_tokens=8)
    seats = {name: AgentSettings(name, "p", chat, sampling, 2000) for name in names}
    play = Play(make_environments(config, LiveObjects()), seats, {"p": engine}, 2, seed=0)
    asyncio.run(play.take(2))
    assert sum(map(len, engine.batches)) == plan.model_calls
    assert f"at most {plan.model_calls} completions" in str(plan)


async def own_workflow(task: Any, agents: Any, env: Any) -> None:
    """Nobody knows how often this asks models."""


def test_what_is_not_known_of_a_workflow_of_ones_own_is_said() -> None:
    plan = plan_of(workflow="test_plan:own_workflow", agents=2)
    assert any("does not declare its model calls" in note for note in plan.notes)
