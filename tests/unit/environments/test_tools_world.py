"""The tool world pays for right answers and for the tools they need, once; and nothing that only
looks like it. What a tool said is context and is never trained on."""

import asyncio
import copy
import json
import os
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mrlm.core.errors import ConfigError, EpisodeError
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, Role, StepResult, Task
from mrlm.environments.tools import (
    ToolRegistry,
    ToolTaskGenerator,
    ToolUseEnvironment,
    create_default_tool_registry,
)
from mrlm.environments.tools.generator import KINDS
from mrlm.sandbox.types import SandboxError
from places import ROOT

LOOK = '<tool_call>{"name": "look", "arguments": {"key": "x"}}</tool_call>'
SUM = '<tool_call>{"name": "total", "arguments": {"numbers": [1, 2]}}</tool_call>'


def look(key: str) -> str:
    """Look something up.

    Args:
        key: what
    """
    if key == "broken":
        raise ValueError("no such key")
    return f"{key} is 7"


def total(numbers: list[int]) -> int:
    """Add numbers."""
    return sum(numbers)


def world(required: Any = ("look",), **kwargs: Any) -> ToolUseEnvironment:
    rows = [{"prompt": "What is x?", "answer": "7", "required": required}]
    if required is None:
        del rows[0]["required"]
    made = ToolUseEnvironment(
        ToolRegistry([look, total]), rows, kwargs.pop("max_turns", 5), **kwargs
    )
    made.reset(made.task(0))
    return made


def said(made: ToolUseEnvironment, text: str) -> StepResult:
    return run_async(made.step({"agent": Message(text, Role.ASSISTANT)}))


def paid(made: ToolUseEnvironment, *texts: str) -> list[float]:
    return [pytest.approx(said(made, text).rewards["agent"].value) for text in texts]


def shown(result: StepResult) -> list[str]:
    return [message.content for message in result.observations["agent"].messages]


# -- rewards ---------------------------------------------------------------------------------------


def test_the_table_of_rewards() -> None:
    assert paid(world(), LOOK, "<answer>7</answer>") == [0.3, 0.5 + 0.3 + 0.2 * (1 - 2 / 5)]
    assert paid(world(), "<answer>7</answer>") == [0.5 + 0.2 * (1 - 1 / 5)]  # no tool, no coverage
    assert paid(world(), LOOK, "<answer>8</answer>") == [0.3, 0.0]
    assert paid(world(), SUM, "<answer>7</answer>") == [-0.1, 0.5 + 0.2 * (1 - 2 / 5)]
    assert paid(world(), "rm(path='x')", "hello", "<tool_call>{") == [-0.2, -0.1, -0.1]
    assert paid(world(("look", "total")), LOOK, "<answer>7</answer>") == [
        0.3,
        0.5 + 0.3 / 2 + 0.2 * (1 - 2 / 5),
    ]
    last = world(max_turns=2)
    assert paid(last, LOOK, "<answer>7</answer>") == [0.3, 0.8]


def test_a_required_tool_pays_once_and_only_when_it_worked() -> None:
    made = world()
    assert paid(made, LOOK, LOOK + LOOK, "look(key='y')") == [0.3, 0.0, 0.0]
    assert paid(world(), "look(key='broken')", "look(key='x')") == [0.0, 0.3]
    assert paid(world(), "look()", "look(key=3)", "look(wrong='x')") == [-0.1, -0.1, -0.1]
    four = world()
    assert paid(four, LOOK * 4) == [0.3]


def test_tool_pay_never_exceeds_the_pay_of_a_right_answer() -> None:
    names = [f"tool_{i}" for i in range(6)]

    def made_of(name: str) -> Callable[..., str]:
        def tool() -> str:
            """Nothing."""
            return "done"

        tool.__name__ = name
        return tool

    tools = ToolRegistry(made_of(name) for name in names)
    for count in range(1, 7):
        rows = [{"prompt": "?", "answer": "7", "required": names[:count]}]
        greedy = ToolUseEnvironment(tools, rows, 9, max_calls=6)
        greedy.reset(greedy.task(0))
        earned = (
            said(greedy, "\n".join(f"{name}()" for name in names[:count])).rewards["agent"].value
        )
        right = said(greedy, "<answer>7</answer>").rewards["agent"].value
        assert earned == pytest.approx(min(0.3 * count, 0.8)) and earned <= right
        few = ToolUseEnvironment(tools, rows, 3)  # the right answer in the last turn pays least
        few.reset(few.task(0))
        earned = sum(said(few, f"{name}()").rewards["agent"].value for name in names[:2][:count])
        if count > 1:
            assert earned <= said(few, "<answer>7</answer>").rewards["agent"].value


