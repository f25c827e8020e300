"""Debate: speakers for and against a topic, judged by rules, a model, a panel or the truth.

The environment is in `environment.py`, its prompts in `prompts.py`; topics are in `topics.py` and
`motions.jsonl`. Judges are in `judging.py`, with the rewards of debaters, in `rules.py` and in
`llm.py`.
"""

from mrlm.environments.debate.environment import DebateEnvironment
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
