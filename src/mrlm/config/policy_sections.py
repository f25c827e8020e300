"""The sections for models: the base model, its adapters, policies and endpoints."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    Field,
    WrapSerializer,
    WrapValidator,
    field_validator,
    model_validator,
)

from mrlm.config.base import Count, NotNegative, Positive, Reference, Section, Whole, listed
from mrlm.core.matters import Matters, each_of


class LoraConfig(Section):
    """A low-rank adapter on a frozen base."""

    r: Count = 8
    """Rank."""
    alpha: Positive = 16
    """Scale: the update is multiplied by `alpha / r`."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    target_modules: str | list[str] | None = "all-linear"
    """`all-linear`, module names, a pattern, or `null` for PEFT's choice for the model."""
    exclude_modules: str | list[str] | None = None
    """Module names, or a pattern, that are left out."""
    use_rslora: bool = False
    """Multiply the update by `alpha / sqrt(r)` instead."""
    use_dora: bool = False
    """Train the norm of each weight's columns too (DoRA)."""
    lora_bias: bool = False
    """Train a bias in every update."""
    init_lora_weights: bool | Literal["gaussian", "orthogonal", "pissa", "olora"] = True
    """The initial update; `true` is zero. `pissa` and `olora` change the base, which is then not
    shared."""
    rank_pattern: dict[str, Count] = Field(default_factory=dict)
    """Module name or pattern -> its rank."""
    alpha_pattern: dict[str, Positive] = Field(default_factory=dict)
    """Module name or pattern -> its alpha."""
    layers_to_transform: list[Whole] | None = None
    """Numbers of the blocks with an update; by default all."""
    modules_to_save: Annotated[list[str] | None, BeforeValidator(listed)] = None
    """Modules that are trained whole and saved with the adapter."""
    trainable_token_indices: list[Whole] | None = None
    """Tokens whose embeddings are trained."""

    @field_validator("target_modules")
    @classmethod
    def _names(cls, value: Any) -> Any:
        if value == [] or value == "":
            raise ValueError("must be 'all-linear' or a list of module names, not empty")
        return value


def _false_or(value: Any, rest: Any) -> Any:
    """`False` as it is; of anything else the errors are those of the section."""
    return value if value is False else rest(value)


if TYPE_CHECKING:
    Adapter = LoraConfig | Literal[False] | None
else:
    Adapter = Annotated[LoraConfig | None, WrapValidator(_false_or), WrapSerializer(_false_or)]


class ModelConfig(Section):
    """The initial model of every policy without its own."""

    model_name_or_path: str = "mrlm/tiny"
    """A hub id, a Hugging Face folder, or `mrlm/tiny`, the embedded model."""
    tokenizer_name_or_path: str | None = None
    """By default the model's own."""
    torch_dtype: Literal["float32", "bfloat16", "float16", "auto"] = "float32"
    """Type of the weights; `auto` is the saved type."""
    quantization: Literal["nf4", "int8"] | None = None
    """Keep the weights of linear layers in 4 bits (`nf4`, with double quantisation) or 8 (`int8`).
    They are not trained: trained policies need `lora`. Needs bitsandbytes (`mrlm[quant]`)."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model."""
    attn_implementation: Literal["sdpa", "eager"] = "sdpa"
    lean: bool = True
    """Compute models of the Llama, Mistral, Qwen and Gemma families with the library's packed
    forward pass, which processes shared prefixes once; other models, and all with `false`, use
    their own."""
    device: str = "auto"
    """`auto` is the first CUDA device, else the CPU."""
    lora: Adapter = None
    """An adapter for every trained policy that does not set its own. An adapter that a policy
    begins with is trained further, with or without this; with `false` it is merged, and all weights
    are trained."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Additional variables for the chat template."""

    matters: ClassVar[Mapping[str, Matters]] = {
        "lora": Matters(
            lambda s, run: any(lora_of(s, p) is s.lora for p in run.policies.values()),
            "every trained policy has an adapter of its own; remove it, or policies.<name>.lora",
        ),
        **each_of(
            "model_name_or_path tokenizer_name_or_path",
            lambda s, run: any(not run.policies[name].model for name in run.loaded),
            "every policy has a model of its own; remove it, or policies.<name>.model",
        ),
        **each_of(
            "torch_dtype attn_implementation quantization",
            lambda s, run: run.loaded or run.config.training.critic_model,
            "every model was given as an object, and none is loaded; remove it",
        ),
    }


