"""Code collaboration: one program by several agents, each of which writes one function of it.

The environment is in `environment.py`, rewards and feedback in `scoring.py`, call analysis in
`structure.py`, generated problems in `generator.py`. Data set problems and tests are those of the
environment `code`.
"""

from mrlm.environments.programs.code_collaboration.environment import (
    CodeCollaborationEnvironment as CodeCollaborationEnvironment,
)

PLUGIN = CodeCollaborationEnvironment
