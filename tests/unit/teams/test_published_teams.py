"""What of a team may be published, needs trust, or is written on its cards; and how a team is
packed whose parts are elsewhere."""

import asyncio
import json
import logging
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from mrlm import Message, Observation, Reward, SimulatedEnvironment, Team
from mrlm.config.trust import settings_to_trust
from mrlm.core import registry
from mrlm.core.errors import ConfigError
from mrlm.core.tiny_model import NAME, portable_name
from mrlm.teams.card import Card, paper_titles, team_card
from mrlm.teams.facts import algorithm_facts
from mrlm.teams.packing import pack
from mrlm.teams.policies import PolicyFolder
from mrlm.teams.public import public, without_secrets


def test_secrets_and_paths_are_not_public(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "tok-12345678")
    data = {
        "environments": [{"env_type": "qa", "api_key": "k", "tasks": str(tmp_path / "a.jsonl")}],
        "prompt": "the token is tok-12345678, /think",
        "slash": "/think",
        "max_new_tokens": 3,
        "root": str(tmp_path),
    }
    (tmp_path / "a.jsonl").touch()
    found = public(data)
    assert found == {
        "environments": [{"env_type": "qa", "tasks": "a.jsonl"}],
        "prompt": "the token is [secret], /think",
        "slash": "/think",
        "max_new_tokens": 3,
        "root": tmp_path.name,
    }
    assert without_secrets(data)["root"] == str(tmp_path)


@pytest.mark.parametrize(
    ("settings", "keys"),
    [
        ({"environments": [{"env_type": "subprocess:Popen"}]}, ["environments.0.env_type"]),
        ({"environments": [{"env_type": "reward", "reward_func": ["length", "os:system"]}]},
         ["environments.0.reward_func.1"]),
        ({"environments": [{"env_type": "tools", "mcp_servers": [{"command": ["sh"]}]}]},
         ["environments.0.mcp_servers"]),
        ({"environments": [{"env_type": "math", "remote": True}]}, ["environments.0.remote"]),
        ({"policies": {"p": {"endpoint": {"model": "m"}}}}, ["policies.p.endpoint"]),
        ({"model": {"trust_remote_code": True}}, ["model.trust_remote_code"]),
        ({"workflow": {"name": "mine:Workflow"}}, ["workflow.name"]),
        ({"training": {"doctor_rules": {"mine:Rule": {}}}}, ["training.doctor_rules.mine:Rule"]),
        ({"environments": [{"env_type": "policy:Mine"}]}, ["environments.0.env_type"]),
        ({"environments": [{"env_type": "stage:Mine"}]}, ["environments.0.env_type"]),
        ({"environments": [{"env_type": "gymnasium", "id": "mine:World-v0"}]},
         ["environments.0.id"]),
        ({"environments": [{"env_type": "pettingzoo", "id": "mine.world"}]}, ["environments.0.id"]),
        ({"environments": [{"env_type": "verifiers", "taskset": "mine"}]},
         ["environments.0.taskset"]),
        ({"environments": [{"env_type": "tools", "search": "https://host/x"}]},
         ["environments.0.search"]),
        ({"environments": [{"env_type": "openenv", "url": "host"}]}, ["environments.0.url"]),
        ({"engine": {"servers": {"p": "host:1"}}}, ["engine.servers"]),
        ({"distributed": {"ray": {"address": "auto"}}}, ["distributed.ray.address"]),
        ({"environments": [{"env_type": "world_model", "model": "policy:judge"}],
          "model": {"trust_remote_code": False},
          "agents": {"a": {"system_prompt": "Answer: a number, as in 3:4."}}}, []),
    ],
)  # fmt: skip
def test_settings_that_reach_out_need_trust(settings: dict[str, Any], keys: list[str]) -> None:
    assert list(settings_to_trust(settings)) == keys


def test_names_that_other_machines_know(tiny_path: str) -> None:
    assert portable_name(tiny_path) == NAME
    assert portable_name("/x/models--gpt2/snapshots/0a1b/") == "gpt2"
    assert portable_name("models/mine") == "models/mine"


