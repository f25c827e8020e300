"""Rows of a data set as episodes: whose words are trained, what others' words look like, and what
does not fit."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from mrlm import default_model, load_config
from mrlm.algorithms.sft import SFT
from mrlm.core.chat import Chat
from mrlm.core.errors import ConfigError
from mrlm.core.types import SamplingParams
from mrlm.experiment import dry_run, run_experiment
from mrlm.learn.bases.preference import row_pairs
from mrlm.play.agent import AgentSettings
from mrlm.play.sources.rows import Grouping, RowSource
from places import ROOT

TEMPLATE = """\
{%- for message in messages -%}
{{- '[' + message['role'] + ']' -}}
{%- if message['role'] == 'assistant' -%}
{%- generation -%}{{- message['content'] + '<|im_end|>' -}}{%- endgeneration -%}
{%- else -%}{{- message['content'] -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '[assistant]' -}}{%- endif -%}
"""


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(default_model())


def seat(
    tokenizer: Any, name: str, policy: str = "p", template: str | None = None, **more: Any
) -> AgentSettings:
    chat = Chat(tokenizer)
    chat.template = template or chat.template
    return AgentSettings(
        name, policy, chat, SamplingParams(max_new_tokens=8), **{"max_prompt_tokens": 90} | more
    )


def rows(data: Any, *seats: AgentSettings, **more: Any) -> RowSource:
    return RowSource([data], Grouping({each.name: each for each in seats}, **more), seed=0)


def told(tokenizer: Any, ids: Any) -> str:
    return tokenizer.decode(list(ids))


TALK = {
    "messages": [
        {"role": "user", "content": "2+3?"},
        {"role": "assistant", "agent": "one", "content": "4"},
        {"role": "assistant", "agent": "two", "content": "no, 5"},
        {"role": "assistant", "agent": "one", "content": "yes"},
    ]
}


@pytest.mark.parametrize("policies", [("p", "p"), ("p", "q")])
def test_each_agent_of_a_transcript_is_trained_on_its_own_words(
    tokenizer: Any, policies: tuple[str, str]
) -> None:
    """The others' are read as a user's, rendered with the agent's own template."""
    one = seat(tokenizer, "one", policies[0])
    two = seat(tokenizer, "two", policies[1], TEMPLATE, system_prompt="Hm.")
    group = rows(TALK, one, two).group(0)
    (episode,) = group
    SFT().credit([group])
    said = {
        name: [told(tokenizer, turn.completion_ids) for turn in rollout.turns]
        for name, rollout in group.episodes[0].rollouts.items()
    }
    assert said == {"one": ["4<|im_end|>", "yes<|im_end|>"], "two": ["no, 5<|im_end|>"]}
    (turn,) = episode.rollouts["two"].turns
    assert told(tokenizer, turn.prompt_ids) == "[system]Hm.[user]2+3?[user]4[assistant]"
    last = told(tokenizer, episode.rollouts["one"].turns[1].prompt_ids)
    assert "user\nno, 5<|im_end|>" in last and "assistant\n4<|im_end|>" in last


def test_a_row_without_names_goes_to_one_agent_of_every_policy(tokenizer: Any) -> None:
    seats = [seat(tokenizer, name, policy) for name, policy in (("a", "p"), ("b", "p"), ("c", "q"))]
    seats.append(seat(tokenizer, "d", "r", trained=False))
    group = rows({"prompt": "2+3?", "completion": "5"}, *seats).group(0)
    assert sorted(group.agents) == ["a", "c"]


def test_words_of_agents_that_are_not_trained_are_context(tokenizer: Any) -> None:
    frozen = seat(tokenizer, "two", "q", trained=False)
    group = rows(TALK, seat(tokenizer, "one"), frozen).group(0)
    assert group.agents == ["one"] and len(group.episodes[0].rollouts["one"].turns) == 2


# -- what does not fit -----------------------------------------------------------------------------

LONG = {"prompt": "x" * 120 + "?", "chosen": "yes", "rejected": "never"}


def test_a_row_that_is_too_long_is_named(tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match=r"row 1: \d+ tokens.*98 at most.*on_long_row=truncate"):
        rows(LONG, seat(tokenizer, "a"))


