"""`mrlm plan`: sizes that a real model has, laws that every plan keeps, and rows that others
published."""

import asyncio
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from benchmarks.published import ROWS

from commands import Done, Mrlm
from mrlm.build.environments import make_environments
from mrlm.build.policies import LiveObjects
from mrlm.config import ExperimentConfig
from mrlm.core import registry
from mrlm.core.chat import Chat
from mrlm.core.errors import ConfigError
from mrlm.core.types import SamplingParams
from mrlm.learn.data.samples import samples_of
from mrlm.planning import memory
from mrlm.planning.communication import Ring
from mrlm.planning.devices import DEVICES, find_device
from mrlm.planning.estimate import Estimate, Needs, best, counts_up_to, nodes_of, sweep
from mrlm.planning.model_shape import known_shape, parameters_of, shape_of_size
from mrlm.planning.plan import Plan, arithmetic
from mrlm.planning.rates import Took, added, attention_peak, reached, roofline
from mrlm.planning.timing import Lengths
from mrlm.play.agent import AgentSettings
from mrlm.play.sources.play import Play

H100 = DEVICES["h100"]
LENGTHS = Lengths(256, 600, 1024)
LARGE: dict[str, Any] = {
    "model": {"model_name_or_path": "Qwen/Qwen2.5-7B-Instruct", "torch_dtype": "bfloat16"},
    "training": {
        "algorithm": "grpo",
        "batch_size": 1024,
        "precision": "bf16",
        "gradient_checkpointing": True,
    },
    "grpo": {"group_size": 8},
    "generation": {"max_new_tokens": 1024, "max_prompt_tokens": 256},
    "environments": [{"env_type": "math", "max_turns": 1}],
}


def plan_of(agents: int = 1, **changes: Any) -> Plan:
    config = ExperimentConfig(**LARGE).merged(changes)
    trained = sum(each.trainable for each in config.policies.values()) or agents
    return arithmetic(config, num_agents=agents, trained_agents=trained)


def at(
    plan: Plan, devices: int, strategy: str = "auto", lengths: Lengths = LENGTHS, **changes: Any
) -> Estimate:
    device = replace(H100, **changes)
    return best(plan, lengths, device, strategy, devices, nodes_of(devices, None, device), Needs())


# -- what devices reach ----------------------------------------------------------------------------


def test_on_a_processor_short_types_hurry_products_alone() -> None:
    processor = replace(H100, fp32=1e11, bf16=1e13, shared=True)
    full, short = (reached(processor, width, 0.7) for width in (4, 2))
    assert full == pytest.approx(0.7e11)
    assert 1.4 * full < short < 1e11 / (1 / 0.7 - 1)  # the rest stays, and bounds it
    assert attention_peak(processor, 2) == 1e11
    without = replace(processor, bf16=2e10)
    assert reached(without, 2, 0.7) < 2e10 < full
    assert reached(H100, 2, 0.7) == pytest.approx(0.7 * H100.bf16)
    assert attention_peak(H100, 2) == H100.bf16


# -- sizes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Qwen/Qwen2.5-0.5B", 0.494), ("Qwen/Qwen2.5-Math-7B-Instruct", 7.62),
        ("Qwen/Qwen2.5-72B-Instruct", 72.7), ("Qwen/Qwen3-0.6B-Base", 0.596),
        ("Qwen/Qwen3-32B", 32.8), ("meta-llama/Meta-Llama-3.1-8B-Instruct", 8.03),
        ("meta-llama/Llama-3.2-1B", 1.24), ("meta-llama/Llama-3.1-405B", 405.9),
        ("mistralai/Mistral-7B-Instruct-v0.3", 7.25), ("google/gemma-2-9b-it", 9.24),
        ("google/gemma-3-1b-it", 1.0), ("HuggingFaceTB/SmolLM2-135M-Instruct", 0.135),
    ],
)  # fmt: skip
def test_public_models_are_known_by_name(name: str, billions: float) -> None:
    shape = known_shape(name)
    assert shape is not None and shape.parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_a_model_that_is_not_known_is_made_from_its_size() -> None:
    assert known_shape("some/model-7b") is None
    assert parameters_of("7B") == 7_000_000_000 and parameters_of(" 350m ") == 350_000_000
    for size, rest in (("7B", ()), ("13B", (40, 5120)), ("1.2B", (16, 2048, 128_256))):
        shape = shape_of_size(parameters_of(size), *rest)
        assert shape.parameters == pytest.approx(parameters_of(size), rel=0.01)
        if rest:
            assert (shape.layers, shape.hidden) == rest[:2]
    with pytest.raises(ConfigError, match="do not make 80 layers"):
        shape_of_size(parameters_of("1B"), 80, 8192)
    with pytest.raises(ConfigError, match="--params seven"):
        parameters_of("seven")


