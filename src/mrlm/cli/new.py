"""`mrlm new`: writes a plug-in with the smallest config that trains with it. The texts are the
examples of CONTRIBUTING.md."""

from __future__ import annotations

import importlib.util
import keyword
import re
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer

Kind = Literal["algorithm", "environment", "workflow"]


class Example(NamedTuple):
    """A plug-in of one file, and a config that trains with it.

    Args:
        name: of the file; its class has the same name in camel case.
        code: the file.
        config: YAML.
    """

    name: str
    code: str
    config: str


EXAMPLES: dict[Kind, Example] = {
    "algorithm": Example(
        "ranked",
        '''\
"""Ranked: an answer counts by its rank among its siblings, so that no outlier moves the others.

- **Kind** one agent, or independent agents
- **Formula** `A` is the share of siblings that an answer beats, less the share that beats it.
- **Use it** where a few rewards are far larger than the others.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from mrlm.core.episodes import Group
from mrlm.learn.bases.algorithm import STRICT
from mrlm.learn.bases.policy_gradient import PolicyGradient
from mrlm.learn.bases.spec import SamplingPlan, Spec
from mrlm.learn.credit.groups import assign, members


@dataclass(kw_only=True, config=STRICT)
class Ranked(PolicyGradient):
    """The advantage is the share of siblings that an answer beats, less the share that beats it.

    Args:
        group_size: answers to each task.
        sharpness: factor of the advantages.
    """

    group_size: int = Field(default=8, ge=2)
    sharpness: float = Field(default=1.0, gt=0)

    @property
    def spec(self) -> Spec:
        return replace(super().spec, sampling=SamplingPlan(siblings=True))

    def credit_group(self, group: Group) -> None:
        for found in members(group).values():
            rewards = np.array([rollout.reward for _, rollout in found])
            places = np.sign(rewards[:, None] - rewards).sum(1) / max(1, len(rewards) - 1)
            for (_, rollout), place in zip(found, places, strict=True):
                assign(rollout, self.sharpness * float(place))


PLUGIN = Ranked
''',
        """\
environments: [{env_type: matrix, game: xor, normalized: true}]
training: {algorithm: "ranked:Ranked", num_iterations: 1, batch_size: 2}
algorithm: {group_size: 4}
generation: {max_new_tokens: 1}
output_dir: outputs/ranked
""",
    ),
    "environment": Example(
        "echo",
        '''\
"""Echo: one agent, rewarded for repeating the word it was shown."""

from __future__ import annotations

import random

from mrlm.core.environment import SimulatedEnvironment
from mrlm.core.types import Message, Observation, Reward


class Echo(SimulatedEnvironment):
    """Show a word; the reward is 1.0 if it comes back.

    Args:
        words: the words to show.
    """

    reward_range = (0.0, 1.0)

    def __init__(self, words: tuple[str, ...] = ("red", "blue")) -> None:
        self.words = words
        self.word = words[0]

    def reset(self, *, seed: int | None = None) -> Observation:
        """Choose a word; everything follows from the seed."""
        self.word = random.Random(seed).choice(self.words)
        return Observation([Message(self.word)])

    def step(self, action: Message) -> tuple[Observation, Reward]:
        """One answer, and the episode is over."""
        return Observation(done=True), Reward(float(action.content.strip() == self.word))


PLUGIN = Echo
''',
        """\
environments: [{env_type: "echo:Echo"}]
training: {algorithm: grpo, num_iterations: 1, batch_size: 2}
grpo: {group_size: 4}
generation: {max_new_tokens: 4}
output_dir: outputs/echo
""",
    ),
    "workflow": Example(
        "second_look",
        '''\
"""Second look: one agent drafts, and every further one reads the drafts and answers again."""

from __future__ import annotations

from dataclasses import dataclass

from mrlm.core.types import Message, Task
from mrlm.play.agent import Agents
from mrlm.play.episode_runner import EpisodeRunner
from mrlm.play.workflow import Workflow, WorkflowSpec


@dataclass
class SecondLook(Workflow):
    """Agents answer one after the other; the last answer goes to the environment, and its reward to
    all of them.

    Args:
        ask: the request after each draft.
    """

    ask: str = "Answer again."

    spec = WorkflowSpec(one_seat=True)

    async def __call__(self, task: Task, agents: Agents, env: EpisodeRunner) -> None:
        result = await env.reset()
        (shown,) = result.observations.values()
        seen = list(shown.messages)
        for agent in agents.values():
            answer = await agent.act(seen)
            seen.append(Message(f"{agent.name}: {answer.content}\\n{self.ask}"))
        await env.finish({agent.name: answer}, share="team")


PLUGIN = SecondLook
''',
        """\
environments: [{env_type: math, difficulty_range: [1, 1]}]
workflow: {name: "second_look:SecondLook"}
agents: {writer: {policy: one}, reviewer: {policy: one}}
policies: {one: {}}
training: {algorithm: grpo, num_iterations: 1, batch_size: 2}
grpo: {group_size: 4}
generation: {max_new_tokens: 4}
output_dir: outputs/second_look
""",
    ),
}


def class_of(name: str) -> str:
    """The class name of a plug-in."""
    return "".join(part.capitalize() for part in name.split("_"))


def written(kind: Kind, name: str) -> dict[str, str]:
    """File -> text of a new plug-in and its config.

    Raises:
        ConfigError: the name is not a module name, or an installed module has it.
    """
    from mrlm.core.errors import ConfigError

    if not name.isidentifier() or keyword.iskeyword(name) or name != name.lower():
        raise ConfigError(
            f"NAME={name!r} is not a module name; use lower-case letters, digits and _, such as "
            f"my_{kind}"
        )
    if importlib.util.find_spec(name) is not None:
        raise ConfigError(
            f"NAME={name!r}: an installed module has this name; choose another, such as my_{name}"
        )
    example = EXAMPLES[kind]
    known, own = ((_title(each), class_of(each), each) for each in (example.name, name))
    words = dict(zip(known, own, strict=True))

    def renamed(text: str) -> str:
        return re.sub("|".join(known), lambda found: words[found[0]], text)

    return {f"{name}.py": renamed(example.code), f"{name}.yaml": renamed(example.config)}


def _title(name: str) -> str:
    """The first line of its file."""
    return f'"""{name.replace("_", " ").capitalize()}:'


def new(
    kind: Annotated[Kind, typer.Argument(help="The kind of plug-in.")],
    name: Annotated[str, typer.Argument(help="Its name, and that of its file.")],
) -> None:
    """Write NAME.py, a plug-in to begin with, and NAME.yaml, which trains with it."""
    from mrlm.core.errors import ConfigError

    for file in (f"{name}.py", f"{name}.yaml"):
        if Path(file).exists():
            raise ConfigError(f"{file} exists already; choose another name, or move it away")
    files = written(kind, name)
    for file, text in files.items():
        Path(file).write_text(text, encoding="utf-8")
    config = f"mrlm train --config {name}.yaml"
    print(f"wrote {' and '.join(files)}; next:\n  {config} --dry-run\n  {config}")
