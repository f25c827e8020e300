"""The parts of the lean way one by one: what is read of a model, attention, heads and the products
of a processor, each against what it is written out."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families import FAMILIES, family
from mrlm.core.types import Turn
from mrlm.learn.data.batch import Batch, Loss, Outputs, Sample, merge, pack
from mrlm.learn.fast import lm_head, packed_pass
from mrlm.learn.fast.adapters import PackedTree
from mrlm.learn.fast.attention import attention
from mrlm.learn.fast.elementwise import Norm, Rotate, SwiGLU, with_signs
from mrlm.learn.fast.forward import LeanForward
from mrlm.learn.fast.llama_modules import ACTIVATIONS, NotLean, anatomy_of, linear_of
from mrlm.learn.fast.lm_head import Head, TokenChunk, rows_at_once, scores
from mrlm.learn.fast.packed_pass import HeadJob, LeanPass
from mrlm.learn.policy.lora import add_adapter
from two_ways import both_ways, compare, conversations

# -- what is read of a model -----------------------------------------------------------------------

PLAIN: dict[str, Any] = {
    "heads": 4, "kv_heads": 2, "head_dim": 16, "hidden": 64, "eps": 1e-6, "unit_offset": False,
    "scale": 0.25, "activation_name": "silu", "embed_scale": 1.0, "attention_softcap": None,
    "final_softcap": None, "padding_idx": 0, "windows": [None] * 3, "ropes": [""] * 3,
}  # fmt: skip
GEMMA: dict[str, Any] = {
    "unit_offset": True,
    "activation_name": "gelu_pytorch_tanh",
    "embed_scale": 8.0,
}
ANATOMIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-tied-biased": {},
    "llama-scaled-rope": {},
    "mistral": {"windows": [6, 6, 6]},
    "qwen2": {},
    "qwen2-windows": {"windows": [None, 8, 8]},
    "qwen3": {"head_dim": 32, "scale": 32**-0.5},
    "gemma": GEMMA,
    "gemma2": {
        **GEMMA, "scale": 1 / 16, "attention_softcap": 50.0, "final_softcap": 30.0,
        "windows": [6, None, 6],
    },
    "gemma3": {
        **GEMMA, "scale": 1 / 16, "windows": [6, None, 6],
        "ropes": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_model_is_made_of(name: str) -> None:
    model = family(name)
    found = anatomy_of(model)
    layers = found.layers
    known = {key: getattr(found, key) for key in PLAIN if key not in ("windows", "ropes")}
    known["windows"] = [layer.window for layer in layers]
    known["ropes"] = [layer.rope for layer in layers]
    assert known == {**PLAIN, **ANATOMIES[name]}
    assert found.model is model and [layer.block for layer in layers] == list(model.model.layers)
    assert found.activation is ACTIVATIONS[known["activation_name"]]
    assert found.embedding is model.model.embed_tokens.weight
    assert found.head is model.lm_head.weight and found.final_norm is model.model.norm
    norm = model.model.norm
    shift = 1.0 if known["unit_offset"] else 0.0
    assert torch.equal(found.norm_weight(norm), norm.weight + shift)
    block, layer = model.model.layers[1], layers[1]
    sandwich = name in ("gemma2", "gemma3")
    assert layer.norm_attention is block.input_layernorm
    after = block.post_attention_layernorm
    assert layer.norm_after_attention is (after if sandwich else None)
    assert layer.norm_mlp is (block.pre_feedforward_layernorm if sandwich else after)
    assert layer.norm_after_mlp is (block.post_feedforward_layernorm if sandwich else None)
    headed = name in ("qwen3", "gemma3")
    assert (layer.norm_q is None, layer.norm_k is None) == (not headed, not headed)


def test_sizes_that_a_config_leaves_to_others() -> None:
    model = family("llama")
    model.config.head_dim = None
    assert anatomy_of(model).head_dim == 16
    model.config.hidden_act = "gelu"
    assert anatomy_of(model).activation is F.gelu
    x = torch.linspace(-3, 3, 7)
    tanh = ACTIVATIONS["gelu_pytorch_tanh"](x)
    torch.testing.assert_close(tanh, F.gelu(x, approximate="tanh"))
    assert float((tanh - F.gelu(x)).abs().max()) > 1e-5


def changed(change: Callable[[Any], Any], name: str = "llama") -> Any:
    model = family(name)
    return change(model) or model


def set_config(name: str, value: Any) -> Callable[[Any], None]:
    return lambda model: setattr(model.config, name, value)


class Bent(nn.Linear):
    """A linear layer of another kind."""


class Embedding(nn.Embedding):
    """An embedding of another kind."""


def headed(model: Any) -> None:
    model.lm_head = nn.Linear(64, 300, bias=True)


def bent_head(model: Any) -> None:
    model.lm_head = Bent(64, 300, bias=False)


def embedded(model: Any) -> None:
    model.model.embed_tokens = Embedding(300, 64)


def before(model: Any) -> None:
    model.model.norm.register_forward_pre_hook(lambda *_: None)


def after(model: Any) -> None:
    model.model.norm.register_forward_hook(lambda *_: None)


def exchanged(model: Any) -> None:
    model.model.norm.forward = lambda x: x


def compiled(model: Any) -> None:
    model.model.norm._compiled_call_impl = lambda x: x


def bent(model: Any) -> None:
    model.model.layers[2].mlp.down_proj = Bent(96, 64, bias=False)


def of_peft(model: Any, **settings: Any) -> Any:
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM", **settings)
    return peft.get_peft_model(model, config)


def merged(model: Any) -> Any:
    found = of_peft(model)
    found.merge_adapter()
    return found


def turned(model: Any) -> Any:
    found = of_peft(model)
    found.get_base_model().model.layers[1].self_attn.q_proj.fan_in_fan_out = True
    return found


def wrapped(model: Any) -> None:
    """Something around a linear layer that is no adapter."""
    outer: Any = nn.Module()
    outer.base_layer = model.model.layers[0].self_attn.q_proj
    model.model.layers[0].self_attn.q_proj = outer


class LlamaForCausalLM(nn.Module):
    """One that is called like one of the library's."""


