"""What a dry run shows of settings and of first prompts."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from mrlm.cli.plan import _counts
from mrlm.config import ExperimentConfig, parse_config
from mrlm.core.tiny_model import default_model
from mrlm.core.types import Message, Reward, StepResult
from mrlm.environments.relay import RelayEnvironment
from mrlm.experiment import dry_run, run_experiment
from mrlm.learn import joint_update
from mrlm.planning.devices import find_device
from mrlm.planning.timing import Share, learned_tokens

CONFIG: dict[str, Any] = {
    "training": {"algorithm": "magrpo", "num_iterations": 2, "batch_size": 2},
    "environments": [{"env_type": "relay"}],
    "policies": {"one": {}, "two": {"trainable": False}},
    "agents": {"first": {"policy": "one"}, "second": {"policy": "two", "system_prompt": "Add."}},
    "generation": {"max_new_tokens": 8},
}


def shown(colour: bool = False, **changes: Any) -> str:
    text, problems = dry_run(ExperimentConfig(**{**CONFIG, **changes}), colour)
    assert not problems, problems
    return text


def test_what_is_set_is_apart_from_defaults_and_is_the_same_config() -> None:
    text = shown()
    own, _, rest = text.partition("# defaults that matter\n")
    assert own.startswith("# set by you\n") and "lr_scheduler_type" not in own
    comments = [line for line in rest.splitlines() if line.startswith("#")]
    assert any("lr_scheduler_type: constant" in line for line in comments)
    assert any("magrpo: " in line and "group_size: " in line for line in comments)
    assert max(map(len, comments)) <= 98
    assert not any("opponents" in line for line in comments)
    assert "learning_rate: null" not in rest
    config = parse_config(yaml.safe_load(own), [], "the output")
    assert config.resolved() == ExperimentConfig(**CONFIG).resolved()


def test_defaults_that_are_off_are_left_out() -> None:
    def names(text: str) -> str:
        return "".join(line for line in text.splitlines() if line.startswith("#   "))

    base = {"training": {"algorithm": "grpo", "num_iterations": 2, "batch_size": 2}}
    assert "max_refills" not in names(shown(**base))
    assert "max_refills: 10" in names(shown(**base, grpo={"dynamic_sampling": True}))


def test_every_agent_has_a_prompt_and_trained_tokens_are_marked() -> None:
    text = shown()
    start = text.index("first prompts")
    lines = [line.strip() for line in text[start:].splitlines()]
    assert "between ⟦ ⟧" in lines[0]
    first, second = lines.index("first:"), lines.index("second (not trained):")
    assert any("⟦...<|im_end|>⟧" in line for line in lines[first:second])
    own = "\n".join(lines[second:])
    assert "Add." in own and "⟦" not in own and "...+" in own, "it reads the first one's answer"
    coloured = shown(colour=True)
    assert "\x1b[1;32m...<|im_end|>\x1b[0m" in coloured and "⟦" not in coloured


def test_a_row_is_shown_with_its_answer(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    row = {"prompt": "Say \x1b[2J" + "x" * 3000, "completion": "yes"}
    file.write_text(json.dumps(row) + "\n")
    config = {"training": {"algorithm": "sft", "num_iterations": 1, "batch_size": 1}}
    text, problems = dry_run(
        ExperimentConfig(
            **config, data={"dataset": str(file)}, model={"model_name_or_path": default_model()}
        )
    )
    assert not problems and "⟦yes<|im_end|>" in text
    assert "\x1b" not in text and "characters ...]" in text


def test_a_prompt_that_cannot_be_known_is_explained() -> None:
    text = shown(model={"model_name_or_path": "nobody/no-such-model"})
    assert "first prompt: not shown, " in text and "nobody/no-such-model" in text
    endpoint = {"endpoint": {"base_url": "http://127.0.0.1:9/v1", "model": "m"}}
    text = shown(policies={"one": {}, "two": endpoint | {"trainable": False}})
    assert "not shown, an agent's policy is behind an API" in text


def test_the_formula_of_memory_is_explained_once() -> None:
    stages = [{"name": name, "training": {"num_iterations": 1}} for name in ("one", "two")]
    text = shown(stages=stages)
    assert text.count("peak memory") == 2
    assert text.count("note: memory = ") == 1
    assert text.splitlines()[-1].startswith("note: memory = ")


@pytest.mark.parametrize("terms", [1, 2])
def test_the_tokens_of_a_pass_are_those_that_training_packs(
    terms: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Siblings share the prompt of the agent that is asked first, and not that of one that reads
    its answer."""
    settings: dict[str, Any] = {
        "environments": [{"env_type": "relay", "style": "question", "terms": [terms, 1]}],
        "policies": {"first": {"lora": {"r": 2}}, "second": {"lora": {"r": 2}}},
        "training": {"algorithm": "magrpo", "batch_size": 4, "num_iterations": 1},
        "magrpo": {"group_size": 4},
        "generation": {"max_new_tokens": 8, "temperature": 3.0},
        "evaluation": {"episodes": 0},
        "output_dir": str(tmp_path / "run"),
    }
    config = ExperimentConfig(**settings)
    packed: list[int] = []
    through, step = joint_update._through, RelayEnvironment.step

    def varied(self: RelayEnvironment, actions: dict[str, Message]) -> StepResult:
        result = step(self, actions)
        value = sum(map(ord, "".join(each.content for each in actions.values()))) % 97 / 97
        rewards = {agent: Reward(value) for agent in result.rewards}
        return replace(result, rewards=rewards)

    def counting(works: Any, passes: Any) -> Any:
        packed.append(sum(len(work.batch.tree.ids) for work in works))
        return through(works, passes)

    monkeypatch.setattr(joint_update, "_through", counting)
    monkeypatch.setattr(RelayEnvironment, "step", varied)
    run_experiment(config)
    unset = (None, None, 0.0), (None, None, None, None)
    counts, lengths, _ = _counts(config, find_device("cpu"), None, *unset)
    everything = Share(find_device("cpu"), counts.tasks, counts, lengths)
    planned = sum(learned_tokens(everything, each)[0] for each in counts.weights)
    assert planned == pytest.approx(sum(packed), rel=0.2)
