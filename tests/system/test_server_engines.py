"""Policies that are trained here and sampled elsewhere: whole runs against a server in another
process, which has to have the same weights after every step and to say the same words."""

import asyncio
import copy
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import torch
import yaml

from forking import Launcher
from grids import quick
from mrlm import Callback, load_config, run_experiment
from mrlm.build.served_policies import HostedPolicies, house_of
from mrlm.core.errors import CheckError, ConfigError, EngineError
from mrlm.core.types import Completion, SamplingParams
from mrlm.engines import vllm
from mrlm.engines.lean.engine import LeanEngine
from mrlm.engines.mrlm import MrlmEngine
from mrlm.engines.sglang import SglangEngine
from mrlm.engines.shared import server_engine
from mrlm.engines.vllm import VllmEngine
from mrlm.experiment import dry_run
from mrlm.learn.policy.lora import BASE, add_adapter
from mrlm.learn.policy.policy import Policy
from mrlm.play.engine import Request
from mrlm.serving.client import policies as policies_module
from mrlm.serving.policies.hub import PolicyHub
from policy_server import Doors, Process, policy_process

LORA = {"r": 4, "alpha": 8, "dropout": 0.0, "target_modules": "all-linear"}
BY_KIND: dict[str, Any] = {"vllm": VllmEngine, "sglang": SglangEngine}
SLOW = pytest.mark.slow


@pytest.fixture(autouse=True)
def no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_engine, "FIRST_WAIT", 0.02)
    monkeypatch.setattr(policies_module, "FIRST_WAIT", 0.02)


# -- whole runs ------------------------------------------------------------------------------------


def config(folder: Path, engine: dict[str, Any]) -> Path:
    path = folder / f"{engine['name']}.yaml"
    data: dict[str, Any] = {
        "experiment_name": engine["name"],
        "output_dir": str(folder / engine["name"]),
        "environments": [{"env_type": "policy_server:Letters"}],
        "policies": {"policy": {}},
        "training": {
            "algorithm": "grpo",
            "num_iterations": 3,
            "batch_size": 2,
            "learning_rate": 1.0e-2,
            "report_to": "none",
            "checks": "error",
        },
        "grpo": {"group_size": 4},
        "generation": {"max_new_tokens": 6},
        "engine": engine,
    }
    path.write_text(yaml.safe_dump(data))
    return path


class Watch(Callback):
    """After every step, what the server says of its weights and what the learner has."""

    def __init__(self, server: Process, token: str = "none") -> None:
        self.server = server
        self.token = token
        self.theirs: list[Any] = []
        self.ours: list[Any] = []

    def on_step_end(self, run: Any, metrics: Any) -> None:
        headers = {"authorization": f"Bearer {self.token}"}
        reply = httpx.get(f"{self.server.url}/v1/models", timeout=None, headers=headers).json()
        known = reply["data"][0]["mrlm"]
        self.theirs.append((known["version"], *known["fingerprint"]))
        self.ours.append((run.step, *run.learners[0].weights_of.fingerprint()))


def losses(result: Any) -> list[float]:
    keys = ("policy_loss", "reward/mean", "grad_norm", "completion_length/mean", "entropy")
    found = [row[key] for row in result.history for key in keys if row.get(key) is not None]
    assert len(found) >= 9
    return found


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of the run in this process."""
    folder = tmp_path_factory.mktemp("local")
    return losses(run_experiment(load_config(config(folder, {"name": "lean"}))))


def test_a_run_through_our_server_is_the_run_in_this_process(
    launcher: Launcher, tmp_path: Path, tiny_path: str, local: list[float]
) -> None:
    """But for rounding, which follows the batches that the server makes; and both have the same
    weights, bit by bit, after every step."""
    words = ("--policy", f"policy={tiny_path}", "--take-weights")
    with policy_process(launcher, tmp_path, *words) as server:
        watch = Watch(server)
        engine = {"name": "mrlm", "base_url": server.address}
        apart = run_experiment(load_config(config(tmp_path, engine)), callbacks=[watch])
    assert losses(apart) == pytest.approx(local, abs=1e-6)
    assert [row[0] for row in watch.theirs] == [1, 2, 3]
    assert watch.theirs == watch.ours
    assert len(set(watch.ours)) == 3


@pytest.mark.parametrize("kind", ["vllm", pytest.param("sglang", marks=pytest.mark.slow)])
def test_a_run_through_the_routes_of_other_servers(
    kind: str,
    launcher: Launcher,
    tmp_path: Path,
    tiny_path: str,
    local: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weights through a folder, the server asleep while policies learn; the losses are those of the
    run in this process but for rounding, which follows the batches that the server makes."""
    shared = tmp_path / "sync"
    shared.mkdir()
    monkeypatch.setenv("MRLM_TOKEN", "open sesame")
    words = ("--policy", f"base={tiny_path}", "--weights-from", str(shared))
    with policy_process(launcher, tmp_path, *words) as server:
        watch = Watch(server, "open sesame")
        engine = {
            "name": kind,
            "base_url": server.url,
            "api_key_env": "MRLM_TOKEN",
            "sync_folder": str(shared),
            "sleep": True,
        }
        apart = run_experiment(load_config(config(tmp_path, engine)), callbacks=[watch])
    assert losses(apart) == pytest.approx(local, abs=1e-4)
    assert [row[1:] for row in watch.theirs] == [row[1:] for row in watch.ours]
    assert len(set(watch.ours)) == 3
    assert len(list(shared.glob("*/policy/*"))) <= 1  # old weights are cleared away