LONG = {"sliding_attention": {"rope_type": "default"}, "full_attention": {"rope_type": "dynamic"}}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (set_config("use_bidirectional_attention", True), "bidirectional"),
        (set_config("attention_dropout", 0.1), "drops attention"),
        (set_config("rope_parameters", {"rope_type": "dynamic"}), "'dynamic' depends on the len"),
        (set_config("rope_parameters", LONG), "'dynamic' depends on the length"),
        (set_config("hidden_act", "relu"), "activation 'relu' is not one of silu, gelu"),
        (headed, "its embedding or its head was replaced"),
        (bent_head, "its embedding or its head was replaced"),
        (embedded, "its embedding or its head was replaced"),
        (before, "has a forward hook"),
        (after, "has a forward hook"),
        (exchanged, "compiled or replaced"),
        (compiled, "compiled or replaced"),
        (bent, "Bent takes the place of a linear layer"),
        (lambda model: of_peft(model, lora_bias=True), "not plain LoRA: Linear"),
        (merged, "not plain LoRA: Linear"),
        (turned, "not plain LoRA: Linear"),
        (wrapped, "not plain LoRA: Module"),
        (lambda model: LlamaForCausalLM(), "LlamaForCausalLM is not one of"),
    ],
)
def test_what_would_not_be_seen_is_refused(make: Callable[[Any], Any], reason: str) -> None:
    with pytest.raises(NotLean, match=reason):
        anatomy_of(changed(make))


@pytest.mark.parametrize(
    "make",
    [
        set_config("use_bidirectional_attention", False),
        set_config("attention_dropout", 0.0),
        set_config("rope_parameters", {"rope_type": "yarn"}),
        set_config("rope_parameters", {"full_attention": {}, "sliding_attention": None}),
        set_config("rope_parameters", None),
        of_peft,
    ],
)
def test_what_is_as_it_should_be_is_not(make: Callable[[Any], Any]) -> None:
    assert len(anatomy_of(changed(make)).layers) == 3


def test_a_linear_layer_as_numbers() -> None:
    settings = {"r": 2, "alpha": 6, "dropout": 0.5, "target_modules": ["q_proj"]}
    model = add_adapter(family("llama-tied-biased"), "a", settings)
    model = add_adapter(model, "b", {**settings, "dropout": 0.0, "r": 3})
    attention_of = model.get_base_model().model.layers[0].self_attn
    wrapped_layer, plain = attention_of.q_proj, attention_of.k_proj
    found = linear_of(wrapped_layer, "a")
    assert found.lora is not None and found.lora.scaling == 3.0
    assert found.lora.down is wrapped_layer.lora_A["a"].weight
    assert found.lora.up is wrapped_layer.lora_B["a"].weight
    assert found.lora.dropout is wrapped_layer.lora_dropout["a"]
    other = linear_of(wrapped_layer, "b").lora
    assert other is not None and other.dropout is None and other.down.shape == (3, 64)
    for module, adapter in itertools.product((wrapped_layer, plain), (None, "", "c")):
        assert linear_of(module, adapter).lora is None
    assert linear_of(plain, "a").lora is None
    assert linear_of(plain, None).bias is plain.bias is not None
    assert found.weight is wrapped_layer.base_layer.weight


