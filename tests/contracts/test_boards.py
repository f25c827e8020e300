"""Boards of all environments: pure functions of their state, bounded, and without the secrets of
others in an agent's view."""

import copy
import re
from typing import Any

import pytest

from every_environment import ALL, make, settled
from mrlm.core import registry
from mrlm.core.board import CLASSES, TAGS, Html, as_text, board_tree
from mrlm.core.environment import Environment
from mrlm.core.types import Message, Role, Task
from mrlm.environments.games.contextual_matrix import ContextualMatrixEnvironment
from mrlm.environments.games.matrix import MatrixEnvironment
from mrlm.environments.games.negotiation import NegotiationEnvironment
from mrlm.environments.games.signalling import SignallingEnvironment
from mrlm.environments.games.twenty_questions import TwentyQuestionsEnvironment
from mrlm.environments.poker.kuhn_poker import KuhnPokerEnvironment
from mrlm.environments.relay import RelayEnvironment
from mrlm.viewer.export import STATIC

QUIET = {"reward", "world_model"}
"""Their messages are all there is to see."""
VARIANTS: dict[str, Environment] = {
    "kuhn_poker of hands": KuhnPokerEnvironment(num_hands=3),
    "matrix of rounds": MatrixEnvironment("penalty", rounds=3),
    "matrix of one": MatrixEnvironment("bandit"),
    "matrix of three": MatrixEnvironment("xor", agents=("a", "b", "c")),
    "twenty questions of two": TwentyQuestionsEnvironment(opponent="agent", num_things=5),
    "contextual matrix of tables": ContextualMatrixEnvironment(None, show="table", rounds=2),
    "relay of four": RelayEnvironment(terms=(3, 1, 0, 0)),
    "signalling with relays": SignallingEnvironment(relays=2),
    "negotiation with a script": NegotiationEnvironment(opponent="random", style="short"),
}
NAMES = [*(name for name in ALL if name not in QUIET), *VARIANTS]
HOSTILE = "<script>alert(1)</script> accept propose 1 1 1 A \u202e 5 <td class=turn>"


def made(name: str) -> Environment:
    return VARIANTS[name] if name in VARIANTS else make(name)


def played(template: Environment, hostile: bool, drawn: bool) -> tuple[list[str], list[Any]]:
    """An episode's transcript, and its boards for spectators and agents."""
    env = template.spawn()
    task = env.task(5)
    result, seen, boards = settled(env.reset(task, task.seed)), [], []
    for _ in range(30):
        seen.append(repr(result))
        if drawn:
            boards.append([env.render(agent) for agent in (None, *env.agents)])
            assert boards[-1] == [env.render(agent) for agent in (None, *env.agents)]
        speakers = {a: o for a, o in result.observations.items() if not o.done}
        if result.done or result.truncated or not speakers:
            break
        texts = {a: None if hostile else env.expert(a, o.messages) for a, o in speakers.items()}
        said = {a: HOSTILE if text is None else text for a, text in texts.items()}
        acts = {a: Message(text, Role.ASSISTANT, agent=a) for a, text in said.items()}
        result = settled(env.step(acts))
    env.close()
    return seen, boards


@pytest.mark.parametrize("hostile", [False, True], ids=["expert", "hostile"])
@pytest.mark.parametrize("name", NAMES)
def test_drawing_changes_nothing_and_is_bounded(name: str, hostile: bool) -> None:
    template = made(name)
    if not template.draws:
        pytest.skip("it draws no board")
    plain, _ = played(template, hostile, drawn=False)
    seen, boards = played(template, hostile, drawn=True)
    assert seen == plain
    assert any(each[0] for each in boards), "spectators see a board"
    for board in (board for each in boards for board in each if board is not None):
        assert isinstance(board, str) and len(board) <= 16_000
        tree = repr(board_tree(board)) if isinstance(board, Html) else ""
        found = set(re.findall(r"\['([\w.]+)'", tree))
        assert {kind.split(".")[0] for kind in found} <= TAGS
        assert "script" not in {kind.split(".")[0] for kind in found}
        assert as_text(board).strip()


@pytest.mark.parametrize(
    "name", ["tic_tac_toe", "kuhn_poker", "leduc", "connect_four", "hanabi", "negotiation"]
)
def test_a_copy_draws_the_same_board(name: str) -> None:
    env = make(name).spawn()
    result = settled(env.reset(env.task(1), 1))
    for _ in range(2):
        texts = {agent: env.expert(agent, o.messages) for agent, o in result.observations.items()}
        acts = {agent: Message(text or "", agent=agent) for agent, text in texts.items()}
        result = settled(env.step(acts))
    twin = copy.deepcopy(env)
    assert twin.render() == env.render() is not None


