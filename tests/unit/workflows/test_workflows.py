"""Workflows of teams: who saw what and who was paid what, exactly."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from mrlm.build.environments import make_environments
from mrlm.build.policies import LiveObjects
from mrlm.config import ExperimentConfig, parse_config
from mrlm.core import registry
from mrlm.core.environment import Environment
from mrlm.core.episodes import Episode
from mrlm.core.errors import ConfigError
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.experiment import run_experiment
from mrlm.learn.data.batch import Totals, merge
from mrlm.workflows.chain import Chain
from mrlm.workflows.majority_vote import MajorityVote
from mrlm.workflows.malt import Malt
from mrlm.workflows.manager import Manager, parts_of
from mrlm.workflows.mixture import Mixture
from mrlm.workflows.propose_solve import ProposeSolve, read_posed
from mrlm.workflows.refine import Refine
from mrlm.workflows.router import Router, names_in
from mrlm.workflows.self_play import SelfPlay
from mrlm.workflows.summarize import Summarize
from mrlm.workflows.turns import Turns
from scripted_play import play, seats
from shown_commands import blocks

TEAMS: dict[str, dict[str, Any]] = {
    "majority_vote": {"samples": 2}, "summarize": {}, "chain": {}, "refine": {}, "mixture": {},
    "manager": {}, "router": {}, "propose_solve": {},
}  # fmt: skip
Heard = list[tuple[str, list[str]]]


class Quiz(Environment):
    """One seat, some attempts; 1.0 for an answer that holds the task's, and 0.25 for any other."""

    agents = ("player",)
    blocking = False

    def __init__(self, attempts: int = 1) -> None:
        self.max_turns = attempts

    def task(self, seed: int, split: Any = "train") -> Task:
        return Task("quiz", "2+3?", "5", 0)

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self.asked = task or self.task(0)
        if not self.asked.answer:
            raise ConfigError("quiz: a task has an answer")
        self.left = self.max_turns or 1
        return StepResult({"player": Observation(list(self.asked.prompt))})

    def step(self, actions: dict[str, Message]) -> StepResult:
        ((_, said),) = actions.items()
        self.said = said
        self.left -= 1
        right = str(self.asked.answer) in said.content
        paid = {"player": Reward(1.0 if right else 0.25, {"right": float(right)})}
        if right or not self.left:
            return StepResult(rewards=paid, done=True)
        return StepResult({"player": Observation([Message("no")])}, paid)


