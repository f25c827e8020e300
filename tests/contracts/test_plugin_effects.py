"""Every argument of every environment changes something: each is varied on tasks and
episodes in which it should matter, and what is shown, paid or asked must be something else. An
argument without a case fails, and one whose effect is seen elsewhere only names the test."""

import ast
import json
import random
import time
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from another_value import another
from effects import again, assert_tests_exist, case
from every_environment import (
    ALL,
    PAIRS,
    PROMPTS,
    QUESTIONS,
    earned,
    echo,
    expert,
    guesses,
    has_expert,
    mentions_topic,
)
from mrlm.config.plugins import accepted
from mrlm.core import registry
from mrlm.core.environment import Environment, as_environment
from mrlm.core.errors import MRLMError
from mrlm.core.matters import RunFacts, conditions, judged
from mrlm.environments.games.matrix import MatrixEnvironment
from mrlm.environments.math.generator import MathProblemGenerator
from mrlm.environments.programs.class_completion.generator import row as class_row
from mrlm.environments.qa import QASolverEnv
from mrlm.environments.tools import ToolRegistry

SUMS = [
    {"prompt": f"What is {i} + {i}?", "answer": str(2 * i), "renamed": f"How much is {i} + {i}?"}
    for i in range(30)
]
TEXTS = [
    {
        "document": f"Town {i} lies at the river {i}. It has {i} mills.",
        "summary": f"Town {i} has mills.",
        "renamed": f"Village {i} lies at a lake. It has {i} boats.",
    }
    for i in range(30)
]
SENTENCES = [
    {"source": f"wort {i}", "target": f"word {i}", "renamed": f"satz {i}"} for i in range(30)
]
CODE = [
    {
        "prompt": f"Write f(x), which returns x + {i}.",
        "renamed": f"Write f(x), which adds {i} to x.",
        "test_list": [f"assert f(1) == {1 + i}", f"assert f(2) == {2 + i}"],
        "code": f"def f(x):\n    return x + {i}",
    }
    for i in range(30)
]
CLASSES = [class_row(str(i), "train") for i in range(30)]
CLAIMS = [
    {"claim": f"Road {i} is long.", "renamed": f"Road {i} is short.", "truth": True}
    for i in range(30)
]
ROWS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "math": ("prompt", SUMS),
    "qa": ("question", [{**row, "renamed": f"{row['question']} Say it."} for row in QUESTIONS]),
    "reference": ("prompt", [{**row, "renamed": f"{row['prompt']} Say it."} for row in PAIRS]),
    "reward": ("prompt", [{**row, "renamed": f"{row['prompt']} Go."} for row in PROMPTS]),
    "summarization": ("document", TEXTS),
    "translation": ("source", SENTENCES),
    "writing": ("document", TEXTS),
    "code": ("prompt", CODE),
    "code_collaboration": ("prompt", CODE),
    "class_completion": (
        "skeleton",
        [{**row, "renamed": f"{row['skeleton']}\n# in full"} for row in CLASSES],
    ),
    "debate": ("claim", CLAIMS),
    "noisy_debate": ("claim", CLAIMS),
    "tools": ("prompt", SUMS),
    "world_model": ("prompt", [{**row, "renamed": f"{row['prompt']} Go."} for row in PROMPTS]),
    "search_qa": ("question", [{**row, "renamed": f"{row['question']}!"} for row in QUESTIONS]),
}
"""Rows of environments that take a data set, and the column of what is asked; `renamed` has other
values for it."""
DATASET = {"tools": "tasks", "debate": "topics", "noisy_debate": "topics"}
"""How the argument with the rows is called, where it is not `dataset`."""


def reward_of(completions: list[str], **columns: Any) -> list[float]:
    return [float(len(text)) for text in completions]


def shout(row: dict[str, Any]) -> str:
    return row["prompt"].upper()


def squared(value: float) -> float:
    return value * value + 1


def further(prompt: str, agent_completions: list[str], **more: Any) -> list[str]:
    return [f"{prompt} Further." for _ in agent_completions]


