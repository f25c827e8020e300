"""Debate: speakers for and against a topic, judged by rules, a model, a panel or the truth.

The environment is in `environment.py`, its prompts in `prompts.py`; topics are in `topics.py` and
`motions.jsonl`. Judges are in `judging.py`, with the rewards of debaters, in `rules.py` and in
`llm.py`.
"""

from mrlm.environments.debate.environment import DebateEnvironment as DebateEnvironment
from mrlm.environments.debate.judging import DebateRecord as DebateRecord
from mrlm.environments.debate.judging import DebateVerdict as DebateVerdict
from mrlm.environments.debate.judging import Judge as Judge
from mrlm.environments.debate.judging import MajorityJudge as MajorityJudge
from mrlm.environments.debate.judging import Speech as Speech
from mrlm.environments.debate.judging import TruthJudge as TruthJudge
from mrlm.environments.debate.llm import LLMJudge as LLMJudge
from mrlm.environments.debate.rules import RuleBasedJudge as RuleBasedJudge
from mrlm.environments.debate.rules import score_debate as score_debate
from mrlm.environments.debate.topics import Arithmetic as Arithmetic
from mrlm.environments.debate.topics import RowTopics as RowTopics
from mrlm.environments.debate.topics import Topic as Topic

PLUGIN = DebateEnvironment
