"""Summarisation: summaries of one text, compared with references and with known facts, and
optionally graded by a judge.

The environment is in `environment.py`, the built-in texts in `notices.py`.
"""

from __future__ import annotations

from mrlm.environments.summarization.environment import SummarizationEnvironment

__all__ = ["SummarizationEnvironment"]

PLUGIN = SummarizationEnvironment
