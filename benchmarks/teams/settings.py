"""The table of the comparison: settings, their two arms, and what was predicted before any run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Words = Mapping[str, Any]
Prediction = Literal["team", "one", "tie"]
HERE = "benchmarks.teams.environments"
LETTERS = "ABC"
RATES = (3e-4, 1e-3, 3e-3)
ADAPTER_RATES = (1e-3, 3e-3, 1e-2)
"""Adapters of few weights take larger steps."""


def added(prompt: str) -> str:
    """The total of the numbers of a prompt."""
    return str(sum(map(int, re.findall(r"\d+", prompt))))


@dataclass(frozen=True, slots=True)
class Arm:
    """One side of a comparison.

    Args:
        game: arms of one game start from the same weights.
        environment: the `environments:` item.
        agents: how many play.
        tokens: that an episode samples.
        letters: agent -> characters that are legal answers; `""` is for all other agents.
        best: highest expected reward, and how it is known.
        length: characters of an answer.
        policies: `own` for each agent, one that is `shared`, or `adapters` on one base.
        workflow: the `workflow:` section.
        knows: the answers that the base prefers: the `total` of the numbers that a prompt shows,
            those of the environment's `expert`, or one that is `drawn` for each prompt.
        enumerated: whether the deviations of an agent from its greedy policy are.
    """

    game: str
    environment: Words
    agents: tuple[str, ...]
    tokens: int
    letters: Mapping[str, str]
    best: float
    length: int = 1
    policies: Literal["own", "shared", "adapters"] = "own"
    workflow: Words = field(default_factory=dict)
    knows: Literal["drawn", "total", "expert"] = "drawn"
    enumerated: bool = True

    @property
    def rates(self) -> tuple[float, ...]:
        """Learning rates that are tried."""
        return ADAPTER_RATES if self.policies == "adapters" else RATES


@dataclass(frozen=True, slots=True)
class Setting:
    """A comparison.

    Args:
        name: of the setting.
        about: the game, and what differs between the arms.
        team, one: names of the arms.
        prediction: the arm with the higher reward at the end, decided by `verdict`; never changed
            after runs.
        reason: why, in one sentence.
    """

    name: str
    about: str
    team: str
    one: str
    prediction: Prediction
    reason: str


def joined(environment: Words) -> Words:
    """The environment with one agent for all roles."""
    return {"env_type": f"{HERE}:Joined", "environment": dict(environment), "agent": "one"}


MARGIN, NARROW = 0.02, 0.05
"""The least difference that counts, and how far the interval of a tie may reach."""


def verdict(difference: tuple[float, float, float]) -> str:
    """What a paired difference of final rewards, team less one, says with its 95 % interval."""
    mean, low, high = difference
    if (low > 0 or high < 0) and abs(mean) >= MARGIN:
        return "team" if mean > 0 else "one"
    return "tie" if low >= -NARROW and high <= NARROW else "undecided"


CLIMBING: Words = {"env_type": "matrix", "game": "climbing", "normalized": True}
CONTEXTS: Words = {"env_type": "contextual_matrix", "contexts": 4, "style": "short"}
SIGNALS: Words = {"env_type": "signalling", "states": 3, "style": "short"}
BANDIT: Words = {**CONTEXTS, "contexts": 8, "num_actions": 4, "agents": ["one"]}
QUESTIONS = [{"question": f"q{place}", "answer": str(place * 7 % 5)} for place in range(1, 9)]
DEBATE: Words = {
    "env_type": "noisy_debate",
    "wrong": 0.2,
    "topics": QUESTIONS,
    "eval_dataset": QUESTIONS,
    "prompts": "short",
}
DIGITS = {"": "0123456789"}
ONE = ("one",)
PAIR = ("row", "column")
SIGNALLERS = ("sender", "receiver")
SIGNAL_LETTERS = {"sender": "ABC", "": "123"}
ALL = {"": LETTERS}


def parts(count: int, share: str = "own") -> Words:
    """Independent parts."""
    return {"env_type": f"{HERE}:Parts", "count": count, "share": share}


def evidence(voters: int, views: int) -> Words:
    """Observations of a world."""
    return {"env_type": f"{HERE}:Evidence", "voters": voters, "views": views}


def paths(agents: int) -> Words:
    """Ways through a grid of 3 x 3 cells without walls, in two rounds of one move."""
    return {"env_type": "plan_path", "num_agents": agents, "style": "short", "share": "own"}


def names(letter: str, count: int) -> tuple[str, ...]:
    """Names of agents."""
    return tuple(f"{letter}{place + 1}" for place in range(count))


MAJORITY = 0.7**3 + 3 * 0.7**2 * 0.3
"""Probability that most of three observations are right."""
ACCEPTED = 1.0
"""The verifier accepts an answer of one digit to every question of `DEBATE`."""


ARMS: dict[str, Arm] = {
    "climbing/team": Arm("climbing", CLIMBING, PAIR, 2, ALL, 1.0),
    "climbing/shared": Arm("climbing", CLIMBING, PAIR, 2, ALL, 1.0, policies="shared"),
    "climbing/one": Arm("climbing", joined(CLIMBING), ONE, 2, ALL, 1.0, 2),
    "contexts/team": Arm("contexts", CONTEXTS, PAIR, 2, ALL, 0.625),
    "contexts/one": Arm("contexts", joined(CONTEXTS), ONE, 2, ALL, 0.625, 2),
    "parts2/team": Arm("parts2", parts(2), names("p", 2), 2, ALL, 1.0, policies="shared"),
    "parts2/one": Arm("parts2", joined(parts(2)), ONE, 2, ALL, 1.0, 2),
    "parts6/team": Arm("parts6", parts(6), names("p", 6), 6, ALL, 1.0, policies="shared"),
    "parts6/common": Arm("parts6", parts(6, "team"), names("p", 6), 6, ALL, 1.0, policies="shared"),
    "parts6/one": Arm("parts6", joined(parts(6)), ONE, 6, ALL, 1.0, 6),
    "signals/team": Arm("signals", SIGNALS, SIGNALLERS, 2, SIGNAL_LETTERS, 1.0),
    "signals/shared": Arm(
        "signals", SIGNALS, SIGNALLERS, 2, SIGNAL_LETTERS, 1.0, policies="shared"
    ),
    "signals/adapters": Arm(
        "signals", SIGNALS, SIGNALLERS, 2, SIGNAL_LETTERS, 1.0, policies="adapters"
    ),
    "signals/blind": Arm("signals", {"env_type": f"{HERE}:Guess"}, ONE, 1, {"": "123"}, 1 / 3),
    "signals/sighted": Arm(
        "signals", {"env_type": f"{HERE}:Guess", "sees": True}, ONE, 1, {"": "123"}, 1.0
    ),
    "evidence/team": Arm(
        "evidence", evidence(3, 1), names("v", 3), 3, {"": "AB"}, MAJORITY, policies="shared"
    ),
    "evidence/one view": Arm("evidence", evidence(1, 1), ("v1",), 1, {"": "AB"}, 0.7),
    "evidence/all views": Arm("evidence", evidence(1, 3), ("v1",), 1, {"": "AB"}, MAJORITY),
    "vote/team": Arm(
        "vote",
        BANDIT,
        names("v", 3),
        3,
        {"": "ABCD"},
        0.5625,
        policies="shared",
        workflow={"name": "majority_vote"},
    ),
    "vote/one": Arm("vote", BANDIT, ONE, 1, {"": "ABCD"}, 0.5625),
    "debate/team": Arm(
        "debate",
        {**DEBATE, "share": "team"},
        ("first", "second"),
        4,
        DIGITS,
        ACCEPTED,
        policies="shared",
    ),
    "debate/one": Arm(
        "debate",
        {**DEBATE, "max_turns": 1, "opponents": {"second": ["0"]}},
        ("first",),
        1,
        DIGITS,
        ACCEPTED,
    ),
    "sums/team": Arm(
        "sums",
        {"env_type": "relay", "max_number": 3},
        ("first", "second"),
        2,
        DIGITS,
        1.0,
        knows="total",
    ),
    "sums/one": Arm(
        "sums",
        {"env_type": "benchmarks.learning.worlds:Alone", "max_number": 3},
        ("alone",),
        1,
        DIGITS,
        1.0,
        knows="total",
    ),
    "paths/team": Arm(
        "paths",
        paths(2),
        ("planner", "executor"),
        4,
        {"": "UDLR"},
        1.0,
        knows="expert",
        enumerated=False,
    ),
    "paths/one": Arm(
        "paths", paths(1), ("player",), 2, {"": "UDLR"}, 1.0, knows="expert", enumerated=False
    ),
}

SETTINGS = (
    Setting(
        "climbing, own policies",
        "Dependent parts, full information: the matrix game `climbing` by two agents with a policy "
        "each, or by one agent that writes both actions",
        "climbing/team",
        "climbing/one",
        "one",
        "One agent controls the joint action, so that a deviation of both at once is one sample; "
        "two agents are punished for the best action as long as the other does not take it.",
    ),
    Setting(
        "climbing, shared policy",
        "The same with one policy for both agents",
        "climbing/shared",
        "climbing/one",
        "one",
        "Sharing weights does not let an agent see the other's action: miscoordination is "
        "punished as before.",
    ),
    Setting(
        "contextual games",
        "Dependent parts, full information, a table for each of four contexts that all see",
        "contexts/team",
        "contexts/one",
        "one",
        "As in `climbing`: the second action can follow the first one only where one agent writes "
        "both.",
    ),
    Setting(
        "two independent parts",
        "Independent parts, short context: every part has an own reward, one agent reads and "
        "writes both",
        "parts2/team",
        "parts2/one",
        "tie",
        "Two parts are few: their noise in the common reward is small, and the context is short; "
        "both arms reach the optimum.",
    ),
    Setting(
        "six independent parts",
        "Independent parts, long context for one agent; team members are rewarded for their part",
        "parts6/team",
        "parts6/one",
        "team",
        "A member's reward does not vary with five other parts, and it reads one value instead "
        "of six.",
    ),
    Setting(
        "six parts, common reward",
        "The same, but every member is rewarded with the mean over all parts",
        "parts6/common",
        "parts6/one",
        "team",
        "The noise of the reward is the same for both arms, and the short context remains an "
        "advantage of the team.",
    ),
    Setting(
        "signalling, own policies",
        "Private information that must be communicated: sender and receiver, against one agent "
        "that does not see the state",
        "signals/team",
        "signals/blind",
        "team",
        "Without the signal no policy is right in more than 1/3 of the tasks, and a code with one "
        "ambiguous signal already gives 2/3.",
    ),
    Setting(
        "signalling, shared policy",
        "The same with one policy for sender and receiver",
        "signals/shared",
        "signals/blind",
        "team",
        "The roles have different prompts and answers, so that sharing weights does not mix them.",
    ),
    Setting(
        "signalling, adapters",
        "The same with a LoRA adapter for each of the two agents",
        "signals/adapters",
        "signals/blind",
        "team",
        "Adapters of rank 4 are enough for a table of three answers.",
    ),
    Setting(
        "signalling, one agent sees all",
        "Full information for one agent: it sees the state and names it",
        "signals/team",
        "signals/sighted",
        "one",
        "Naming what it sees is a bandit with three contexts; a team must agree on a code first, "
        "and codes with ambiguous signals are local optima.",
    ),
    Setting(
        "evidence, one view",
        "Private information: three voters with an observation each, against one agent with one "
        "observation; the majority decides",
        "evidence/team",
        "evidence/one view",
        "team",
        "The majority of three observations is right with 0.784, one observation with 0.7.",
    ),
    Setting(
        "evidence, all views",
        "Full information: one agent reads all three observations and answers once",
        "evidence/team",
        "evidence/all views",
        "tie",
        "One agent can compute the majority itself, with three times as many episodes for the "
        "same tokens; both reach 0.784.",
    ),
    Setting(
        "majority vote",
        "The same information for all: three samples of one policy vote, against one answer",
        "vote/team",
        "vote/one",
        "one",
        "A vote adds no information, its reward says little about a single answer, and one agent "
        "plays three times as many episodes; a trained policy leaves little for a vote to correct.",
    ),
    Setting(
        "debate",
        "The same information for all: two agents answer twice and read each other in between, "
        "against one that answers once; the verifier is wrong in 20 % of its verdicts",
        "debate/team",
        "debate/one",
        "tie",
        "Reading a copy of oneself adds no information; both learn which answers the verifier "
        "accepts.",
    ),
    Setting(
        "sums in two steps",
        "Dependent parts, longer context for one agent: `a+b+c` by two agents that add in turn, "
        "against one that reads all; on sums that were not trained on",
        "sums/team",
        "sums/one",
        "team",
        "The steps recur in other sums: the team meets all of its 16 + 28 prompts while training, "
        "one agent must generalise to new prompts.",
    ),
    Setting(
        "a way through a grid",
        "The same information for all, two moves: `plan_path` on 3 x 3 cells by a planner that "
        "proposes a move and an executor that decides, or by one agent; on boards that were not "
        "trained on",
        "paths/team",
        "paths/one",
        "one",
        "A move takes the team two tokens, the planner sees all that the executor sees, and wrong "
        "answers of both cost; training still lifts the team above its untrained state, with the "
        "whole interval.",
    ),
)
