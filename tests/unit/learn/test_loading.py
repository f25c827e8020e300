"""What stands between a name and a policy: folders, damaged files, adapters, and what a module's
own forward takes."""

import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.utils import logging as hub

from families import family
from mrlm.core.errors import ModelError
from mrlm.learn.policy import digest
from mrlm.learn.policy.loading import (
    _not_loaded,
    adapter_base,
    damaged_files,
    first_line,
    load_model,
    load_tokenizer,
    pick_device,
    quietly,
    run_model,
    set_checkpointing,
)
from mrlm.learn.policy.lora import adapter_of, add_adapter, changes_nothing
from mrlm.learn.policy.wrapped_modules import (
    Interface,
    Structure,
    interface_of,
    logits_of,
    output_layer,
    unwrap,
)

LORA: dict[str, Any] = {"r": 2, "alpha": 4, "dropout": 0.0, "target_modules": ["q_proj"]}


# -- folders ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shown", [True, False])
def test_progress_bars_are_as_they_were_afterwards(shown: bool) -> None:
    before = hub.is_progress_bar_enabled()
    try:
        (hub.enable_progress_bar if shown else hub.disable_progress_bar)()
        with quietly():
            assert not hub.is_progress_bar_enabled()
        assert hub.is_progress_bar_enabled() is shown
        with pytest.raises(KeyError), quietly():
            raise KeyError
        assert hub.is_progress_bar_enabled() is shown
    finally:
        (hub.enable_progress_bar if before else hub.disable_progress_bar)()


def adapter(folder: Path, base: str) -> str:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    return str(folder)


def run_of(folder: Path, base: str, model: str | None, **policies: str) -> str:
    """The adapter folder in a run folder whose config names models."""
    found = adapter(folder / "final" / "p", base)
    named = {name: {"model": path} for name, path in policies.items()}
    config: dict[str, Any] = {"experiment_name": "e", "policies": named}
    config |= {"model": {"model_name_or_path": model}} if model else {}
    (folder / "config.yaml").write_text(json.dumps(config))
    return found


def test_the_base_of_an_adapter_is_looked_for_where_the_run_is_now(tmp_path: Path) -> None:
    gone = "/gone/with/base"
    here, elsewhere, other = (tmp_path / name for name in ("new/base", "new/other", "third/base"))
    for folder in (here, elsewhere, other):
        folder.mkdir(parents=True)
    runs = tmp_path / "runs"
    assert adapter_base(str(tmp_path)) is None, "no adapter folder"
    assert adapter_base(adapter(tmp_path / "there", str(other))) == str(other)
    assert adapter_base(adapter(tmp_path / "hub", "owner/model")) == "owner/model"
    assert adapter_base(adapter(tmp_path / "nowhere", gone)) == gone
    found = run_of(runs / "own", gone, str(here))
    assert adapter_base(found) == str(here)
    # a folder of another name is another model, and so is a folder that is not there
    found = run_of(runs / "others", gone, str(elsewhere), a="/gone/too/base", p=str(here))
    assert adapter_base(found) == str(here)
    assert adapter_base(run_of(runs / "none", gone, str(elsewhere))) == gone
    assert adapter_base(run_of(runs / "unnamed", gone, None)) == gone
    # a few folders deep, and no further
    for depth, there in ((3, str(here)), (4, gone)):
        deep = runs.joinpath("own", *"1234"[:depth], f"d{depth}")
        assert adapter_base(adapter(deep, gone)) == there
    # the nearest run says it
    inner = run_of(runs / "own" / "kept" / "inner", gone, str(elsewhere))
    assert adapter_base(inner) == gone


def test_a_run_folder_stands_for_what_it_ended_with(tmp_path: Path) -> None:
    assert run_model(str(tmp_path)) == str(tmp_path)
    (tmp_path / "final").mkdir()
    assert run_model(str(tmp_path)) == str(tmp_path / "final")


