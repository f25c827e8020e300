"""A team is published on a hub, pulled elsewhere, and plays as it did in its run."""

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard, constants

from commands import Mrlm
from hub_server import TOKEN, Hub, small_hub
from mrlm import Team, read_run
from mrlm.config import ExperimentConfig
from mrlm.config.trust import MARK, check
from mrlm.core.errors import ConfigError
from mrlm.core.types import Task
from mrlm.experiment import run_experiment
from mrlm.teams.saving import read_team
from places import ROOT

SECRET = "sk-0123456789abcdef"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub that this process may call, as if it had begun with its HF_ENDPOINT."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with small_hub() as found:
        template = found.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", found.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield found


def settings(**more: Any) -> dict[str, Any]:
    return {
        "experiment_name": "adders",
        "environments": [{"env_type": "relay"}],
        "training": {"algorithm": "magrpo", "num_iterations": 1, "batch_size": 2}
        | {"learning_rate": 0.01, "seed": 3},
        "magrpo": {"group_size": 2},
        "generation": {"max_new_tokens": 6},
        "evaluation": {"episodes": 3, "greedy": False},
        **more,
    }


@pytest.fixture(scope="module")
def adders(tmp_path_factory: pytest.TempPathFactory, tiny_path: str) -> Path:
    """The folder with the run of two agents: an adapter on a base of this machine, and that base,
    which is frozen. A secret is in a prompt."""
    place = tmp_path_factory.mktemp("adders")
    shutil.copytree(tiny_path, place / "models" / "small")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("OTHER_API_KEY", SECRET)
        agents = {"first": {"policy": "first", "system_prompt": f"Add ``` them. {SECRET}"}}
        config = settings(
            model={"model_name_or_path": str(place / "models" / "small")},
            policies={"first": {"lora": {"r": 4}}, "second": {"trainable": False}},
            agents=agents | {"second": {"policy": "second"}},
            output_dir=str(place / "run"),
        )
        run_experiment(ExperimentConfig(**config))
    return place


def played(team: Team) -> list[list[str]]:
    """The messages of sampled episodes of the first held-out tasks."""
    episodes = [team.play(seed=seed, greedy=False) for seed in range(3)]
    return [[turn.message.content for turn in each.turns if turn.message] for each in episodes]