# -- the forward -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mistral", "gemma3"])
def test_both_ways_are_one_in_long_floats(name: str, tokenizer: Any) -> None:
    lean, general = both_ways(family(name).double(), tokenizer)
    chosen = conversations(groups=2)
    compare(lean, general, chosen)
    batch = pack(chosen)
    found, expected = (policy.forward(batch).logprobs for policy in (lean, general))
    assert float((found - expected).detach().abs().max()) < 5e-6


def test_what_embeddings_are_multiplied_with_is_rounded_as_they_are() -> None:
    """As transformers does: the root of 48 has no exact 16 bits."""
    model = family("gemma", hidden_size=48).to(torch.bfloat16)
    inputs: list[Tensor] = []
    first = model.model.layers[0]
    hook = first.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    ids = torch.arange(3, 63)
    model(ids[None])
    hook.remove()
    lean = LeanForward(anatomy_of(model), torch.bfloat16)
    streams: list[Tensor] = []

    def block(stream: Tensor, *_: Any) -> Tensor:
        streams.append(stream)
        return stream

    lean._block = block  # type: ignore[method-assign]
    turn = Turn("a", "a", ids[:1].tolist(), ids[1:].tolist())
    lean.hidden([PackedTree(pack(merge([turn], 0)).tree, None)])
    assert torch.equal(streams[0], inputs[0][0, : len(streams[0])])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_angles_have_the_type_that_is_computed_in(dtype: torch.dtype) -> None:
    angles = anatomy_of(family("gemma3")).rotary(torch.arange(5), dtype)
    assert {part.dtype for pair in angles.values() for part in pair} == {dtype}


