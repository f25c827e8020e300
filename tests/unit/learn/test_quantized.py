"""Adapters on a base in 4 or 8 bits: every path computes with the same dequantised numbers, of
which transformers' own `dequantize` is the judge."""

import copy
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from families import VOCABULARY
from lean_engines import adapters, assert_lean, assert_same, build, generate, mixed
from mrlm import GRPO, ExperimentConfig, Learner, Team, run_experiment
from mrlm.algorithms.sft import SFTTrainer
from mrlm.build.policies import LiveObjects
from mrlm.build.run import arithmetic_of, plan_of
from mrlm.build.served_policies import house_of, house_of_config, house_of_team
from mrlm.config.aliases import WORDS
from mrlm.core.errors import MRLMError
from mrlm.core.types import Turn
from mrlm.engines.hf import HFEngine
from mrlm.engines.lean import decoder
from mrlm.engines.lean.engine import LeanEngine
from mrlm.learn.data.batch import merge, pack
from mrlm.learn.policy import quantized
from mrlm.learn.policy.copies import mirrored
from mrlm.learn.policy.incoming import load_adapter
from mrlm.learn.policy.loading import load_model
from mrlm.learn.policy.lora import BASE, add_adapter, with_noise
from mrlm.learn.policy.policy import Policy
from mrlm.learn.policy.quantized import Dequantized, import_bitsandbytes
from mrlm.learn.policy.reference import load_reference
from mrlm.learn.policy.saved_model import rename_base
from mrlm.planning.memory import MemoryLoad, model_bytes
from mrlm.planning.model_shape import shape_in
from mrlm.planning.policy_weights import WeightSizes
from tiny_runs import ANSWERS
from two_ways import both_ways, compare, conversations

pytestmark = pytest.mark.system

pytest.importorskip("bitsandbytes")

KINDS = ("nf4", "int8")
WIDE = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 8} | {
    "num_key_value_heads": 4
}
"""As the library's layers need it in evaluation mode."""
FAMILIES = ("llama", "llama_biased", "qwen3", "gemma2")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    @cache
    def folder(family: str) -> str:
        path = tmp_path_factory.mktemp(family)
        wide = WIDE if family == "llama" else {}
        build(family, vocab_size=VOCABULARY, **wide).save_pretrained(path)
        return str(path)

    return folder


def exact(kind: str, path: str) -> Any:
    """The same numbers as plain linear layers, by transformers."""
    return load_model(path, quantization=kind).dequantize().float()


def layers(model: Any) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, Dequantized)]


@pytest.mark.parametrize(
    ("kind", "family"), [*(("nf4", family) for family in FAMILIES), ("int8", "llama")]
)
def test_training_is_that_of_the_dequantised_model(
    kind: str, family: str, saved: Callable[[str], str], tokenizer: Any
) -> None:
    """Log-probs, entropies and gradients of three adapters by the packed pass and by the general
    one, against PEFT on plain linear layers."""
    ours, plain = (
        adapters(model, tokenizer)
        for model in (load_model(saved(family), quantization=kind), exact(kind, saved(family)))
    )
    own = dict(plain["one"].model.named_parameters())
    with torch.no_grad():
        for key, value in ours["one"].model.named_parameters():
            if ".lora_" in key:
                assert value.dtype == torch.float32
                value.copy_(own[key])
    assert layers(ours["one"].model) and not layers(plain["one"].model)
    samples = conversations()
    for name in ("one", "two"):
        policy = ours[name]
        policy.model.eval(), plain[name].model.eval()  # without the dropout of adapters
        lean, general = both_ways(policy.model, tokenizer, adapter=name)
        compare(lean, general, samples)
        other = Policy("policy", plain[name].model, tokenizer, adapter=name, lean=False)
        compare(lean, other, samples)


