"""References, frozen snapshots of policies: a copy of a model, or a second adapter (the base alone
while the adapter is still a no-op)."""

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from mrlm.core.errors import ConfigError, ModelError
from mrlm.learn.policy.incoming import load_adapter
from mrlm.learn.policy.loading import adapter_base, load_model, load_tokenizer, run_model
from mrlm.learn.policy.lora import copy_adapter, switch_adapter, unused_name, without_adapters
from mrlm.learn.policy.quantized import kind_of, quantization_in, trained_on
from mrlm.learn.policy.weights import PolicyWeights


def freeze(policy: PolicyWeights) -> None:
    """Freezes the current policy as its reference."""
    if policy.adapter is None:
        policy.reference = copy.deepcopy(policy.storage.whole.model).eval().requires_grad_(False)
    else:
        if not policy.reference_adapter:
            policy.reference_adapter = unused_name(policy.model, policy.adapter, "-reference")
        copy_adapter(policy.model, policy.adapter, policy.reference_adapter)
    policy.passes.pop("reference", None)


def renew(policy: PolicyWeights) -> None:
    """Updates the reference to the current policy, in place if it has its own copy."""
    if policy.adapter is not None:
        policy.reference = None
        freeze(policy)
    elif policy.reference is None or not policy.reference_moved:
        freeze(policy)  # a reference given by the user is not overwritten
    else:
        policy.reference.load_state_dict(policy.storage.whole.model.state_dict())
    policy.reference_moved = True


def check_vocabulary(source: str, tokenizer: Any, policy: str) -> None:
    """Checks, before its weights are loaded, that a model has the tokens of a policy. Raises
    `ConfigError`: its tokenizer has others."""
    vocabulary, other = tokenizer.get_vocab(), load_tokenizer(source).get_vocab()
    if vocabulary != other:
        apart = {token for token, _ in vocabulary.items() ^ other.items()}
        raise ConfigError(
            f"teacher_model={source}: its tokenizer has {len(other)} tokens and that of policy "
            f"{policy!r} {len(vocabulary)}; in one only or under another id: {len(apart)}, so that "
            "it cannot score the policy's tokens; take a teacher of the same family, or train on "
            "its texts: a data set of its answers with training.algorithm=sft"
        )


def load_reference(policy: PolicyWeights, source: str) -> None:
    """Loads the reference of a policy: a hub id, or the folder of a model, a run or an adapter. An
    adapter of the base that the policy's own is on, in the same quantisation, becomes another one
    on it, so that no second model is loaded.

    Raises:
        ConfigError: it has other tokens.
        ModelError: it cannot be loaded, or predicts another number of tokens.
    """
    check_vocabulary(source, policy.tokenizer, policy.name)
    path = run_model(source)
    base = adapter_base(path)
    if base is not None and policy.adapter is not None:
        shared = policy.model.get_base_model().name_or_path
        same = quantization_in(base) or trained_on(path) in (None, kind_of(policy.model) or "")
        if same and os.path.realpath(base) == os.path.realpath(shared):
            name = unused_name(policy.model, policy.name, "-teacher")
            load_adapter(policy.model, name, Path(path))
            policy.reference_adapter = name
            return
    dtype = str(policy.model.dtype).removeprefix("torch.")
    model = load_model(path, dtype, device=str(policy.device))
    check_size(policy, model, f"teacher_model={source}")
    policy.reference = model.eval().requires_grad_(False)


def check_size(policy: PolicyWeights, model: Any, what: str) -> None:
    """Checks that a reference predicts as many tokens as a policy. Raises `ModelError`."""
    config = getattr(model, "config", None)
    if config is not None and config.vocab_size != (needed := policy.model.config.vocab_size):
        raise ModelError(
            f"{what}: it predicts {config.vocab_size} tokens and policy {policy.name!r} {needed}; "
            "resize the embeddings of one of them (resize_token_embeddings)"
        )


@contextmanager
def standing(policy: PolicyWeights) -> Iterator[Any]:
    """Yields the reference model of a policy, ready to compute with."""
    if policy.reference is not None:
        yield policy.reference
        return
    if policy.reference_adapter:
        switch_adapter(policy.model, policy.reference_adapter)
    try:
        with nullcontext() if policy.reference_adapter else without_adapters(policy.model):
            yield policy.model
    finally:
        if policy.adapter:
            switch_adapter(policy.model, policy.adapter)