SLOWEST = vllm.FRESH
"""Seconds between a server's end and the next one's start: no real one is there sooner."""


class Restart(Callback):
    """Kills the server after the first step, and starts another one at the same address."""

    def __init__(self, server: Process, start: Callable[[int, int], Process]) -> None:
        self.server = server
        self.start = start

    def on_step_end(self, run: Any, metrics: Any) -> None:
        if run.step == 1:
            self.server.kill()
            where = (self.server.address, self.server.url)
            time.sleep(SLOWEST)
            self.server = self.start(*(int(each.rsplit(":", 1)[1]) for each in where))


@pytest.mark.parametrize("kind", ["mrlm", *(pytest.param(k, marks=SLOW) for k in BY_KIND)])
def test_a_run_whose_server_is_started_again_is_the_run_it_would_have_been(
    kind: str, launcher: Launcher, tmp_path: Path, tiny_path: str, local: list[float]
) -> None:
    """It comes back with the weights it began with, between two calls, and gets those that are
    trained before anything it samples is used. The last bits are others: what it had read before is
    not kept."""
    shared = tmp_path / "sync"
    shared.mkdir()
    words = ("--policy", f"base={tiny_path}", "--weights-from", str(shared))
    words = ("--policy", f"policy={tiny_path}", "--take-weights") if kind == "mrlm" else words
    with ExitStack() as open_:

        def start(port: int = 0, http_port: int = 0) -> Process:
            ports = {"port": port, "http_port": http_port}
            return open_.enter_context(policy_process(launcher, tmp_path, *words, **ports))

        server = start()
        engine: dict[str, Any] = {"name": kind, "base_url": server.address}
        if kind != "mrlm":
            engine = {"name": kind, "base_url": server.url, "sync_folder": str(shared)}
        watching = [Restart(server, start)]
        apart = run_experiment(load_config(config(tmp_path, engine)), callbacks=watching)
    assert losses(apart) == pytest.approx(local, abs=1e-4)


# -- engines alone ---------------------------------------------------------------------------------


def policy_of(model: Any, tokenizer: Any, name: str = "base", adapter: str | None = None) -> Policy:
    return Policy(name, model, tokenizer, adapter=adapter)


