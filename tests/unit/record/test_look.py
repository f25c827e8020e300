"""`mrlm look`, and the language that chooses episodes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from commands import Mrlm
from mrlm import viewer
from mrlm.core.errors import ConfigError
from mrlm.record.filters import FIELDS, MARKS, NAMES, parse_filter
from mrlm.viewer.listing import FLAGS
from recorded import write


def row(step: int, name: str, reward: float, **more: Any) -> dict[str, Any]:
    def agent(said: str, own: float, reason: str) -> dict[str, Any]:
        turn = {"message": 1, "step": 0, "order": 0, "tokens": 7, "finish_reason": reason}
        turn |= {"reward": own, "advantage": -0.5, "digest": "0" * 16, "trained": True}
        messages = [{"role": "user", "content": "Ask", "agent": None}]
        messages.append({"role": "assistant", "content": said, "agent": "a"})
        return {"policy": "p", "reward": own, "messages": messages, "turns": [turn]}

    agents = {"solver": agent("I am Sure", reward, "stop"), "critic": agent("no", 0.5, "length")}
    fields = {"environment": "relay", "task_id": f"t{step}", "status": "done", "error": None}
    metrics = {"solver/correct": float(reward > 0)}
    return {"step": step, "id": name, "reward": reward, "agents": agents, "metrics": metrics} | (
        fields | more
    )


ROWS = [
    row(0, "eval/0", 1.0, greedy=True),
    row(1, "train/1", -1.0),
    row(2, "train/2", 2.0, status="error", error="broke\nat line 3"),
    row(150, "train/3", 0.25, environment="game"),
]


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ("", "0123"), ("reward<0", "1"), ("reward>=1 and train", "2"),
        ("solver.reward!=2 and not eval", "13"), ("critic.reward=0.5", "0123"),
        ("solver/correct=1", "023"), ("none.reward>0", ""), ("tokens=14 and turns=2", "0123"),
        ("agent:solver and step:1-2", "12"), ("step:150", "3"), ("step>1", "23"), ("env:game", "3"),
        ("not env:game not failed", "01"), ("policy:q", ""),
        ("task:t1 id:train/1 status:done", "1"), ("cut", "0123"), ("greedy", "0"),
        ('sure and "i am"', "0123"), ("nowhere", ""), ("reward<0 or env:game", "13"),
        ("not (reward<0 or env:game) and train", "2"), ("(cut (step:1 or step:2))", "12"),
        ("http://x", ""), ("NOT Cut", ""), ("trained", "123"), ("error or pruned", "2"),
        ("lag or tokens or played", ""), ("environment:game stage:2-b", "3"), ("stage:1-a", ""),
        ('env:"game"', "3"), ("reward:-1-0.5", "13"), ("turns:2 kind:eval", "0"),
    ],
)  # fmt: skip
def test_filters(text: str, chosen: str) -> None:
    accepts = parse_filter(text, "2-b")
    assert "".join(str(place) for place, each in enumerate(ROWS) if accepts(each)) == chosen


@pytest.mark.parametrize(
    "text",
    [
        "not", "cut and", "cut or", "or cut", "(cut", "cut)", "not or cut", "reward<1..2", "step:x",
        "step:1-", "agent:", "tokens:x", "stage:",
    ],
)  # fmt: skip
def test_incomplete_filters_are_errors(text: str) -> None:
    with pytest.raises(ConfigError, match="filter"):
        parse_filter(text)


def test_the_page_knows_the_same_words() -> None:
    files = [Path(viewer.__file__).parent / "static" / f"{name}.js" for name in ("data", "filter")]
    data, code = (file.read_text() for file in files)
    bits = dict(re.findall(r"(\w+): (\d+)", data.partition("FLAGS = {")[2].partition("}")[0]))
    assert bits == {name: str(1 << bit) for bit, name in enumerate(FLAGS)}
    assert {*bits, *re.findall(r'mark === "(\w+)"', code)} == {*MARKS}
    names = re.findall(r"^  (\w+): ", code.partition("CODES = {")[2].partition("}")[0], re.M)
    fields = {*names, *re.findall(r'if \(name === "(\w+)"', code)}
    assert fields - {"group"} == {*FIELDS, "stage"} and {*NAMES} - {"number"} <= fields


def test_the_command(run: Mrlm, tmp_path: Path) -> None:
    write(tmp_path, ROWS)
    done = run("look", tmp_path, "--sort", "-reward", "--limit", 2)
    first, *lines = done.out.splitlines()
    assert first.split()[:5] == ["step", "episode", "reward", "solver", "critic"]
    assert lines[0].split()[:3] == ["2", "train/2", "failed"] and "broke at line 3" in lines[0]
    assert lines[1].split()[:3] == ["0", "eval/0", "1"] and "and 2 more" in lines[2]
    done = run("look", tmp_path, "--where", "train", "--step", "1-2", "--json")
    assert [json.loads(line)["id"] for line in done.out.splitlines()] == ["train/1", "train/2"]
    done = run("look", tmp_path, "--episode", "train/1", "--tokens", "values")
    assert "solver (p), joint step 0" in done.out and "advantage -0.5" in done.out
    assert "tokens are not recorded" in done.out
    for wrong, text in [
        (("--where", "reward>9"), "steps 0 to 150 are recorded"),
        (("--where", "rewrd<1"), "'rewrd' does not exist; did you mean 'reward'?"),
        (("--where", "train or solver/corect=1"), "did you mean 'solver/correct'?"),
        (("--where", "not slover.reward=1"), "did you mean 'solver.reward'?"),
        (("--episode", "x"), "no episode 'x'"),
        (("--tokens", "values"), "add --episode"),
        (("--where", "agent:slover"), "did you mean 'solver'?"),
        (("--where", "stage:x"), "stage of the filter 'stage:x'"),
        (("--where", "not env:nowhere"), "env of the filter 'not env:nowhere'"),
        (("--where", "eval or critic.reward>="), "filter term 'critic.reward>=' is incomplete"),
        (("--sort", "size"), "--sort size"),
        (("--sort", "-solver/corect"), "did you mean 'solver/correct'?"),
        (("--step", "a"), "steps 'a'"),
    ]:
        failed = run("look", tmp_path, *wrong)
        assert failed.code == 2 and text in failed.err, wrong


def test_a_number_of_one_episode_is_known_to_a_filter(run: Mrlm, tmp_path: Path) -> None:
    late = {"policy": "p", "reward": None, "messages": []}
    own = {"metrics": {"mine": 1.0}, "agents": {**ROWS[3]["agents"], "late": late}}
    write(tmp_path, [*ROWS[:3], {**ROWS[3], **own}])
    for where in ("mine>1", "late.reward>1", '"rewrd<1"'):
        assert "no episode fits the filter" in run("look", tmp_path, "--where", where).err, where
    done = run("look", tmp_path, "--where", "mine=1", "--step", "150", "--json")
    assert json.loads(done.out)["id"] == "train/3"


def test_an_episode_is_shown_with_its_boards(run: Mrlm, tmp_path: Path) -> None:
    tree = ["div", ["table.grid", ["tr", ["td", "1"], ["td.player0.move", "X"]]], ["p", "O moves"]]
    boards = [
        {"step": 0, "text": "empty \u001b[31m board"},
        {"step": 1, "tree": tree},
        {"step": 2, "text": "the end"},
    ]
    write(tmp_path, [row(1, "train/1", 1.0, boards=boards)])
    out = run("look", tmp_path, "--episode", "train/1").out
    assert out.index("board:\n  empty") < out.index("solver (p), joint step 0")
    after = out.index("board after 1 joint step:\n  1 [X]\n  O moves")
    assert out.index("critic (p)") < after < out.index("board after 2 joint steps:\n  the end")
    assert "\u001b" not in out