def acted(
    tokenizer: Any,
    workflow: Any,
    script: dict[str, Sequence[str]],
    world: Environment | None = None,
) -> tuple[Episode, Heard]:
    """One episode in which every agent says its lines, and what each was shown before it spoke:
    its own words stand after `>`."""
    heard: Heard = []

    def speak(request: Any) -> str:
        *_, agent, index = request.key
        text = tokenizer.decode(request.prompt_ids)
        blocks = re.findall(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", text, re.DOTALL)
        shown = [words if role == "user" else f">{words}" for role, words in blocks]
        heard.append((agent, shown))
        return script[agent][index]

    source, _ = play(tokenizer, world or Quiz(), speak, tuple(script), workflow, group_size=1)
    source.settings_of = seats(tokenizer, *script, max_new_tokens=96)
    ((episode,),) = run_async(source.take(1))
    return episode, heard


@pytest.mark.parametrize("agents", ["ab", "abcd"])
def test_branches_of_one_step_have_ids_of_their_own(agents: str, tokenizer: Any) -> None:
    """Every agent of `malt` forks in the first joint step; the ids are those of every play."""
    found = []
    for _ in range(2):
        source, _ = play(tokenizer, Quiz(), ["5"], tuple(agents), Malt(), group_size=1)
        source.settings_of = seats(tokenizer, *agents)
        (group,) = run_async(source.take(1))
        found.append([episode.id.removeprefix("train/world/0/") for episode in group])
    assert found[0] == found[1] and len(set(found[0])) == 2 ** (len(agents) - 1)
    if agents == "abcd":
        assert sorted(found[0]) == [
            "0", "0/0.1", "0/0.1.1", "0/0.1.1/0.1", "0/0.1/0.1", "0/0.1/0.1.1", "0/0.1/0.1/0.1",
            "0/0.2.1",
        ]  # fmt: skip


def paid(episode: Episode) -> dict[str, list[float]]:
    return {a: [turn.reward for turn in r.turns] for a, r in episode.rollouts.items()}


# -- who sees what, and who is paid ----------------------------------------------------------------


def test_summarize(tokenizer: Any) -> None:
    script = {"a": ["3"], "b": ["4"], "c": ["5"]}
    episode, heard = acted(tokenizer, Summarize(ask="Sum up."), script)
    assert heard == [("a", ["2+3?"]), ("b", ["2+3?"]), ("c", ["2+3?", "a: 3", "b: 4", "Sum up."])]
    assert paid(episode) == {"a": [1.0], "b": [1.0], "c": [1.0]}
    assert (episode.reward, episode.step_rewards, episode.status) == (1.0, [1.0], "done")


@pytest.mark.parametrize("sees", ["last", "all"])
def test_chain(tokenizer: Any, sees: Any) -> None:
    script = {"a": ["one"], "b": ["two"], "c": ["5"]}
    episode, heard = acted(tokenizer, Chain(sees=sees, template="[{answer}]"), script)
    before = ["[one]", "[two]"] if sees == "all" else ["[two]"]
    assert heard == [("a", ["2+3?"]), ("b", ["2+3?", "[one]"]), ("c", ["2+3?", *before])]
    assert paid(episode) == {"a": [1.0], "b": [1.0], "c": [1.0]}


def test_refine(tokenizer: Any) -> None:
    script = {"a": ["3", "4", "5"], "b": ["low", "lower"], "c": ["bad", "worse"]}
    workflow = Refine(rounds=2, critique="Why?", revise="Again.")
    episode, heard = acted(tokenizer, workflow, script)
    first = ["2+3?", ">3", "b: low", "c: bad", "Again."]
    assert heard == [
        ("a", ["2+3?"]),
        ("b", ["2+3?", "a: 3", "Why?"]),
        ("c", ["2+3?", "a: 3", "Why?"]),
        ("a", first),
        ("b", ["2+3?", "a: 3", "Why?", ">low", "a: 4", "Why?"]),
        ("c", ["2+3?", "a: 3", "Why?", ">bad", "a: 4", "Why?"]),
        ("a", [*first, ">4", "b: lower", "c: worse", "Again."]),
    ]
    assert paid(episode) == {"a": [0.0, 0.0, 1.0], "b": [0.0, 1.0], "c": [0.0, 1.0]}
    assert episode.step_rewards == [1.0]


def test_an_agent_that_is_alone_refines_by_itself(tokenizer: Any) -> None:
    episode, heard = acted(
        tokenizer, Refine(critique="Why?", revise="Again."), {"a": ["3", "x", "5"]}
    )
    assert heard[-1] == ("a", ["2+3?", ">3", "Why?", ">x", "Again."])
    assert paid(episode) == {"a": [0.0, 0.0, 1.0]}


def test_mixture(tokenizer: Any) -> None:
    script = {"a": ["1", "2"], "b": ["3", "4"], "c": ["5"]}
    episode, heard = acted(tokenizer, Mixture(), script)
    assert heard == [
        ("a", ["2+3?"]),
        ("b", ["2+3?"]),
        ("a", ["2+3?", ">1", "b: 3"]),
        ("b", ["2+3?", ">3", "a: 1"]),
        ("c", ["2+3?", "a: 2", "b: 4"]),
    ]
    assert paid(episode) == {"a": [0.0, 1.0], "b": [0.0, 1.0], "c": [1.0]}


def test_manager(tokenizer: Any) -> None:
    script = {"a": ["- b: add\nc:\nnobody: x", "5"], "b": ["five"], "c": ["unasked"]}
    episode, heard = acted(tokenizer, Manager(ask="Who of {agents}?", merge="So?"), script)
    plan = "- b: add\nc:\nnobody: x"
    assert heard == [
        ("a", ["2+3?", "Who of b, c?"]),
        ("b", ["2+3?", "add"]),
        ("a", ["2+3?", "Who of b, c?", f">{plan}", "b: five", "So?"]),
    ]
    assert paid(episode) == {"a": [0.0, 1.0], "b": [1.0]}


def test_a_plan_for_nobody_is_fined_and_everybody_works(tokenizer: Any) -> None:
    script = {"a": ["let us see", "5"], "b": ["3"], "c": ["4"]}
    episode, heard = acted(tokenizer, Manager(ask="", penalty=0.5), script)
    told = "That gives nobody a part; they all work on the whole."
    assert heard[1:] == [
        ("b", ["2+3?"]),
        ("c", ["2+3?"]),
        ("a", ["2+3?", ">let us see", told, "b: 3", "c: 4"]),
    ]
    assert paid(episode) == {"a": [0.0, 0.5], "b": [1.0], "c": [1.0]}
    assert episode.reward == 0.5 and episode.metrics["a/no_plan"] == -0.5


def test_parts_of_a_plan() -> None:
    plan = "1. **B**: x\nbb: no\nb: y : z\n c : \nadd b: no\n* c: w"
    assert parts_of(plan, ["c", "b"]) == {"c": "w", "b": "x\ny : z"}
    assert parts_of("", ["b"]) == parts_of("b", ["b"]) == {}


def test_router(tokenizer: Any) -> None:
    script = {"r": ["I choose C."], "b": ["unasked"], "c": ["5"]}
    episode, heard = acted(tokenizer, Router(ask="{agents}?"), script)
    assert heard == [("r", ["2+3?", "b, c?"]), ("c", ["2+3?"])]
    assert paid(episode) == {"r": [1.0], "c": [1.0]}
    assert episode.reward == 1.0 and "r/no_route" not in episode.metrics


@pytest.mark.parametrize(
    ("route", "word"), [("", "nobody"), ("r", "nobody"), ("b or c", "several")]
)
def test_a_route_that_names_nobody_is_fined(tokenizer: Any, route: str, word: str) -> None:
    script = {"r": [route, "c"], "b": ["no"], "c": ["4", "5"]}
    workflow = Router(ask="", penalty=0.25, fallback="c")
    episode, heard = acted(tokenizer, workflow, script, Quiz(2))
    told = f"That names {word}; c does."
    assert heard == [
        ("r", ["2+3?"]),
        ("c", ["2+3?"]),
        ("r", ["2+3?", f">{route}", told, "c: 4", "no"]),
        ("c", ["2+3?", ">4", "no"]),
    ]
    assert paid(episode) == {"r": [0.0, 1.0], "c": [0.25, 1.0]}
    assert episode.step_rewards == [0.0, 1.0] and episode.reward == 1.0
    assert episode.metrics["r/no_route"] == -0.25
    assert episode.rollouts["r"].turns[0].components == {"no_route": -0.25}


def test_names_are_whole_words() -> None:
    assert names_in("Ask BOB, not bobby or bob-2", ["bob", "bobb"]) == ["bob"]
    assert names_in("a+b", ["a+b", "ab"]) == ["a+b"]


@pytest.mark.parametrize("reward", ["team", "last", {"a": 0.25, "b": 0.75}])
def test_who_shares_in_the_reward(tokenizer: Any, reward: Any) -> None:
    episode, _ = acted(tokenizer, Chain(reward=reward), {"a": ["4"], "b": ["5"]})
    expected = {"team": [1.0, 1.0], "last": [0.0, 1.0]}.get(str(reward), [0.25, 0.75])
    assert [each for (each,) in paid(episode).values()] == expected


def test_a_team_confers_before_every_attempt(tokenizer: Any) -> None:
    script = {"a": ["3", "still 3"], "b": ["4", "5"]}
    episode, heard = acted(tokenizer, Chain(), script, Quiz(3))
    assert heard[2:] == [
        ("a", ["2+3?", ">3", "b: 4", "no"]),
        ("b", ["2+3?", "a: 3", ">4", "no", "a: still 3"]),
    ]
    assert paid(episode) == {"a": [0.25, 1.0], "b": [0.25, 1.0]}
    assert [turn.step for turn in episode.turns] == [0, 1, 0, 1] and episode.status == "done"
    first, second = episode.rollouts["b"].turns
    (sample,) = merge([first, second])
    assert sample.turns == [first, second] and Totals.of([sample]).tokens == len("4") + len("5") + 2
    short, _ = acted(tokenizer, Chain(max_turns=1), script, Quiz(3))
    assert short.status == "truncated" and len(short.step_rewards) == 1


# -- votes -----------------------------------------------------------------------------------------


def test_majority_vote(tokenizer: Any) -> None:
    script = {"a": ["4", " 5"], "b": ["5", "6"]}
    workflow = MajorityVote(samples=2, ask="Vote.")
    episode, heard = acted(tokenizer, workflow, script)
    assert sorted(heard) == [(name, ["2+3?", "Vote."]) for name in "aabb"]
    assert paid(episode) == {"a": [0.0, 1.0], "b": [0.0, 1.0]} and episode.reward == 1.0


def test_everybody_goes_on_from_the_answer_that_was_elected(tokenizer: Any) -> None:
    script = {"a": ["4", "5"], "b": ["6", "5"], "c": ["4", "5"]}
    _, heard = acted(tokenizer, MajorityVote(reward="last"), script, Quiz(2))
    assert heard[3:] == [
        ("a", ["2+3?", ">4", "no"]),
        ("b", ["2+3?", "a: 4", "no"]),
        ("c", ["2+3?", "a: 4", "no"]),
    ]


@pytest.mark.parametrize(
    ("answers", "settings", "winner"),
    [
        (["4", "5", "5"], {}, 1), (["4", "5"], {}, 0), (["5", "4", "4", "5"], {}, 0),
        (["", "", "5"], {}, 2), (["", " "], {}, 0), (["A  b", "c", "a B"], {}, 0),
        (["x", "so 5.", "it is 5!"], {"pattern": r"\d"}, 1),
        (["1 then 5", "5 then 1", "[1]"], {"pattern": r"\[?(\d)\]?"}, 1),
        (["4 confidence: 0.9", "5 Confidence 0.4", "5 confidence=40%"], {"weighted": True}, 0),
        (["4 confidence: 0.7", "5 Confidence 0.4", "5 confidence=40%"], {"weighted": True}, 1),
        (["5", "4 confidence: 0.1"], {"weighted": True}, 1), (["5", "4"], {"weighted": True}, 0),
        (["4 confidence: 999", "5 confidence: 0.6", "5 confidence: 0.5"], {"weighted": True}, 1),
        (["4 confidence: 0.1 confidence: 0.9", "5 confidence: 0.5"], {"weighted": True}, 0),
        (["confidence: 1", "5 confidence: 0.1"], {"weighted": True}, 1),
    ],
)  # fmt: skip
def test_an_election(answers: list[str], settings: dict[str, Any], winner: int) -> None:
    assert MajorityVote(**settings).elected(answers) == winner


def test_the_world_is_not_told_how_confident_a_vote_is(tokenizer: Any) -> None:
    told: list[str] = []

    class Listening(Quiz):
        def step(self, actions: dict[str, Message]) -> StepResult:
            told.extend(message.content for message in actions.values())
            return super().step(actions)

    script = {"a": ["4 Confidence: 0.5"], "b": ["1 Confidence: 0.6"]}
    episode, _ = acted(tokenizer, MajorityVote(weighted=True), script, Listening())
    assert told == ["1"] and episode.reward == 0.25


# -- posed tasks -----------------------------------------------------------------------------------


def test_propose_and_solve(tokenizer: Any) -> None:
    script = {"p": ["Problem: 4+4?\nAnswer: 8"], "s": ["8", "7", "8", "8"]}
    episode, heard = acted(tokenizer, ProposeSolve(attempts=4, ask="Pose."), script)
    assert heard == [("p", ["2+3?", "Pose."]), *[("s", ["4+4?"])] * 4]
    assert paid(episode) == {"p": [0.5], "s": [1.0, 0.25, 1.0, 1.0]}
    assert episode.step_rewards == [1.5, 0.25, 1.0, 1.0] and episode.reward == 3.75
    assert episode.metrics["p/learnable"] == 0.5 and episode.status == "done"


@pytest.mark.parametrize(("said", "pay"), [(["8", "8"], 0.0), (["1", "1"], 0.0), (["1", "8"], 1.0)])
def test_what_is_always_or_never_solved_pays_nothing(
    tokenizer: Any, said: list[str], pay: float
) -> None:
    script = {"p": ["4+4?\nanswer: 8"], "s": said}
    episode, _ = acted(tokenizer, ProposeSolve(), script)
    assert paid(episode)["p"] == [pay]


@pytest.mark.parametrize("text", ["", "Answer: 5", "4+4?", "4+4?\nAnswer:", "2+3?\nAnswer: 5"])
def test_what_is_no_task_is_fined_and_the_worlds_own_is_solved(tokenizer: Any, text: str) -> None:
    script = {"p": [text], "s": ["5", "4"]}
    episode, heard = acted(tokenizer, ProposeSolve(penalty=0.5), script)
    assert heard[1:] == [("s", ["2+3?"])] * 2
    assert paid(episode) == {"p": [-0.5], "s": [1.0, 0.25]}
    assert episode.metrics["p/not_posed"] == -0.5
    assert "That cannot be solved" in tokenizer.decode(episode.rollouts["p"].tail_ids)


def add_checker(task: Task, text: str) -> Task | str:
    if "+" not in text:
        return "no sum"
    left, right = text.split("+")
    known = left.isdigit() and right.isdigit()
    answer = str(int(left) + int(right)) if known else None
    return Task("sum", f"{text}=", answer, info=task.info)


def test_a_checker_makes_the_task_and_the_world_may_refuse_it(tokenizer: Any) -> None:
    workflow = ProposeSolve(checker="test_workflows:add_checker")
    for said, shown, pay in (("4+4", "4+4=", 1.0), ("x", "2+3?", -0.1), ("a+b", "2+3?", -0.1)):
        episode, heard = acted(tokenizer, workflow, {"p": [said], "s": ["8", "7"]})
        assert heard[1:] == [("s", [shown])] * 2
        assert paid(episode)["p"] == [pay]
    with pytest.raises(ConfigError, match="the checker returned int"):
        acted(tokenizer, ProposeSolve(checker=lambda task, text: 3), {"p": [""], "s": [""]})


def test_hostile_problems_are_read_at_once() -> None:
    task = Task("t", "q")
    assert isinstance(read_posed(task, "\n" * 10**6 + "Problem:" * 10**5), str)
    assert isinstance(read_posed(task, "answer:" * 10**5), str)


# -- turns -----------------------------------------------------------------------------------------


class Table(Environment):
    """Two seats in turn, twice each; the first earns what the second loses."""

    agents = ("x", "o")
    blocking = False

    def task(self, seed: int, split: Any = "train") -> Task:
        return Task("table", "begin", seed=self.seed)

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self.moves = 0
        return StepResult({"x": Observation([Message("you are x")])})

    def step(self, actions: dict[str, Message]) -> StepResult:
        (seat,) = actions
        assert seat == self.agents[self.moves % 2]
        self.moves += 1
        if self.moves == 4:
            return StepResult(rewards={"x": Reward(1.0), "o": Reward(-1.0)}, done=True)
        following = self.agents[self.moves % 2]
        return StepResult({following: Observation([Message(f"move {self.moves} of {following}")])})

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        return f"{agent} moves"


@pytest.mark.parametrize(("seed", "rotate"), [(0, True), (1, True), (1, False)])
def test_players_change_seats_from_task_to_task(tokenizer: Any, seed: int, rotate: bool) -> None:
    script = {"x": ["1", "2"], "o": ["3", "4"]}
    episode, heard = acted(tokenizer, SelfPlay(rotate=rotate), script, Table(seed))
    first, second = ("o", "x") if seed and rotate else ("x", "o")
    assert [name for name, _ in heard] == [first, second] * 2
    assert heard[0][1] == ["you are x"] and heard[1][1] == ["move 1 of o"]
    assert paid(episode) == {first: [0.0, 1.0], second: [0.0, -1.0]}
    assert episode.reward == 0.0


def test_who_is_demonstrated_sits_where_it_sits(tokenizer: Any) -> None:
    source, _ = play(tokenizer, Table(1), [""], ("x", "o"), SelfPlay(), group_size=1)
    source.demonstrate = True
    ((episode,),) = run_async(source.take(1))
    said = {
        a: r.turns[0].message.content for a, r in episode.rollouts.items() if r.turns[0].message
    }
    assert said == {"o": "x moves", "x": "o moves"}


@pytest.mark.parametrize("mode", ["replace", "append"])
def test_a_function_of_the_users_between_turns(tokenizer: Any, mode: Any) -> None:
    from scripted_play import Echo

    calls: list[Any] = []

    def between(
        prompt: str,
        completions: list[str],
        num_agents: int,
        prompt_history: list[list[str]],
        response_history: list[list[str]],
    ) -> list[Any]:
        calls.append((prompt, completions, num_agents, prompt_history, response_history))
        return [f"b said {completions[1]}", [Message("x"), Message("y")]]

    script = {"a": ["1", "2"], "b": ["3", "4"]}
    workflow = Turns(external_transition=between, transition_mode=mode)
    episode, heard = acted(tokenizer, workflow, script, Echo(2))
    start = heard[0][1][0]
    before = {"a": [start, ">1"], "b": [start, ">3"]} if mode == "append" else {"a": [], "b": []}
    assert heard[2:] == [("a", [*before["a"], "b said 3"]), ("b", [*before["b"], "x", "y"])]
    assert calls == [("", ["1", "3"], 2, [[start], [start]], [["1"], ["3"]])]
    assert episode.status == "done"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda *given: ["one"], "returned .*one prompt for each of a, b"),
        (lambda *given: "ab", "returned 'ab'"),
        (lambda *given: [1, 2], "expected text or a list of messages, not int 1"),
        (lambda *given: 1 / 0, "raised ZeroDivisionError"),
    ],
)
def test_a_function_that_is_wrong_stops_the_run(tokenizer: Any, function: Any, said: str) -> None:
    from scripted_play import Echo

    with pytest.raises(ConfigError, match=said):
        acted(tokenizer, Turns(external_transition=function), {"a": ["1"], "b": ["2"]}, Echo(2))


