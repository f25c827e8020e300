"""Every environment keeps the contract: seeded, held out, won by its expert and by nobody lazy."""

import importlib
import itertools
from typing import Any

import pytest

from every_environment import ALL, expert, has_expert, make, play, settled
from mrlm.core import registry
from mrlm.core.environment import SingleAgentEnvironment, check_environment
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Role, StepResult, Task
from mrlm.environments.games.matrix import MatrixEnvironment
from mrlm.environments.qa import QASolverEnv
from mrlm.environments.relay import RelayEnvironment
from mrlm.environments.texts.length import LengthEnvironment

BEST = {
    "code": 2.0,
    "math": 1.0,
    "qa": 1.0,
    "relay": 1.0,
    "length": 1.0,
    "matrix": 11.0,
    "writing": 2.98,
    "code_collaboration": 4.0,
    "class_completion": 6.0,
    "summarization": 1.0,
    "translation": 1.0,
    "reference": 1.0,
    "centralised": 1.0,
    "kuhn_poker": 0.0,
    "tic_tac_toe": 0.0,
    "leduc": 0.0,
    "connect_four": 0.0,
    "debate": 1.0,
    "search_qa": 1.0,
    "signalling": 1.0,
    "noisy_debate": 1.0,
    "plan_path": 1.0,
    "sokoban": 1.0,
    "sudoku": 1.0,
}
"""What an honest player earns per seat, where that is one number."""

ONE_SITUATION = {"matrix", "difference", "kuhn_poker", "leduc", "tic_tac_toe", "signalling"}
ONE_SITUATION |= {"contextual_matrix"}
"""Worlds in which nothing can be held out, because there is nothing but one situation (or a few
deals; a few states or contexts; or, in tic-tac-toe, as long as no openings are set)."""


def test_the_worlds_that_are_promised_exist() -> None:
    assert {"code", "math", "reward", "qa", "relay", "length", "matrix"} <= set(ALL)


def test_modules_are_found_under_their_names_before_families() -> None:
    names = [(name, registry.module_of("environments", name)) for name in ALL]
    inner = [("code.answers", "mrlm.environments.programs.code.answers")]
    for before, module in [*names, *inner]:
        assert importlib.import_module(f"mrlm.environments.{before}").__name__ == module
        assert vars(importlib.import_module(module))["__spec__"].name == module
    for unknown in ("nothing", "code.nothing"):
        with pytest.raises(ModuleNotFoundError, match="nothing"):
            importlib.import_module(f"mrlm.environments.{unknown}")


@pytest.mark.parametrize("name", ALL)
def test_contract(name: str) -> None:
    world = make(name)
    check_environment(world)
    check_environment(world, seed=7)
    assert registry.describe("environments", name)


@pytest.mark.parametrize("name", ALL)
def test_same_task_and_seed_play_the_same(name: str) -> None:
    for split in ("train", "eval"):
        plays = []
        for world in (make(name), make(name)):
            task = world.task(5, split)
            assert task.id and (task.prompt or isinstance(world, SingleAgentEnvironment))
            plays.append(play(world, task, lambda w, a, m: "a 5")[0])
        assert plays[0] == plays[1]


@pytest.mark.parametrize("name", sorted(set(ALL) - ONE_SITUATION))
def test_held_out_tasks_are_not_trained_on(name: str) -> None:
    world = make(name)
    if isinstance(world, SingleAgentEnvironment):
        pytest.skip("its tasks are seeds, of which a run takes others to evaluate")

    def shown(split: Any) -> set[str]:
        count = world.num_tasks(split)
        tasks = [world.task(i, split) for i in range(300 if count is None else min(count, 300))]
        assert len({task.id for task in tasks}) == len(tasks)
        return {
            repr(([m.content for m in task.prompt], task.answer, sorted(task.info)))
            for task in tasks
        }

    train, held = shown("train"), shown("eval")
    assert train and held
    if name in ("relay", "hanabi"):  # there the prompt is a part of the task only
        train = {str(world.task(i).info) for i in range(300)}
        held = {str(world.task(i, "eval").info) for i in range(300)}
    assert not train & held