def test_weights_gradients_and_moments_are_those_of_a_real_model() -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from mrlm.core.tiny_model import ARCHITECTURE

    model: Any = Qwen3ForCausalLM(Qwen3Config(**ARCHITECTURE, vocab_size=259))
    optimizer = torch.optim.AdamW(model.parameters())
    model(input_ids=torch.arange(9)[None]).logits.sum().backward()
    optimizer.step()
    weights = list(model.parameters())
    real = {
        "weights": sum(weight.nbytes for weight in weights),
        "gradients": sum(weight.grad.nbytes for weight in weights),
        "optimizer": sum(
            value.nbytes
            for state in optimizer.state.values()
            for key, value in state.items()
            if key != "step"
        ),
    }
    config = ExperimentConfig(environments=[{"env_type": "math"}])
    count = sum(weight.numel() for weight in weights)
    known = arithmetic(config, num_agents=1, trained_agents=1, parameters={"policy": count}).memory[
        "policy"
    ]
    assert {name: known[name] for name in real} == real
    by_shape = arithmetic(config, num_agents=1, trained_agents=1).memory["policy"]
    assert by_shape["optimizer"] == pytest.approx(real["optimizer"], rel=0.01)


def test_activations_are_those_that_the_forward_pass_keeps() -> None:
    """Counted by autograd itself, on the embedded model."""
    import torch
    from transformers import AutoModelForCausalLM

    from mrlm.core.tiny_model import default_model
    from mrlm.learn.fast.adapters import PackedTree
    from mrlm.learn.fast.forward import LeanForward
    from mrlm.learn.fast.llama_modules import anatomy_of
    from mrlm.learn.fast.prefix_tree import plant
    from mrlm.planning.model_shape import shape_of

    model = AutoModelForCausalLM.from_pretrained(default_model())
    known = {weight.data_ptr() for weight in model.parameters()}
    held: dict[int, int] = {}

    def keep(tensor: Any) -> Any:
        if tensor.data_ptr() not in known and tensor.is_floating_point():
            held[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    tokens = 200
    ids, places = list(range(3, 4 + tokens)), np.arange(tokens)
    tree = plant([ids], np.zeros(tokens, dtype=np.int64), places)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        states = LeanForward(anatomy_of(model), torch.float32).hidden([PackedTree(tree, None)])
    shape = shape_of("mrlm/tiny")
    assert shape is not None and len(states) and held
    said = memory.activations(shape, tokens, 4)
    assert said == pytest.approx(sum(held.values()), rel=0.25)
    weights = memory.WeightSizes("policy", shape, 9, "policy")
    loads = [memory.MemoryLoad(tokens=9, accelerated=True, once=once) for once in (True, False)]
    once, several = (memory.parts_of(weights, load) for load in loads)
    assert several["activations"] - once["activations"] == once["gradients"] == 36


def test_a_base_under_adapters_is_there_once_and_copies_are_not() -> None:
    alone = plan_of(model={**LARGE["model"], "lora": {"r": 16}})
    three = {name: {"lora": {"r": 16}} for name in "abc"}
    shared = plan_of(agents=3, policies=three)
    assert [each.owns for each in shared.weights] == [True, False, False]
    weights = alone.memory["policy"]["weights"]
    assert sum(parts["weights"] for parts in shared.memory.values()) == weights
    more = memory.peak(shared.memory) - memory.peak(alone.memory)
    assert 0 < more < 0.1 * weights
    own = plan_of(agents=3, policies={name: {} for name in "abc"})
    assert sum(parts["weights"] for parts in own.memory.values()) == 3 * weights


def test_a_frozen_judge_shares_the_base_of_an_adapter() -> None:
    judged = plan_of(agents=2, policies={"a": {"lora": {"r": 8}}, "judge": {"trainable": False}})
    judge = judged.memory["judge"]
    assert judge["weights"] == 0 and judge["kv_cache"] > 0 and "gradients" not in judge
    whole = plan_of(agents=2, policies={"a": {}, "judge": {"trainable": False}})
    assert whole.memory["judge"]["weights"] == whole.memory["a"]["weights"]


def test_stand_ins_of_opponents_are_in_the_memory() -> None:
    opponents = {"every": 5, "at_once": 2}
    game = {"environments": [{"env_type": "kuhn_poker"}], "opponents": opponents}
    whole = plan_of(agents=2, **game, policies={"a": {}, "b": {}})
    assert whole.memory["a"]["opponents"] == 2 * whole.memory["a"]["weights"]
    adapters = plan_of(agents=2, **game, policies={n: {"lora": {"r": 8}} for n in "ab"})
    assert adapters.memory["a"]["opponents"] == 2 * adapters.memory["a"]["adapter"]
    chosen = plan_of(
        agents=2,
        policies={"a": {}, "b": {}},
        **game | {"opponents": opponents | {"policies": ["b"]}},
    )
    assert "opponents" not in chosen.memory["a"] and chosen.memory["b"]["opponents"]


def test_the_own_model_of_a_critic_is_counted() -> None:
    changes = {"algorithm": "mappo", "critic_model": "Qwen/Qwen2.5-1.5B"}
    rest = {key: value for key, value in LARGE.items() if key != "grpo"}
    config = ExperimentConfig(**rest | {"training": LARGE["training"] | changes})
    known = arithmetic(config, num_agents=2, trained_agents=2).memory["policy"]
    critic = known_shape("Qwen/Qwen2.5-1.5B")
    assert critic is not None and known["critic"] == 16 * critic.parameters


# -- what is played --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workflow", "agents", "turns"),
    [
        ({"name": "majority_vote", "samples": 3}, 2, 1),
        ({"name": "majority_vote", "samples": 2}, 2, 2),
        ({"name": "majority_vote"}, 3, 1),
        ({"name": "propose_solve", "attempts": 3}, 2, 2),
        ({"name": "chain"}, 3, 2),
        ({"name": "refine", "rounds": 2}, 2, 1),
        ({"name": "debate", "rounds": 3}, 2, 1),
    ],
)
def test_sequences_are_those_that_a_play_falls_into(
    workflow: dict[str, Any], agents: int, turns: int, tokenizer: Any
) -> None:
    names = [f"a{i}" for i in range(agents)]
    rows = [{"prompt": f"{i}+1=?", "answer": f"{i + 1}"} for i in range(3)]
    config = ExperimentConfig(
        environments=[{"env_type": "math", "dataset": rows, "max_attempts": turns}],
        agents={name: {} for name in names},
        policies={"p": {}},
        workflow=workflow,
        training={"algorithm": "ppo", "batch_size": 2},
        ppo={"group_size": 2},
    )
    plan = arithmetic(config, num_agents=agents, trained_agents=agents, max_turns=turns)
    said = iter(range(10**6))
    engine = registry.load("engines", "scripted")(lambda request: f"no {next(said)}", tokenizer)
    chat, sampling = Chat(tokenizer), SamplingParams(max_new_tokens=12)
    seats = {name: AgentSettings(name, "p", chat, sampling, 2000) for name in names}
    play = Play(make_environments(config, LiveObjects()), seats, {"p": engine}, 2, seed=0)
    groups = asyncio.run(play.take(2))
    real = len(samples_of(groups, "p", credited=False))
    assert 0.7 * plan.sequences <= real <= plan.sequences