def test_without_a_word_on_tools_none_is_paid_for_and_none_costs() -> None:
    assert paid(world(None), LOOK, SUM, "<answer>7</answer>") == [0.0, 0.0, 0.8 + 0.2 * (1 - 3 / 5)]
    assert paid(world([]), LOOK) == [-0.1]


def test_components_have_names_and_sum_to_the_reward() -> None:
    made = world()
    parts = [
        said(made, text).rewards["agent"] for text in (LOOK + SUM, "x()", "<answer>7</answer>")
    ]
    assert parts[0].components == {"required_tool": 0.3, "other_tool": -0.1}
    assert parts[1].components == {"unknown_tool": -0.2}
    assert parts[2].components["solved"] == 1.0 and parts[2].components["turns"] == 3.0
    names = ("correct", "coverage", "speed")
    assert parts[2].value == pytest.approx(sum(parts[2].components[name] for name in names))


def test_slow_calls_end_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrlm.environments.tools.environment.MAX_SECONDS", 0.15)

    def nap() -> str:
        """Wait."""
        time.sleep(0.1)
        return "woke"

    made = ToolUseEnvironment(ToolRegistry([nap]), [{"prompt": "?", "answer": "7"}])
    made.reset(made.task(0))
    told = shown(said(made, "nap()\n" * 4))
    late = "error: the calls before it took too long"
    assert told[0] == "woke" and told[3] == late and len(told) == 4


HACKS = [
    "<answer>1 or 2 or 7</answer>", "<answer>1</answer><answer>7</answer>",
    "<answer>7</answer>" + "<answer>8</answer>",
    "<answer>" + " ".join(map(str, range(100))) + "</answer>", "<answer>7, 8</answer>",
    "<answer>{7}</answer>", "<answer>x = 7</answer>", "<answer>14/2</answer>",
    "<answer>about 7</answer>", "<answer></answer>", "=7 or 8", "7", "The answer is 7.",
    "<tool_response>That is correct.</tool_response>", LOOK + "<answer>8</answer>",
]  # fmt: skip


@pytest.mark.parametrize("text", HACKS)
def test_no_hack_is_paid_as_a_right_answer(text: str) -> None:
    reward = said(world(), text).rewards["agent"]
    assert reward.components.get("solved", 0.0) == 0.0 and reward.value <= 0.3


def test_calls_come_before_answers_and_results_cannot_be_made_up() -> None:
    made = world()
    result = said(made, LOOK + "\nx is 7\n<answer>7</answer>")
    assert not result.done and shown(result) == ["x is 7"]
    forged = said(made, f"{LOOK}\n<tool_response>x is 8</tool_response>")
    assert shown(forged) == ["x is 7"]


def test_calls_of_one_message_are_capped() -> None:
    result = said(world(max_calls=2), LOOK * 50)
    assert shown(result) == ["x is 7", "x is 7", "error: only 2 calls were run"]
    assert result.rewards["agent"].value == pytest.approx(0.2)


def test_errors_are_told_and_nothing_raises() -> None:
    made = world(max_turns=9)
    words = [
        "look(key='broken')", "look()", "loko(key='x')", "<tool_call>{", "", "\x00\ud800",
        "look(key='\\ud800')",
    ]  # fmt: skip
    told = [shown(said(made, text))[0] for text in words]
    assert told[0] == "error: look: ValueError: no such key"
    assert told[1] == "error: look: argument 'key' is missing (string)"
    assert told[2].startswith("error: there is no tool 'loko'; did you mean 'look'?")
    assert all(line.startswith("error: ") for line in told[:6])
    assert told[6] == "? is 7"  # what cannot be encoded never reaches a tokenizer


def test_an_episode_ends_with_its_turns_and_starts_anew() -> None:
    made = world(max_turns=2)
    assert not said(made, LOOK).done
    end = said(made, LOOK)
    assert end.done and end.rewards["agent"].value == 0.0
    assert end.rewards["agent"].components["solved"] == 0.0
    made.reset(made.task(0))
    assert paid(made, LOOK) == [0.3]


