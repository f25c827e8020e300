"""Class completion: the methods of one class are written by several agents at the same time.

The environment is in `environment.py`; `problems.py` reads rows in the form of ClassEval (Du et al.
2023, arXiv 2308.01861), `merging.py` assigns methods to writers and joins their code, `scoring.py`
computes rewards, `grading.py` runs the tests, `generator.py` generates problems.
"""

from mrlm.environments.programs.class_completion.environment import (
    ClassCompletionEnvironment as ClassCompletionEnvironment,
)

PLUGIN = ClassCompletionEnvironment