class PriceConfig(Section):
    """Prices of a million tokens, in any currency."""

    prompt: NotNegative = 0.0
    completion: NotNegative = 0.0


class EndpointConfig(Section):
    """A server with OpenAI's chat completions API (vLLM, SGLang, `transformers serve`, most
    providers). It only samples; nothing is trained there."""

    base_url: Annotated[str, Field(pattern=r"^https?://[^\s/@?#]+(/[^\s?#]*)?$")]
    """URL up to `/v1`; without user name, password or query."""
    model: Annotated[str, Field(min_length=1)]
    """Name of the model on the server."""
    api_key_env: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")] | None = None
    """Environment variable with the key; the key itself is never stored."""
    max_retries: Whole = 4
    """Maximum number of retries of a call after a transient error."""
    requests_per_minute: Positive | None = None
    """Rate limit; none by default."""
    max_concurrent: Count = 16
    """Maximum number of concurrent calls."""
    timeout: Positive = 60.0
    """Time limit of one call, in seconds."""
    price: PriceConfig = Field(default_factory=PriceConfig)
    """Prices of its tokens, per million."""
    token_limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """Name of `generation.max_new_tokens` in requests."""
    body: dict[str, Any] = Field(default_factory=dict)
    """Additional fields of every request, such as `{reasoning_effort: low}`."""


class PolicyConfig(Section):
    """A policy: one set of weights. Defaults come from `model` and `training`."""

    model: str | None = None
    """A hub id or folder."""
    tokenizer: str | None = None
    trainable: bool = True
    """A policy that is not trained is frozen: a judge, an opponent."""
    lora: Adapter = None
    learning_rate: Positive | None = None
    max_grad_norm: Positive | None = None
    weight_decay: NotNegative | None = None
    endpoint: EndpointConfig | None = None
    """A server that samples for this policy, which is then frozen."""
    engine: Reference | None = None
    """The plug-in that calls the endpoint; `openai` by default."""

    matters: ClassVar[Mapping[str, Matters]] = each_of(
        "lora learning_rate max_grad_norm weight_decay",
        lambda s, run: s.trainable,
        "the policy is frozen (trainable: false); remove it, or that",
    )

    @model_validator(mode="before")
    @classmethod
    def _frozen_behind_an_api(cls, value: Any) -> Any:
        behind = isinstance(value, Mapping) and value.get("endpoint") is not None
        return {"trainable": False, **value} if behind else value

    @property
    def misfit(self) -> tuple[str, str] | None:
        """A setting in conflict with the endpoint, or with its absence, as key and message."""
        if self.endpoint is None:
            text = "it needs an endpoint, and none is set; set endpoint, or remove it"
            return None if self.engine is None else ("engine", text)
        if self.trainable:
            return "trainable", (
                "a policy behind an endpoint has no weights here, so it cannot be trained; "
                "set trainable=false"
            )
        for key in ("model", "tokenizer", "lora", "learning_rate", "max_grad_norm", "weight_decay"):
            if getattr(self, key) is not None:
                return key, "a policy behind an endpoint has no weights here; remove it"
        return None


def lora_of(model: ModelConfig, policy: PolicyConfig) -> Adapter:
    """The adapter of a policy: its own section, or that of `model` where it sets nothing itself;
    `None` for a frozen policy."""
    if not policy.trainable:
        return None
    adapter = policy.lora
    if adapter is False or (adapter and adapter.model_fields_set):
        return adapter
    return adapter if model.lora is None else model.lora