# -- what cannot be --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*TEAMS, "self_play"])
def test_an_agent_that_fails_fails_its_episode_alone(tokenizer: Any, name: str) -> None:
    """Whoever breaks down, the episode is no reward of 0, and the others are played."""
    workflow = registry.load("workflows", name)(**TEAMS.get(name, {}))
    for broken in "ab":

        class Breaking(Quiz if name in TEAMS else Pair):  # type: ignore[misc]
            pass

        source, engine = play(tokenizer, Breaking(), lambda request: "b: 5", ("a", "b"), workflow)
        generate = source.batcher.generate

        async def failing(request: Any, generate: Any = generate, broken: str = broken) -> Any:
            if request.key[4:6] == (0, broken):
                raise ValueError("no answer")
            return await generate(request)

        source.batcher.generate = failing  # type: ignore[method-assign]
        (group,) = run_async(source.take(1))
        assert [episode.status for episode in group] == ["error", "done"], broken
        assert "no answer" in (group.episodes[0].error or "") and engine.batches


class Pair(Environment):
    """Two seats, one round."""

    agents = ("a", "b")
    blocking = False

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        return StepResult({agent: Observation([Message("go")]) for agent in self.agents})

    def step(self, actions: dict[str, Message]) -> StepResult:
        return StepResult(rewards={agent: Reward(1.0) for agent in actions}, done=True)