def test_the_first_line_of_an_error() -> None:
    assert first_line(ValueError("\n one\ntwo\n")) == "one"
    assert first_line(ValueError("one")) == "one"
    assert first_line(ValueError("  \n ")) == "ValueError"
    assert first_line(ValueError()) == "ValueError"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("./gone", "the folder does not exist"),
        ("~/gone-for-good", "the folder does not exist"),
        ("a/b/c", "the folder does not exist"),
        ("owner/model", "folder 'owner/model' does not exist, and the hub"),
        ("model", "folder 'model' does not exist, and the hub"),
    ],
)
@pytest.mark.parametrize("load", [load_model, load_tokenizer])
def test_a_path_is_told_from_a_name_of_the_hub(
    load: Callable[[str], Any], name: str, said: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=said):
        load(name)


def test_why_nothing_could_be_loaded(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    for said in ("the hub could not be asked", "We couldn't connect to the hub"):
        assert _not_loaded("n", gone, "model", OSError(said)) == (
            f"n: folder {gone!r} does not exist, and the hub cannot be reached; give a local folder"
        )
    assert _not_loaded("n", gone, "tokenizer", OSError("404\nmore")) == (
        f"n: folder {gone!r} does not exist, and the hub has no tokenizer of this name: 404"
    )
    here = str(tmp_path)
    assert _not_loaded("n", here, "model", ValueError("bad\nmore")) == (
        "n: its model cannot be loaded: bad"
    )
    (tmp_path / "config.json").write_text("{")
    assert _not_loaded("n", here, "model", ValueError("bad")) == (
        f"n: its model cannot be loaded: file {str(tmp_path / 'config.json')!r} is damaged or cut "
        "short; copy it again"
    )


def test_a_tokenizer_of_one_file_is_enough_to_look_further(tmp_path: Path, tiny_path: str) -> None:
    """An adapter folder without tokenizer has that of its base; one with its own keeps it."""
    bare = Path(adapter(tmp_path / "bare", tiny_path))
    assert len(load_tokenizer(str(bare))) == len(load_tokenizer(tiny_path))
    own = load_tokenizer(tiny_path)
    own.add_tokens(["<one more>"])
    own.save_pretrained(bare)
    assert len(load_tokenizer(str(bare))) == len(own)
    for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json"):
        folder = Path(adapter(tmp_path / name.replace(".", "-"), tiny_path))
        (folder / name).write_text("{")
        with pytest.raises(ModelError, match="its tokenizer cannot be loaded"):
            load_tokenizer(str(folder))


def test_how_a_model_is_loaded(tiny_path: str) -> None:
    plain = load_model(tiny_path)
    assert plain.config._attn_implementation == "sdpa" and plain.dtype is torch.float32
    eager = load_model(tiny_path, "float16", attn_implementation="eager", device="cpu")
    assert eager.config._attn_implementation == "eager" and eager.dtype is torch.float16
    assert load_model(tiny_path, "auto").dtype is torch.float32
    assert pick_device("meta").type == "meta"
    moved = load_model(tiny_path, device="meta")
    assert next(moved.parameters()).device.type == "meta"


def test_a_model_with_soft_caps_computes_them(tmp_path: Path) -> None:
    """Some versions of transformers leave them out of sdpa."""
    family("gemma2").save_pretrained(tmp_path)
    assert load_model(str(tmp_path)).config._attn_implementation == "eager"


def piece(start: int, end: int) -> dict[str, Any]:
    """Bytes of a weight file, as its header names them."""
    return {"dtype": "U8", "shape": [end - start], "data_offsets": [start, end]}


def header(tensors: dict[str, Any]) -> bytes:
    text = json.dumps(tensors).encode()
    return len(text).to_bytes(8, "little") + text


@pytest.mark.parametrize(
    ("content", "damaged"),
    [
        (header({"a": piece(0, 4)}) + b"1234", False),
        (header({"a": piece(0, 4)}) + b"123", True),
        (header({"b": piece(4, 6), "a": piece(0, 4)}) + b"12345", True),
        (header({"b": piece(4, 6), "a": piece(0, 4)}) + b"6" * 6, False),
        (header({"__metadata__": {"format": "pt"}, "a": piece(0, 1)}) + b"1", False),
        (header({"__metadata__": {"format": "pt"}, "a": piece(0, 1)}), True),
        (header({}), False),
        (header({"a": {"data_offsets": [0]}}) + b"1234", True),
        (header({"a": {}}) + b"1234", True),
        (header({"a": 3}) + b"1234", True),
        (header({"a": piece(0, 4)})[:-1], True),
        ((3).to_bytes(8, "little") + b"{{{", True),
        ((3).to_bytes(8, "little") + b"{}", True),
        ((2).to_bytes(8, "little") + b"{}", False),
        (b"\x01\x00", True),
        (b"", True),
    ],
)
def test_weight_files_that_are_cut_short(content: bytes, damaged: bool, tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    file.write_bytes(content)
    assert damaged_files(tmp_path) == [file] * damaged


def test_json_files_that_are_none_come_first(tmp_path: Path) -> None:
    for name, text in [("b.json", "{"), ("a.json", "[1"), ("c.json", "{}"), ("d.json", "[" * 9**5)]:
        (tmp_path / name).write_text(text)
    (tmp_path / "a.safetensors").write_bytes(b"")
    save_file({"w": torch.ones(2)}, tmp_path / "whole.safetensors")
    named = [file.name for file in damaged_files(tmp_path)]
    assert named == ["a.json", "b.json", "d.json", "a.safetensors"]


# -- checkpointing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("hooked", [False, True])
def test_recomputing_leaves_a_model_the_hooks_it_had(hooked: bool) -> None:
    model = family("llama")
    if hooked:
        model.enable_input_require_grads()
    hooks = [len(module._forward_hooks) for module in model.modules()]
    assert sum(hooks) == hooked
    for on in (True, False, True):
        set_checkpointing(model, on)
        assert all(layer.gradient_checkpointing is on for layer in model.model.layers)
        assert [len(module._forward_hooks) for module in model.modules()] == hooks
    layer = model.model.layers[0]
    assert layer._gradient_checkpointing_func.keywords["use_reentrant"] is False


# -- adapters --------------------------------------------------------------------------------------


def test_whose_a_parameter_is() -> None:
    layer = "base_model.model.model.layers.0.self_attn.q_proj"
    table = {
        f"{layer}.lora_A.left.weight": "left",
        f"{layer}.lora_B.a-reference.weight": "a-reference",
        f"{layer}.lora_embedding_A.left": "left",
        f"{layer}.lora_magnitude_vector.left.weight": "left",
        "base_model.model.lm_head.modules_to_save.left.weight": "left",
        f"{layer}.ia3_l.left": "left",
        f"{layer}.base_layer.weight": None,
        "model.lora.weight": None,
    }
    assert {key: adapter_of(key) for key in table} == table


def test_a_new_adapter_adds_nothing_until_its_second_factor_moves() -> None:
    model = add_adapter(add_adapter(family("llama"), "a", LORA), "b", LORA)
    assert changes_nothing(model, "a") and changes_nothing(model, "b")
    named = dict(model.named_parameters())
    (*_, last) = (key for key in named if ".lora_B.a." in key)
    with torch.no_grad():
        named[last][0, 0] = 0.5
    assert not changes_nothing(model, "a") and changes_nothing(model, "b")


def test_an_adapter_that_keeps_whole_modules_changes_something() -> None:
    """Its second factors are 0, but they are not all it has."""
    import peft

    config = peft.LoraConfig(
        r=2, target_modules=["q_proj"], modules_to_save=["lm_head"], task_type="CAUSAL_LM"
    )
    model = peft.get_peft_model(family("llama"), config, adapter_name="a")
    assert not changes_nothing(model, "a")


def test_settings_of_an_adapter_arrive() -> None:
    model = add_adapter(family("llama"), "a", {**LORA, "alpha": 6, "dropout": 0.25})
    config = model.peft_config["a"]
    assert (config.r, config.lora_alpha, config.lora_dropout) == (2, 6, 0.25)
    assert config.target_modules == {"q_proj"} and config.task_type == "CAUSAL_LM"
    again = add_adapter(model, "b", {**LORA, "r": 3, "target_modules": ["o_proj", "up_proj"]})
    assert again is model and list(model.peft_config) == ["a", "b"]
    own = [key for key, _ in model.named_parameters() if adapter_of(key) == "b"]
    assert len(own) == 2 * 2 * 3 and all("o_proj" in key or "up_proj" in key for key in own)
    assert all(p.requires_grad is (".lora_" in key) for key, p in model.named_parameters())


@pytest.mark.parametrize("wrapped", [False, True])
def test_modules_that_are_not_there_are_named(wrapped: bool) -> None:
    model = add_adapter(family("llama"), "first", LORA) if wrapped else family("llama")
    with pytest.raises(ModelError) as caught:
        add_adapter(model, "a", {**LORA, "target_modules": ["q_proj", "w_proj", "x_proj"]})
    linear = "down_proj, gate_proj, k_proj, lm_head, o_proj, q_proj, up_proj, v_proj"
    assert str(caught.value) == (
        "lora.target_modules of policy 'a': the model has no module 'w_proj'; its linear modules "
        f"are {linear}"
    )
    with pytest.raises(ModelError, match="no module 'proj'"):
        add_adapter(model, "a", {**LORA, "target_modules": ["proj"]})
    exact = add_adapter(model, "a", {**LORA, "target_modules": ["layers.1.self_attn.q_proj"]})
    own = [key for key, _ in exact.named_parameters() if adapter_of(key) == "a"]
    assert len(own) == 2 and all(".layers.1." in key for key in own)


# -- modules of one's own --------------------------------------------------------------------------


class Bare(nn.Module):
    def forward(self, tokens: Tensor) -> Tensor:
        return tokens


class Masked(nn.Module):
    def forward(self, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int = 0) -> Tensor:
        return input_ids


class Placed(nn.Module):
    def forward(self, x: Tensor, position_ids: Tensor, past_key_values: Any = None) -> Tensor:
        return x


class Open(nn.Module):
    def forward(self, x: Tensor, **more: Any) -> Tensor:
        return x


class Library(nn.Module):
    """One of the library's kind: what it does not name, it hands on to its backbone."""

    base_model_prefix = "inner"

    def __init__(self, inner: nn.Module | None) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, **more: Any) -> Any:
        return more


INTERFACES = [
    (Bare(), Interface(None, mask=False, positions=False, keep=False, cache=False)),
    (Masked(), Interface("input_ids", mask=True, positions=False, keep=True, cache=False)),
    (Placed(), Interface(None, mask=False, positions=True, keep=False, cache=True)),
    (Open(), Interface(None, mask=False, positions=False, keep=False, cache=False)),
    (Library(Placed()), Interface("input_ids", mask=True, positions=True, keep=False, cache=True)),
    (Library(Bare()), Interface("input_ids", mask=True, positions=False, keep=False, cache=True)),
    (Library(None), Interface("input_ids", mask=True, positions=False, keep=False, cache=True)),
]


@pytest.mark.parametrize(("module", "expected"), INTERFACES, ids=lambda x: type(x).__name__)
def test_what_a_forward_takes_is_read_from_its_signature(
    module: nn.Module, expected: Interface
) -> None:
    assert interface_of(module) == expected
    compiled = types.SimpleNamespace(_orig_mod=module, forward=lambda **more: None)
    assert interface_of(compiled) == expected


def test_every_family_takes_everything_also_with_an_adapter() -> None:
    everything = Interface("input_ids", mask=True, positions=True, keep=True, cache=True)
    model = family("llama")
    assert interface_of(model) == everything
    assert interface_of(add_adapter(model, "a", LORA)) == everything
    assert interface_of(lambda tokens: tokens) == interface_of(Bare())
    with pytest.raises(ModelError, match="str is not a model"):
        interface_of("tiny")


def test_a_module_gets_what_it_takes_and_nothing_else() -> None:
    got: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    ids = torch.zeros(1, 2)
    offered = {
        "attention_mask": 1, "position_ids": 2, "logits_to_keep": 3, "use_cache": 4,
        "past_key_values": 5,
    }  # fmt: skip

    def note(*given: Any, **named: Any) -> None:
        got.append((given, named))

    Interface("input_ids", mask=True, positions=False, keep=True, cache=False).call(
        note, ids, **offered
    )
    Interface(None, mask=False, positions=True, keep=False, cache=True).call(note, ids, **offered)
    assert got == [
        ((), {"input_ids": ids, "attention_mask": 1, "logits_to_keep": 3}),
        ((ids,), {"position_ids": 2, "use_cache": 4, "past_key_values": 5}),
    ]


def test_logits_are_told_from_what_is_none() -> None:
    logits = torch.zeros(1, 2, 3)
    for output in (logits, (logits,), [logits, None], {"logits": logits}):
        assert logits_of(output) is logits
    for output in (torch.zeros(2, 3), (), [], (logits[0], logits), {"scores": logits}, None):
        with pytest.raises(ModelError, match="must return logits"):
            logits_of(output)


def test_the_layer_that_makes_logits() -> None:
    class Several(nn.Module):
        def __init__(self, *sizes: int) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(2, size) for size in sizes)

    class Named(Several):
        place: int | None = None

        def get_output_embeddings(self) -> nn.Module | None:
            return None if self.place is None else self.layers[self.place]

    plain = Several(7, 8, 9)
    assert output_layer(plain, 9) is plain.layers[2]
    for vocabulary, count in ((8, 2), (10, 0)):
        with pytest.raises(ModelError, match=f"and {count} of its linear layers could be that"):
            output_layer(plain, vocabulary)
    named = Named(7, 8, 9)
    assert output_layer(named, 9) is named.layers[2]
    named.place = 0
    assert output_layer(named, 9) is named.layers[0]