# -- laws ------------------------------------------------------------------------------------------


def test_memory_falls_with_devices_that_share_it() -> None:
    needed = [at(plan_of(), count, "fsdp").needed for count in (1, 2, 4, 8, 64, 1024)]
    assert all(few > many for few, many in pairwise(needed))
    copied = [at(plan_of(), count, "ddp").needed for count in (2, 8, 64)]
    assert max(copied) - min(copied) < 0.2 * min(copied)


def test_time_falls_with_devices_until_they_wait_for_each_other() -> None:
    plan = plan_of()
    steps = [at(plan, count).step for count in counts_up_to(1024)]
    assert all(many < few * 1.01 for few, many in pairwise(steps))
    plan = plan_of(training=LARGE["training"] | {"master_weights": False})
    slow: dict[str, Any] = {"network": 1e8, "link": 1e8}
    times = [at(plan, count, "fsdp", **slow).step for count in (1, 8, 64, 512)]
    assert times[-1] > min(times)
    waiting = at(plan, 512, "fsdp", **slow).seconds
    assert max(waiting, key=lambda name: waiting[name].seconds) == "communication"


def test_no_devices_are_better_than_their_number() -> None:
    small = plan_of(model=LARGE["model"] | {"model_name_or_path": "Qwen/Qwen2.5-0.5B"})
    rows = sweep(small, LENGTHS, H100, "auto", 1024, 128, Needs())
    assert [row.place.devices for row in rows] == counts_up_to(1024)
    assert all(row.fits and 0 < row.efficiency <= 1.001 for row in rows)
    assert rows[0].efficiency == 1.0 and 0 < rows[-1].share_of_peak < 1
    large = sweep(plan_of(), LENGTHS, H100, "auto", 1024, 128, Needs())
    first = next(row for row in large if row.fits)
    assert first.place.devices > 1 and first.efficiency == 1.0
    assert large[0].efficiency == 0.0  # it does not fit


