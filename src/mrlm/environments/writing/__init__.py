"""Writing: several agents write about one text at once, each at its own length, and are paid for
how their texts fit together.

The world is in `world.py`, what it pays in `gates.py`, what it takes away from texts that only look
right in `quality.py`, over the words of `words.py`
and their order (`order.py`); the numbers of each kind of work are in
`presets.py`, the built-in texts in `posts.py` and `abstracts.py`.
"""

from __future__ import annotations

from mrlm.environments.writing.presets import PRESETS, LengthSpan, WritingRules
from mrlm.environments.writing.world import WritingEnvironment

__all__ = ["PRESETS", "LengthSpan", "WritingEnvironment", "WritingRules"]

PLUGIN = WritingEnvironment