@pytest.mark.parametrize("processors", [{"cpu"}, set()], ids=["cpu", "accelerator"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_sampler_reads_the_same_numbers(
    kind: str,
    processors: set[str],
    saved: Callable[[str], str],
    tokenizer: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three adapters and their base in one batch; on an accelerator the copies stay quantised. The
    weights of the base are the same bits after it, also where evaluation mode would round them."""
    monkeypatch.setattr(decoder, "PROCESSORS", processors)
    policies = adapters(load_model(saved("llama"), quantization=kind), tokenizer)
    before = [layer.weight.data.clone() for layer in layers(policies["one"].model)]
    numbers = [quantized.dense(layer) for layer in layers(policies["one"].model)]
    requests = [request for name in policies for request in mixed(1, name)]
    lean = LeanEngine(policies)
    completions = generate(lean, requests)
    assert_same(completions, generate(HFEngine(policies), requests))
    assert_lean(lean)
    assert lean.holds("base", policies["base"]) == bool(processors)
    with torch.no_grad():
        policies["one"].model.eval()(input_ids=torch.tensor([[5, 6, 7]]))
    for layer, bits, values in zip(layers(policies["one"].model), before, numbers, strict=True):
        assert torch.equal(layer.weight.data, bits)
        assert torch.equal(quantized.dense(layer), values)


def test_backward_keeps_no_dequantised_weights(saved: Callable[[str], str], tokenizer: Any) -> None:
    model = load_model(saved("llama"), quantization="nf4")
    policy = adapters(model, tokenizer)["one"]
    shapes = {tuple(quantized.dense(layer).shape) for layer in layers(model)}
    kept: list[tuple[int, ...]] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.append(tuple(x.shape)) or x, lambda x: x
    ):
        assert policy.packed
        policy.forward(pack(conversations()))
    assert kept and not shapes & {*kept}


def test_the_reference_is_the_base_and_copies_share_it(
    saved: Callable[[str], str], tokenizer: Any
) -> None:
    policies = adapters(load_model(saved("llama"), quantization="nf4"), tokenizer)
    batch, policy = pack(conversations()), policies["one"]
    policy.reference_adapter = BASE
    plain = Policy("policy", exact("nf4", saved("llama")), tokenizer)
    expected = plain.forward(batch).logprobs.detach()
    torch.testing.assert_close(policy.reference_logprobs(batch), expected, rtol=1e-5, atol=1e-5)
    copies = mirrored(policies, ["one", "two"])
    first, second = layers(policy.model), layers(copies["one"].model)
    assert all(x.weight is y.weight for x, y in zip(first, second, strict=True))
    with with_noise(policy.model, "one"):
        apart = policy.forward(batch).logprobs - copies["one"].forward(batch).logprobs
    assert apart.abs().max() > 1e-3
    assert policy.size == sum(p.numel() for p in plain.model.parameters()) + sum(
        p.numel() for k, p in policy.model.named_parameters() if ".lora_" in k
    )


def test_a_live_model_keeps_its_numbers_or_is_refused(
    saved: Callable[[str], str], tokenizer: Any
) -> None:
    """The library rounds the weights of a model that computes in evaluation mode on some CPUs."""
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    how = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="fp4")
    where: Any = {"device_map": {"": "cpu"}, "dtype": torch.float32, "quantization_config": how}
    model = AutoModelForCausalLM.from_pretrained(saved("llama"), **where)
    plain = copy.deepcopy(model).dequantize().float()
    rounded = copy.deepcopy(model)
    assert adapters(model, tokenizer)["one"].packed
    linears = [module for name, module in plain.named_modules() if name.endswith("_proj")]
    for layer, other in zip(layers(model), linears, strict=True):
        assert torch.equal(quantized.dense(layer), other.weight)
    rounded.model.layers[0].self_attn.q_proj.weight.quant_state.packing_format_for_cpu = True
    with pytest.raises(MRLMError, match="q_proj: the model has computed in evaluation mode"):
        Policy("policy", rounded, tokenizer)


def config(folder: Path, **more: Any) -> ExperimentConfig:
    return ExperimentConfig(
        experiment_name="q",
        output_dir=str(folder),
        model={"quantization": "nf4", "lora": {"r": 4}} | more.pop("model", {}),
        training={"num_iterations": 4, "batch_size": 2, "learning_rate": 1e-2, "save_steps": 2}
        | {"algorithm": "reinforce"}
        | more.pop("training", {}),
        environments=[{"env_type": "tiny_runs:Letters"}],
        generation={"max_new_tokens": 4},
        **more,
    )


def test_a_run_that_was_stopped_continues_bit_by_bit(tmp_path: Path) -> None:
    """Two agents on one quantised base, with every weight check, and its record and card."""
    whole = config(tmp_path / "whole")
    run_experiment(whole)
    parts = config(tmp_path / "parts")
    run_experiment(config(tmp_path / "parts", training={"num_iterations": 2}))
    run_experiment(parts, resume=tmp_path / "parts")
    for agent in ("a", "b"):
        one, two = (
            (tmp_path / name / "final" / agent / "adapter_model.safetensors").read_bytes()
            for name in ("whole", "parts")
        )
        assert one == two
    assert "quantization: nf4" in (tmp_path / "whole" / "config.yaml").read_text()
    assert "quantization: nf4" in (tmp_path / "whole" / "final" / "team.yaml").read_text()


def test_a_live_model_is_recorded_with_its_quantisation(
    tmp_path: Path, tiny_path: str, tokenizer: Any
) -> None:
    """And so is its team, which then plays as it was trained."""
    from peft import LoraConfig

    model = load_model(tiny_path, quantization="nf4")

    SFTTrainer(
        model,
        ANSWERS,
        tokenizer=tokenizer,
        peft_config=LoraConfig(r=4, target_modules="all-linear"),
        output_dir=str(tmp_path / "whole"),
        num_iterations=3,
        batch_size=4,
        learning_rate=1e-2,
    ).train()
    for file in ("config.yaml", "final/team.yaml"):
        assert "quantization: nf4" in (tmp_path / "whole" / file).read_text()
    text = (tmp_path / "whole" / "final" / "README.md").read_text()
    assert "rank 4, alpha 8) on mrlm/tiny in nf4" in text and "BitsAndBytesConfig(" in text
    turns = Team.from_pretrained(tmp_path / "whole" / "final").play("1+1").turns
    ids = torch.tensor([turns[0].prompt_ids])
    policy = Policy("policy", load_model(tiny_path, quantization="nf4"), tokenizer)
    loaded = load_adapter(policy.model, "policy", tmp_path / "whole" / "final").eval()
    with torch.no_grad():
        first = loaded(input_ids=ids).logits[0, -1].log_softmax(-1)[turns[0].completion_ids[0]]
    assert float(first) == pytest.approx(float(turns[0].logprobs[0]), abs=1e-4)


def test_an_adapter_keeps_the_quantisation_of_its_training(
    tmp_path: Path, tiny_path: str, tokenizer: Any
) -> None:
    """On a server, as a team, as a teacher, and where it is trained on; else it is refused."""
    run_experiment(config(tmp_path / "run", training={"learning_rate": 0.1}))
    final = tmp_path / "run" / "final"
    batch = pack(merge([Turn("", "", [*range(5, 30)], [*range(30, 50)])]))
    base = load_model(tiny_path, quantization="nf4")
    trained = Policy("a", load_adapter(base, "a", final / "a"), tokenizer, adapter="a")
    expected = trained.forward(batch).logprobs.detach()
    saved: Any = {x: {"model": str(final / x)} for x in "ab"}
    how: Any = {"model": {"quantization": None, "lora": None}}
    houses = [
        house_of({"a": str(final / "a"), "base": tiny_path}),
        house_of_team(final, "float32", "cpu"),
        house_of_config(config(tmp_path / "on", policies=saved, **how)),
    ]
    for house in houses:
        torch.testing.assert_close(house.policies["a"].forward(batch).logprobs, expected)
    with pytest.raises(MRLMError, match="was trained on a base in nf4"):
        house_of({"base": tiny_path}).add_adapter("a", final / "a")
    for kind, checkpoint in (("nf4", str(tmp_path / "nf4")), (None, str(tmp_path / "plain"))):
        load_model(tiny_path, quantization=kind).save_pretrained(checkpoint)
        policy = adapters(load_model(tiny_path, quantization=kind), tokenizer)["one"]
        load_reference(policy, str(final / "a"))
        assert bool(policy.reference_adapter) == (kind == "nf4")
        found = policy.reference_logprobs(batch)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        rename_base(final / "b", checkpoint)  # of a quantised checkpoint, it is merged and saved
        load_model(str(final / "b")).save_pretrained(tmp_path / f"merged {kind}")
        tokenizer.save_pretrained(checkpoint)
        half = load_model(checkpoint, "bfloat16")
        assert {half.dtype, *(quantized.dense(x).dtype for x in layers(half))} == {torch.bfloat16}
        policy.reference_adapter = ""
        load_reference(policy, checkpoint)
        assert len(layers(policy.reference)) == len(layers(policy.model))
    on = config(tmp_path / "on", policies=saved, **how)
    assert arithmetic_of(plan_of(on, LiveObjects())).job.quantization == "nf4"
    run_experiment(on)
    assert "quantization: nf4" in (tmp_path / "on" / "final" / "team.yaml").read_text()
    with pytest.raises(MRLMError, match=r"set model\.quantization=nf4"):
        run_experiment(config(tmp_path / "no", policies=saved | {"b": {"lora": {}}}, **how))


@pytest.mark.parametrize("kind", KINDS)
def test_the_plan_counts_what_the_library_keeps(kind: str, tmp_path: Path) -> None:
    build("llama", hidden_size=256, intermediate_size=512, head_dim=64).save_pretrained(tmp_path)
    model = load_model(str(tmp_path), quantization=kind)
    tensors = [*model.parameters(), *(getattr(p, "SCB", None) for p in model.parameters())]
    for state in (getattr(p, "quant_state", None) for p in model.parameters()):
        tensors += [state.absmax, state.state2.absmax] if state else []
    kept = sum(tensor.nbytes for tensor in tensors if tensor is not None)
    shape = shape_in(model.config.to_dict())
    assert shape is not None
    weights = WeightSizes("policy", shape, shape.parameters, "policy")
    assert model_bytes(weights, MemoryLoad(quantization=kind)) == pytest.approx(kept, rel=0.02)


CRITIC = {"algorithm": "mappo", "critic_model": "CHECKPOINT"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    (
        {"model": {"lora": None}},
        "model.quantization=nf4, and quantised weights are not trained; add lora",
    ),
    ({"model": {"lora": False}}, "quantised weights are not trained"),
    ({"model": {"lora": {"init_lora_weights": "olora"}}}, "olora changes the base"),
    (
        {"model": {"quantization": None, "lora": None, "model_name_or_path": "CHECKPOINT"}},
        r"the weights of .* are quantised \(int8\), and quantised weights are not trained",
    ),
    ({"model": {"model_name_or_path": "CHECKPOINT"}}, r"quantised already \(int8\)"),
    ({"training": CRITIC}, r"critic_model.*quantised \(int8\)"),
    ({"distributed": {"enabled": True, "strategy": "fsdp"}}, "fsdp"),
]


@pytest.fixture(scope="module")
def checkpoint(saved: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("int8")
    load_model(saved("llama"), quantization="int8").save_pretrained(path)
    return str(path)


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_what_cannot_be_done_is_refused_before_anything_is_loaded(
    settings: dict[str, Any],
    message: str,
    checkpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = {
        key: {k: checkpoint if v == "CHECKPOINT" else v for k, v in section.items()}
        for key, section in settings.items()
    }
    import transformers

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", None)
    with pytest.raises(MRLMError, match=message):
        run_experiment(config(tmp_path / "run", **changed))
    assert not (tmp_path / "run").exists()


def test_without_the_library_and_without_adapters_it_is_refused(
    saved: Callable[[str], str], tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MRLMError, match="quantised weights are not trained; add lora"):
        Learner(load_model(saved("llama"), quantization="nf4"), tokenizer, GRPO())
    with pytest.raises(MRLMError, match=r"modules_to_save of policy 'x': .*q_proj is quantised"):
        how = {"modules_to_save": ["q_proj"]}
        add_adapter(load_model(saved("llama"), quantization="nf4"), "x", how)
    read = WORDS["quantization_config"].value
    for key, value in {"llm_int8_threshold": 5.0, "llm_int8_skip_modules": ["q_proj"]}.items():
        with pytest.raises(MRLMError, match=f"quantization_config: {key}=.* is not used here"):
            read({"load_in_8bit": True, key: value})
    import_bitsandbytes.cache_clear()
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(MRLMError, match=r"pip install 'mrlm\[quant\]'"):
        run_experiment(config(tmp_path / "run"))
    import_bitsandbytes.cache_clear()
    assert ANSWERS and not (tmp_path / "run").exists()