@pytest.mark.parametrize("name", ALL)
def test_the_expert_earns_most_and_the_lazy_do_not(name: str) -> None:
    world = make(name)
    if not has_expert(world):
        assert name not in BEST
        pytest.skip("this world cannot know what an honest player would say")
    for seed in range(3):
        for split in ("train", "eval"):
            task = world.task(seed, split)
            best = play(world, task, expert)[1]
            if name in BEST:
                assert best == pytest.approx(BEST[name] * len(world.agents)), task
            for words in ("", "yes"):
                assert play(world, task, lambda w, a, m, words=words: words)[1] < best, (
                    task,
                    words,
                )


@pytest.mark.parametrize("name", ALL)
def test_hostile_words_are_paid_for_and_raise_nothing(name: str) -> None:
    world = make(name)
    task = world.task(3)
    best = play(world, task, expert)[1] if has_expert(world) else float("inf")
    hostile = ["\x00\ud800", "\\boxed{" * 2000, "9" * 100_000, "<answer>" * 9000, " \n" * 50_000]
    for words in [*hostile, "answer" + "\n" * 50_000 + ":", "1=" * 20_000, "{" * 50_000]:
        assert play(world, task, lambda w, a, m, words=words: words)[1] < best


@pytest.mark.parametrize("name", ALL)
def test_copies_do_not_share_an_episode(name: str) -> None:
    world = make(name)
    one, two = world.spawn(), world.spawn()
    first, second = one.task(0), two.task(1)
    settled(one.reset(first, first.seed))
    alone = settled(world.spawn().reset(first, first.seed))
    settled(two.reset(second, second.seed))
    again = settled(one.reset(first, first.seed))
    assert repr(alone) == repr(again)


# -- relay -----------------------------------------------------------------------------------------


def relayed(first: str, second: str, **kwargs: Any) -> tuple[RelayEnvironment, str, StepResult]:
    world = RelayEnvironment(**kwargs)
    task = Task("t", info={"a": 3, "b": 4, "c": 5})
    opening = world.reset(task)
    assert [m.content for m in opening.observations[world.agents[0]].messages] == ["3+4="]
    middle = world.step({world.agents[0]: Message(first, Role.ASSISTANT)})
    (shown,) = middle.observations[world.agents[1]].messages
    return world, shown.content, world.step({world.agents[1]: Message(second, Role.ASSISTANT)})


def test_relay_passes_the_first_message_on_and_pays_both() -> None:
    world, shown, end = relayed(" 7\n", "12 ", agents=("adder", "closer"))
    assert shown == "7+5=" and end.done
    assert {a: r.value for a, r in end.rewards.items()} == {"adder": 1.0, "closer": 1.0}
    assert end.rewards["adder"].components == {"correct": 1.0, "partial": 1.0}
    assert world.agents == ("adder", "closer")


def test_relay_does_not_take_a_list_of_guesses_or_pass_on_a_flood() -> None:
    _, shown, end = relayed("x" * 1000, "12 13 14")
    assert len(shown) < 30
    assert end.rewards["second"].value == 0.0 and end.rewards["second"].components["partial"] == 0.0


def test_another_seed_is_another_world() -> None:
    for kind in (RelayEnvironment, LengthEnvironment):
        one, two = kind(seed=0), kind(seed=1)
        assert [one.task(i).info for i in range(20)] != [two.task(i).info for i in range(20)]


# -- length ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("short", "long", "reward"),
    [
        ("red", "red sun", 1.0),
        ("red", "red sun sky", 1.0),
        ("red sun", "sky sea oak fox ice", 1.0),
        ("red", "red", 0.4),
        ("red", "red sun sky sea", 0.4),
        ("red", "red sun sky sea oak fox", 0.0),
        ("red", "red xyz", 0.5),
        ("", "red sun", 0.0),
        ("red", "", 0.0),
    ],
)
def test_length_pays_for_two_to_three_times_as_many_real_words(
    short: str, long: str, reward: float
) -> None:
    world = LengthEnvironment()
    opening = world.reset(world.task(0))
    words = world.task(0).info["word"]
    assert [o.messages[0].content for o in opening.observations.values()] == [
        f"short {words}:",
        f"long {words}:",
    ]
    end = world.step({"short": Message(short), "long": Message(long)})
    assert [r.value for r in end.rewards.values()] == pytest.approx([reward, reward])