@pytest.mark.parametrize("shape", [(5, 3, 8), (1, 1, 2)])
def test_places_turn_heads_by_their_angles(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
    half = shape[-1] // 2
    angle = torch.rand(shape[0], half, generator=generator, dtype=torch.float64)
    cos, sin = (torch.cat([f(angle)] * 2, -1) for f in (torch.cos, torch.sin))
    a, b = x[..., :half], x[..., half:]
    c, s = angle.cos()[:, None], angle.sin()[:, None]
    wanted = torch.cat([a * c - b * s, b * c + a * s], -1)
    sin = with_signs(sin)
    torch.testing.assert_close(Rotate.apply(x, cos, sin), wanted)
    assert torch.autograd.gradcheck(lambda x: Rotate.apply(x, cos, sin), (x,))


@pytest.mark.parametrize("rows", [1, 7])
def test_a_gate_opens_what_comes_up(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrlm.learn.fast.elementwise.CACHED", 10)  # two rows at a time
    generator = torch.Generator().manual_seed(0)
    gate, up = (
        torch.randn(rows, 5, generator=generator, dtype=torch.float64).requires_grad_()
        for _ in range(2)
    )
    torch.testing.assert_close(SwiGLU.apply(gate, up), F.silu(gate) * up)
    assert torch.autograd.gradcheck(SwiGLU.apply, (gate, up))
    wide = [torch.randn(2, 12, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(SwiGLU.apply, wide), "wider than the cache"


@pytest.mark.parametrize("cached", [16, 4])
def test_a_norm_of_rows_that_lie_otherwise_in_memory(
    cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrlm.learn.fast.elementwise.CACHED", cached)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 3, 8, generator=generator).bfloat16().transpose(0, 1).requires_grad_()
    weight = torch.rand(8, generator=generator).bfloat16().requires_grad_()
    back = torch.randn(3, 5, 8, generator=generator).bfloat16()
    Norm.apply(x, weight, 1e-3).backward(back)
    exact = [each.detach().double().requires_grad_() for each in (x, weight)]
    F.rms_norm(exact[0], (8,), exact[1], 1e-3).backward(back.double())
    for ours, theirs in zip((x, weight), exact, strict=True):
        gap = (ours.grad.double() - theirs.grad).norm() / theirs.grad.norm()  # type: ignore[union-attr]
        assert float(gap) < 5e-3


# -- attention -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kv_heads", [2, 4])
@pytest.mark.parametrize(("masked", "softcap"), [(False, None), (True, None), (True, 2.0)])
def test_attention_is_what_it_says(
    dtype: torch.dtype, kv_heads: int, masked: bool, softcap: float | None
) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 4, 5, 8), (2, kv_heads, 5, 8), (2, kv_heads, 5, 8)]
    given = [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]
    back = torch.randn(shapes[0], generator=generator).to(dtype)
    exact = [x.detach().double().requires_grad_() for x in given]
    seen = torch.ones(5, 5).tril().bool()
    if masked:
        seen[3, 1] = seen[4, 0] = False
    mask = torch.zeros(1, 1, 5, 5, dtype=dtype).masked_fill_(~seen, -torch.inf)
    found = attention(*given, mask if masked else None, 0.3, softcap)  # type: ignore[arg-type]
    assert found.dtype == dtype and found.shape == shapes[0]
    q, k, v = exact
    k, v = (x.repeat_interleave(4 // kv_heads, 1) for x in (k, v))
    logits = q @ k.transpose(-1, -2) * 0.3
    logits = logits if softcap is None else softcap * (logits / softcap).tanh()
    wanted = logits.masked_fill(~seen, -torch.inf).softmax(-1) @ v
    found.backward(back)
    wanted.backward(back.double())
    near = {torch.float32: 1e-5, torch.float64: 1e-5 if softcap else 1e-12, torch.bfloat16: 0.02}
    pairs = [(found, wanted), *((a.grad, b.grad) for a, b in zip(given, exact, strict=True))]
    for ours, theirs in pairs:
        assert float((ours.double() - theirs).norm() / theirs.norm()) < near[dtype]  # type: ignore[union-attr]


# -- heads -----------------------------------------------------------------------------------------


def written_out(
    hidden: Tensor, weight: Tensor, tokens: Tensor, temperature: Tensor, cap: float | None
) -> tuple[Tensor, Tensor]:
    logits = hidden @ weight.t()
    logits = logits if cap is None else cap * (logits / cap).tanh()
    rows = (logits / temperature[:, None]).log_softmax(-1)
    return rows[torch.arange(len(tokens)), tokens], -(rows.exp() * rows).sum(-1)


def drawn(count: int, same: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(count)
    hidden, weight = (torch.randn(n, 6, generator=generator) for n in (count, 9))
    tokens = torch.randint(9, (count,), generator=generator)
    temperature = torch.ones(count) if same else torch.linspace(0.5, 1.5, count)
    return hidden.requires_grad_(), weight.requires_grad_(), tokens, temperature


@pytest.mark.parametrize("cap", [None, 1.5])
@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("by_entropy", [[0.0] * 5, [0.0, 0.5, 0.0, -1.0, 0.0], [0.3] * 5])
def test_scores_and_their_gradients(
    cap: float | None, same: bool, by_entropy: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tokens at a time, the last stretch shorter."""
    monkeypatch.setattr(lm_head, "rows_at_once", lambda *_: 2)
    hidden, weight, tokens, temperature = drawn(5, same)
    by_logprob = torch.linspace(-1.0, 2.0, 5)
    slopes = []
    for way in (lambda *x: scores(Head(x[1], cap), x[0], *x[2:]), lambda *x: written_out(*x, cap)):
        logprobs, entropy = way(hidden, weight, tokens, temperature)
        ((logprobs * by_logprob).sum() + (entropy * torch.tensor(by_entropy)).sum()).backward()
        slopes.append((logprobs, entropy, hidden.grad, weight.grad))
        hidden.grad = weight.grad = None
    for ours, theirs in zip(*slopes, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    frozen = weight.detach()
    one, _ = scores(Head(frozen, cap), hidden, tokens, temperature)
    (one * by_logprob).sum().backward()
    other, _ = written_out(hidden.detach().requires_grad_(), frozen, tokens, temperature, cap)
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    still = hidden.detach()
    other, _ = scores(Head(weight, cap), still, tokens, temperature)
    (other * by_logprob).sum().backward()
    assert hidden.grad is not None and weight.grad is not None


def test_no_tokens_have_scores_with_a_gradient_of_0() -> None:
    hidden, weight, tokens, temperature = drawn(3, True)
    logprobs, entropy = scores(Head(weight), hidden[:0], tokens[:0], temperature[:0])
    assert logprobs.shape == entropy.shape == (0,)
    (logprobs.sum() + entropy.sum()).backward()
    assert float(hidden.grad.abs().sum()) == float(weight.grad.abs().sum()) == 0.0  # type: ignore[union-attr]


def test_a_stretch_of_huge_logits_stays_finite() -> None:
    hidden = torch.tensor([[400.0], [-400.0]])
    weight = torch.tensor([[1.0], [0.0], [-1.0]])
    found = TokenChunk(Head(weight), hidden, torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))
    assert found.logprobs.tolist() == [0.0, -400.0] and found.entropy.tolist() == [0.0, 0.0]
    assert found.logprobs.dtype == torch.float32
    slopes = found.gradient(torch.tensor([1.0, 2.0]))
    assert slopes.tolist() == [[0.0, 0.0, 0.0], [1.0, 0.0, -1.0]]


@pytest.mark.parametrize(("gib", "rows"), [(24, 220), (80, 735), (141, 1177), (1000, 1177)])
def test_how_many_tokens_a_gpu_scores_at_once(
    gib: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vocabulary of 152,000: at most 2 GiB, at least 256 rows."""
    found = SimpleNamespace(total_memory=gib << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
    assert rows_at_once(152_000, torch.device("cuda", 0)) == max(256, rows)


def unit(*sizes: int) -> list[Sample]:
    found = []
    for number, size in enumerate(sizes):
        said = Turn("a", "p", [5, 6 + number], [7 + number] * size)
        found += merge([said], unit=number, rollout=number)
    return found


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_a_loss_through_the_head_by_hand(
    limit: int, trained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Units of 1 to 7 tokens, with logits for so many at once: value, gradients and metrics."""
    monkeypatch.setattr(packed_pass, "rows_at_once", lambda *_: limit)
    model = family("llama")
    model.lm_head.weight.requires_grad_(trained)
    lean, batch = LeanPass(model, None), pack(unit(1, 7, 2, 4))
    value_head = nn.Linear(64, 1)
    hidden = torch.randn(len(batch), 64, generator=torch.Generator().manual_seed(0))
    weights = torch.linspace(-1, 1, len(batch))

    def loss_of(part: Batch, said: Outputs) -> Loss:
        # the weight of a token by what it is, so that parts know theirs
        own = weights[part.tokens - 7 + part.place]
        values = said.values[:, 0]  # type: ignore[index]
        total = (said.logprobs * own + 0.1 * said.entropy * own + values * values * own).sum()
        return Loss(total, {"count": float(len(part)), "sum": said.logprobs.detach().sum()})

    (loss,), back = lean.through_head(hidden, [HeadJob(batch, loss_of, value_head, True)])
    found = [back, value_head.weight.grad, model.lm_head.weight.grad]
    value_head.weight.grad = model.lm_head.weight.grad = None
    leaf = hidden.clone().requires_grad_()
    said = written_out(leaf, model.lm_head.weight, batch.tokens, torch.ones(len(batch)), None)
    whole = loss_of(batch, Outputs(*said, value_head(leaf)))
    whole.total.backward()
    assert loss.total.item() == pytest.approx(whole.total.item(), abs=1e-4)
    assert not loss.total.requires_grad
    assert loss.metrics["count"] == len(batch) and set(loss.metrics) == {"count", "sum"}
    assert float(loss.metrics["sum"]) == pytest.approx(float(whole.metrics["sum"]), rel=1e-5)
    for ours, theirs in zip(
        found, [leaf.grad, value_head.weight.grad, model.lm_head.weight.grad], strict=True
    ):
        assert (ours is None) is (theirs is None)
        if ours is not None and theirs is not None:
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    # a loss that looks at values alone leaves the head of words as it is
    model.lm_head.weight.grad = None
    job = HeadJob(batch, lambda _, said: Loss(said.values.sum()), value_head)
    (loss,), back = lean.through_head(hidden, [job])
    assert model.lm_head.weight.grad is None or not model.lm_head.weight.grad.any()
    torch.testing.assert_close(back, value_head.weight.detach().expand_as(back))


def test_a_head_in_long_floats_learns_from_short_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = family("llama"), pack(unit(3, 2))
    slopes = []
    for dtype in (None, torch.bfloat16):
        lean = LeanPass(model, None, dtype)
        assert lean.head.weight.dtype == lean.forward.dtype == (dtype or torch.float32)
        hidden = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
        for _ in range(2):  # gradients are added to what is there
            job = HeadJob(batch, lambda _, said: Loss(said.logprobs.sum()))
            lean.through_head(hidden.to(lean.forward.dtype), [job])
        slopes.append(model.lm_head.weight.grad)
        model.lm_head.weight.grad = None
    assert slopes[0].dtype == slopes[1].dtype == torch.float32
    assert float((slopes[0] - slopes[1]).norm() / slopes[0].norm()) < 0.02