def test_adapters_are_cheaper_than_whole_weights() -> None:
    whole, adapter = plan_of(), plan_of(model={**LARGE["model"], "lora": {"r": 16}})
    for devices in (1, 8):
        one, other = at(adapter, devices, "ddp"), at(whole, devices, "ddp")
        assert one.needed < other.needed
        for part in ("forward_backward", "optimizer", "communication"):
            assert one.seconds[part].seconds <= other.seconds[part].seconds


def test_longer_texts_larger_models_and_slower_worlds_take_longer() -> None:
    plan = plan_of()
    base = at(plan, 8)
    assert at(plan, 8, lengths=replace(LENGTHS, mean=900)).step > base.step
    waited = at(plan, 8, lengths=replace(LENGTHS, latency=7.0)).seconds["worlds"]
    assert waited.bound == "latency"
    assert waited.seconds == pytest.approx(base.seconds["worlds"].seconds + 7.0)
    model = LARGE["model"] | {"model_name_or_path": "Qwen/Qwen2.5-14B"}
    assert at(plan_of(model=model), 8).step > base.step


def test_engines_apart_play_while_policies_learn_only_where_they_may_be_ahead() -> None:
    plan, lengths = plan_of(), replace(LENGTHS, engine="vllm")
    many = (plan, lengths, H100, "fsdp", 16, 2, Needs())
    strict, ahead = best(*many), best(*many, max_lag=1)
    assert 0 < strict.place.engines < 16 and strict.place.learners + strict.place.engines == 16
    assert ahead.step < strict.step


def test_auto_takes_what_fits_and_says_when_nothing_does() -> None:
    large = plan_of(model=LARGE["model"] | {"model_name_or_path": "meta-llama/Llama-3.1-70B"})
    nothing = at(large, 8)
    assert not nothing.fits
    small = at(plan_of(model=LARGE["model"] | {"model_name_or_path": "Qwen/Qwen2.5-0.5B"}), 8)
    assert small.fits and small.place.strategy == "ddp"


def test_ray_gives_every_base_a_worker() -> None:
    policies = {"a": {}, "b": {}}
    apart = at(plan_of(agents=2, policies=policies), 8, "ray")
    assert (apart.place.learners, apart.place.engines) in ((2, 6), (8, 0))
    assert apart.seconds["communication"].seconds == 0
    assert len(apart.memory) == 1  # a worker has one of the two


def test_rings_move_what_they_must() -> None:
    one, eight = Ring(H100, 1, 1), Ring(H100, 8, 1)
    assert one.reduce(1e9).seconds == 0
    assert eight.reduce(1e9).seconds == pytest.approx(2 * eight.gather(1e9).seconds)
    across = Ring(H100, 8, 4)
    assert across.gather(1e9).seconds > eight.gather(1e9).seconds


