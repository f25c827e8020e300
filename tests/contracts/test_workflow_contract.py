"""The contract of a workflow: a class with typed capabilities, and one place that wraps a plain
function, wherever a user gives one."""

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import mrlm
from commands import Mrlm
from mrlm import GRPOTrainer, SimulatedEnvironment, Workflow, WorkflowSpec, check_workflow
from mrlm.core import registry
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Observation, Reward
from mrlm.play import workflow as contract
from mrlm.play.workflow import FunctionWorkflow, as_workflow


class Word(SimulatedEnvironment):
    """One word, one answer."""

    def reset(self, *, seed: int | None = None) -> Observation:
        return Observation([Message(f"go {seed}")])

    def step(self, action: Message) -> tuple[Observation, Reward]:
        return Observation(done=True), Reward(float(len(action.content)))


async def answer(task: Any, agents: Any, env: Any) -> Any:
    result = await env.reset()
    ((name, seen),) = result.observations.items()
    return await env.finish({name: await agents[name].act(seen.messages)})


class Plain:
    """A class of a user's own that is no `Workflow`."""

    async def __call__(self, task: Any, agents: Any, env: Any) -> None:
        await answer(task, agents, env)


@dataclass
class Limited(Plain):
    max_turns: int = 1


@dataclass
class Own(Workflow):
    times: int = 2

    spec = WorkflowSpec(repeats=True)

    async def __call__(self, task: Any, agents: Any, env: Any) -> None:
        for _ in range(self.times):
            await answer(task, agents, env)


def test_a_class_has_few_names_to_override_and_types_for_all() -> None:
    own = {name for name in vars(Workflow) if not name.startswith("_")} | {"__call__"}
    assert len(own) <= 10, sorted(own)
    names = {
        node.id
        for node in ast.walk(ast.parse(Path(contract.__file__).read_text(encoding="utf-8")))
        if isinstance(node, ast.Name)
    }
    assert "Any" not in names
    for name in own - {"spec", "agents", "max_turns"}:
        member = inspect.getattr_static(Workflow, name)
        function = member.fget if isinstance(member, property) else member
        assert "return" in function.__annotations__, name


@pytest.mark.parametrize("name", registry.names("workflows"))
def test_every_plug_in_is_a_workflow(name: str) -> None:
    plugin = registry.load("workflows", name)
    assert issubclass(plugin, Workflow) and isinstance(plugin.spec, WorkflowSpec)
    made = plugin()
    assert as_workflow(made) is made
    assert made.spec.forks == (made.spec.branches > 1)


@pytest.mark.parametrize("given", [answer, Plain, Plain()])
def test_a_plain_function_is_wrapped_with_the_capabilities_of_none(given: Any) -> None:
    made = as_workflow(given)
    assert isinstance(made, FunctionWorkflow) and made.spec == WorkflowSpec()
    assert (made.agents, made.max_turns, made.completions(2, 3)) == ((), None, None)
    assert made.label == ("answer" if given is answer else "Plain")
    check_workflow(given, Word)


@pytest.mark.parametrize("command", ["train", "plan"])
def test_settings_of_a_plain_function_are_refused(command: str, run: Mrlm, tmp_path: Path) -> None:
    name = f"{__name__}:answer"
    config = {
        "environments": [{"env_type": "relay"}],
        "training": {"algorithm": "grpo"},
        "output_dir": str(tmp_path / "run"),
    }
    for workflow in ({"name": name}, {"name": name, "times": 3}):
        (tmp_path / "own.yaml").write_text(yaml.safe_dump({**config, "workflow": workflow}))
        dry = ["--dry-run"] if command == "train" else []
        done = run(command, "--config", tmp_path / "own.yaml", *dry)
        assert (done.code == 2) == ("times" in workflow), done.err
        assert ("workflow.times" in done.err) == ("times" in workflow)


def test_a_class_is_made_with_its_settings() -> None:
    made = as_workflow(Own, {"times": 3})
    assert made == Own(3) and made.spec.repeats
    check_workflow(Own(1), Word)


@pytest.mark.parametrize(
    "give",
    [
        as_workflow,
        lambda given: check_workflow(given, Word),
        lambda given: GRPOTrainer("mrlm/tiny", Word, workflow=given),
    ],
)
def test_what_only_a_workflow_declares_is_never_ignored(give: Callable[[Any], object]) -> None:
    with pytest.raises(ConfigError, match=r"max_turns would be ignored.*\(mrlm\.Workflow\)"):
        give(Limited())
    with pytest.raises(ConfigError, match="3 is not a workflow: write `async def my_workflow"):
        give(3)


def test_a_path_in_a_config_is_wrapped_as_well() -> None:
    given = {"env_type": "test_workflow_contract:Word"}

    def trainer(name: str) -> GRPOTrainer:
        config = mrlm.ExperimentConfig.model_validate(
            {"environments": [given], "workflow": {"name": f"test_workflow_contract:{name}"}}
        )
        return GRPOTrainer("mrlm/tiny", config=config, report_to="none", num_iterations=1)

    with pytest.raises(ConfigError, match="max_turns would be ignored"):
        trainer("Limited").train()
    with pytest.raises(ConfigError, match="does not call it; use the workflow turns"):
        own = {"external_transition": lambda prompt: [prompt], "num_turns": 2}
        GRPOTrainer("mrlm/tiny", Word, workflow=answer, **own).train()
