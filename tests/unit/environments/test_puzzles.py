"""Planning puzzles: solvers against brute force, generated puzzles that are what they promise, and
returns that are the value of the last board, with and without proposals."""

import itertools
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrlm.core.board import as_text
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Role, StepResult, Task
from mrlm.environments.puzzles import plan_path, sokoban, sudoku
from mrlm.environments.puzzles.plan_path import PlanPathEnvironment
from mrlm.environments.puzzles.planning import PlanningEnvironment
from mrlm.environments.puzzles.sokoban import SokobanEnvironment
from mrlm.environments.puzzles.sudoku import SudokuEnvironment

PUZZLES: dict[str, type[PlanningEnvironment]] = {
    "plan_path": PlanPathEnvironment,
    "sokoban": SokobanEnvironment,
    "sudoku": SudokuEnvironment,
}
LEVELS = [(name, level + 1) for name, kind in PUZZLES.items() for level in range(len(kind.levels))]
SLOW = {("sokoban", 6), ("sokoban", 7), ("sudoku", 7), ("sudoku", 8)}
QUICK = [
    pytest.param(*each, marks=[pytest.mark.slow] * (each in SLOW), id=f"{each[0]}-{each[1]}")
    for each in LEVELS
]
Speaks = Callable[[PlanningEnvironment, str], str]


def expert(env: PlanningEnvironment, agent: str) -> str:
    return env.expert(agent, []) or ""


def said(env: PlanningEnvironment, agent: str, text: str) -> StepResult:
    result = env.step({agent: Message(text, Role.ASSISTANT, agent=agent)})
    assert isinstance(result, StepResult)
    return result


def played(env: PlanningEnvironment, task: Task, speaks: Speaks) -> tuple[list[StepResult], float]:
    """The results of an episode, and the team's return: the sum of the steps' means."""
    results = [env.reset(task, task.seed)]
    assert isinstance(results[0], StepResult)
    while not results[-1].done:
        ((agent, _),) = results[-1].observations.items()
        results.append(said(env, agent, speaks(env, agent)))
    steps = [[each.value for each in result.rewards.values()] for result in results[1:]]
    return results, sum(sum(step) / len(step) for step in steps)


# -- every puzzle ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "level"), QUICK)
def test_every_level_is_solved_by_its_expert_alone_and_in_a_team(name: str, level: int) -> None:
    for num_agents, style in ((1, "short"), (2, "full")):
        env = PUZZLES[name](level=level, num_agents=num_agents, style=style)  # type: ignore[arg-type]
        for seed, split in itertools.product(range(3), ("train", "eval")):
            task = env.task(seed, split)  # type: ignore[arg-type]
            results, total = played(env, task, expert)
            assert total == pytest.approx(1.0) and env.problem(env.start) is None
            assert len(results) - 1 <= (env.max_turns or 0)
            ends = results[-1].rewards[env.agents[-1]].components
            assert ends["solved"] == 1.0 and ends["mistakes"] == 0.0


@pytest.mark.parametrize("name", PUZZLES)
@pytest.mark.parametrize("share", ["team", "own"])
def test_the_return_is_the_value_of_the_last_board_less_penalties(name: str, share: Any) -> None:
    """Also with proposals that are not carried out: their scores cancel out."""
    for num_agents, level, seed in itertools.product((1, 2), (1, 3), range(6)):
        env = PUZZLES[name](level=level, num_agents=num_agents, share=share, illegal=0.25)
        results, total = played(env, env.task(seed), clumsy(seed))
        mistakes = sum(
            next(iter(result.rewards.values())).components["mistakes"] for result in results[1:]
        )
        assert total == pytest.approx(env.value(env.board) - 0.25 * mistakes)
        if share == "team":
            own = [sum(each.rewards[name].value for each in results[1:]) for name in env.agents]
            assert own == pytest.approx([total] * num_agents)


def clumsy(seed: int) -> Speaks:
    """Best, arbitrary and unreadable answers by turns."""
    drawn = random.Random(seed)

    def speak(env: PlanningEnvironment, agent: str) -> str:
        some = env.divider.join(env.anything(env.board, drawn))
        return drawn.choice([expert(env, agent), some, some, "no"])

    return speak