def test_which_environments_draw() -> None:
    assert not any(made(name).draws for name in QUIET)
    games = {"tic_tac_toe", "kuhn_poker", "negotiation", "matrix", "twenty_questions", "relay"}
    graded = {"code", "code_collaboration", "class_completion", "math", "writing", "translation"}
    others = {"debate", "tools", "search_qa", "length", "qa", "centralised", "difference"}
    assert all(made(name).draws for name in games | graded | others)


# -- what an agent may not see ---------------------------------------------------------------------


def board(env: Environment, agent: str | None) -> str:
    return as_text(env.render(agent) or "")


def test_the_other_s_card_is_hidden() -> None:
    env = KuhnPokerEnvironment(num_hands=2)
    task = env.task(0)
    task.info["deals"] = ["JK", "QK"]
    settled(env.reset(task, 0))
    assert "J" in board(env, "first") and "K" not in board(env, "first").replace("Kuhn", "")
    for move in ("bet", "fold"):
        settled(env.step({env.agents[env.mover or 0]: Message(move)}))
    for agent, own, others in (("first", "JQ", "K"), ("second", "K", "JQ")):
        cards = set(re.findall(r"\b[JQK]\b", board(env, agent)))
        assert cards == set(own) and not cards & set(others), agent
    assert set(re.findall(r"\b[JQK]\b", board(env, None))) == set("JQK")


def test_the_other_s_values_are_hidden_even_after_a_deal() -> None:
    env = NegotiationEnvironment()
    task = env.task(0)
    task.info |= {"pool": [1, 2, 3], "values": [[7, 0, 1], [4, 3, 0]]}
    settled(env.reset(task, 0))
    settled(env.step({"opener": Message("propose 1 0 3")}))
    settled(env.step({"partner": Message("accept")}))
    assert "10 points for opener, 6 points for partner" in board(env, None)
    own, other = board(env, "opener"), board(env, "partner")
    assert "10 points for opener" in own and "partner, " not in own and "6 points" not in own
    rows = [line.split()[1:4] for line in own.splitlines()[1:4]]
    assert rows == [["1", "7", "?"], ["2", "0", "?"], ["3", "1", "?"]]
    assert [line.split()[2] for line in other.splitlines()[1:4]] == ["?"] * 3


def test_the_thing_and_the_table_are_hidden() -> None:
    env = TwentyQuestionsEnvironment(opponent="agent")
    task = env.task(2)
    settled(env.reset(task, 2))
    settled(env.step({"asker": Message("alive")}))
    assert task.answer in board(env, None) and task.answer in board(env, "answerer")
    assert task.answer not in board(env, "asker") and "possible" not in board(env, "asker")
    game = MatrixEnvironment("climbing", rounds=2)
    settled(game.reset(game.task(0), 0))
    assert board(game, "row") == "" and "-30" in board(game, None)
    settled(game.step({agent: Message("B") for agent in game.agents}))
    assert "[7]" in board(game, None) and "7" not in board(game, "row")


def test_the_state_is_the_sender_s_and_the_table_no_one_s() -> None:
    env = SignallingEnvironment(states=9, relays=1)
    settled(env.reset(Task("t", info={"state": "7"}), 0))
    for agent, text in (("sender", "C"), ("relay_1", "D"), ("receiver", "2")):
        settled(env.step({agent: Message(text)}))
    assert set(re.findall(r"\b[2-8A-F]\b", board(env, None))) == set("7CD2")
    seen = {agent: set(re.findall(r"\b[2-8A-F]\b", board(env, agent))) for agent in env.agents}
    assert seen == {"sender": set("7C"), "relay_1": set("CD"), "receiver": set("D2")}
    game = ContextualMatrixEnvironment()
    settled(game.reset(Task("t", info={"context": 2}), 0))
    assert board(game, "row") == "context 2 of 4"
    assert all(f"{value:.4g}" in board(game, None) for value in game.payoffs.values())
    assert "[" not in board(game, None)


def test_answers_are_for_spectators_only() -> None:
    debates = ("debate", "noisy_debate")
    for name in ("math", "qa", "search_qa", "tools", "code", "translation", "relay", *debates):
        env = make(name).spawn()
        settled(env.reset(env.task(0), 0))
        assert all(env.render(agent) is None for agent in env.agents), name
        env.close()


# -- the page --------------------------------------------------------------------------------------


def test_the_page_keeps_the_same_elements_and_classes() -> None:
    source = (STATIC / "board.js").read_text()
    words = [set(text.split()) for text in re.findall(r'"([\w ]+)"\.split\(" "\)', source)]
    assert words == [TAGS, CLASSES]
    style = (STATIC / "style.css").read_text()
    missing = {name for name in CLASSES if not re.search(rf"\.{name}\b", style)}
    assert not missing


def test_the_table_of_environments_says_which_draw() -> None:
    from scripts.pages import environments

    lines = {line.split("`")[1]: line for line in environments().splitlines() if "`" in line}
    assert set(lines) == set(registry.names("environments"))
    assert lines["tic_tac_toe"].rstrip(" |").endswith("yes")
    assert lines["reward"].rstrip(" |").endswith("no")
