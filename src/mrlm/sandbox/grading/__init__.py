"""Graders of code, which judge it outside the process that runs it: function calls, assertions and
programs (`judging`, `asserting`), on solutions in a sandbox (`solving`), whose values arrive as
plain data (`plain`) and are compared here (`comparing`)."""

from mrlm.sandbox.grading.asserting import grade_asserts, grade_class
from mrlm.sandbox.grading.comparing import same
from mrlm.sandbox.grading.judging import FunctionCall, grade_calls, grade_programs
from mrlm.sandbox.grading.verdicts import GradingVerdict

__all__ = [
    "FunctionCall", "GradingVerdict", "grade_asserts", "grade_calls", "grade_class",
    "grade_programs", "same",
]  # fmt: skip