def always(*arguments: Any, **more: Any) -> bool:
    return True


def severe(messages: list[Any]) -> str:
    return "Score: 1"


def kind(messages: list[Any]) -> str:
    return "Score: 9"


def wait() -> str:
    """Wait a moment."""
    time.sleep(0.5)
    return "done"


def waiting() -> ToolRegistry:
    found = ToolRegistry()
    found.register(wait)
    return found


def slowly(world: Any, agent: str, messages: Any) -> str:
    """What the expert says, with a pause in every method."""
    code = world.expert(agent, messages).split("```python\n")[1].split("```")[0]
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.body.insert(0, ast.parse("__import__('time').sleep(0.5)").body[0])
    return f"```python\n{ast.unparse(tree)}\n```"


def calls(name: str, **given: str) -> Any:
    """Words of whoever calls a tool."""
    text = json.dumps({"name": name, "arguments": given})
    return lambda *_: f"<tool_call>{text}</tool_call>"


SAID: dict[str, Any] = {
    "class_completion.test_timeout": slowly,
    "tools.timeout": calls("wait"),
    "tools.isolation": calls("python", code="print(1)"),
    "tools.search": calls("search", query="What is the capital of Norway?"),
}
"""Words that are said first, where an argument is about them."""
DOCUMENTS = [{"title": "Norway", "text": "Bergen is the capital."}]
GAME = {"opponent": case("expert"), "teaches": case("any"), "style": case("short")}
TWO_TURNS = {"max_turns": 2, "external_transition": again}
PUZZLE = {
    "level": case(2),
    "num_agents": case(1),
    "reward": case("sparse"),
    "share": case("own"),
    "teaches": case("any"),
    "style": case("short"),
}
CASES: dict[str, dict[str, tuple[Any, dict[str, Any]]]] = {
    "centralised": {
        "environment": case({"env_type": "length"}),
        "agent": case("crew"),
        "separator": case("|", environment={"env_type": "matrix"}),
    },
    "class_completion": {
        "division": case("parameters"),
        "feedback": case("count", max_turns=2),
        "expert_agent": case("master", feedback="expert", max_turns=2),
        "max_turns": case(2),
        "num_visible": case(2),
        "max_tests": case(2, dataset=CLASSES),
        "test_timeout": case(0.1),
        "isolation": case("nowhere"),
        "instruction": case("Code, please."),
    },
    "code": {
        "generator": case({"difficulty_range": [3, 3]}),
        "generator_or_dataset": case({"difficulty_range": [3, 3]}),
        "dataset": case(CODE),
        "difficulty_range": case((3, 3)),
        "families": case(("strings",)),
        "max_attempts": case(1),
        "max_turns": case(1),
        "num_visible": case(0, dataset=CODE),
        "max_tests": case(1, dataset=CODE, num_visible=2),
        "instruction": case("Code, please."),
    },
    "code_collaboration": {
        "dataset": case(CODE),
        "feedback": case("count", max_turns=2),
        "expert_agent": case("master", feedback="expert", max_turns=2),
        "rewards": case("individual"),
        "max_turns": case(2),
        "num_visible": case(2),
        "max_tests": case(1, dataset=CODE, num_visible=2),
        "num_hidden": case(6),
        "isolation": case("nowhere"),
        "instruction": case("Code, please."),
    },
    "contextual_matrix": {
        "contexts": case(3),
        "num_actions": case(2),
        "reward": case("own"),
        "noise": case(0.25),
        "show": case("table"),
        "illegal": case(0.5),
        "rounds": case(2),
        "style": case("short"),
        "teaches": case("any"),
    },
    "connect_four": {
        **GAME,
        "level": case(1),
        "height": case(5),
        "width": case(6),
        "line": case(4, level=1),
        "opening": case(4),
        "depth": case(1),
        "illegal": case(0.25),
        "forgiven": case(1),
        "draw": case(0.5, level=1, height=4, line=4, opening=2),
        "seat": case("x", opponent="expert"),
    },
    "debate": {
        "judge": case("truth", topics="arithmetic"),
        "topics": case("arithmetic"),
        "max_turns": case(1),
        "opponents": case({"con": "expert"}),
        "reward": case("winner"),
        "share": case("team"),
        "order": case("sequential"),
        "draw_sides": case(True),
        "prompts": case("short"),
    },
    "difference": {
        "environment": case(MatrixEnvironment("penalty")),
        "default": case("B"),
        "share": case(0.5),
    },
    "hanabi": {
        "players": case(3),
        "level": case(3),
        "colours": case(1),
        "ranks": case(4),
        "hand": case(3),
        "tokens": case(1),
        "lives": case(1),
        "crash": case("keep"),
        "illegal": case(0.25),
        "forgiven": case(1),
        "teaches": case("any"),
        "style": case("short"),
    },
    "kuhn_poker": {
        **GAME,
        "num_hands": case(2),
        "illegal": case(0.5),
        "alpha": case(0.0, num_hands=8),
        "seat": case("first", opponent="expert"),
    },
    "leduc": {
        **GAME,
        "level": case(2),
        "ranks": case(2),
        "raises": case(1),
        "num_hands": case(2),
        "illegal": case(0.5),
        "seat": case("first", opponent="expert"),
    },
    "length": {"words": case(("red", "tree", "stone", "owl"))},
    "math": {
        "generator": case(MathProblemGenerator(difficulty_range=(5, 5))),
        "dataset": case(SUMS),
        "difficulty_range": case((5, 5)),
        "families": case(("algebra",)),
        "require_solution": case(True),
        "max_attempts": case(3),
        "max_turns": case(3),
        "instruction": case("Box it."),
        "answers": case("boxed", instruction=""),
    },
    "matrix": {
        "game": case("penalty"),
        "payoffs": case([[1, 2], [3, 4]], game="custom"),
        "k": case(-5.0, game="penalty"),
        "actions": case(("up", "down", "left")),
        "illegal": case(-3.0),
        "normalized": case(True),
        "rounds": case(2),
        "teaches": case("any"),
    },
    "negotiation": {
        **GAME,
        "reward": case("fair"),
        "kinds": case(2),
        "max_turns": case(4),
        "illegal": case(0.5),
        "seat": case("opener", opponent="expert"),
    },
    "noisy_debate": {
        "wrong": case(0.5),
        "topics": case("arithmetic"),
        "max_turns": case(1),
        "wrong_by": case("answer", wrong=0.5),
        "rewarded": case("last"),
        "share": case("team"),
        "opponents": case({"second": "expert"}),
        "prompts": case("short"),
        "teaches": case("any"),
    },
    "plan_path": {**PUZZLE, "settings": case({"size": 4})},
    "qa": {
        "custom_sys_prompt": case("Be brief."),
        "dataset": case(QUESTIONS[:12]),
        "reward": case("f1"),
    },
    "reference": {
        "dataset": case(PAIRS[:12]),
        "judge": case(severe, judge=kind, weights={"f1": 1.0, "judge": 1.0}),
        "weights": case({"rouge1": 1.0}),
    },
    "relay": {
        "max_number": case(5),
        "terms": case((3, 0)),
        "max_message": case(1),
        "style": case("full"),
    },
    "rescored": {
        "environment": case(QASolverEnv(dataset=QUESTIONS[:12])),
        "reward_fn": case(reward_of),
    },
    "reward": {
        "dataset": case(PROMPTS[:12]),
        "reward_func": case(reward_of),
        "formatters": case(shout),
        "num_agents": case(2),
        "reward_processor": case(squared),
        "reward_weights": case([3.0]),
        "max_turns": case(3, max_turns=2, external_transition=again),
        "external_transition": case(further, **TWO_TURNS),
        "transition_mode": case("append", **TWO_TURNS),
        "external_prompt_passthrough": case(True, formatters=shout, **TWO_TURNS),
    },
    "search_qa": {
        "models": case(("a", "b")),
        "router": case("boss", models=("a", "b")),
        "dataset": case(QUESTIONS),
        "hops": case((2, 2)),
        "max_turns": case(2),
        "topk": case(1),
        "max_observation": case(40),
        "prompts": case("short"),
    },
    "signalling": {
        "states": case(3),
        "signals": case(("zap", "dod", "mib", "lef")),
        "cost": case(0.2),
        "alignment": case(0.6),
        "relays": case(1),
        "illegal": case(0.25),
        "style": case("short"),
        "teaches": case("any"),
    },
    "sokoban": {**PUZZLE, "settings": case({"size": 6})},
    "sudoku": {**PUZZLE, "settings": case({"holes": 2})},
    "summarization": {
        "dataset": case(TEXTS),
        "max_words": case(9),
        "judge": case(severe, judge=kind, weights={"rouge1": 1.0, "judge": 1.0}),
        "weights": case({"rouge1": 1.0}),
        "instruction": case("Sum up:"),
    },
    "tic_tac_toe": {
        **GAME,
        "opening": case(2),
        "illegal": case(0.25),
        "forgiven": case(1),
        "draw": case(0.5),
        "seat": case("x", opponent="expert"),
    },
    "tools": {
        "tasks": case("arithmetic"),
        "max_turns": case(2),
        "levels": case((3, 4)),
        "tools": case(("calculator", "search", "python", "files"), tasks="arithmetic"),
        "call_format": case("short"),
        "max_output": case(5),
        "registry": case(waiting(), tasks=SUMS),
        "search": case(DOCUMENTS, tasks="lookup"),
        "isolation": case("nowhere", tasks=SUMS, tools=("python",)),
        "timeout": case(0.1, tasks=SUMS, registry=waiting()),
    },
    "translation": {
        "dataset": case(SENTENCES),
        "languages": case(("Old", "New"), dataset=SENTENCES),
        "direction": case("from_english"),
        "dictionary": case(False),
        "judge": case(severe, judge=kind, weights={"exact": 1.0, "judge": 1.0}),
        "weights": case({"exact": 1.0}),
        "instruction": case("Translate:"),
    },
    "twenty_questions": {
        "opponent": case("agent"),
        "teaches": case("any"),
        "style": case("short"),
        "max_questions": case(5),
        "num_things": case(5),
        "speed": case(0.1),
        "wrong": case(0.3),
        "illegal": case(0.3),
        "lie": case(0.1, seat="answerer"),
        "answerer_reward": case("truth", opponent="agent"),
        "seat": case("answerer"),
    },
    "world_model": {
        "dataset": case(PROMPTS[:12]),
        "system_prompt": case("You are a wall."),
        "max_turns": case(1),
        "done_func": case(always),
        "done_text": case("\ufffd"),
        "reward_func": case(reward_of),
        "max_new_tokens": case(5),
        "temperature": case(0.1),
        "top_p": case(0.1),
        "top_k": case(1),
        "min_p": case(0.9),
        "stop": case([*"abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ"]),
        "dtype": case("bfloat16", temperature=0.1),
    },
    "writing": {
        "preset": case("short"),
        "dataset": case(TEXTS),
        "instructions": case(("Short.", "Long.")),
        "rewards": case("individual"),
        "quality": case(False),
        "rules": case({"words": [1, 2]}),
    },
}
COMMON = ("agents", "seed", "split", "columns", "on_bad_row", "eval_dataset", "eval_tasks")
"""Arguments that are varied in the same way wherever they are."""