def moved(policy: Policy, seed: int) -> Policy:
    """The policy with other weights."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in policy.named_parameters().values():
            value.add_(0.05 * torch.randn(value.shape, generator=generator))
    return policy


def requests(*names: str, count: int = 3, **sampling: Any) -> list[Request]:
    params = SamplingParams(**{"max_new_tokens": 8, **sampling})
    return [
        Request(name, [5 + n, 6, 7, 40 + n], params, (1 << 63) + 11 * n)
        for n in range(count)
        for name in names
    ]


def say(engine: Any, asked: list[Request]) -> list[Completion]:
    return asyncio.run(engine.generate(asked))


def assert_same(found: list[Completion], wanted: list[Completion], exactly: bool = False) -> None:
    assert [each.token_ids for each in found] == [each.token_ids for each in wanted]
    assert [(each.text, each.finish_reason) for each in found] == [
        (each.text, each.finish_reason) for each in wanted
    ]
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=0.0 if exactly else 1e-5)


@pytest.fixture
def doors(tiny_path: str, tmp_path: Path) -> Any:
    house = house_of({"base": tiny_path})
    root = tmp_path / "sync"
    root.mkdir()
    desk = PolicyHub(
        house.served(), add_adapter=house.add_adapter, takes_weights=True, weights_from=root
    )
    found = Doors(desk)
    yield found
    found.close()


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_sampling_parameters_reach_the_server(
    kind: str, doors: Doors, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    policy = moved(policy_of(model, tokenizer), 1)
    engine = BY_KIND[kind](
        {"base": policy}, base_url=doors.url, sync_folder=str(tmp_path / "sync"), sleep=True
    )
    mine = LeanEngine({"base": policy})
    first = say(mine, requests("base"))[0].text
    for sampling in (
        {},
        {"temperature": 0.6},
        {"temperature": 0.0},
        {"top_k": 9},
        {"top_p": 0.5},
        {"min_p": 0.3},
        {"stop": (first[2:4],), "max_new_tokens": 30},
    ):
        asked = requests("base", **sampling)
        assert_same(say(engine, asked), say(mine, asked))


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_adapters_go_by_name_and_follow_updates(
    kind: str, doors: Doors, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    """Two adapters and their base through one server, sampled together."""
    peft_model = add_adapter(add_adapter(model, "ann", LORA), "ben", LORA)
    policies = {
        "ann": moved(policy_of(peft_model, tokenizer, "ann", "ann"), 1),
        "ben": moved(policy_of(peft_model, tokenizer, "ben", "ben"), 2),
        "judge": policy_of(peft_model, tokenizer, "judge", BASE),
    }
    engine = BY_KIND[kind](policies, base_url=doors.url, sync_folder=str(tmp_path / "sync"))
    mine = LeanEngine(policies)
    asked = requests("ann", "ben", "judge")
    before = say(mine, asked)
    assert_same(say(engine, asked), before)
    assert sorted(doors.desk.served) == ["ann", "base", "ben"]
    moved(policies["ann"], 3)
    for each in (engine, mine):
        asyncio.run(each.load_weights("ann", policies["ann"], 1))
    after = say(mine, asked)
    assert_same(say(engine, asked), after)
    assert after[0].token_ids != before[0].token_ids and after[1:3] == before[1:3]


@pytest.mark.parametrize("kind", quick(["vllm", "sglang"], ["sglang"]))
def test_a_server_sleeps_and_wakes(
    kind: str, doors: Doors, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    policy = policy_of(model, tokenizer)
    engine = BY_KIND[kind](
        {"base": policy}, base_url=doors.url, sync_folder=str(tmp_path / "sync"), sleep=True
    )
    before = say(engine, requests("base"))

    def asleep() -> bool:
        return httpx.get(f"{doors.url}/is_sleeping").json()["is_sleeping"]

    asyncio.run(engine.rest())
    assert asleep()
    body = {"model": "base", "prompt": [5], "max_tokens": 1}
    refused = httpx.post(f"{doors.url}/v1/completions", json=body)
    assert refused.status_code == 503 and refused.json()["error"]["code"] == "asleep"
    again = say(engine, requests("base"))  # whoever asks wakes it
    assert_same(again, before)
    assert not asleep()
    asyncio.run(engine.rest())
    moved(policy, 4)
    asyncio.run(engine.load_weights("base", policy, 1))  # so do new weights, which come first
    assert not asleep()
    assert_same(say(engine, requests("base")), say(LeanEngine({"base": policy}), requests("base")))


@pytest.mark.parametrize("noticed", quick([True, False], [False]))
@pytest.mark.parametrize("kind", ["mrlm", *(pytest.param(k, marks=SLOW) for k in BY_KIND)])
def test_a_server_that_is_lost_gets_its_weights_again(
    noticed: bool,
    kind: str,
    launcher: Launcher,
    tmp_path: Path,
    tiny_path: str,
    model: Any,
    tokenizer: Any,
) -> None:
    """Whether a call failed in between or not. The version is that of the server's own weights, as
    it is for policies that nobody trains."""
    policy = moved(policy_of(model, tokenizer), 5)
    wanted = say(LeanEngine({"base": policy}), requests("base"))
    (tmp_path / "sync").mkdir()
    words = ("--policy", f"base={tiny_path}", "--weights-from", str(tmp_path / "sync"))
    with policy_process(launcher, tmp_path, *words) as server:
        if kind == "mrlm":
            engine: Any = MrlmEngine({"base": policy}, server.address, max_retries=2)
        else:
            sync = str(tmp_path / "sync")
            engine = BY_KIND[kind](
                {"base": policy}, server.url, sync_folder=sync, max_retries=2, timeout=60
            )
        assert_same(say(engine, requests("base")), wanted)
        server.kill()
        if noticed:
            with pytest.raises(EngineError, match=r"after 3 tries: .*(unavailable|no connection)"):
                say(engine, requests("base"))
        pushes = engine.pushes
        ports = [int(where.rsplit(":", 1)[1]) for where in (server.address, server.url)]
    time.sleep(SLOWEST)
    with policy_process(launcher, tmp_path, *words, port=ports[0], http_port=ports[1]):
        assert_same(say(engine, requests("base")), wanted)
    assert engine.pushes > pushes


def test_weights_that_somebody_else_changed_are_noticed(
    doors: Doors, model: Any, tokenizer: Any
) -> None:
    policy = policy_of(model, tokenizer)
    engine = MrlmEngine({"base": policy}, doors.address)
    wanted = say(engine, requests("base"))
    stranger = moved(policy_of(copy.deepcopy(model), tokenizer), 6)
    asyncio.run(MrlmEngine({"base": stranger}, doors.address).load_weights("base", stranger, 9))
    assert_same(say(engine, requests("base")), wanted, exactly=True)
    assert engine.pushes == 2


def test_engines_that_say_other_log_probs_are_caught_at_the_first_step(
    doors: Doors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that gives log-probs before the temperature, say."""
    plain = VllmEngine._read

    def raw(self: VllmEngine, answer: Any) -> Any:
        ids, logprobs, reason = plain(self, answer)
        return ids, [each - 0.2 for each in logprobs], reason

    monkeypatch.setattr(VllmEngine, "_read", raw)
    engine = {"name": "vllm", "base_url": doors.url, "sync_folder": str(tmp_path / "sync")}
    with pytest.raises(CheckError, match=r"log-probs of a few tokens differ by up to 0\.2"):
        run_experiment(load_config(config(tmp_path, engine)))