def test_a_pulled_team_plays_as_in_the_last_evaluation_of_its_run(
    adders: Path, hub: Hub, run: Mrlm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = [each for each in read_run(adders / "run").episodes([1]) if each.evaluation]
    expected = [[turn.text for turn in each.turns] for each in recorded]
    assert len({str(each) for each in expected}) == 3
    page = adders / "page.html"
    page.write_text("<p>the run</p>")
    monkeypatch.setenv("OTHER_API_KEY", SECRET)
    options = ["--private", "--page", page, "--endpoint", hub.url]
    done = run("push", adders / "run", "me/adders", *options)
    assert done.code == 2 and "which is not on the Hub; give --base ID" in done.err
    small = adders / "models" / "small"
    hub.repositories["me/small"] = {each.name: each.read_bytes() for each in small.iterdir()}
    done = run("push", adders / "run", "me/adders", *options, "--base", "me/small")
    assert done.code == 0 and "published: http" in done.out, done.err
    assert hub.private == {"me/adders": True} and hub.commits == ["Team of MRLM"]
    files = hub.repositories["me/adders"]
    weights = {"policies/second/model.safetensors", "policies/first/adapter_model.safetensors"}
    assert weights < files.keys() and not any(name.startswith("bases/") for name in files)
    for name, content in files.items():
        for text in (SECRET, str(adders), str(Path.home()), str(tmp_path)):
            assert text.encode() not in content, name
    assert all(SECRET.encode() not in body for body in hub.received)
    (adders / "models").rename(adders / "moved")
    try:
        done = run("pull", "me/adders", "-o", tmp_path / "here")
        assert done.code == 0 and "a team of first, second" in done.out, done.err
        placed = bool(read_team(tmp_path / "here").get("environments"))
        assert ("mrlm play --config" in done.out) is placed
        assert (".play('a task')" in done.out) is not placed
        team = Team.from_pretrained(tmp_path / "here")
        prompt = team.agents["first"].system_prompt
        assert prompt == "Add ``` them. [secret]"
        told = expected_prompt(team)
        assert played(told) == expected
        assert played(Team.from_pretrained("me/adders", endpoint=hub.url))[0][0]
    finally:
        (adders / "moved").rename(adders / "models")


def expected_prompt(team: Team) -> Team:
    """The team with the secret of its prompt, without which it reads something else."""
    file = team.folder / "team.yaml"
    file.write_text(file.read_text().replace("[secret]", SECRET))
    return Team.from_pretrained(team.folder)


def test_the_card_says_how_the_team_came_to_be(adders: Path) -> None:
    final = adders / "run" / "final"
    card = ModelCard.load(final / "README.md")
    assert card.data.library_name == "mrlm" and "magrpo" in card.data.tags
    (result,) = card.data.eval_results
    facts = json.loads((final / "card.json").read_text())
    rewards = [each.reward for each in read_run(adders / "run").episodes([1]) if each.evaluation]
    assert result.metric_value == pytest.approx(sum(rewards) / 3)
    assert facts["evaluation"]["rows"][0]["tasks"] == 3 and facts["seed"] == 3
    for text in (
        "````text\nAdd ``` them. [secret]\n````",
        f"trained; a LoRA adapter (rank 4, alpha 16) on {adders / 'models' / 'small'}",
        "**second** uses the policy `second` (frozen).",
        "eprint        = {2508.04652}",
        "is the config of the run, without secrets. It does not repeat the run",  # a local base
        "--enable-lora --max-lora-rank 8 --lora-modules",
    ):
        assert text in card.text, text
    saved = json.loads((final / "adapter_config.json").read_text())
    assert saved["base_model_name_or_path"] == str(adders / "models" / "small")
    text = "".join(path.read_text() for path in final.iterdir() if path.suffix != ".safetensors")
    assert SECRET not in text


def test_what_is_wrong_is_one_error(adders: Path, run: Mrlm, tmp_path: Path) -> None:
    """Nothing is called without a network; the double is not running here."""
    here = adders / "run"
    cases = {
        ("push", here, "me/adders", "--merge", "--endpoint", "http://x"): (1, "HF_HUB_OFFLINE"),
        ("push", here, "me/adders"): (2, "give --base ID, the hub id of the same weights, or"),
        ("pull", "me/adders", "-o", tmp_path / "x"): (1, "HF_HUB_OFFLINE is set"),
        ("push", here, "adders"): (2, "give owner/name"),
        ("push", adders, "me/adders"): (2, "it has no team.yaml"),
        ("push", here, "me/adders", "--page", tmp_path / "none"): (2, "mrlm export writes one"),
        ("pull", "me/adders", "-o", adders): (2, "the folder has other files"),
        ("export", here, "--merge", "-o", adders): (2, "is not empty"),
        ("export", here, "--merge", "-f", "html"): (2, "no effect on --format html"),
    }
    for words, (code, text) in cases.items():
        done = run(*words)
        assert done.code == code and text in done.err, (words, done.err)
        merged, error, rest = done.err.rpartition("error: ")
        assert error and rest.count("\n") == 1, done.err
        assert not merged or merged.startswith("policy first: the adapter is merged"), merged


def test_a_hub_that_refuses_or_is_away_is_named(
    adders: Path, hub: Hub, run: Mrlm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run("pull", "me/nothing", "-o", tmp_path / "x")
    assert done.code == 1 and "no such repository" in done.err
    own = ("push", adders / "run", "me/x", "--base", "me/small")
    done = run(*own, "--endpoint", "http://127.0.0.1:9")
    assert done.code == 1 and "http://127.0.0.1:9 cannot be reached" in done.err
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    done = run(*own)
    assert done.code == 1 and "refused it (401)" in done.err and not hub.repositories


def test_a_team_of_one_policy_is_a_model(tmp_path: Path, run: Mrlm) -> None:
    """The folder is that of the model, and a second push removes what the team no longer has."""
    training = {"algorithm": "grpo", "num_iterations": 1, "batch_size": 2}
    config = settings(training=training, environments=[{"env_type": "math"}])
    del config["magrpo"]
    run_experiment(ExperimentConfig(**config | {"output_dir": str(tmp_path / "run")}))
    done = run("export", tmp_path / "run", "-f", "hf", "-o", tmp_path / "out")
    assert done.code == 0, done.err
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert "vllm serve . --served-model-name" in (tmp_path / "out" / "README.md").read_text()
    team = Team.from_pretrained(tmp_path / "out")
    asked = team.play(Task("own", "What is 1+1?", answer="2"), greedy=True)
    assert asked.status == "done" and not asked.missing
    talk = team.play("What is 1+1?")
    assert talk.environment == "conversation" and talk.missing
    with pytest.raises(ConfigError, match="without an environment"):
        team.play("text", environment="math")
    with pytest.raises(ConfigError, match="environment: 'chess' does not exist"):
        team.play(environment="chess")


def blocks(language: str) -> list[str]:
    text = (ROOT / "docs" / "publishing.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_the_page_is_run(
    hub: Hub, run: Mrlm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (text,) = blocks("yaml")
    Path("adders.yaml").write_text(text)
    first, second = blocks("bash")
    one, two = blocks("python")
    for lines, program in ((first, one), (second, two)):
        for line in lines.splitlines():
            done = run(*shlex.split(line)[1:])
            assert done.code == 0, (line, done.err)
        exec(compile(program, "publishing.md", "exec"), {})
    assert sorted(hub.repositories) == ["me/adders"]
    assert (tmp_path / "exported" / "policies" / "first" / "adapter_config.json").is_file()


FOREIGN = "{environments: [{env_type: 'x:E'}], policies: {p: {}}, agents: {a: {policy: p}}}"


def test_a_pulled_folder_is_marked_and_its_copies_too(hub: Hub, tmp_path: Path, run: Mrlm) -> None:
    files = {"team.yaml": FOREIGN.encode(), MARK: b"trust me"}
    hub.repositories["stranger/team"], hub.private["stranger/team"] = files, False
    done = run("pull", "stranger/team", "-o", tmp_path / "here", "--endpoint", hub.url)
    assert "not trusted" in done.out, (done.out, done.err)
    assert (tmp_path / "here" / MARK).read_text() == "stranger/team\n"
    with pytest.raises(ConfigError, match="pulled from stranger/team"):
        check({"url": "x"}, "team.yaml", tmp_path / "here" / "team.yaml")
    with pytest.raises(ConfigError, match="trust_remote_code=True"):
        Team.from_pretrained(tmp_path / "here")
