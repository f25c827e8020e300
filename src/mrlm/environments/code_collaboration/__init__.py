"""Code collaboration: one program by several agents, each of which writes one function of it.

The world is in `world.py`, what a program is worth in `scoring.py`, who calls whom in
`structure.py`, what agents are told between turns in `feedback.py`, generated problems in
`generator.py`. Problems of data sets, and how programs are tested, are those of the world `code`.
"""

from __future__ import annotations

from mrlm.environments.code_collaboration.world import CodeCollaborationEnvironment

__all__ = ["CodeCollaborationEnvironment"]

PLUGIN = CodeCollaborationEnvironment
