"""Math: questions with one right answer, generated or from a data set, checked as mathematics.

The environment is in `environment.py`, problems in `generator.py`, checking in `answers.py` (text),
`verifier.py` and `worker.py` (computer algebra in killable processes), the reward over rollouts in
`boxed.py`.
"""

from mrlm.environments.math.boxed import BoxedReward as BoxedReward
from mrlm.environments.math.environment import MathReasoningEnvironment as MathReasoningEnvironment
from mrlm.environments.math.generator import MathProblem as MathProblem
from mrlm.environments.math.generator import MathProblemGenerator as MathProblemGenerator
from mrlm.environments.math.verifier import verify as verify

PLUGIN = MathReasoningEnvironment