@pytest.mark.parametrize("name", PUZZLES)
def test_sparse_rewards_are_for_the_solution_only(name: str) -> None:
    env = PUZZLES[name](level=2, reward="sparse")
    results, total = played(env, env.task(1), expert)
    assert total == 1.0
    assert all(not any(r.value for r in each.rewards.values()) for each in results[1:-1])
    _, nothing = played(env, env.task(1), lambda env, agent: "?")
    assert nothing == 0.0


@pytest.mark.parametrize("name", PUZZLES)
def test_a_proposal_is_shown_and_scored_but_the_executor_decides(name: str) -> None:
    env = PUZZLES[name](level=3)
    start = env.reset(env.task(0))
    assert isinstance(start, StepResult) and list(start.observations) == ["planner"]
    board, plan = env.board, env.divider.join(env.best(env.board)[: env.moves])
    proposed = said(env, "planner", f"Let me think. <answer>{plan}</answer>")
    assert env.board == board and proposed.rewards["planner"].value > 0
    ((agent, seen),) = proposed.observations.items()
    assert agent == "executor" and f"Proposal: {plan}" in seen.messages[0].content
    refused = said(env, "executor", "I do nothing.")
    assert env.board == board
    amount = proposed.rewards["planner"].value
    assert refused.rewards["executor"].value == pytest.approx(-amount - env.illegal)
    assert "Nothing could be read" in refused.observations["planner"].messages[0].content


@pytest.mark.parametrize("name", PUZZLES)
def test_prompts_have_one_board_and_do_not_grow(name: str) -> None:
    for style in ("short", "full"):
        env = PUZZLES[name](level=2, num_agents=1, style=style)  # type: ignore[arg-type]
        results, _ = played(env, env.task(3), lambda env, agent: "?")
        seen = [o for result in results for o in result.observations.values()]
        assert len(seen) == env.rounds > 1
        assert all(each.info["new_conversation"] and len(each.messages) == 1 for each in seen)
        sizes = [len(each.messages[0].content) for each in seen]
        assert max(sizes) - min(sizes) < 60
        if style == "short":
            assert max(sizes) <= 30, "for models of a few 100,000 weights"


@pytest.mark.parametrize("name", PUZZLES)
def test_boards_show_proposals_to_all_and_solutions_to_spectators_only(name: str) -> None:
    env = PUZZLES[name](level=3)
    env.reset(env.task(0))
    plan = expert(env, "planner")
    said(env, "planner", plan)
    shown, own = as_text(env.render()), as_text(env.render("planner"))
    lines = shown.splitlines()
    assert "executor to act; planner proposes" in lines[0]
    assert lines[1].startswith(("shortest", "holes")) and own.splitlines() == [lines[0], *lines[2:]]
    while not said(env, env.agents[env.acting], expert(env, env.agents[env.acting])).done:
        pass
    assert "solved" in as_text(env.render()) and env.expert("planner", []) is None


