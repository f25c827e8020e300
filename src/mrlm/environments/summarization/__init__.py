"""Summarisation: summaries of one text, compared with references and with known facts, and
optionally graded by a judge.

The environment is in `world.py`, the built-in texts in `notices.py`.
"""

from __future__ import annotations

from mrlm.environments.summarization.world import SummarizationEnvironment

__all__ = ["SummarizationEnvironment"]

PLUGIN = SummarizationEnvironment
