"""The quantisation of a run's models: what cannot be done with it is refused before a model is
loaded."""

from mrlm.build import policies
from mrlm.build.policies import PlayPlan, base_of, is_adapter, origin_of, start_of
from mrlm.config import ModelConfig
from mrlm.core.errors import ConfigError
from mrlm.learn.policy.gguf import local_name
from mrlm.learn.policy.incoming import changes_base
from mrlm.learn.policy.loading import run_model
from mrlm.learn.policy.quantized import (
    UNTRAINED,
    import_bitsandbytes,
    is_quantized,
    quantization_in,
)


def check_quantized(plan: PlayPlan) -> None:
    """Refuses quantised weights that would be trained or changed, or sharded."""
    section, critic = plan.config.model, plan.config.training.critic_model
    if section.quantization is not None:
        import_bitsandbytes()
    if critic is not None and (how := _saved_as(critic)):
        raise ConfigError(
            f"training.critic_model={critic}: its weights are quantised ({how}), and {UNTRAINED}; "
            "give the unquantised model"
        )
    quantized, kinds = False, policies.quantizations(plan)
    mixed = len({*kinds.values()}) > 1 and not plan.parts.models
    for name, policy in plan.assignment.policies.items():
        if policy.endpoint is not None or (reason := _reason(plan, name)) is None:
            continue
        quantized = True
        if policy.trainable and not is_adapter(plan, name):
            raise ConfigError(f"policy {name!r}: {reason}, and {UNTRAINED}")
        if changes_base(start := start_of(plan, name)):
            raise ConfigError(
                f"policy {name!r}: {reason}, and lora.init_lora_weights={start} changes the base; "
                "leave it out, or give an unquantised model"
            )
        if mixed and policy.trainable and (kind := kinds[name]):
            raise ConfigError(
                f"policy {name!r} begins with an adapter of a base in {kind}, and another policy "
                f"with a base that is not; a team has one: set model.quantization={kind}, or begin "
                "with the merged model (mrlm push --merge)"
            )
    shards = plan.config.distributed
    if quantized and shards.enabled and shards.strategy == "fsdp":
        raise ConfigError(
            "distributed.strategy=fsdp shards weights, and quantised ones are not sharded; use "
            "ddp, or an unquantised model"
        )


def section_of(plan: PlayPlan) -> ModelConfig:
    """The section `model`, with the quantisation of live models and of adapters' training."""
    section, kinds = plan.config.model, {*policies.quantizations(plan).values()}
    if section.quantization is None and len(kinds) == 1:
        return section.model_copy(update={"quantization": kinds.pop()})
    return section


def _reason(plan: PlayPlan, name: str) -> str | None:
    """Why the base of a policy is quantised; `None` if it is not, as far as that is known."""
    live, path, *_ = origin_of(plan, name)
    if live is not None:
        return "its model has quantised layers" if is_quantized(live) else None
    path = base_of(plan, name) or path
    if how := _saved_as(path):
        return f"the weights of {path} are quantised ({how})"
    chosen = policies.quantizations(plan)[name]
    return chosen and f"model.quantization={chosen}"


def _saved_as(path: str) -> str | None:
    return quantization_in(run_model(local_name(path)))