def test_parts_that_follow_one_another_name_the_longest() -> None:
    took = roofline({"compute": 1.0, "memory": 2.0, "overhead": 0.5})
    assert (took.seconds, took.bound) == (2.5, "memory")
    assert added([took, Took(9.0, "network")]).bound == "network"


def test_what_others_published_is_met_within_twice() -> None:
    far = [
        (row.what, round(row.ratio, 2))
        for row in ROWS
        if not 0.5 <= row.ratio <= 2 and not row.lacks
    ]
    assert not far
    met = [row for row in ROWS if not row.seen and 0.5 <= row.ratio <= 2]
    assert len(met) >= 8 and len({row.source for row in met}) >= 5


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "large.yaml"
    path.write_text(yaml.safe_dump(LARGE))
    return path


def test_the_command_prints_everything_and_how_to_start(run: Mrlm, config: Path) -> None:
    done = run("plan", "--config", config, "--devices", 1024, "--completion-tokens", 600)
    assert done.code == 0, done.err
    for word in ("memory of a device", "time of a step", "efficiency", "1024", "bound by"):
        assert word in done.out
    assert "torchrun --nnodes=128 --node_rank=THIS_NODE --nproc_per_node=8" in done.out
    assert f"-m mrlm train --config {config} distributed.enabled=true" in done.out


def test_what_was_assumed_is_said(run: Mrlm, config: Path) -> None:
    longest = "every completion is assumed to have maximal length; set --completion-tokens"
    found = json.loads(run("plan", "--config", config, "--json").out)
    assert longest in found["notes"]
    assert not any(note.startswith("prompts are assumed") for note in found["notes"])
    options = ("--completion-tokens", 9, "generation.max_prompt_tokens=null", "--json")
    open_ended = json.loads(run("plan", "--config", config, *options).out)["notes"]
    assert longest not in open_ended
    assert any(note.startswith("prompts are assumed to have") for note in open_ended)


def test_json_holds_the_same(run: Mrlm, config: Path) -> None:
    options = ("--devices", 16, "--device", "a100", "--strategy", "fsdp-hybrid", "--json")
    done = run("plan", "--config", config, *options)
    found = json.loads(done.out)
    assert set(found) == {
        "version", "algorithm", "device", "counts", "policies", "chosen", "table", "command",
        "notes", "record",
    }  # fmt: skip
    chosen = found["chosen"]
    assert (chosen["devices"], chosen["nodes"], chosen["strategy"]) == (16, 2, "fsdp-hybrid")
    assert chosen["step_seconds"] == pytest.approx(
        sum(part["seconds"] for part in chosen["seconds"].values())
    )
    assert set(chosen["seconds"]) == {
        "prefill", "decode", "worlds", "annotate", "forward_backward", "optimizer",
        "communication", "hand_over", "rest",
    }  # fmt: skip
    assert chosen["memory"]["policy"]["optimizer"] * 8 == pytest.approx(2 * 7.6156e9 * 4, rel=0.01)
    assert chosen["memory"]["policy"]["masters"] * 8 == pytest.approx(7.6156e9 * 4, rel=0.01)
    assert found["counts"]["episodes"] == 8192
    assert "distributed.fsdp.sharding=hybrid" in found["command"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--device", "h10"), "did you mean 'h100'"),
        (("--devices", 10, "--nodes", 4), "cannot be divided among 4 nodes"),
        (("--devices", 0), "at least 1"),
        (("--strategy", "fdsp"), "did you mean 'fsdp'"),
        (("--engine", "vlm"), "did you mean 'vllm'"),
        (("--latency", -1), "Invalid value for '--latency'"),
        (("--completion-tokens", 5000), "generation.max_new_tokens=1024"),
        (("--completion-tokens", 1025), "generation.max_new_tokens=1024"),
        (("--completion-tokens", 0), "Invalid value for '--completion-tokens'"),
        (("--prompt-tokens", 0), "Invalid value for '--prompt-tokens'"),
        (("--max-lag", -1), "Invalid value for '--max-lag'"),
        (("--layers", 3), "--params"),
        (("--hidden", 3), "--params"),
        (("--vocab", 3), "--params"),
        (("model.model_name_or_path=Qwen/Qwen2.5-8B",), "did you mean 'qwen2.5-"),
        (("--strategy", "fsdp-hybrid", "--devices", 4), "set --nodes"),
        (("--strategy", "fsdp", "--devices", 4, "model.lora.r=8"), "use ddp"),
    ],
)
def test_what_cannot_be_planned_is_said(
    run: Mrlm, config: Path, options: tuple[Any, ...], words: str
) -> None:
    done = run("plan", "--config", config, *options)
    assert done.code == 2 and words in done.err, done.err


