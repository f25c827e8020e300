"""Code: programs that are run against tests in a sandbox, for problems that are generated or come
from a data set.

The environment is in `environment.py`, generated problems in `generator.py`, `templates.py` and
`families.py`, data sets in `formats.py`, rewards and feedback in `scoring.py`.
"""

from mrlm.environments.programs.code.answers import extract_code as extract_code
from mrlm.environments.programs.code.environment import (
    CodeExecutionEnvironment as CodeExecutionEnvironment,
)
from mrlm.environments.programs.code.generator import CodeProblemGenerator as CodeProblemGenerator
from mrlm.environments.programs.code.problems import CodeProblem as CodeProblem

PLUGIN = CodeExecutionEnvironment
