"""Agents behind an API beside agents that learn: whole runs against a real server."""

import json
import math
import re
from typing import Any

import pytest
import yaml
from benchmarks.learning.table import TABLE

from any_algorithm import Watch, settings, weights
from any_algorithm import models as models
from chat_server import ChatServer, Fault, serving
from mrlm import ExperimentConfig, LLMEnvironment, PPOTrainer
from mrlm.build.policies import LiveObjects
from mrlm.build.run import build, plan_of
from mrlm.config import parse_config
from mrlm.core import registry
from mrlm.core.errors import ConfigError, EndpointError
from mrlm.core.sync_async import run_async
from mrlm.experiment import dry_run, run_experiment
from mrlm.learn.credit.joint_steps import joint_texts
from mrlm.runs import evaluate_model, run_to_end
from places import ROOT
from recorded import episodes as recorded

FAST = {"qmix", "happo"}
LEARNING = {"training.batch_size", "training.learning_rate", "training.critic_learning_rate"}


def endpoint(server: ChatServer | None, **changes: Any) -> dict[str, Any]:
    url = server.url if server else "http://127.0.0.1:9/v1"
    return {"base_url": url, "model": "some-model", "max_retries": 1, **changes}


def experiment(served: dict[str, Any], algorithm: str = "magrpo", **changes: Any) -> Any:
    """Two agents add numbers: the first behind an API, the second learns."""
    base: dict[str, Any] = {
        "experiment_name": "mixed",
        "environments": [{"env_type": "relay", "max_number": 5}],
        "policies": {"helper": {"endpoint": served}, "solver": {}},
        "agents": {"first": {"policy": "helper"}, "second": {"policy": "solver"}},
        "training": {
            "algorithm": algorithm,
            "num_iterations": 2,
            "batch_size": 2,
            "report_to": "none",
            "threads": 1,
        },
        "generation": {"max_new_tokens": 3},
        "evaluation": {"episodes": 1},
    }
    return ExperimentConfig(**base).merged(changes)


def sums(body: Any, number: int) -> str:
    """What the first agent of `relay` should say."""
    numbers = re.findall(r"\d+", body["messages"][-1]["content"])
    return f"The sum is {sum(map(int, numbers[:2]))}"


@pytest.mark.parametrize("algorithm", ["magrpo", "ppo", "mappo"])  # by critic: none, own, team
def test_a_trained_agent_learns_beside_one_behind_an_api(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "s3cret-key")
    price = {"prompt": 1.0, "completion": 2.0}
    with serving(sums) as server:
        served = endpoint(server, api_key_env="SOME_KEY", price=price)
        result = run_experiment(experiment(served, algorithm))
    assert [row["step"] for row in result.history if row.get("loss") is not None] == [1, 2]
    trained = [row for row in result.history if "loss" in row]
    size = {"magrpo": 2, "ppo": 1, "mappo": 1}[algorithm]
    for row in trained:
        assert math.isfinite(row["loss"]) and row["grad_norm"] >= 0
        assert row["api/helper/requests"] == row["api/helper/completion_tokens"] / 4 == 2 * size
        read, wrote = row["api/helper/prompt_tokens"], row["api/helper/completion_tokens"]
        assert row["api/helper/cost"] == pytest.approx((read + 2 * wrote) / 1e6)
        assert row["episodes/failed"] == 0
        assert "grad_norm/helper" not in row and "completion_length/first/mean" not in row
    total = sum(row.get(key, 0) for row in result.history for key in ("api/helper/requests",))
    total += sum(row.get("eval/api/helper/requests", 0) for row in result.history)
    assert total == len(server.bodies)
    assert (result.run_folder / "final" / "config.json").is_file()
    written = [path for path in result.run_folder.rglob("*") if path.is_file()]
    assert not [path for path in written if b"s3cret" in path.read_bytes()]
    assert "SOME_KEY" in (result.run_folder / "config.yaml").read_text()


def test_what_it_says_is_context_and_nothing_of_it_is_learned_from() -> None:
    with serving(sums) as server:
        run = build(experiment(endpoint(server)))
        run_to_end(run)
    assert "The sum is" in json.dumps(recorded(run.folder)[0])
    with serving(sums) as server:
        again = build(experiment(endpoint(server), "mappo", output_dir="other"))
        (group,) = run_async(again.source.take(1))
    episode = group.episodes[0]
    (turn,), (answer,) = episode.rollouts["first"].turns, episode.rollouts["second"].turns
    assert (turn.prompt_ids, turn.completion_ids, turn.logprobs) == ([], [], [])
    assert not turn.trained and turn.message is not None and turn.read
    assert turn.message.metadata["usage"][1] == 4
    chat = again.learners[0].chat
    assert turn.message.content in chat.decode(answer.prompt_ids)
    text = "".join(text for _, text in joint_texts(episode, lambda t, ids: chat.decode(ids)))
    assert f"first reads: {turn.read}" in text and f"first says: {turn.message.content}" in text