def test_prompts_are_cut_and_answers_never(tokenizer: Any) -> None:
    """Both sides lose the same tokens, so that they still begin alike."""
    whole = rows(LONG, seat(tokenizer, "a", max_prompt_tokens=500)).group(0)
    cut = rows(LONG, seat(tokenizer, "a"), on_long_row="truncate").group(0)
    for before, after in zip(whole, cut, strict=True):
        (old,), (new,) = before.rollouts["a"].turns, after.rollouts["a"].turns
        assert new.completion_ids == old.completion_ids and len(new.prompt_ids) <= 90
        assert old.prompt_ids[-len(new.prompt_ids) :] == new.prompt_ids
        assert len(new.prompt_ids) + len(new) <= 98
    (pair,) = row_pairs(cut)
    assert pair.chosen[0].prompt_ids == pair.rejected[0].prompt_ids


def test_later_turns_of_a_conversation_that_was_cut_still_continue_it(tokenizer: Any) -> None:
    said = [("user", "x" * 60), ("assistant", "a"), ("user", "?"), ("assistant", "b")]
    row = {"messages": [{"role": role, "content": content} for role, content in said]}
    (episode,) = rows(row, seat(tokenizer, "a"), on_long_row="truncate").group(0)
    first, second = episode.rollouts["a"].turns
    known = [*first.prompt_ids, *first.completion_ids]
    assert second.prompt_ids[: len(known)] == known
    assert len(second.prompt_ids) + len(second) == 98


def test_an_answer_that_does_not_fit_is_refused(tokenizer: Any) -> None:
    row = {"prompt": "?", "completion": "y" * 150}
    with pytest.raises(ConfigError, match="cutting the prompt is not enough; shorten the answer"):
        rows(row, seat(tokenizer, "a"), on_long_row="truncate")


def test_what_fits_is_left_alone(tokenizer: Any) -> None:
    row = {"prompt": "?", "chosen": "yes", "rejected": "no"}
    plain = rows(row, seat(tokenizer, "a")).group(0)
    found = rows(row, seat(tokenizer, "a"), on_long_row="truncate").group(0)
    assert [t.prompt_ids for e in plain for t in e.turns] == [
        t.prompt_ids for e in found for t in e.turns
    ]


# -- self-play on a file of questions and answers --------------------------------------------------


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "gsm8k.jsonl"
    lines = [
        f'{{"question": "Ann has {i} apples and buys {i}. How many?", "answer": "#### {2 * i}"}}\n'
        for i in range(6)
    ]
    file.write_text("".join(lines))
    return file


def test_the_preset_of_self_play_dry_runs(questions: Path) -> None:
    config = load_config(ROOT / "configs" / "spin_gsm8k.yaml", [f"data.dataset={questions}"])
    text, problems = dry_run(config)
    assert "each round begins with one completion of every row" in text
    assert not problems and "4 iterations" in text and "use_previous: true" in text


@pytest.mark.slow
def test_the_preset_of_self_play_trains(questions: Path, tmp_path: Path) -> None:
    changes = [
        f"data.dataset={questions}", f"output_dir={tmp_path / 'run'}", "training.num_iterations=3",
        "training.batch_size=8", "generation.max_new_tokens=8", "training.report_to=none",
    ]  # fmt: skip
    history = run_experiment(load_config(ROOT / "configs" / "spin_gsm8k.yaml", changes)).history
    assert history[0]["loss"] == pytest.approx(0.693147, abs=1e-3)  # it computes in bf16


@pytest.mark.slow
def test_the_script_of_self_play_passes_on_what_it_is_given(
    questions: Path, tmp_path: Path
) -> None:
    script = ROOT / "scripts" / "run_spin.sh"
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(script), *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
        )

    done = call(str(questions), default_model(), "spin.beta=0.3", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "beta: 0.3" in done.stdout and f"model_name_or_path: {default_model()}" in done.stdout
    done = call(str(questions), "--dry-run")
    assert done.returncode == 0 and "model_name_or_path: mrlm/tiny" in done.stdout
    assert call().returncode == 2