def test_engine_and_lag_are_those_of_the_config(run: Mrlm, config: Path) -> None:
    options = ("--devices", 16, "--strategy", "fsdp", "--json")
    here = json.loads(run("plan", "--config", config, *options, "training.max_lag=1").out)
    assert here["chosen"]["engines"] == 0
    assert here["chosen"]["memory"]["policy"]["ahead"] > 1e10
    there = json.loads(run("plan", "--config", config, *options, "--engine", "vllm").out)
    assert there["chosen"]["engines"] > 0 and "engine.name=vllm" in there["command"]
    assert "ahead" not in there["chosen"]["memory"]["policy"]


def test_the_command_has_what_the_options_change(run: Mrlm, config: Path) -> None:
    def command(*options: object) -> str:
        done = run("plan", "--config", config, "--json", "--devices", 16, *options)
        assert done.code == 0, done.err
        found: str = json.loads(done.out)["command"]
        return found

    lag = "training.max_lag=2"
    assert lag in command("--max-lag", 2) and "max_lag" not in command("--max-lag", 0)
    assert command(lag).count("max_lag") == command(lag, "--max-lag", 2).count("max_lag") == 1
    here = ("engine.name=vllm", "engine.base_url=http://here:1")
    assert "ENGINE" in command("--engine", "vllm") and "ENGINE" not in command(*here)
    ray = command("--engine", "vllm", "--strategy", "ray")
    assert "distributed.strategy=ray" in ray and "ENGINE" not in ray


def test_without_a_config_it_says_so(run: Mrlm) -> None:
    assert "use --config" in run("plan").err


def test_a_model_that_is_not_here_is_planned_by_its_size(run: Mrlm, config: Path) -> None:
    done: Done = run(
        "plan", "--config", config, "model.model_name_or_path=own/model", "--params", "3B", "--json"
    )
    assert json.loads(done.out)["policies"]["policy"]["weights"] == 3_000_000_000


def test_a_device_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("like: h100\nmemory: 9.6e10\nbandwidth: 2.4e12\nper_node: 4\n")
    mine = find_device(str(path))
    assert (mine.name, mine.memory, mine.bf16, mine.per_node) == ("mine", 9.6e10, H100.bf16, 4)
    for text, words in (
        ("bf16: fast", "bf16='fast'"),
        ("memry: 1", "did you mean 'memory'"),
        ("bf16: 1e12", "fp32 is missing"),
        ("[1]", "not a mapping"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=words):
            find_device(str(path))
    with pytest.raises(ConfigError, match="cannot be read"):
        find_device(str(tmp_path / "no.yaml"))


def test_this_machine_is_measured() -> None:
    here = find_device("cpu")
    assert here.shared and here.fp32 > 1e8 and here.bandwidth > 1e8 and here.memory > 1e8
    half = here.among(2)
    assert half.fp32 == here.fp32 / 2 and half.memory == here.memory / 2


def test_several_stages_are_planned_one_by_one(run: Mrlm, config: Path) -> None:
    stages = [{"name": "first"}, {"name": "second", "grpo": {"group_size": 16}}]
    config.write_text(yaml.safe_dump(LARGE | {"stages": stages}))
    found = json.loads(run("plan", "--config", config, "--json").out)
    assert [each["stage"] for each in found] == ["first", "second"]
    assert found[1]["counts"]["episodes"] == 2 * found[0]["counts"]["episodes"]
    text = run("plan", "--config", config).out
    assert text.startswith("stage first\n")
    assert "\n\nstage second\n" in text
