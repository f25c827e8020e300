"""A Python interpreter for one episode. It runs in a sandbox, keeps its variables between calls,
and is started at the first call."""

import re
from collections.abc import Callable
from typing import Any

from mrlm.environments.tools.tool import ToolError
from mrlm.sandbox.types import AnswerError, Limits, Sandbox, Session, SessionEnded

TIMEOUT = 5.0
"""Time limit of one piece of code, in seconds."""
START = 10.0
"""Time limit for starting the interpreter, in seconds."""
FRESH = "a fresh interpreter starts with the next call, without the variables"
MAX_CODE = 20_000
MAX_OUTPUT = 4_000
"""Maximum number of characters of output kept per piece of code."""

_UNWRITABLE = re.compile("[\0\ud800-\udfff]")

PROGRAM = """
import ast, contextlib, io, traceback

space = {"__name__": "__main__"}


class Capped(io.TextIOBase):
    def __init__(self, most):
        self.kept, self.left = [], most

    def writable(self):
        return True

    def write(self, text):
        self.kept.append(text[: self.left])
        self.left -= len(self.kept[-1])
        return len(text)


def answer(request):
    code, out, failed = request["code"], Capped(request["most"]), ""
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            tree = ast.parse(code, "<python>")
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, "<python>", "exec"), space)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), "<python>", "eval"), space)
                if value is not None:
                    print(repr(value))
    except BaseException as error:
        steps = traceback.extract_tb(error.__traceback__)
        lines = [step.lineno for step in steps if step.filename == "<python>"]
        line = lines[-1] if lines else getattr(error, "lineno", None)
        what = traceback.format_exception_only(type(error), error)[-1].strip()[:500]
        failed = f"line {line}: {what}" if line else what
    return {"output": "".join(out.kept), "error": failed}
"""
"""The program run in the sandbox. The executed code shares its process, so its replies are
untrusted."""


class PythonREPL:
    """The interpreter of one episode.

    Args:
        opened: returns the sandbox.
        timeout: time limit of one piece of code, in seconds.
        limits: resource limits of the interpreter; by default the sandbox's.
    """

    def __init__(
        self,
        opened: Callable[[], Sandbox[Any]],
        timeout: float = TIMEOUT,
        limits: Limits | None = None,
    ) -> None:
        self._opened = opened
        self.timeout = timeout
        self.limits: Limits = (limits or Limits()).with_wall(START)
        self._session: Session | None = None

    async def python(self, code: str) -> str:
        """Run Python code and return what it prints; the value of a last expression is printed.
        Variables are kept from call to call.

        Args:
            code: a program, such as print(6 * 7)

        Raises:
            ToolError: it raised something or took too long.
            SandboxError: the sandbox failed.
        """
        if len(code) > MAX_CODE or _UNWRITABLE.search(code):
            raise ToolError(f"code is valid text of at most {MAX_CODE} characters, without NUL")
        try:
            if self._session is None:
                self._session = await self._opened().session(PROGRAM, limits=self.limits)
            reply = await self._session.ask({"code": code, "most": MAX_OUTPUT + 1}, self.timeout)
        except AnswerError as error:
            await self.close()
            reason = f"the interpreter was broken by the code ({str(error)[:100]})"
            raise ToolError(f"{reason}; {FRESH}") from error
        except SessionEnded as ended:
            self._session = None
            raise ToolError(self._ended(ended)) from ended
        output, failed = _parts(reply)
        if failed:
            raise ToolError("\n".join(part for part in (output.rstrip("\n"), failed) if part))
        return output.rstrip("\n") or "no output"

    async def close(self) -> None:
        """End the interpreter."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> "PythonREPL":
        if self._session is not None:
            raise TypeError("a running interpreter cannot be copied")
        return PythonREPL(self._opened, self.timeout, self.limits)

    def _ended(self, ended: SessionEnded) -> str:
        what = {
            "timeout": f"the code took longer than {self.timeout:g} s",
            "oom": "the code used too much memory",
            "output_limit": "the code wrote too much",
        }.get(ended.status, f"the interpreter ended ({ended.status})")
        return f"{what}; {FRESH}"


def _parts(reply: Any) -> tuple[str, str]:
    """Output and error of a reply, which the code may have forged."""
    fields = reply if isinstance(reply, dict) else {}
    output, failed = fields.get("output"), fields.get("error")
    if not isinstance(output, str) or not isinstance(failed, str):
        raise ToolError("the interpreter gave no answer")
    if len(output) > MAX_OUTPUT:
        output = output[:MAX_OUTPUT] + "... (more was printed)"
    return output, failed[:1000]