@pytest.mark.parametrize("name", TEAMS)
def test_a_world_of_several_seats_is_refused(tokenizer: Any, name: str) -> None:
    workflow = registry.load("workflows", name)()
    with pytest.raises(
        ConfigError, match=f"workflow {name} requires a single-agent environment.*has 2"
    ):
        acted(tokenizer, workflow, {"a": [""], "b": [""]}, Pair())


@pytest.mark.parametrize("name", sorted(set(TEAMS) - {"majority_vote", "refine", "mixture"}))
def test_too_few_agents_are_refused(tokenizer: Any, name: str) -> None:
    workflow = registry.load("workflows", name)()
    with pytest.raises(ConfigError, match=f"workflow {name} needs at least 2 agents"):
        acted(tokenizer, workflow, {"a": [""]})


def test_self_play_needs_seats(tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="self_play requires a multi-agent environment"):
        acted(tokenizer, SelfPlay(), {"a": [""]})


def configured(name: str, **settings: Any) -> ExperimentConfig:
    return ExperimentConfig(
        environments=[{"env_type": "math", "difficulty_range": [1, 1]}],  # type: ignore[arg-type]
        workflow={"name": name, **settings},  # type: ignore[arg-type]
        agents={"a": {}, "b": {}},  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("chain", {"reward": "first"}, "reward"),
        ("chain", {"template": "hm"}, r"put \{answer\} into it"),
        ("chain", {"sees": "none"}, "sees"),
        ("refine", {"rounds": 0}, "rounds=0 must be at least 1"),
        ("refine", {"rounds": "two"}, "rounds must be a valid integer"),
        ("refine", {"revise": ""}, "may not be empty; set both"),
        ("refine", {"round": 2}, "unknown argument 'round'"),
        ("mixture", {"layers": 1}, "layers=1 must be at least 2"),
        ("majority_vote", {"samples": 0}, "samples=0"),
        ("majority_vote", {"pattern": "("}, "is not a regular expression"),
        ("router", {"penalty": -1}, "penalty=-1.*at least 0"),
        ("manager", {"penalty": -1}, "penalty=-1.*at least 0"),
        ("propose_solve", {"attempts": 1}, "attempts=1 must be at least 2"),
    ],
)
def test_settings_that_cannot_be(name: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_environments(configured(name, **settings), LiveObjects())


def test_names_that_are_nobodys(tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match="fallback='z' is not one of b"):
        acted(tokenizer, Router(fallback="z"), {"a": [""], "b": [""]})
    with pytest.raises(ConfigError, match="reward names 'z'; the agents are a, b"):
        acted(tokenizer, Chain(reward={"z": 1.0}), {"a": [""], "b": [""]})


def test_settings_of_a_config_are_converted() -> None:
    (world,) = make_environments(
        configured("chain", reward={"a": "0.5"}, max_turns="3"), LiveObjects()
    )
    assert world.workflow == Chain(reward={"a": 0.5}, max_turns=3)


def test_a_section_an_environment_or_neither_limits_the_time_of_a_step() -> None:
    scored = {"env_type": "reward", "dataset": [{"prompt": "x"}], "reward_func": "builtins:len"}
    sections = [{"env_type": "math"}, {"env_type": "debate", "timeout": 5}, scored]
    config = parse_config({"environments": sections}, (), "test")
    made = make_environments(config, LiveObjects())
    assert [world.timeout for world in made] == [60.0, 5.0, None]
    slow = Quiz()
    slow.step_timeout = 300.0
    (world,) = make_environments(config, LiveObjects(environments=[slow]))
    assert world.timeout == 300.0


# -- what the docs say -----------------------------------------------------------------------------

DOCUMENTED = [yaml.safe_load(text) for text in blocks("docs/workflows.md", "yaml")]


@pytest.mark.parametrize("data", DOCUMENTED, ids=lambda data: data["workflow"]["name"])
def test_every_line_of_the_docs_is_a_workflow(data: dict[str, Any]) -> None:
    config = parse_config({"environments": [{"env_type": "math"}], **data}, (), "docs/workflows.md")
    (world,) = make_environments(config, LiveObjects())
    assert type(world.workflow) is registry.load("workflows", config.workflow.name)


def test_the_docs_show_every_workflow_and_their_team_learns(tmp_path: Path) -> None:
    assert {data["workflow"]["name"] for data in DOCUMENTED} >= {*TEAMS, "turns", "self_play"}
    (whole,) = (data for data in DOCUMENTED if "training" in data)
    assert run_experiment(parse_config({**whole, "output_dir": str(tmp_path)}, (), "docs")).history