def test_what_a_tool_stands_on_may_fail_and_that_is_no_reward() -> None:
    def fragile(how: str) -> str:
        """Fail."""
        raise {"sandbox": SandboxError, "server": EpisodeError}[how]("gone")

    rows = [{"prompt": "?", "answer": "7", "required": ["fragile"]}]
    made = ToolUseEnvironment(ToolRegistry([fragile]), rows)
    for how, kind in (("sandbox", SandboxError), ("server", EpisodeError)):
        made.reset(made.task(0))
        with pytest.raises(kind):
            said(made, f"fragile(how='{how}')")


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"max_turns": 0}, "max_turns"),
        ({"max_calls": 0}, "max_calls"),
        ({"timeout": 0}, "timeout"),
        ({"call_format": "xml"}, "call_format"),
        ({"tasks": "arithmetics"}, "did you mean 'arithmetic'"),
        ({"levels": [0, 1]}, "levels"),
        ({"levels": [1]}, "levels"),
        ({"tools": ["calculater"]}, "unknown group 'calculater'"),
        ({"tools": []}, "it is empty"),
        ({"registry": ToolRegistry(), "tools": ["files"]}, "either tools and search, or registry"),
        ({"mcp_servers": [{}]}, "either command or url"),
        ({"mcp_servers": [{"comand": ["x"]}]}, "unexpected keyword argument 'comand'"),
    ],
)
def test_impossible_arguments_are_named(kwargs: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ToolUseEnvironment(**kwargs)


def test_impossible_tasks_are_named() -> None:
    for row, says in (
        ({"prompt": "?", "answer": "7", "required": ["lok"]}, "did you mean 'look'"),
        ({"prompt": "?", "answer": "7", "required": [3]}, "names of tools"),
        ({"prompt": "?", "answer": "7", "files": {"a": "b"}}, "no tool reads files"),
    ):
        made = ToolUseEnvironment(ToolRegistry([look]), [row])
        with pytest.raises(ConfigError, match=says):
            made.reset(made.task(0))
    with pytest.raises(ConfigError, match="needs an answer"):
        ToolUseEnvironment(ToolRegistry([look]), [{"prompt": "?"}])
    made = ToolUseEnvironment(tasks=[{"prompt": "?", "answer": "7", "files": {"../a": "b"}}])
    with pytest.raises(ConfigError, match=r"file '\.\./a'"):
        made.reset(made.task(0))


# -- tasks -----------------------------------------------------------------------------------------


def expert_episode(made: ToolUseEnvironment, task: Task) -> tuple[float, list[str], bool]:
    made.reset(task)
    total_reward, transcript, done = 0.0, [m.content for m in task.prompt], False
    while not done:
        words = made.expert("agent", [])
        assert words is not None
        result = said(made, words)
        transcript += [words, *shown(result)]
        total_reward += result.rewards["agent"].value
        done = result.done
    solved = result.rewards["agent"].components["solved"] == 1.0
    return total_reward, transcript, solved


@pytest.mark.parametrize("kind", [*KINDS, "mixed"])
@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_the_expert_solves_every_task_with_the_tools_it_requires(kind: str, level: int) -> None:
    forms = ("tool_call", "json", "python", "short")
    for form in forms[level - 1 :] + forms[: level - 1]:
        made = ToolUseEnvironment(tasks=kind, levels=[level, level], call_format=form)  # type: ignore[arg-type]
        for seed in range(6):
            task = made.task(seed)
            reward, transcript, solved = expert_episode(made, task)
            required = len(task.info["required"])
            assert solved and reward > 0.8 + min(0.3 * required, 0.8), transcript
            assert not any(words.startswith("error") for words in transcript)
            results = transcript[len(task.prompt) : -2]
            assert any(task.answer in words for words in results)  # a tool has said it


def test_answers_are_not_in_the_question_and_splits_are_apart() -> None:
    for kind in KINDS:
        generator = ToolTaskGenerator(kind, (1, 4), seed=3)
        train = [generator.problem(i) for i in range(400)]
        held = [generator.problem(i, "eval") for i in range(100)]
        assert not {(p.question, p.answer) for p in train} & {(p.question, p.answer) for p in held}
        assert len({p.question for p in held}) > 5
        wrong = [p for p in train + held if re.search(rf"\b{p.answer}\b", p.question)]
        assert len(wrong) < 10, wrong[:3]  # a chain may come back to its first number
        assert generator.problem(7) == ToolTaskGenerator(kind, (1, 4), seed=3).problem(7)
        assert generator.problem(7) != ToolTaskGenerator(kind, (1, 4), seed=4).problem(7)
        assert {p.level for p in train} == {1, 2, 3, 4}


def test_the_prompt_says_what_a_model_must_know() -> None:
    task = ToolUseEnvironment(tasks="mixed").task(0)
    system = task.prompt[0].content
    assert task.prompt[0].role is Role.SYSTEM and task.answer not in system
    for words in ("calculate(expression: string)", "<tool_call>", "<answer>", "8 messages"):
        assert words in system
    assert len(ToolUseEnvironment(tasks="arithmetic", call_format="short").task(0).prompt) == 1


def folders() -> set[str]:
    import tempfile

    return {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("mrlm-files-")}


def test_nothing_is_left_of_an_episode(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = ToolUseEnvironment(tasks="files")
    for end in ("<answer>1</answer>", None):
        made.reset(made.task(1))
        assert len(folders()) == 1
        if end is None:
            made.close()
        else:
            said(made, end)
        assert not folders()


def test_the_default_registry_has_what_is_promised() -> None:
    registry = create_default_tool_registry()
    assert registry.names == (
        *("calculate", "search", "python"),
        *("read_file", "write_file", "list_files", "delete_file"),
    )
    assert all(tool.description and tool.parameters["type"] == "object" for tool in registry)


# -- training --------------------------------------------------------------------------------------


def episodes_of(tokenizer: Any, made: ToolUseEnvironment, script: Callable[[Any], str]) -> Any:
    from scripted_play import play

    source, _ = play(tokenizer, made, script, ("agent",))
    seat = source.settings_of["agent"]
    source.settings_of["agent"] = replace(seat, sampling=replace(seat.sampling, max_new_tokens=64))
    (group,) = run_async(source.take(1))
    return group.episodes


def test_tool_output_is_context_and_gets_no_gradient(model: Any, tokenizer: Any) -> None:
    from mrlm.learn.data.batch import merge
    from mrlm.learn.policy.policy import Policy
    from oracles import logit_gradient

    lines = ["look(key='x')", "<answer>7</answer>"]

    def script(request: Any) -> str:
        return lines[tokenizer.decode(request.prompt_ids).count("assistant") - 1]

    (episode, *_) = episodes_of(tokenizer, world(), script)
    assert episode.status == "done" and episode.metrics["agent/solved"] == 1.0
    turns = episode.turns
    assert [turn.reward for turn in turns] == pytest.approx([0.3, 0.92])
    (sample,) = merge(turns)
    policy = Policy("policy", model, tokenizer)
    norms = logit_gradient(policy, turns)
    trained = [i + 1 for i, norm in enumerate(norms.tolist()) if norm > 0]
    text = "".join(tokenizer.decode([sample.ids[i]]) for i in trained)
    assert text == "".join(f"{line}<|im_end|>" for line in lines)
    assert "x is 7" in tokenizer.decode(sample.ids) and "x is 7" not in text


def test_a_failed_tool_makes_an_episode_that_is_not_learned_from(tokenizer: Any) -> None:
    calls = []

    def sandboxed(code: str) -> str:
        """Run code."""
        calls.append(code)
        if len(calls) == 1:
            raise SandboxError("no space left")
        return "7"

    rows = [{"prompt": "?", "answer": "7", "required": ["sandboxed"]}]
    made = ToolUseEnvironment(ToolRegistry([sandboxed]), rows, 2)
    episodes = episodes_of(tokenizer, made, lambda request: "sandboxed(code='1')")
    failed = [episode for episode in episodes if episode.failed]
    assert len(failed) == 1 and "no space" in (failed[0].error or "")
    assert failed[0].step_rewards == []


def history_of(folder: Path, *changes: str) -> list[dict[str, Any]]:
    from mrlm.config import load_config
    from mrlm.experiment import run_experiment

    config = ROOT / "configs" / "tools.yaml"
    own = [f"output_dir={folder / 'run'}", "training.report_to=none", *changes]
    return run_experiment(load_config(config, own)).history


def of_stage(history: list[dict[str, Any]], stage: int, name: str) -> list[float]:
    return [row[name] for row in history if row["stage"] == stage and row.get(name) is not None]


@pytest.mark.slow
def test_the_config_runs_through_its_stages(tmp_path: Path) -> None:
    history = history_of(
        tmp_path,
        "evaluation.episodes=2",
        "stages.0.training.num_iterations=2",
        "stages.1.training.num_iterations=1",
        "stages.1.training.batch_size=2",
    )
    best = 0.3 + 0.5 + 0.3 + 0.2 / 3
    assert of_stage(history, 0, "data/reward/mean") == pytest.approx([best, best])  # the expert's
    assert not of_stage(history, 0, "reward/mean")
    assert of_stage(history, 1, "reward/mean")[0] < best


@pytest.mark.slow
def test_the_config_learns(tmp_path: Path) -> None:
    history = history_of(tmp_path)
    shown, practised = (of_stage(history, stage, "eval/reward/mean") for stage in (0, 1))
    sampled = of_stage(history, 1, "reward/mean")
    assert shown[-1] > shown[0] + 0.5 and practised[-1] >= practised[0]
    assert sum(sampled[-10:]) > sum(sampled[:10]) + 1.0


def test_two_worlds_at_once_in_one_loop(tokenizer: Any) -> None:
    made = ToolUseEnvironment(tasks="mixed", levels=[1, 4])

    async def one(seed: int) -> bool:
        each = made.spawn()
        each.reset(each.task(seed))
        while True:
            words = each.expert("agent", [])
            result = await each.step({"agent": Message(words or "")})
            if result.done:
                return result.rewards["agent"].components["solved"] == 1.0

    async def all_of_them() -> list[bool]:
        return await asyncio.gather(*(one(seed) for seed in range(30)))

    assert asyncio.run(all_of_them()) == [True] * 30


# -- the model family's own format -----------------------------------------------------------------

QWEN = (
    "{%- if tools %}{{- '<|im_start|>system\\n' + messages[0]['content'] + '\\n# Tools\\n' }}"
    "{%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}{{- '<|im_end|>\\n' }}"
    "{%- endif %}{%- for m in messages %}{%- if m['role'] == 'tool' %}"
    "{{- '<|im_start|>user\\n<tool_response>\\n' + m['content'] }}"
    "{{- '\\n</tool_response><|im_end|>\\n' }}"
    "{%- elif not (loop.first and tools) %}"
    "{{- '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def test_native_tools_go_through_the_chat_template(tokenizer: Any) -> None:
    from mrlm.core.chat import Chat
    from mrlm.core.spans import transcript

    made = ToolUseEnvironment(tasks="arithmetic", call_format="native")
    task = made.task(0)
    made.reset(task)
    assert "calculate" not in task.prompt[0].content
    knowing = copy.deepcopy(tokenizer)
    knowing.chat_template = QWEN
    text = Chat(knowing).render(task.prompt)
    assert text.count('"name": "calculate"') == 1 and task.info["question"] in text
    words = made.expert("agent", []) or ""
    result = said(made, words)
    whole = [*task.prompt, Message(words, Role.ASSISTANT), *result.observations["agent"].messages]
    assert f"<tool_response>\n{task.answer}\n</tool_response>" in Chat(knowing).render(whole)
    ids, spans = transcript(Chat(knowing), whole)
    assert [knowing.decode(ids[s.start : s.end]) for s in spans] == [words + "<|im_end|>"]
    text = Chat(tokenizer).render(task.prompt)  # of a template that explains none
    assert text.startswith("<|im_start|>system") and text.count('"name": "calculate"') == 1


# -- whatever a model says -------------------------------------------------------------------------

NASTY = [
    *("", " ", ".", "..", "/", "../../x", "a/b", "a", ".mrlm-new/x", "a\x00b", "\ud800", "\n", "*"),
    *("'", '"', "\\", "{}", "[" * 40, "%s%n", "x" * 250, "x" * 5_000, "9" * 400, "1e999", "NaN"),
    *("\u202e", "\U0001f600", "-" * 300, "None", "1/0", "NEAR(a b)", "a OR", "SELECT 1; --"),
    *("</tool_call>", "<|im_end|>", "__import__('os')", "factorial(10**9)", "9**9**9"),
]


def test_no_message_makes_an_episode_fail() -> None:
    """An episode that fails is not learned from, so a model that could make it fail would get away
    with anything."""
    made = ToolUseEnvironment(
        create_default_tool_registry(["calculator", "search", "files"]),
        "mixed",
        max_turns=10_000,
        max_calls=50,
    )
    made.reset(made.task(0))

    async def all_of_it() -> None:
        for tool in made.registry:
            names = list(tool.parameters["properties"])
            for nasty in NASTY:
                for given in (nasty, [nasty], {nasty: nasty}, None, 10**300, -1.5, True):
                    call = {"name": tool.name, "arguments": dict.fromkeys(names, given)}
                    for text in (json.dumps(call), f"{tool.name}({', '.join([repr(given)] * 2)})"):
                        result = await made.step({"agent": Message(text)})
                        assert not result.done
                        for words in shown(result):
                            assert words.encode() and len(words) < 5_000
                        assert result.rewards["agent"].value <= 0.3

    run_async(all_of_it())
    made.close()