def test_what_wraps_a_module_is_taken_off() -> None:
    module = nn.Linear(1, 1)
    assert unwrap(module) == (module, None) == unwrap(nn.DataParallel(module))


def test_what_happens_to_a_model_afterwards_is_seen() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()))
    structure = Structure(model)
    assert structure.same()
    inner: Any = model[1]
    handle = inner[0].register_forward_hook(lambda *_: None)
    assert not structure.same()
    handle.remove()
    handle = inner.register_forward_pre_hook(lambda *_: None)
    assert not structure.same()
    handle.remove()
    inner[0].forward = lambda x: x
    assert not structure.same()
    del inner[0].forward
    inner[0]._compiled_call_impl = lambda x: x
    assert not structure.same()
    inner[0]._compiled_call_impl = None
    assert structure.same()
    relu, inner[0] = inner[0], nn.GELU()
    assert not structure.same()
    inner[0] = relu
    assert structure.same()


# -- digests ---------------------------------------------------------------------------------------


def test_one_number_for_several_tensors_in_their_order() -> None:
    a, b = torch.ones(3), torch.zeros(2)
    several = [[a, b], [b, a], [a], [b], [], [a, -b], [a, a], [torch.ones(2), torch.ones(1), b]]
    found = [digest.digest(tensors) for tensors in several]
    assert len(set(found)) == len(several)
    assert all(1 << 62 <= each < 1 << 63 for each in found)
    assert digest.digest(iter([a, b])) == found[0]
    many = [torch.full((1,), float(number)) for number in range(100)]
    late = [many[0] + 1, *many[1:]]
    assert digest.digest(many) != digest.digest(late)
