r"""The final answer of a completion or of a data set's answer column, as text: the last box, else
the last stated answer, else the answer of the last line that has one. Markdown and signs are
normalised before anything is read."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from mrlm.data.final_answer import MAX_TEXT, after_hashes, last_box
from mrlm.environments.math.answers import (
    LETTER,
    LONE_SIGN,
    MAX_ANSWER,
    cleaned,
    costly,
    number,
    several,
)
from mrlm.environments.math.units import LEADING

Answers = Literal["boxed", "any"]
"""Which answers count: those in a box, or also those in running text."""

LONGEST = 12
"""Words of a right answer in words."""

_SIGNS = str.maketrans({"−": "-", "–": "-", "‐": "-", "‑": "-", "﹣": "-", "－": "-"})  # noqa: RUF001
_ITEM = re.compile(r"^\s{0,20}(?:>\s?|#{1,3}(?!#)\s*|[-*+•]\s+|\d{1,3}[.)]\s+(?=\S))+")
_BULLET = re.compile(r"\s*(?:[-*+•>]\s+)+[*_`]")
_EMPHASIS = re.compile(
    r"(?<![\\\w*`])(\*{1,3}|_{2,3}|`{1,3})(?=\S)([^*`\n]{1,400}?)(?<=\S)\1(?![\w*`])"
)
_DISPLAY = re.compile(r"\\[\[\]()]|(?<!\\)\${1,2}(?=[^$\n]{0,400}\$)|(?<=\S)\${1,2}(?!\d)")
_LABEL = re.compile(r"\\(?:text|textbf|mathrm|mbox)\{([^{}]{0,100}[:=])\s*\}")
_ANCHOR = re.compile(  # every repetition is bounded or possessive: replies may be hostile
    r"(?:####|\banswer\b(?:\s{1,5}is\b)?\s{0,5}+[:=]?+|(?:\btherefore|^(?:so|thus|hence))\b[,:]?+"
    r"|\\therefore)\s{0,5}+([^\n]{1,400})",
    re.IGNORECASE,
)
_FINAL = re.compile(r"####|\banswer\b\s{0,5}(?:is\b|:)", re.IGNORECASE)
_LABELLED = re.compile(r"^[^\d=:]{0,60}[=:]\s{0,5}")
_OPEN = re.compile(r"\banswer\b(?:\s{1,5}is)?\W{0,5}$", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=\d)[!?.]+(?=\s|$)")
_SPACED = re.compile(r" ?([/^*×÷]) ?")
_FUNCTION = (  # its argument is not an answer
    r"(?:\\?(?:sqrt|exp|log|ln|sin|cos|tan)|(?<![A-Za-z])[A-Za-z])(?:\([^()]{1,80}\)|\{[^{}]{1,80}\})"
    r"|√\(?\d{1,20}\)?"
)
_RUN = re.compile(
    rf"(?<![A-Za-z\d.\\])[-+]?(?:[\d.]{{1,40}}[*/×÷+\-]?)?(?:{_FUNCTION})"
    rf"(?:[*/×÷^+\-](?:{_FUNCTION}|[\d.]{{1,40}})){{0,10}}|"
    r"(?<![A-Za-z\d.\\^])(?<!\^\{)(?<![A-Za-z]_)[-+]?[$£€]?[\d.][\d.,/^*+\-!×÷%()]*+(?=([A-Za-z](?![A-Za-z]))|)"
    r"|-?\\d?frac\{[^{}]{0,200}\}\{[^{}]{0,200}\}"
)
_SYMBOLS = r"[A-Za-z0-9\s+\-*/^=<>().,;{}\[\]\\|!%×÷·√]*"
_EXPRESSION = re.compile(rf"[A-Za-z]|{_SYMBOLS}\d{_SYMBOLS}")
_COMMAND = re.compile(r"\\(?:text|mbox)\{[^{}]*\}|\\[A-Za-z]+")
_WORD = re.compile(
    r"(?<!\\)\b(?!(?:sqrt|exp|pi|or|and|oo|inf|infinity|sin|cos|tan|log|ln)\b)[A-Za-z]{2,}"
)


def stated(text: str, answers: Answers = "any") -> str | None:
    r"""The final answer of a completion: the last box that is not empty, else the text after the
    last "answer is" or "####", else the last line that is an expression or has a complete number
    (`3/8` is one number).

    Args:
        text: the completion, without thoughts.
        answers: with `boxed` only a box counts.

    Returns:
        The answer's text, or `None` if none is stated.
    """
    text = text[-MAX_TEXT:]
    text = text if text.isascii() else text.translate(_SIGNS)
    if "\\boxed" in text or "\\fbox" in text:
        return last_box(text)
    if answers == "boxed":
        return None
    lines = [line for line in map(unmarked, text.strip().split("\n")) if line]
    if len(lines) == 1 and not _BULLET.match(text):  # its sign is no bullet
        lines = [unmarked(text.strip(), item=False)]
    lower = text.lower()
    announced = any(word in lower for word in ("answer", "therefore", "####"))
    for start, part in _anchored(lines) if announced else ():
        answer = _answer_in(part)
        if answer is not None and _last_of(lines, start):
            return answer
    return next((answer for line in reversed(lines) if (answer := _answer_in(line))), None)


def _anchored(lines: Sequence[str]) -> list[tuple[int, str]]:
    """Lines that announce the answer and the text after the announcement, or the line after it;
    last first."""
    anchors = []
    for index, line in enumerate(lines):
        matches = [*_ANCHOR.finditer(line)]
        if matches:
            anchors.append((index, matches[-1][1]))
        elif _OPEN.search(line) and index + 1 < len(lines):
            anchors.append((index + 1, lines[index + 1]))
    return anchors[::-1]


def _last_of(lines: Sequence[str], index: int) -> bool:
    """Whether an announcement is final. "####" is; "the answer is" is one unless the last answer of
    later lines is a line of its own; another one may be a step, and is one if numbers follow."""
    if "####" in lines[index]:
        return True
    later = next((line for line in reversed(lines[index + 1 :]) if _answer_in(line)), None)
    strong = _FINAL.search(lines[index]) or (index and _OPEN.search(lines[index - 1]))
    return later is None or (bool(strong) and not _alone(later))


def _alone(line: str) -> bool:
    """Whether a line is an answer and nothing else, but for a label ("Total = 9")."""
    whole = cleaned(_LABELLED.sub("", line, count=1).strip().rstrip("."))
    return "=" not in whole and (bool(LETTER.fullmatch(whole)) or _is_expression(whole))


def unmarked(line: str, item: bool = True) -> str:
    """A line without Markdown and the marks around formulas: emphasis, headings, quotes, code, the
    last cell of a table, and with `item` bullets and numbers of lists."""
    line = line.strip()[-20_000:]
    if item:
        line = _ITEM.sub("", line)
    if line.startswith("|") or line.endswith("|"):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        line = next((cell for cell in reversed(cells) if cell), "")
    for _ in range(3 if "*" in line or "_" in line or "`" in line else 0):
        line, count = _EMPHASIS.subn(r"\2", line)
        if not count:
            break
    if "\\" in line or "$" in line:
        line = _LABEL.sub(r"\1 ", _DISPLAY.sub(" ", line))
    return line.strip()


def _answer_in(part: str) -> str | None:
    """The answer of a line: the whole of it, or its last number."""
    part = _SENTENCE.sub(".", part)
    whole = cleaned(part.strip().rstrip("."))
    if LETTER.fullmatch(whole):
        return whole
    return whole if _is_expression(whole) else _number_in(part)


def stated_words(text: str, golds: Sequence[str]) -> str | None:
    """The right answer in words that the last line of a completion is, or announces; `None` if it
    states another one, or none."""
    line = unmarked(text.strip().rpartition("\n")[2])
    anchors = [*_ANCHOR.finditer(line)]
    words = cleaned(anchors[-1][1] if anchors else line).lower()
    return next((gold for gold in golds if cleaned(gold).lower() == words), None)


def before_answer(text: str, answers: Answers = "any") -> str:
    """The part of a completion before its final answer."""
    answer = stated(text, answers)
    position = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    if position < 0 and answer is not None:
        anchors = [match.start() for match in _ANCHOR.finditer(text)]
        position = anchors[-1] if anchors else text.rfind(answer)
    return text[:position] if position > 0 else ""


def gold_of(value: Any) -> str:
    """The answer in an answer column: after `####` (GSM8K), in the last box (MATH), in a sentence
    that states it ("The answer is 3."), else the text itself."""
    return _gold_of(str(value).strip())


@lru_cache(4096)
def _gold_of(text: str) -> str:
    found = after_hashes(text) if "####" in text else last_box(text)
    if found:
        return found
    announced = _anchored([unmarked(line) for line in text.split("\n") if line.strip()])
    return (_answer_in(announced[0][1]) if announced else None) or text


def golds_of(value: Any) -> list[str]:
    """The accepted answers in an answer column: a list has several."""
    many = value if isinstance(value, list | tuple) else [value]
    return [gold_of(item) for item in many if item is not None and str(item).strip()]


def problem_of(value: Any) -> str:
    """The problem of the value of an answer column, for a loader: none, if an answer can
    equal it."""
    if isinstance(value, Mapping):
        return "its answer is a mapping; give a text, a number, or a list of accepted answers"
    golds = golds_of(value)
    if not golds:
        return "its answer is empty"
    for gold in golds:
        words = _WORD.findall(re.sub(r"\\[A-Za-z]+", " ", gold))
        if costly(gold) or len(words) > LONGEST or last_box(f"\\boxed{{{gold}}}") != gold:
            return (
                f"its answer {gold[:60]!r} cannot be matched by any; give the final answer alone, "
                r"or mark it in a solution by ####, \boxed{} or 'The answer is'"
            )
    return ""


def _is_expression(text: str) -> bool:
    if len(text) > MAX_ANSWER:
        return False
    without_commands = _COMMAND.sub("", text) if "\\" in text else text
    plain = bool(_EXPRESSION.fullmatch(text)) and not _WORD.search(without_commands)
    return plain or number(text) is not None or several(text) is not None


def _number_in(text: str) -> str | None:
    together = _SPACED.sub(r"\1", " ".join(text.split()))
    together = LONE_SIGN.sub(r"\1\2", together)
    runs = [
        match
        for match in _RUN.finditer(together)
        if match[1] is None and any(map(str.isdigit, match[0]))  # a letter makes it `2x`
    ]
    if not runs:
        return None
    unit = LEADING.match(together, runs[-1].end())
    run = _balanced(runs[-1][0])
    return run + unit[0] if unit else run.rstrip(".,(+-*/^×÷")


def _balanced(run: str) -> str:
    """A run of digits and signs without closing brackets that were opened before it."""
    while run.endswith((")", ".", ",")) and run.count(")") > run.count("("):
        run = run[:-1]
    return run