def test_a_call_that_finally_fails_is_an_episode_that_failed() -> None:
    def sometimes(body: Any, number: int) -> Any:
        return Fault.saying(400, "not this one") if number % 4 == 1 else sums(body, number)

    with serving(sometimes) as server:
        run = build(experiment(endpoint(server), evaluation={"episodes": 0}))
        history = run_to_end(run).history
    assert [row["episodes/failed"] for row in history] == [0.25, 0.25]
    assert all(row["api/helper/failures"] == 1 for row in history)
    episodes = recorded(run.folder)
    failed = [each for each in episodes if each["status"] == "error"]
    assert failed and all("not this one" in each["error"] for each in failed)


def test_one_that_is_refused_for_good_ends_the_run_with_one_error() -> None:
    refusal = Fault.saying(401, "Incorrect API key")
    with serving(lambda body, n: refusal) as server:
        changes = {"training": {"batch_size": 32}}
        with pytest.raises(EndpointError, match=r"'helper'.*401.*api_key_env"):
            run_experiment(experiment(endpoint(server, max_concurrent=3), **changes))
    assert len(server.bodies) <= 3


def test_a_conversation_too_long_for_it_cuts_the_episode_short() -> None:
    said = Fault.saying(400, "too long", "context_length_exceeded")

    def sometimes(body: Any, number: int) -> Any:
        return said if number == 0 else sums(body, number)

    with serving(sometimes) as server:
        changes = {"evaluation": {"episodes": 0}, "training": {"num_iterations": 1}}
        history = run_experiment(experiment(endpoint(server), **changes)).history
    assert history[0]["episodes/truncated"] == 1 / 4 and history[0]["episodes/failed"] == 0


def test_it_is_counted_on_after_a_resume() -> None:
    """Killed after a step and resumed, a run whose server answers the same logs the same."""
    short = {"training": {"num_iterations": 1}}
    with serving(sums) as server:
        served = endpoint(server, price={"prompt": 1.0})
        whole = run_experiment(experiment(served, output_dir="whole"))
        run_experiment(experiment(served, output_dir="parts", **short))
        parts = run_experiment(experiment(served, output_dir="parts"), resume="parts")
    ends = [result.history[-1] for result in (whole, parts)]
    for name in ("loss", "reward/mean", "api/helper/requests", "api/helper/cost"):
        assert ends[0][name] == ends[1][name], name
    cost = [end["api/helper/cost_total"] for end in ends]
    # the shorter run evaluated once more at its end than the longer one did by then
    assert cost[0] < cost[1] < 1.5 * cost[0]


def test_a_dry_run_neither_connects_nor_needs_the_key() -> None:
    with serving(sums) as server:
        config = experiment(endpoint(server, api_key_env="NOT_SET"))
        text, problems = dry_run(config)
        assert not problems and f"policy helper (some-model at {server.url}): first" in text
        assert not server.bodies
        with pytest.raises(ConfigError, match="NOT_SET is not set"):
            build(config)


