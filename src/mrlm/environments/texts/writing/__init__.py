"""Writing: several agents write about one text at once, rewarded for how their texts fit together.

The environment and its rewards are in `environment.py`, measures against reward hacking in
`quality.py`, based on `words.py` and on word order; the parameters of each kind of work are in
`presets.py`, the built-in texts in `pieces.py`.
"""

from mrlm.environments.texts.writing.environment import WritingEnvironment as WritingEnvironment
from mrlm.environments.texts.writing.presets import PRESETS as PRESETS
from mrlm.environments.texts.writing.presets import LengthSpan as LengthSpan
from mrlm.environments.texts.writing.presets import WritingRules as WritingRules

PLUGIN = WritingEnvironment