def test_papers_are_read_from_the_plug_in() -> None:
    found = algorithm_facts("grpo")
    assert found["arxiv"][0] == "2402.03300" and len(found["arxiv"]) == 5
    assert found["about"].startswith("GRPO: reward relative to the group mean")
    assert algorithm_facts("mrlm.algorithms.grpo:GRPO")["arxiv"] == found["arxiv"]
    assert algorithm_facts("reinforce")["arxiv"] == []


def card(**more: Any) -> Card:
    facts = {
        "algorithm": algorithm_facts("spiral"),
        "steps": 7,
        "tokens": 1234,
        "seed": 1,
        "batch_size": 2,
        "group_size": 4,
        "learning_rate": 1e-5,
        "origins": {"solver": "Qwen/Qwen3-0.6B", "critic": "Qwen/Qwen3-0.6B"},
        "trained": ["solver", "critic"],
        "dataset": "owner/questions",
        "evaluation": {},
        "ratings": [{"name": "solver@5", "rating": 1034.2, "low": 990.0, "high": 1080.0}],
        "doctor": "warn",
        "alarms": [{"rule": "cliff", "step": 6, "because": "it fell", "about": "solver"}],
    }
    team = {
        "agents": {"solver": {"policy": "solver"}, "judge": {"policy": "judge"}},
        "policies": {
            "solver": {"model": "policies/solver"},
            "critic": {"model": "policies/critic"},
            "judge": {"endpoint": {"model": "gpt-x", "base_url": "https://example.org/v1"}},
        },
        "workflow": {"name": "debate", "rounds": 2},
    }
    adapter = {"r": 24, "lora_alpha": 16, "base_model_name_or_path": "Qwen/Qwen3-0.6B"}
    known = {name: PolicyFolder(f"policies/{name}", adapter) for name in ("solver", "critic")}
    given = {"team": team, "facts": facts, "policies": known, "title": "two", "source": "me/two"}
    return Card(**given | {"reproducible": True, "page": "run.html"} | more)


def test_a_card_names_what_the_hub_reads_and_people_ask() -> None:
    text = team_card(card())
    _, front, body = text.split("---\n", 2)
    meta = yaml.safe_load(front)
    assert meta["base_model"] == ["Qwen/Qwen3-0.6B"] and meta["base_model_relation"] == "adapter"
    assert meta["datasets"] == ["owner/questions"] and "model-index" not in meta
    for line in (
        "vllm serve Qwen/Qwen3-0.6B --enable-lora --max-lora-rank 32 --lora-modules "
        "solver=policies/solver critic=policies/critic",
        "| solver@5 | 1034 | 990 to 1080 |",
        "- `cliff` (solver) at step 6: it fell.",
        "- `judge`: frozen; the model gpt-x behind an API.",
        "Workflow: `debate`, `rounds: 2`.",
        "The run has no recorded evaluation.",
        "[run.html](run.html)",
        "Team.from_pretrained('me/two')",
    ):
        assert line in body, line


def test_a_card_without_facts_claims_nothing() -> None:
    whole = {"solver": PolicyFolder(".", {})}
    text = team_card(card(facts={}, policies=whole, reproducible=False, page=None))
    for title in ("Training", "Evaluation", "Alarms", "Reproduce", "Citation"):
        assert f"## {title}" not in text
    assert "vllm serve . --served-model-name solver" in text


@pytest.mark.parametrize("name", registry.names("algorithms"))
def test_every_paper_of_an_algorithm_is_cited_with_its_title(name: str) -> None:
    facts = algorithm_facts(name)
    text = team_card(card(facts=card().facts | {"algorithm": facts}))
    entries = re.findall(r"^@misc\{.*?^\}", text, re.DOTALL | re.MULTILINE)
    assert len(entries) == len(facts["arxiv"])
    for number, entry in zip(facts["arxiv"], entries, strict=True):
        title = paper_titles().get(number)
        assert title is None or f"title         = {{{{{title}}}}}" in entry
        assert f"year          = {{20{number[:2]}}}" in entry and number in entry