def test_the_configuration_of_the_docs_is_one() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    (text,) = re.findall(r"^```yml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    said, problems = dry_run(parse_config(yaml.safe_load(text)))
    assert not problems and "some-model at http://localhost:8000/v1" in said


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "trained": ({"trainable": True}, "policies.helper.trainable: a policy behind an endpoint has"),
    "lora": ({"lora": {}}, "policies.helper.lora: a policy behind an endpoint has no weights"),
    "model": ({"model": "mrlm/tiny"}, "policies.helper.model: .* no weights here; remove it"),
    "no endpoint": ({"endpoint": None, "engine": "openai"}, "none is set; set endpoint"),
    "key in the file": ({"endpoint": {"api_key": "s3cret-key"}}, "api_key_env"),
    "no model": ({"endpoint": {"model": ""}}, r"policies\.helper\.endpoint\.model"),
    "user in the URL": ({"endpoint": {"base_url": "http://a:s3cret@b/v1"}}, "base_url"),
    "price": ({"endpoint": {"price": {"prompt": -1}}}, r"endpoint\.price\.prompt"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused_in_one_sentence(name: str) -> None:
    change, said = WRONG[name]
    with pytest.raises(ConfigError, match=said) as caught:
        experiment(endpoint(None), policies={"helper": change})
    assert "s3cret-key" not in str(caught.value) and str(caught.value).count("\n") <= 1


def test_an_engine_that_asks_nobody_and_a_run_that_trains_nobody() -> None:
    with pytest.raises(ConfigError, match=r"policies\.helper\.engine='lean' has no endpoint"):
        build(experiment(endpoint(None), policies={"helper": {"engine": "lean"}}))
    with pytest.raises(ConfigError, match="no policy is trainable"):
        plan_of(
            experiment(endpoint(None), policies={"solver": {"trainable": False}}), LiveObjects()
        )


@pytest.mark.slow
def test_a_run_in_stages_and_an_evaluation_of_nothing_but_apis() -> None:
    stages = [
        {"name": "form", "training": {"algorithm": "sft", "num_iterations": 1}},
        {"name": "play", "training": {"num_iterations": 1}},
    ]
    with serving(sums) as server:
        changes = {"stages": stages, "sft": {"teacher": "expert"}}
        history = run_experiment(experiment(endpoint(server), **changes)).history
        assert [row["stage"] for row in history if "loss" in row] == [0, 1]
        policies = {name: {"endpoint": endpoint(server)} for name in ("helper", "solver")}
        found = evaluate_model(experiment(endpoint(server), policies=policies), 3, 1, True)
    assert found.metrics["eval/api/solver/requests"] == 3
    assert found.metrics["eval/episodes/failed"] == 0
    assert {turn.sampling.temperature for e in found.episodes for turn in e.turns} == {0.0}


def test_it_judges_a_debate() -> None:
    with serving(lambda body, n: "Winner: A") as server:
        config = ExperimentConfig(
            experiment_name="judged",
            environments=[
                {
                    "env_type": "debate",
                    "judge": {"kind": "llm", "agent": "chair"},
                    "topics": {"kind": "arithmetic", "max_number": 4},
                    "max_turns": 1,
                    "prompts": "short",
                }
            ],
            policies={"pro": {}, "con": {}, "judge": {"endpoint": endpoint(server)}},
            agents={"chair": {"policy": "judge"}},
            training={"algorithm": "magrpo", "num_iterations": 1, "batch_size": 1, "threads": 1},
            generation={"max_new_tokens": 4},
        ).merged({"training": {"report_to": "none"}})
        (row,) = run_experiment(config).history
    assert row["api/judge/requests"] == 4 and row["episodes/failed"] == 0  # in both orders
    assert "Speaker A" in server.bodies[0]["messages"][-1]["content"]


def test_it_is_one_of_the_agents_that_a_trainer_is_given(tiny_path: str) -> None:
    from mrlm.environments.relay import RelayEnvironment

    with serving(sums) as server:
        friend = LLMEnvironment(endpoint(server))
        trainer = PPOTrainer(
            agents={"first": friend, "second": tiny_path},
            environment=RelayEnvironment(max_number=5),
            max_new_tokens=3,
            batch_size=2,
            report_to="none",
        )
        metrics = trainer.train(num_iterations=1).metrics
        assert metrics["api/first/requests"] == 2 and math.isfinite(metrics["loss"])
        with pytest.raises(ConfigError, match="CLIENT"):
            PPOTrainer(friend, RelayEnvironment())


def grid() -> list[Any]:
    """All that play, but `sft`, whose teacher speaks for everybody, and those that replay episodes:
    they refuse an agent that no seed reproduces."""
    return [
        pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow], id=name)
        for name in registry.names("algorithms")
        if TABLE[name].learns_from == "play"
        and name != "sft"
        and registry.load("algorithms", name)().spec.sampling.replays is None
    ]


@pytest.mark.parametrize("algorithm", grid())
def test_any_algorithm_trains_beside_it(algorithm: str, models: tuple[str, str]) -> None:
    """Its words are no tokens here: nothing that credits, values or packs may stumble over it."""
    kept = {key: value for key, value in TABLE[algorithm].config.items() if key not in LEARNING}
    with serving(lambda body, n: "AB"[n % 2]) as server:
        given = settings(algorithm, "separate", 3, models)
        given["policies"]["column"] = {"endpoint": endpoint(server)}
        config = ExperimentConfig(**given).merged(kept).merged({"training.num_iterations": 1})
        watch = Watch()
        run = build(config, LiveObjects(callbacks=[watch]))
        rows = run_to_end(run).history
    assert all(math.isfinite(row["loss"]) for row in rows if row.get("loss") is not None)
    assert (weights(run)["row"] != watch.before["row"]).any()
    assert rows[-1]["api/column/requests"] == len(server.bodies) > 0