# -- matrix games ----------------------------------------------------------------------------------


def paid(world: MatrixEnvironment, *said: str) -> float:
    """What every agent is paid for one joint answer; it must be the same for all."""
    world.reset(world.task(0))
    actions = {a: Message(text, agent=a) for a, text in zip(world.agents, said, strict=True)}
    (value,) = {reward.value for reward in world.step(actions).rewards.values()}
    return value


@pytest.mark.parametrize(
    ("arguments", "table"),
    [
        ({"game": "climbing"}, [[11, -30, 0], [-30, 7, 6], [0, 0, 5]]),
        ({"game": "penalty", "k": -100}, [[10, 0, -100], [0, 2, 0], [-100, 0, 10]]),
        ({"game": "xor"}, [[0, 1], [1, 0]]),
        ({"game": "custom", "payoffs": [[1, 2, 3], [4, 5, 6]]}, [[1, 2, 3], [4, 5, 6]]),
    ],
)
def test_matrix_games_pay_what_was_published(arguments: Any, table: list[list[float]]) -> None:
    world = MatrixEnvironment(**arguments)
    assert world.agents == ("row", "column")
    found = [[paid(world, row, column) for column in "ABC"[: len(table[0])]] for row in "ABC"]
    assert found[: len(table)] == table


def test_matrix_games_of_one_and_of_many() -> None:
    bandit = MatrixEnvironment("bandit")
    assert bandit.agents == ("player",)
    assert [paid(bandit, word) for word in "ABC"] == [0, 0.5, 1]
    three = MatrixEnvironment("xor", agents=("x", "y", "z"))
    assert [paid(three, *said) for said in ("AAA", "AAB", "ABB", "BBB")] == [0, 1, 0, 1]
    cube = MatrixEnvironment("custom", payoffs=[[[0, 1], [2, 3]], [[4, 5], [6, 7]]])
    assert cube.agents == ("player_1", "player_2", "player_3") and paid(cube, *"BAB") == 5


@pytest.mark.parametrize(
    ("said", "action"),
    [
        ("B", 1),
        (" b.\n", 1),
        ("I choose B", 1),
        ('"C"', 2),
        ("A good choice is B", None),
        ("", None),
        ("D", None),
        ("AB", None),
        ("abba", None),
    ],
)
def test_an_answer_names_one_action_or_is_illegal(said: str, action: int | None) -> None:
    world = MatrixEnvironment(illegal=-50)
    assert world.action("row", said) == action
    assert paid(world, said, "A") == (-50 if action is None else world.payoffs[action, 0])


def test_an_agent_with_fewer_actions_has_fewer_words() -> None:
    world = MatrixEnvironment("custom", payoffs=[[1, 2, 3], [4, 5, 6]], actions=["up", "on", "by"])
    assert world.action("row", "by") is None and world.action("column", "By!") == 2
    assert paid(world, "by", "up") == 1, "the lowest number where nothing is stated"
    assert world.question("row") == "row: up on?"


def test_matrix_rounds_show_the_last_joint_action_and_share_the_best_reward() -> None:
    world = MatrixEnvironment(rounds=3, normalized=True)
    world.reset(world.task(0))
    total = 0.0
    for count, said in enumerate([("A", "A"), ("x", "B"), ("A", "B")]):
        before = world.state()
        result = world.step({a: Message(text) for a, text in zip(world.agents, said, strict=True)})
        total += result.rewards["row"].value
        assert f"round {count + 1} of 3" in before and result.done == (count == 2)
        if count == 1:
            assert result.observations["row"].messages[0].content == "? B. row: A B C?"
            assert "A A; ? B" in world.state()
    assert total == pytest.approx(1 / 3), "the best, and twice the worst"
    assert paid(MatrixEnvironment(normalized=True), "A", "A") == 1.0
    assert paid(MatrixEnvironment("xor", normalized=True, illegal=-1), "A", "") == -1.0