SANDBOXED = {"code", "code_collaboration", "class_completion", "tools", "search_qa"}
"""Environments in which an answer may take a while."""


def arguments(name: str) -> dict[str, Any]:
    from every_environment import NEEDS

    found = dict(NEEDS.get(name, {}))
    if name == "reward":
        found["reward_func"] = mentions_topic
    return found


def varied(name: str, field: str, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of an environment before and after."""
    base = arguments(name)
    rows = DATASET.get(name, "dataset")
    if field == "agents":
        names = as_environment(registry.load("environments", name)(**base)).agents
        return base, base | {
            "agents": f"{names[0]}s" if len(names) == 1 else [f"{a}s" for a in names]
        }
    if field == "seed":
        if name == "search_qa":
            base["dataset"] = QUESTIONS
        return base, base | {"seed": 7}
    if field in COMMON:
        column, table = ROWS[name]
        base |= {rows: table}
        if field == "columns":
            return base, base | {"columns": {column: "renamed"}}
        if field == "on_bad_row":
            base |= {rows: [*table, {column: None}]}
            return base, base | {"on_bad_row": "skip"}
        if field == "split":
            for split, part in (("train", table), ("dev", table[11:])):
                lines = "\n".join(json.dumps(row) for row in part)
                (folder / f"{split}.jsonl").write_text(lines)
            base |= {rows: str(folder)}
            return base, base | {"split": "dev"}
        return base, base | {field: table[:3]}
    if field not in CASES.get(name, {}):
        usual = accepted(registry.load("environments", name))[0][field].default
        return base, base | {field: another(usual)}
    value, on = CASES[name][field]
    return base | on, base | on | {field: value}


def transcripts(name: str, given: dict[str, Any], *first: Any) -> Iterator[Any]:
    """Tasks of both splits, and then episodes, as several speakers play them; where the
    environment refuses its arguments, only the reason.

    Args:
        name, given: the environment.
        *first: words that are said before all others.
    """
    try:
        world = as_environment(registry.load("environments", name)(**given))
    except MRLMError as error:
        yield error
        return
    try:
        seeds = range(1 if name in SANDBOXED else 4)
        yield world.agents
        tasks = [(seed, world.task(seed, split)) for split in ("train", "eval") for seed in seeds]
        yield repr(tasks)
        try:
            able = has_expert(world)
        except MRLMError as error:
            able = False
            yield str(error)
        for seed, task in tasks:
            speakers: list[Any] = [*first, *([expert, mixed(seed)] if able else [])]
            for words in (*speakers, echo, guesses(seed), lambda *_: "yes", lambda *_: "A|A"):
                try:
                    yield earned(world, task, words)
                except MRLMError as error:
                    yield str(error)
    finally:
        world.close()


def mixed(seed: int) -> Any:
    """The expert's words, some of them without their end, doubled, or left out."""
    drawn = random.Random(seed)

    def speak(world: Environment, agent: str, messages: Any) -> str:
        text = expert(world, agent, messages)
        return drawn.choice([text, text, text[: len(text) // 2], f"{text} {text}", ""])

    return speak


def walked() -> Iterator[tuple[str, str]]:
    for name in ALL:
        for field in accepted(registry.load("environments", name))[0]:
            yield name, field


BOXES = "test_class_completion.py::test_each_may_be_paid_for_its_own"
TIMES = "test_code_world.py::test_who_hangs_pays_and_keeps_what_passed_before"
OPENED = "test_code_world.py::test_nothing_is_opened_before_it_is_needed_and_bad_isolation_is_named"
SHARED = "test_code_world.py::test_copies_share_one_sandbox_and_no_episode"
WRITTEN = "test_code_collaboration.py::test_honest_writers_of_generated_problems_earn_the_most"
FOLDER = "test_reward_model.py::test_a_config_names_its_folder"
ALGEBRA = "test_math.py::test_computer_algebra_has_the_seconds_that_the_world_says"
TEAM = "test_reward_model.py::test_it_reads_answers_one_by_one_or_as_one_text"
LOADED = "test_world_model.py::test_the_world_is_the_model_of_its_arguments"
SEARCHED = "test_search_qa.py::test_documents_of_ones_own"
F1 = "test_search_qa.py::test_f1_pays_for_a_part_and_less_for_every_word_too_many"
SERVED = "test_tools_mcp.py::test_a_world_with_the_tools_of_a_server"
CAPPED = "test_tools_world.py::test_calls_of_one_message_are_capped"
REPEATED = "test_reward_calls.py::test_a_call_is_repeated"
ELSEWHERE: dict[str, str] = {
    "class_completion.dataset": BOXES,
    "class_completion.rewards": BOXES,
    "class_completion.sandbox": BOXES,
    "code.timeout": TIMES,
    "code.test_timeout": TIMES,
    "code.isolation": OPENED,
    "code.sandbox": SHARED,
    "code_collaboration.sandbox": WRITTEN,
    "code_collaboration.test_timeout": WRITTEN,
    "math.timeout": ALGEBRA,
    "rescored.rewards": REPEATED,
    "reward.rewards": REPEATED,
    "reward.reward_model": FOLDER,
    "reward.reward_model_reads": TEAM,
    "search_qa.search": SEARCHED,
    "search_qa.reward": F1,
    "tools.mcp_servers": SERVED,
    "tools.max_calls": CAPPED,
    "world_model.model": LOADED,
    "world_model.tokenizer": LOADED,
    "world_model.device": LOADED,
}
"""Arguments whose effect needs programs that run long, servers or models, and the test of it."""


def covered(name: str, field: str) -> bool:
    """Whether it is varied here."""
    return f"{name}.{field}" not in ELSEWHERE


def test_every_argument_has_a_case() -> None:
    left = {
        f"{name}.{field}"
        for name, field in walked()
        if covered(name, field)
        and field not in CASES.get(name, {})
        and another(accepted(registry.load("environments", name))[0][field].default) is None
        and field not in ("agents", "seed")
        and not (field in COMMON and name in ROWS)
    }
    assert not left
    assert ELSEWHERE.keys() <= {f"{name}.{field}" for name, field in walked()}


def test_tests_elsewhere_exist() -> None:
    assert_tests_exist(ELSEWHERE, {"dataset": None})  # it is given by position there


QUICK = 12
"""One of so many arguments is varied in a quick test."""


@pytest.mark.parametrize(
    ("name", "field"),
    [
        pytest.param(*each, marks=[] if place % QUICK == 0 else [pytest.mark.slow])
        for place, each in enumerate(each for each in walked() if covered(*each))
    ],
)
def test_an_argument_changes_something(name: str, field: str, tmp_path: Path) -> None:
    before, after = varied(name, field, tmp_path)
    first = [SAID[f"{name}.{field}"]] if f"{name}.{field}" in SAID else []
    one, other = transcripts(name, before, *first), transcripts(name, after, *first)
    for number, (mine, yours) in enumerate(zip_longest(one, other)):
        assert number or not isinstance(yours, MRLMError), yours
        if mine != yours:
            break  # what comes later costs more and says no more
    else:
        pytest.fail("it changes nothing")
    one.close()
    other.close()


GENERATES = ("code", "code_collaboration", "math", "summarization", "translation", "writing")


@pytest.mark.slow
@pytest.mark.parametrize("name", GENERATES)
def test_arguments_that_are_refused_change_nothing(name: str) -> None:
    """Those of rows, where there are none; those of generated tasks, where there are rows."""
    plugin = registry.load("environments", name)
    usual = {field: each.default for field, each in accepted(plugin)[0].items()}
    values = {"split": "dev", "columns": {"a": "b"}, "on_bad_row": "skip", "eval_dataset": SUMS}
    values |= {"num_visible": 2, "max_tests": 2, "num_hidden": 5, "hops": (2, 2)}
    values |= {"direction": "from_english", "dictionary": False}
    for given in ({}, {"dataset": ROWS[name][1]}):
        base = list(transcripts(name, given))
        for field in conditions(plugin):
            changed = given | {field: values[field]}
            settings = SimpleNamespace(**{**usual, **changed})
            if judged(settings, [field], RunFacts(), conditions(plugin))[field] is not None:
                assert list(transcripts(name, changed)) == base, field
