"""Graders of code, which judge it outside the process that runs it: function calls, assertions and
programs (`judging`, `asserting`), on solutions in a sandbox (`solving`), whose values arrive as
plain data (`plain`) and are compared here (`comparing`)."""

from mrlm.sandbox.grading.asserting import grade_asserts as grade_asserts
from mrlm.sandbox.grading.asserting import grade_class as grade_class
from mrlm.sandbox.grading.comparing import same as same
from mrlm.sandbox.grading.judging import FunctionCall as FunctionCall
from mrlm.sandbox.grading.judging import grade_calls as grade_calls
from mrlm.sandbox.grading.judging import grade_programs as grade_programs
from mrlm.sandbox.grading.verdicts import GradingVerdict as GradingVerdict