# -- what does not fit -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ({"name": "lean", "base_url": "http://x:1"}, "engine.base_url: the engine 'lean' takes no"),
        ({"name": "vllm"}, "engine.name='vllm' is a server elsewhere; set engine.base_url"),
        ({"name": "mrlm", "base_url": "x:1", "sleep": True}, "'mrlm' takes no sleep"),
        ({"name": "sglang", "base_url": "http://x:1", "model": "m"}, "'sglang' takes no model"),
        ({"name": "openai", "base_url": "http://x:1"}, "cannot be used from a config"),
    ],
)
def test_keys_that_do_not_fit_the_engine(engine: dict[str, Any], said: str, tmp_path: Path) -> None:
    _, problems = dry_run(load_config(config(tmp_path, engine)))
    assert len(problems) == 1 and said in problems[0]


def test_policies_that_do_not_fit_their_servers(model: Any, tokenizer: Any) -> None:
    policy = policy_of(model, tokenizer)
    two = {"a": policy, "b": policy}
    with pytest.raises(ConfigError, match="are whole models, and the server at http://x:1 holds"):
        VllmEngine(two, "http://x:1")
    apart = VllmEngine(two, "http://x:1/v1/", {"b": "http://y:2"})
    assert apart.url_of == {"a": "http://x:1", "b": "http://y:2"}
    with pytest.raises(ConfigError, match=r"engine\.servers\.c: this run has no policy"):
        SglangEngine(two, servers={"c": "http://y:2"})
    with pytest.raises(ConfigError, match="write http://host:port"):
        SglangEngine({"a": policy}, "x:1")
    with pytest.raises(ConfigError, match=r"engine\.servers\.a='elsewhere:1' is not the address"):
        VllmEngine(two, "http://x:1", {"a": "elsewhere:1"})
    with pytest.raises(ConfigError, match="uses gRPC; write host:port"):
        MrlmEngine({"a": policy}, "http://x:1")
    with pytest.raises(ConfigError, match="MISSING_KEY is not set"):
        VllmEngine({"a": policy}, "http://x:1", api_key_env="MISSING_KEY")


def test_a_house_of_a_run_keeps_adapters_apart(
    tmp_path: Path, tiny_path: str, model: Any, tokenizer: Any
) -> None:
    """Adapter folders are served as adapters that share their base."""
    model.name_or_path = tiny_path
    peft_model = add_adapter(add_adapter(model, "ann", LORA), "ben", LORA)
    for seed, name in enumerate(("ann", "ben")):
        moved(policy_of(peft_model, tokenizer, name, name), seed).save(tmp_path / name)
    house: HostedPolicies = house_of({name: str(tmp_path / name) for name in ("ann", "ben")})
    assert house.policies["ann"].model is house.policies["ben"].model
    own = {name: policy_of(peft_model, tokenizer, name, name) for name in ("ann", "ben")}
    asked = requests("ann", "ben")
    assert_same(say(house.served()[0].engine, asked), say(LeanEngine(own), asked))
