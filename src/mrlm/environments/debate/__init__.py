"""Debate: speakers for and against a topic, judged by rules, by a language model, by a panel, or by
the truth.

The world is in `world.py`, what it pays in `paying.py`, its words in `prompts.py`; topics are in
`topics.py` and `motions.py`. `judging.py` says what a judge is; judges are there, in `rules.py` and
in `llm.py`, and `bench.py` reads them from a config.
"""

from __future__ import annotations

from mrlm.environments.debate.judging import (
    DebateRecord,
    DebateVerdict,
    Judge,
    MajorityJudge,
    Speech,
    TruthJudge,
)
from mrlm.environments.debate.llm import LLMJudge
from mrlm.environments.debate.rules import RuleBasedJudge, score_debate
from mrlm.environments.debate.topics import Arithmetic, RowTopics, Topic
from mrlm.environments.debate.world import DebateEnvironment

__all__ = [
    "Arithmetic",
    "DebateEnvironment",
    "DebateRecord",
    "DebateVerdict",
    "Judge",
    "LLMJudge",
    "MajorityJudge",
    "RowTopics",
    "RuleBasedJudge",
    "Speech",
    "Topic",
    "TruthJudge",
    "score_debate",
]

PLUGIN = DebateEnvironment
