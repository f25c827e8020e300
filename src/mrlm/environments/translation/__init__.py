"""Translation: translations of one text, compared with references and optionally graded by a judge.

The environment is in `environment.py`, the built-in fictional language in `phrasebook.py`.
"""

from __future__ import annotations

from mrlm.environments.translation.environment import TranslationEnvironment

__all__ = ["TranslationEnvironment"]

PLUGIN = TranslationEnvironment
