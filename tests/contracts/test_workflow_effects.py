"""Every setting of every workflow changes what agents are asked, or what they are paid; a setting
without a case fails."""

from typing import Any

import pytest

from another_value import another
from effects import again, case
from every_environment import ONE_SEAT
from mrlm.config.plugins import accepted
from mrlm.core import registry
from mrlm.core.environment import Environment
from mrlm.core.errors import MRLMError
from mrlm.core.matters import RunFacts, judged
from mrlm.core.sync_async import run_async
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from scripted_play import play, seats


class Rounds(Environment):
    """Several rounds; an answer of an even number of letters is paid 1, others a half."""

    def __init__(self, agents: tuple[str, ...], rounds: int = 3) -> None:
        self.agents = agents
        self.max_turns: int | None = rounds
        self.round = 0

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self.round = 0
        return StepResult(
            {agent: Observation([Message(f"{agent}: {seed}")]) for agent in self.agents}
        )

    def step(self, actions: dict[str, Message]) -> StepResult:
        self.round += 1
        paid = {a: Reward(1.0 - len(m.content) % 2 / 2) for a, m in actions.items()}
        done = self.round == self.max_turns
        seen = {} if done else {a: Observation([Message("again")]) for a in self.agents}
        return StepResult(seen, paid, done=done)


def refuse(task: Task, text: str) -> str:
    return "it is too long"


BETWEEN = {
    "max_turns": case(1),
    "external_transition": case(again),
    "transition_mode": case("append", external_transition=again),
    "termination_threshold": case(0.1),
}
TEAM = {
    "reward": case({"a": 0.25, "b": 0.75}),
    "max_turns": case(1),
    "template": case("<{agent}> {answer}"),
}
CASES: dict[str, dict[str, tuple[Any, dict[str, Any]]]] = {
    "chain": {**TEAM, "sees": case("all")},
    "cross": {},
    "debate": {
        "rounds": case(3),
        "order": case("sequential"),
        "topology": case("star"),
        "score": case("last"),
        "template": case("<{name}> {answer}"),
        "question": case("And now?"),
    },
    "majority_vote": {
        **TEAM,
        "template": case("<{agent}> {answer}", ask="Who is right?"),
        "samples": case(3),
        "pattern": case("(h)"),
        "weighted": case(True),
        "ask": case("Who is right?"),
    },
    "malt": {"branches": case(3)},
    "manager": {
        **TEAM,
        "ask": case("Tell {agents}."),
        "merge": case("Put together."),
        "penalty": case(0.7),
    },
    "mixture": {**TEAM, "layers": case(2)},
    "pioneer_observer": {
        "pioneer": case("first"),
        "observer": case("second"),
        "template": case("Look:\n{answer}"),
        "max_turns": case(1),
    },
    "propose_solve": {
        "max_turns": case(1),
        "reward": case("team"),
        "attempts": case(3),
        "solved": case(1.75),
        "penalty": case(0.7),
        "ask": case("Write `Problem: ...` and `Answer: ...`."),
        "checker": case(refuse),
    },
    "refine": {**TEAM, "rounds": case(2), "critique": case("Well?"), "revise": case("Anew.")},
    "router": {**TEAM, "ask": case("Who? {agents}"), "penalty": case(0.7), "fallback": case("c")},
    "self_play": {**BETWEEN, "rotate": case(False)},
    "single_turn": {},
    "summarize": {**TEAM, "ask": case("Sum up.")},
    "tree": {**BETWEEN, "branches": case(3), "select": case("best"), "max_leaves": case(3)},
    "turns": BETWEEN,
}
UNSHOWN = {f"{name}.external_prompt_passthrough" for name in ("turns", "tree", "self_play")}
"""In the environment `reward` alone: `test_plugin_effects.py` varies it there."""


IDLE = {"propose_solve.template"}
"""Inherited, and never read."""
REFUSED = {"tree.max_leaves"}
"""What is set is a limit, which the episodes exceed."""


def transcript(name: str, settings: dict[str, Any], tokenizer: Any) -> str:
    """What is asked, said and paid in the episodes of three tasks."""
    try:
        workflow = registry.load("workflows", name)(**settings)
        names = workflow.agents or ("a", "b", "c")
        world = Rounds(("player",) if name in ONE_SEAT else names)

        def said(request: Any) -> str:
            return says(request, tokenizer.decode(request.prompt_ids))

        source, engine = play(tokenizer, world, said, names, workflow, group_size=2)
        source.settings_of = seats(tokenizer, *names, max_new_tokens=40)
        groups = run_async(source.take(3))
    except MRLMError as error:
        return str(error)
    asked = [sorted(tokenizer.decode(r.prompt_ids) for r in batch) for batch in engine.batches]
    paid = [
        (
            episode.status,
            str(episode.error),
            episode.reward,
            [(t.agent, t.reward) for t in episode.turns],
        )
        for group in groups
        for episode in group
    ]
    return repr((asked, paid))


def says(request: Any, prompt: str) -> str:
    """Now and then what a workflow of teams can read, else this or that."""
    words = ("b: hello", "b", "hello?\nAnswer: hm", "hm", "h", "hello", "hello Confidence: 0.25")
    if "another problem" in prompt and request.seed % 2:
        return "Problem: two?\nAnswer: 2"
    return words[(request.seed + len(request.prompt_ids)) % len(words)]


def walked() -> list[tuple[str, str]]:
    return [
        (name, field)
        for name in registry.names("workflows")
        for field in accepted(registry.load("workflows", name))[0]
        if f"{name}.{field}" not in UNSHOWN | IDLE
    ]


def test_every_setting_has_a_case() -> None:
    cases = {(name, field) for name, each in CASES.items() for field in each}
    left = set(walked()) - cases
    assert cases <= set(walked())
    assert not {each for each in left if another(usual_of(*each)) is None}


def usual_of(name: str, field: str) -> Any:
    return accepted(registry.load("workflows", name))[0][field].default


@pytest.mark.parametrize(("name", "field"), walked())
def test_a_setting_changes_something(name: str, field: str, tokenizer: Any) -> None:
    value, on = CASES.get(name, {}).get(field) or case(another(usual_of(name, field)))
    one, other = (transcript(name, on | more, tokenizer) for more in ({}, {field: value}))
    assert "None" in one, one
    assert "None" in other or f"{name}.{field}" in REFUSED, other
    assert one != other


def test_a_setting_that_a_workflow_never_reads_is_refused() -> None:
    for key in IDLE:
        name, field = key.split(".")
        workflow = registry.load("workflows", name)(template="<{agent}> {answer}")
        assert judged(workflow, [field], RunFacts())[field]