def test_matrix_games_can_teach_words_without_what_they_are_worth() -> None:
    world = MatrixEnvironment("climbing", teaches="any")

    def said(seed: int) -> str:
        opening = world.reset(world.task(seed, "train")).observations
        return "".join(world.expert(agent, seen.messages) or "" for agent, seen in opening.items())

    found = [said(seed) for seed in range(300)]
    assert found == [said(seed) for seed in range(300)], "a task has one expert"
    joints = ["".join(joint) for joint in itertools.product("ABC", "ABC")]
    assert all(found.count(joint) > 15 for joint in joints)
    with pytest.raises(ConfigError, match="teaches must be one of best, any, not 'all'"):
        MatrixEnvironment("climbing", teaches="all")  # pyright: ignore[reportArgumentType]


# -- question answering ----------------------------------------------------------------------------


def test_qa_setup_gives_messages_and_state() -> None:
    messages, state = QASolverEnv(custom_sys_prompt="Be brief.").setup(
        "Who wrote it?", "Ada Lovelace"
    )
    assert [(m.role, m.content) for m in messages] == [
        ("system", "Be brief."),
        ("user", "Who wrote it?"),
    ]
    assert state["answer"] == ["Ada Lovelace"]


@pytest.mark.parametrize(
    ("said", "em", "f1"),
    [
        ("the Ada Lovelace!", 1.0, 1.0),
        ("I think so. <answer>ada lovelace</answer>", 1.0, 1.0),
        ("Answer: Lady Ada", 0.0, 0.5),
        ("Countess of Lovelace", 1.0, 1.0),
        ("Ada Lovelace Ada Lovelace Babbage Turing", 0.0, 0.5),
        ("", 0.0, 0.0),
    ],
)
def test_qa_scores_like_squad(said: str, em: float, f1: float) -> None:
    rows = [{"question": "Who?", "answers": {"text": ["Ada Lovelace", "Countess of Lovelace"]}}]
    for reward, value in (("em", em), ("f1", f1)):
        world = QASolverEnv(dataset=rows, reward=reward)  # type: ignore[arg-type]
        world.reset(world.task(0))
        paid = world.step({"agent": Message(said, Role.ASSISTANT)}).rewards["agent"]
        assert paid.components == pytest.approx(
            {"em": em, "f1": f1}
        ) and paid.value == pytest.approx(value)


@pytest.mark.parametrize(
    ("make_it", "says"),
    [
        (lambda: RelayEnvironment(agents=("a", "a")), "different names"),
        (lambda: RelayEnvironment(agents=("a", "b", "c")), "environment has 2, but"),
        (lambda: RelayEnvironment(max_number=0), "max_number"),
        (lambda: LengthEnvironment(words=["one"]), "words"),
        (lambda: MatrixEnvironment("chess"), "climbing, penalty, xor"),  # type: ignore[arg-type]
        (lambda: MatrixEnvironment(agents=("a", "b", "c")), "environment has 2, but"),
        (lambda: MatrixEnvironment("custom"), "requires payoffs"),
        (lambda: MatrixEnvironment("xor", payoffs=[[1, 2], [3, 4]]), "its own table"),
        (lambda: MatrixEnvironment("custom", payoffs=[[1, 2], [3]]), "full table"),
        (lambda: MatrixEnvironment("custom", payoffs=[1]), "two numbers"),
        (lambda: MatrixEnvironment("custom", payoffs=[1, "x"]), "finite numbers"),
        (lambda: MatrixEnvironment("custom", payoffs=[2, 2], normalized=True), "two different"),
        (lambda: MatrixEnvironment("penalty", k=3), "k must be"),
        (lambda: MatrixEnvironment(actions=["a", "A", "b"]), "3 different words"),
        (lambda: MatrixEnvironment(illegal=float("nan")), "illegal"),
        (lambda: MatrixEnvironment(rounds=0), "rounds"),
        (lambda: QASolverEnv(reward="bleu"), "reward"),  # type: ignore[arg-type]
        (lambda: QASolverEnv().task(0), "dataset is missing"),
        (lambda: QASolverEnv(dataset=[{"question": "q"}]).task(0), "answer"),
    ],
)
def test_impossible_arguments_are_named(make_it: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make_it()
