"""A teacher behind an endpoint: log-probs of token ids, from a server of OpenAI's protocol."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mrlm.config.policy_sections import EndpointConfig
from mrlm.core import registry
from mrlm.core.errors import ConfigError, EngineError
from mrlm.core.sync_async import run_async
from mrlm.learn.data.batch import Batch
from mrlm.learn.fast.lm_head import TopTokens


class RemoteTeacher:
    """Scores batches on a server, one request for each sample. Its log-probs are at temperature 1.

    Args:
        endpoint: the server.
        top_k: number of the likeliest tokens that `distributions` has.

    Raises:
        ConfigError: the key is not set, or `openai` is not installed.
    """

    def __init__(self, endpoint: EndpointConfig, top_k: int = 0) -> None:
        settings = {key: getattr(endpoint, key) for key in type(endpoint).model_fields}
        settings["price"] = endpoint.price.model_dump()
        engine = registry.load("engines", "openai")
        self.engine: Any = engine.of(settings, "distill.teacher_endpoint")
        self.top_k = top_k

    def logprobs(self, batch: Batch) -> Tensor:
        """Log-probs (N,) of the trained tokens."""
        rows = zip(self._rows(batch), batch.tokens.tolist(), strict=True)
        return torch.tensor([row[token] for row, token in rows], device=batch.tokens.device)

    def distributions(self, batch: Batch, vocabulary: int) -> TopTokens:
        """The likeliest tokens where trained tokens are predicted."""
        ids, numbers = [], []
        for row in self._rows(batch):
            likeliest = sorted(row.items(), key=lambda item: (-item[1], item[0]))[: self.top_k]
            if len(likeliest) < self.top_k:
                raise EngineError(
                    f"{self.engine.title} returns {len(likeliest)} tokens for top_k={self.top_k}; "
                    "set distill.top_k to as many, or start the server with more "
                    "(--max-logprobs of vLLM)"
                )
            ids.append([token for token, _ in likeliest])
            numbers.append([number for _, number in likeliest])
        device = batch.tokens.device
        columns = torch.tensor(numbers, device=device), torch.tensor(ids, device=device)
        return TopTokens(*columns, vocabulary)

    def _rows(self, batch: Batch) -> list[Mapping[int, float]]:
        """Token -> log-prob where each trained token is predicted."""
        if batch.divisors is not None:
            raise ConfigError(
                f"rollouts were sampled at temperature {batch.divisors.max():g}, and a "
                "teacher_endpoint gives log-probs at 1; sample at 1, or set teacher_model"
            )
        scored = run_async(self.engine.score([x.ids for x in batch.samples], self.top_k))
        places = zip(batch.host["sequence"], batch.host["place"], strict=True)
        return [scored[sequence][place + 1] for sequence, place in places]