@pytest.mark.parametrize("name", PUZZLES)
def test_any_answers_can_be_read_and_differ_from_the_best(name: str) -> None:
    env = PUZZLES[name](level=2, num_agents=1, teaches="any", style="short")
    best = PUZZLES[name](level=2, num_agents=1, style="short")
    texts = []
    for seed in range(30):
        env.reset(env.task(seed))
        best.reset(best.task(seed))
        texts.append((expert(env, "player"), expert(best, "player")))
        assert env.read(texts[-1][0]) and len(env.read(texts[-1][0]) or "") <= env.moves
    assert len({each == other for each, other in texts}) == 2 or all(a != b for a, b in texts)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: PlanPathEnvironment(level=99), "level must be a whole number from 1 to 9, not 99"),
        (lambda: PlanPathEnvironment(num_agents=3), "num_agents must be 1"),
        (lambda: PlanPathEnvironment(agents=("a",)), "environment has 2, but"),
        (lambda: PlanPathEnvironment(settings={"sise": 4}), "size"),
        (lambda: PlanPathEnvironment(settings={"size": 4.5}), "settings.size must be a whole"),
        (lambda: PlanPathEnvironment(settings={"walls": 0.9}), "walls must be a number from 0 to"),
        (lambda: PlanPathEnvironment(settings={"size": 9}), "too few for a grid of size 9"),
        (lambda: PlanPathEnvironment(illegal=-1), "illegal"),
        (lambda: PlanPathEnvironment(reward="big"), "reward"),  # type: ignore[arg-type]
        (lambda: SokobanEnvironment(settings={"size": 9, "boxes": 3}), "positions"),
        (lambda: SokobanEnvironment(settings={"longest": 50}), "longest=50 is more than"),
        (lambda: SudokuEnvironment(settings={"size": 6}), "settings.size must be 4 or 9"),
        (lambda: SudokuEnvironment(settings={"holes": 12}), "at most 10 for size 4"),
        (lambda: SudokuEnvironment(settings={"holes": 9}), "too few for 9 holes"),
        (lambda: PlanPathEnvironment().reset(Task("t")), "must be a text of 3 x 3"),
        (lambda: grid_of("@#G" + "#" * 6), "cannot be reached"),
        (lambda: grid_of("@.G" + "G" * 6), "one G"),
        (lambda: box_of("######@$.##-$-##---######"), "as many boxes as targets"),
        (lambda: box_of("######$-.##-@-##---######"), "it has no solution"),
        (lambda: box_of("######*--##-@-##---######"), "solved already"),
        (lambda: box_of("####-#-$.##@--##---######"), "border"),
        (lambda: digits_of("." * 16), "one solution"),
        (lambda: digits_of("1234341221434321"), "at least one"),
    ],
)
def test_bad_settings_and_boards_are_named(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()


# -- plan path -------------------------------------------------------------------------------------


def grid_of(board: str, **settings: Any) -> PlanPathEnvironment:
    env = PlanPathEnvironment(**dict[str, Any](level=2, num_agents=1) | settings)
    env.reset(Task("t", info={"board": board}))
    return env


@given(st.integers(0, 10**6), st.integers(3, 6), st.sampled_from([0.0, 0.2, 0.5]))
@settings(max_examples=60, deadline=None)
def test_shortest_ways_are_those_of_relaxation(seed: int, size: int, walls: float) -> None:
    """Against Bellman-Ford over coordinates, without any code of the solver."""
    size_of = {"size": size, "walls": walls, "moves": 10, "rounds": 4}
    env = PlanPathEnvironment(settings=size_of)
    board = env.generated(random.Random(seed))
    free = {divmod(i, size) for i, mark in enumerate(board) if mark != "#"}
    far = {cell: (0 if board[cell[0] * size + cell[1]] == "G" else 99) for cell in free}
    for _ in free:
        for row, at in free:
            for other in ((row + 1, at), (row - 1, at), (row, at + 1), (row, at - 1)):
                far[row, at] = min(far[row, at], far.get(other, 99) + 1)
    start = divmod(board.index("@"), size)
    assert plan_path.length(board) == far[start] >= size - 2
    env.start = board
    after, done, failed = env.carried(board, env.best(board))
    assert env.value(after) == 1.0 and len(done) == far[start] and not failed


def test_moves_end_at_walls_and_at_the_goal() -> None:
    env = grid_of("@..#....G", settings={"moves": 4})
    result = said(env, "player", "RRUD")
    assert env.board == "..@#....G"
    assert result.rewards["player"].value == pytest.approx(0.5 - 0.1)
    assert result.rewards["player"].components == {"mistakes": 1.0, "solved": 0.0, "moves": 2.0}
    assert "Not possible in the last answer: U" in result.observations["player"].messages[0].content
    result = said(env, "player", "D, D, L L")
    assert result.done and result.rewards["player"].value == pytest.approx(0.5)
    assert env.board == "...#....+"
    lines = as_text(env.render()).splitlines()
    assert lines[:2] == ["solved", "last moves: DD"]
    assert lines[2].split() == ["•"] and "[☻]" in lines[4]


@pytest.mark.parametrize(
    ("text", "moves"),
    [
        ("RRD", "RRD"), (" R, R D\n", "RRD"), ("I go right. <answer>R R D</answer>", "RRD"),
        ("<answer>U</answer> no, <answer>D</answer>", "D"), ("right", None), ("rrd", None),
        ("RRD.", None), ("R-R", None), ("Answer: RRD", None), ("<answer></answer>", None),
        ("<answer>RRD", None), ("", None),
    ],
)  # fmt: skip
def test_an_answer_is_moves_and_nothing_else(text: str, moves: str | None) -> None:
    env = grid_of("@.......G", settings={"moves": 3, "walls": 0.0})
    result = said(env, "player", text)
    paid = result.rewards["player"]
    assert paid.components["mistakes"] == float(moves is None)
    assert paid.components["moves"] == len(moves or "")


def test_only_as_many_moves_as_allowed_are_carried_out() -> None:
    env = grid_of("@.......G", settings={"moves": 2})
    said(env, "player", "RLRLRLDD")
    assert env.board == "@.......G"


# -- sokoban ---------------------------------------------------------------------------------------


def box_of(board: str) -> SokobanEnvironment:
    env = SokobanEnvironment(level=2, num_agents=1)
    env.reset(Task("t", info={"board": board}))
    return env


def forward(board: str, size: int) -> dict[tuple[Any, Any], tuple[int, set[Any]]]:
    """All states that can be reached by moving forward, by the rules alone: state -> its distance
    and its successors."""
    steps = (-size, size, -1, 1)
    start = (
        next(i for i, mark in enumerate(board) if mark in "@+"),
        frozenset(i for i, mark in enumerate(board) if mark in "$*"),
    )
    walls = {i for i, mark in enumerate(board) if mark == "#"}
    found: dict[Any, Any] = {start: (0, set())}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        at, boxes = state
        for step in steps:
            to, behind = at + step, at + 2 * step
            if to in walls or (to in boxes and (behind in walls or behind in boxes)):
                continue
            after = (to, (boxes - {to}) | {behind} if to in boxes else boxes)
            found[state][1].add(after)
            if after not in found:
                found[after] = (found[state][0] + 1, set())
                queue.append(after)
    return found


@pytest.mark.parametrize("seed", range(8))
def test_reverse_play_knows_every_distance_and_every_dead_end(seed: int) -> None:
    """Against a search forward: the shortest solution, and the states without any."""
    env = SokobanEnvironment(level=4 if seed % 2 else 2)
    board = env.task(seed).info["board"]
    targets = frozenset(i for i, mark in enumerate(board) if mark in ".*+")
    states = forward(board, env.size)
    left = {state: 0 for state in states if state[1] == targets}
    shortest = min(states[state][0] for state in left)
    assert shortest == sokoban.remaining(board)
    for _ in range(400):
        near = {
            state: 1 + min(left[after] for after in afters if after in left)
            for state, (_, afters) in states.items()
            if state not in left and any(after in left for after in afters)
        }
        if not near:
            break
        left |= near
    known = sokoban.solutions(sokoban.ground_of(board))
    for at, boxes in states:
        assert known.get((at, tuple(sorted(boxes)))) == left.get((at, boxes))
    assert len(left) < len(states), "some boards are lost"


def test_pushes_and_dead_ends() -> None:
    env = box_of("######-.-##-$-##-@-######")
    result = said(env, "player", "UDD")
    assert result.done and result.rewards["player"].value == 1.0
    assert env.board == "######-*-##-@-##---######"
    env = box_of("######-.-##-$-##-@-######")
    result = said(env, "player", "LUR")
    assert result.done and result.rewards["player"].value == -1.0
    assert result.rewards["player"].components["dead"] == 1.0
    assert "no solution is left" in as_text(env.render())
    env = box_of("######-.-##-$-##-@-######")
    result = said(env, "player", "LDU")
    assert result.rewards["player"].components == {
        "mistakes": 1.0,
        "solved": 0.0,
        "moves": 1.0,
        "dead": 0.0,
    }


# -- sudoku ----------------------------------------------------------------------------------------


def digits_of(board: str, **settings: Any) -> SudokuEnvironment:
    env = SudokuEnvironment(**dict[str, Any](level=3, num_agents=1) | settings)
    env.reset(Task("t", info={"board": board}))
    return env


def right(solution: str, size: int, side: int) -> bool:
    rows = [solution[i * size : (i + 1) * size] for i in range(size)]
    columns = ["".join(row[i] for row in rows) for i in range(size)]
    corners = itertools.product(range(0, size, side), repeat=2)
    parts = ["".join(row[j : j + side] for row in rows[i : i + side]) for i, j in corners]
    return all(len(set(unit)) == size for unit in (*rows, *columns, *parts))


@pytest.fixture(scope="module")
def squares() -> list[str]:
    """All sudokus of 4 x 4: found row by row among the permutations."""
    rows, found = ["".join(each) for each in itertools.permutations("1234")], [""]
    for _ in range(4):
        longer = [square + row for square in found for row in rows]
        columns = [[each[at::4] for at in range(4)] for each in longer]
        fits = [all(len(set(one)) == len(one) for one in each) for each in columns]
        found = list(itertools.compress(longer, fits))
    found = [square for square in found if right(square, 4, 2)]
    assert len(found) == 288
    return found


def test_small_puzzles_have_the_solutions_that_enumeration_finds(squares: list[str]) -> None:
    drawn = random.Random(0)
    for _ in range(80):
        cells = list(drawn.choice(squares))
        for at in drawn.sample(range(16), drawn.randint(1, 13)):
            cells[at] = "."
        if drawn.random() < 0.3:
            cells[drawn.randrange(16)] = drawn.choice("1234")
        board = "".join(cells)
        fits = [s for s in squares if all(a in (".", b) for a, b in zip(board, s, strict=True))]
        assert sorted(sudoku.solutions(board, 300)) == fits
        assert len(sudoku.solutions(board)) == min(2, len(fits))


def test_generated_small_puzzles_are_unique_by_enumeration(squares: list[str]) -> None:
    for level, seed in itertools.product((1, 2, 3, 4), range(10)):
        env = SudokuEnvironment(level=level)
        board = env.task(seed).info["board"]
        assert board.count(".") == env.settings["holes"]
        fits = [s for s in squares if all(a in (".", b) for a, b in zip(board, s, strict=True))]
        assert fits == [sudoku.solved(board)]


@given(st.integers(0, 10**6))
@settings(max_examples=10, deadline=None)
def test_large_puzzles_have_one_solution_by_the_rules(seed: int) -> None:
    env = SudokuEnvironment(level=6)
    board = env.generated(random.Random(seed))
    (found,) = sudoku.solutions(board)
    assert right(found, 9, 3) and all(a in (".", b) for a, b in zip(board, found, strict=True))
    assert right(sudoku.full(9, random.Random(seed)), 9, 3)


def test_a_published_puzzle_and_those_with_several_solutions() -> None:
    """The puzzle is that of the encyclopedia Wikipedia."""
    puzzle = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
    assert sudoku.solutions(puzzle) == [
        "534678912672195348198342567859761423426853791713924856961537284287419635345286179"
    ]
    assert len(sudoku.solutions("12..34..21434321")) == 1
    assert len(sudoku.solutions("12343412........", 300)) == 4


def test_right_digits_are_written_and_wrong_ones_named_until_the_end() -> None:
    env = digits_of("1.34341221434.2.")
    result = said(env, "player", "r1c2=2 r4c4=4, r1c1=1 r9c9=9 r1c2=2")
    paid = result.rewards["player"]
    assert env.board == "1234341221434.2." and paid.components["mistakes"] == 2.0
    assert paid.value == pytest.approx(1 / 3 - 0.2), "more than three cells are not read"
    text = result.observations["player"].messages[0].content
    assert "Not possible so far: r4c4=4 r1c1=1" in text
    result = said(env, "player", "432 421")
    assert not result.done and result.rewards["player"].components["mistakes"] == 2.0
    result = said(env, "player", "<answer>r4c2=3\nr4c4=1</answer>")
    assert result.done and result.rewards["player"].value == pytest.approx(2 / 3)


@pytest.mark.parametrize("text", ["r1c2", "2", "r1c2=2 or r1c2=3", "r0c1=1", "r1c2=2r1c3=4", "12"])
def test_other_answers_are_not_read(text: str) -> None:
    env = digits_of("1.34341221434.2.")
    assert said(env, "player", text).rewards["player"].components["mistakes"] == 1.0
    assert env.board == env.start


def test_puzzles_that_differ_in_digits_only_are_held_out_together() -> None:
    env = SudokuEnvironment(level=2)
    board = env.task(0).info["board"]
    renamed = board.translate(str.maketrans("1234", "3142"))
    assert renamed != board and env.key(renamed) == env.key(board)
