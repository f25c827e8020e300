"""Tools and their calls: schemas from types, three forms that are read, errors a model can learn
from, and nothing that a text can break."""

import asyncio
import time
from threading import Event
from typing import Any, Literal

import pytest

from mrlm.core.errors import ConfigError, EpisodeError
from mrlm.core.tool_calls import MAX_CALL, Malformed, ToolCall, answer_in, calls_in, written
from mrlm.environments.tools import ToolError, ToolRegistry
from mrlm.environments.tools.tasks import same_answer
from mrlm.environments.tools.tool import tool_of


def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    Then say so.

    Args:
        a: the first
        b (int): the second
    """
    return a + b


async def pick(colour: Literal["red", "blue"], tags: list[str] | None = None) -> str:
    """Pick a colour."""
    return f"{colour} {tags}"


def called(function: Any, *positional: Any, seconds: float = 60.0, **arguments: Any) -> str:
    registry = ToolRegistry([function])
    tool = next(iter(registry))
    box = registry.open(timeout=seconds)
    return asyncio.run(box.call(tool, tool.arguments(arguments, positional)))


# -- schemas and arguments -------------------------------------------------------------------------


def test_a_schema_comes_from_hints_and_docstring() -> None:
    assert tool_of(add).schema == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "description": "the first"},
                    "b": {"type": "integer", "default": 2, "description": "the second"},
                },
                "required": ["a"],
            },
        },
    }
    assert tool_of(add).usage == "add(a: integer, b: integer = 2)"
    assert tool_of(pick).parameters["properties"]["colour"]["enum"] == ["red", "blue"]


def test_what_cannot_be_a_tool_is_refused() -> None:
    def untyped(a, b: int) -> int:  # type: ignore[no-untyped-def]
        return b

    def many(*numbers: int) -> int:
        return sum(numbers)

    def odd(a: "threading.Lock") -> int:  # type: ignore[name-defined]  # noqa: F821
        return 1

    for function, says in (
        (untyped, "'a' needs a type"),
        (many, "must not be positional only"),
        (odd, "signature"),
        (lambda x: x, "a name must be"),
    ):
        with pytest.raises(ConfigError, match=says):
            ToolRegistry([function])
    with pytest.raises(ConfigError, match="two tools are called 'add'"):
        ToolRegistry([add, add])
    with pytest.raises(ConfigError, match="did you mean 'add'"):
        ToolRegistry([add])["ad"]


def test_arguments_are_checked_and_converted() -> None:
    assert called(add, a=3) == "5"
    assert called(add, 3, b="4") == "7"
    assert called(pick, colour="red", tags=["x"]) == "red ['x']"
    assert called(pick, "blue") == "blue None"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "add: argument 'a' is missing (integer)"),
        ({"a": "x"}, "add: argument 'a' must be integer, not \"x\""),
        ({"a": 1, "c": 2}, "add: there is no argument 'c'; it takes a, b"),
        ({"a": 1.5}, "add: argument 'a' must be integer, not 1.5"),
        ({"a": None}, "add: argument 'a' must be integer, not null"),
        ({"a": "9" * 5000}, "add: argument 'a' must be integer, not \"99999"),
        ({"a": [1] * 9999}, "add: argument 'a' must be integer, not [1, 1"),
        ({"self": 1, "a": 1}, "add: there is no argument 'self'; it takes a, b"),
    ],
)
def test_a_wrong_argument_is_named_in_one_line(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ToolError) as caught:
        called(add, **arguments)
    message = str(caught.value)
    assert message.startswith(says) and "\n" not in message and len(message) < 200


def test_positional_arguments_are_placed_once() -> None:
    tool = tool_of(add)
    for positional, named in (((1, 2, 3), {}), ((1,), {"a": 2})):
        with pytest.raises(ToolError):
            tool.arguments(named, positional)


def test_what_a_tool_does_wrong_is_told_and_what_it_stands_on_is_not() -> None:
    over = Event()

    def fails(how: str) -> str:
        """Fail."""
        if how == "infra":
            raise EpisodeError("the server is gone")
        if how == "hang":
            over.wait()
        raise KeyError("line\nline")

    with pytest.raises(ToolError, match=r"^fails: KeyError: 'line\\nline'$"):
        called(fails, how="bug")
    with pytest.raises(EpisodeError, match="gone"):
        called(fails, how="infra")
    try:
        with pytest.raises(ToolError, match=r"fails took longer than 0\.3 s"):
            called(fails, how="hang", seconds=0.3)
    finally:
        over.set()


def test_results_are_text_of_a_bounded_length() -> None:
    def many(kind: str) -> Any:
        """Return something."""
        loop: list[Any] = []
        loop.append(loop)
        return {"dict": {"k": [1, 2.5, None]}, "none": None, "true": True, "long": "x" * 10**6}.get(
            kind, loop
        )

    assert called(many, "dict") == '{"k": [1, 2.5, null]}'
    assert called(many, "none") == "done" and called(many, "true") == "true"
    assert called(many, "loop") == "[[...]]"
    assert len(called(many, "long")) < 5_000 and "more characters" in called(many, "long")


# -- reading calls ---------------------------------------------------------------------------------

WANTED = ToolCall("add", {"a": 3, "b": 4})


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "add", "arguments": {"a": 3, "b": 4}}</tool_call>',
        'I add.\n<tool_call>\n{"name":"add","arguments":{"a":3,"b":4}}\n</tool_call>\nSo',
        '<tool_call>{"name": "add", "arguments": "{\\"a\\": 3, \\"b\\": 4}"}</tool_call>',
        '<tool_call>{"type":"function","function":{"name":"add","arguments":{"a":3,"b":4}}}'
        "</tool_call>",
        '{"name": "add", "parameters": {"a": 3, "b": 4}}',
        '<|python_tag|>{"name": "add", "parameters": {"a": 3, "b": 4}}',
        '[TOOL_CALLS][{"name": "add", "arguments": {"a": 3, "b": 4}}]',
        "add(a=3, b=4)",
        "  add (a=3,b=4)  ",
        "First I add.\n`add(a=3, b=4)`\nThen I look.",
        "```\nadd(a=3, b=4)\n```",
        "add(\n  a=3,\n  b=4,\n)",
        *(written("add", WANTED.arguments, form) for form in ("tool_call", "json", "python")),
    ],
)
def test_every_form_of_a_call_is_read(text: str) -> None:
    assert calls_in(text) == [WANTED]


def test_several_calls_stand_in_order_and_positional_arguments_are_kept() -> None:
    tagged = written("add", {"a": 1}) + "\n" + written("add", {"a": 2})
    assert [c.arguments for c in calls_in(tagged)] == [{"a": 1}, {"a": 2}]  # type: ignore[union-attr]
    bare = '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}'
    assert [c.name for c in calls_in(bare)] == ["f", "g"]  # type: ignore[union-attr]
    assert calls_in("f(1)\ng('x', k=[1, -2.5, None])") == [
        ToolCall("f", {}, (1,)),
        ToolCall("g", {"k": [1, -2.5, None]}, ("x",)),
    ]
    assert calls_in(written("f", {"x": 'say "é"'}, "short")) == [ToolCall("f", {}, ('say "é"',))]


@pytest.mark.parametrize(
    "text",
    [
        "", "I would call add(a=3) and then stop.", "f(x) = 2x + 1", "The sum (3 + 4) is 7.",
        "<answer>7</answer>", "no call at all {}",
    ],
)  # fmt: skip
def test_words_are_no_calls(text: str) -> None:
    assert calls_in(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call></tool_call>",
        '<tool_call>{"name": "add"',
        "<tool_call>{'name': 'add'}</tool_call>",
        "<tool_call>[1]</tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": 3}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {}, "parameters": {}}</tool_call>',
        '<tool_call>{"name": "add", "name": "rm", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": 1e999}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": ' + "9" * 5000 + "}}</tool_call>",
        '<tool_call>{"name": "add"} and more</tool_call>',
        "{" * 5000,
        '{"name": ' + "[" * 4000,
        '{"name": "add", "parameters": {"a": 1}',
        "[{" * 3000,
        "add(" + "(" * 3000 + ")" * 3000 + ")",
        "add(a=" + "-" * 3000 + "1)",
        "add(a=" + "not " * 1900 + "1)",
        "add(a=" + "1+" * 3000 + "1)",
        "add(a=1e999)",
        "add(a=" + "9" * 5000 + ")",
        "add(a=__import__('os').system('true'))",
        "add(a=open)",
        "add(a=lambda: 1)",
        "add(a=[x for x in range(9)])",
        "add(a=f'{1}')",
        "add(a=b'x')",
        "add(a={1, 2})",
        "add(a=1j)",
        "add(**{'a': 1})",
        "add(*[1])",
        "add(a=1, a=2)",
        "add(a=1, b)",
        "add(a=)",
        "add(a=1)(2)",
        "x" * 19_000 + "<tool_call>" * 90,
        "add(a='" + "x" * MAX_CALL + "')",
        "add(a=1)" + " " * 30_000,
        "<tool_call>" * 1800,
        "add(a='\x00')",
    ],
)
def test_a_malformed_call_is_named_at_once_and_nothing_is_run(text: str) -> None:
    started = time.process_time()
    found = calls_in(text)
    assert time.process_time() - started < 0.5
    assert found and all(isinstance(one, Malformed) for one in found), found[:2]
    assert all(0 < len(one.reason) < 200 and "\n" not in one.reason for one in found)  # type: ignore[union-attr]


# -- answers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>7</answer>", "7"), ("So it is <answer> 7 </answer>.", "7"),
        ("<answer>7</answer> or <answer>8</answer>", "7 or 8"),
        ("<answer>7</answer><answer>7</answer>", "7"), ("=7", "7"), (" = 7 ", "7"),
        ("=7\n=8", None), ("7", None), ("<answer>7", None), ("", None),
    ],
)  # fmt: skip
def test_where_an_answer_stands(text: str, answer: str | None) -> None:
    assert answer_in(text) == answer


@pytest.mark.parametrize(
    ("said", "gold", "right"),
    [
        ("7", "7", True), ("7.0", "7", True), ("+7", "7", True), ("11.50", "11.5", True),
        ("1 or 2 or 7", "7", False), ("7, 8", "7", False), ("7 8", "7", False), ("7e0", "7", False),
        ("14/2", "7", False), ("3+4", "7", False), ("seven", "7", False), ("\u0667", "7", False),
        ("7" * 400, "7", False), ("", "7", False), ("Paris", "paris", True),
        (' "Paris." ', "paris", True), ("Paris or Rome", "paris", False),
        ("not Paris", "paris", False), ("Par is", "paris", False), ("", "", False),
    ],
)  # fmt: skip
def test_answers_are_compared_strictly(said: str, gold: str, right: bool) -> None:
    assert same_answer(said, [gold]) is right