def test_every_known_title_is_that_of_a_paper_of_an_algorithm() -> None:
    cited = {
        number for name in registry.names("algorithms") for number in algorithm_facts(name)["arxiv"]
    }
    assert set(paper_titles()) <= cited and len(paper_titles()) >= 46


def test_a_paper_without_a_known_title_is_cited_by_its_number() -> None:
    own = {"name": "mine:Own", "about": "", "paper": "", "arxiv": ["2699.00001"]}
    text = team_card(card(facts=card().facts | {"algorithm": own}))
    assert "@misc{Own_2699_00001,\n  year" in text and "title   " not in text


def folder(place: Path, tiny_path: str, **more: Any) -> Path:
    """A team of one agent with a whole model, written by hand."""
    shutil.copytree(tiny_path, place)
    team = {
        "experiment_name": "one",
        "policies": {"p": {"trainable": False, "model": "."}},
        "agents": {"solver": {"policy": "p"}},
        "generation": {"max_new_tokens": 3},
        **more,
    }
    (place / "team.yaml").write_text(yaml.safe_dump(team))
    return place


def test_environments_that_read_local_files_stay_here(
    tmp_path: Path, tiny_path: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"question": "1+1?", "answer": "2"}) + "\n")
    given = [{"env_type": "qa", "dataset": str(rows)}, {"env_type": "math"}]
    source = folder(tmp_path / "team", tiny_path, environments=given)
    caplog.set_level(logging.WARNING)
    packed = pack(source, tmp_path / "out")
    assert "environment 'qa' is not part of the published team" in caplog.text
    team = yaml.safe_load((packed / "team.yaml").read_text())
    assert team["environments"] == [{"env_type": "math"}]
    assert team["policies"]["p"]["model"] == "."


def test_a_foreign_team_is_refused_until_it_is_trusted(tmp_path: Path, tiny_path: str) -> None:
    made = tmp_path / "made"
    evil = [{"env_type": "os:mkdir", "path": str(made)}]
    source = folder(tmp_path / "team", tiny_path, environments=evil)
    with pytest.raises(ConfigError, match=r"team.yaml: environments.0.env_type .* trust_remote"):
        Team.from_pretrained(source)
    assert not made.exists()
    with pytest.raises(ConfigError, match=r"it has no team\.yaml"):
        Team.from_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="give owner/name"):
        Team.from_pretrained(tmp_path / "gone")
    (source / "team.yaml").write_text("- 1")
    with pytest.raises(ConfigError, match="it has no mapping 'policies'"):
        Team.from_pretrained(source)


class Count(SimulatedEnvironment):
    """The reward is the number of characters."""

    def reset(self, *, seed: int | None = None) -> Observation:
        return Observation([Message(f"Write {seed}.")])

    def step(self, action: Message) -> tuple[Observation, Reward]:
        return Observation(done=True), Reward(float(len(action.content)))


def test_a_team_plays_in_an_environment_of_ones_own(tmp_path: Path, tiny_path: str) -> None:
    given = [{"env_type": "math"}]
    source = folder(tmp_path / "team", tiny_path, environments=given)
    team = Team.from_pretrained(source, environment=Count())
    first = team.play(seed=2, greedy=False)
    assert first.reward == len(first.turns[0].message.content)  # type: ignore[union-attr]

    async def both() -> list[str]:
        episodes = [team.aplay(seed=seed, greedy=False) for seed in (2, 3)]
        found = await asyncio.gather(*episodes)
        return [turn.message.content for each in found for turn in each.turns if turn.message]

    again, other = asyncio.run(both())
    assert [again] == [turn.message.content for turn in first.turns if turn.message]
    assert other != again
    bare = Team.from_pretrained(folder(tmp_path / "bare", tiny_path))
    with pytest.raises(ConfigError, match="the team has no environment"):
        bare.play()
    assert bare.play("Hello").missing == {"solver"}
    assert os.path.samefile(bare.save_pretrained(tmp_path / "saved"), tmp_path / "saved")
