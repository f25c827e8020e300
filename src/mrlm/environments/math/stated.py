"""The final answer that a completion states. It is read line by line from its end, without
Markdown; nothing is evaluated."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mrlm.data.final_answer import MAX_TEXT, boxed
from mrlm.environments.math.answers import MAX_ANSWER, SIGNS, cleaned, number
from mrlm.environments.math.lists import choice
from mrlm.environments.math.units import LEADING

MAX_LINE = 2_000
"""Number of characters at the end of a line that are searched."""
_ANCHOR = re.compile(  # every repetition is bounded or possessive: replies may be hostile
    r"(?P<sure>####|\b(?:answer|result|solution)s?\b(?:\s{1,5}(?:is|are|equals)\b)?\s{0,5}+[:=]?)"
    r"|\btherefore\b[,:]?|\\therefore",
    re.IGNORECASE,
)
_SURE = re.compile(r"####|[:=]\s*$|\b(?:is|are|equals)\s*[:=]?\s*$", re.IGNORECASE)
_CONCLUDES = re.compile(r"(?:so|thus|hence|therefore|finally)\b", re.IGNORECASE)
_DISPLAY = re.compile(
    r"\\\[.{0,600}?\\\]|\$\$.{0,600}?\$\$|\\begin\{[a-z]{1,12}\}.{0,600}?\\end", re.DOTALL
)
_LABEL = re.compile(r"\\(?:text|textbf|mathbf|mathrm)\s?\{([^{}]{0,60}:\s*)\}")
_MARKER = re.compile(r"\s*(?:>\s*|#{1,6}\s+|[-*+•]\s+(?=\S)|\d{1,3}[.)]\s+(?=\S))")
_EMPHASIS = re.compile(
    r"(?<![\w*)\]}])(\*{1,3}|__|~~|`{1,2})(?=[^\s*`])([^*`\n]{1,400}?)(?<=\S)\1(?![\w*(\[{])"
)
_RULE = re.compile(r"(?m)^[ \t]{0,20}\|[ \t:|-]{0,200}--[ \t:|-]{0,200}$")
_SIGNED = re.compile(r"(?i)(\b(?:is|are|be|equals|of|to)|[=:(\[{]|^) ?- (?=[\d.$\\])")
_MONEY = re.compile(r"([-+]?)\s?\\?\$\s?([-+]?)(?=\d)")
_SPACED = re.compile(r" ?([/^*×÷]) ?")
_RUN = re.compile(
    r"(?<![A-Za-z\d.\\])[-+$]?[\d.][\d.,/^*+\-!×÷%()]*+(?=([A-Za-z](?![A-Za-z]))|)"
    r"|-?\\d?frac\{[^{}]{0,200}\}\{[^{}]{0,200}\}"
)
_SYMBOLS = r"[A-Za-z0-9\s+\-*/^=<>().,;{}\[\]\\|!%×÷·√°&]*"
_EXPRESSION = re.compile(rf"[A-Za-z]|{_SYMBOLS}\d{_SYMBOLS}")
_COMMAND = re.compile(r"\\(?:text|mbox)\{[^{}]*\}|\\(?:begin|end)\{[^{}]*\}|\\[A-Za-z]+")
_WORD = re.compile(
    r"(?<!\\)\b(?!(?:sqrt|pi|or|and|oo|inf|infinity|sin|cos|tan|log|ln|exp)\b)[A-Za-z]{2,}"
)
_OPERATOR = re.compile(r"[\w)}\]]\s*[+*/×÷·=]|[\w)}\]]\s?-")
_LETTER = re.compile(r"\([A-J]\)|[B-J]\b(?![\w(=+*/^-]| ?[=+*/<>^-])")
_SENTENCE = re.compile(r"(?<=\d)!+$")


def stated(text: str) -> str | None:
    """The final answer of a completion: the last box that is not empty, else the last line that
    states one (`The answer is 5.`, `#### 5`, or a value alone, `**5**`), else the last line that
    is an expression, or the last complete number in it (`3/8` is one number).

    Returns:
        The answer's text, or `None` if none is stated.
    """
    text = text[-MAX_TEXT:]
    inside = boxed(text)
    if inside or (inside is None and "boxed" in text and re.search(r"\\f?boxed\s*\{", text)):
        return inside
    answer = _last(text)
    return answer[0] if answer else None


def before_answer(text: str) -> str:
    """The part of a completion before its final answer."""
    text = text[-MAX_TEXT:]
    place = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    if place < 0:
        answer = _last(text)
        place = answer[1] if answer else -1
    return text[:place] if place > 0 else ""


def is_expression(text: str) -> bool:
    """Whether a cleaned text is an expression, not a sentence."""
    if len(text) > MAX_ANSWER:
        return False
    plain = bool(_EXPRESSION.fullmatch(text)) and not _WORD.search(_COMMAND.sub("", text))
    return plain or number(text) is not None or choice(text)[0] is not None


def _last(text: str) -> tuple[str, int] | None:
    """The last stated answer outside boxes, and where its line (or its mark in it) begins."""
    rest: tuple[str, int] | None = None
    below, ends = "", False  # whether the sentence of `rest` ends in its number
    for line, place in _lines(text):
        mark = next(reversed([*_ANCHOR.finditer(line)]), None)
        if mark is not None and (_SURE.search(mark[0]) or not ends):
            part = line[mark.end() :].strip(" .") or below
            answer = _anchored(part, bool(mark["sure"]), bool(_SURE.search(mark[0])))
            if answer is not None:
                return answer, place + mark.start()
        whole = _SENTENCE.sub("", cleaned(line))
        if is_expression(whole):
            if not _OPERATOR.search(whole) or number(whole) is not None:
                return rest if rest and ends else (whole, place)
            rest = rest or (whole, place + max(0, line.rfind(whole[-1:])))
        elif rest is None and (run := _number_in(line)) is not None:
            rest, ends = (run[0], place + run[1]), line.rstrip(" .!").endswith(run[0])
            if ends and _CONCLUDES.match(line):
                return rest
        below = line
    return rest


def _anchored(part: str, named: bool, sure: bool) -> str | None:
    """The answer after a mark: an expression; after the word for an answer also a number, or a few
    words."""
    whole = _SENTENCE.sub("", cleaned(part))
    if is_expression(whole):
        return whole
    if not named:
        return None
    letter = _LETTER.match(part) if sure else None
    if letter:
        return letter[0]
    run = _number_in(part)
    if run is not None:
        return run[0]
    words = whole.split()
    return whole if sure and 0 < len(words) <= 4 and len(whole) <= 60 else None


def _lines(text: str) -> Iterator[tuple[str, int]]:
    """The lines that are not empty, from the last to the first, without Markdown, each with its
    place; a displayed formula is one line, a row of a table its last cell."""
    text = text.translate(SIGNS)
    if "\\[" in text or "$$" in text or "\\begin" in text:
        text = _DISPLAY.sub(lambda match: match[0].replace("\n", " "), text)
    tables = "|" in text and _RULE.search(text) is not None
    end = len(text)
    several = "\n" in text.strip()
    while end >= 0:
        start = text.rfind("\n", 0, end) + 1
        line = _plain(text[max(start, end - MAX_LINE) : end], tables, several)
        if line:
            yield line, start
        end = start - 1


def _plain(line: str, tables: bool, several: bool) -> str:
    """A line without Markdown; a dash before a number is a bullet only among `several` lines."""
    line = line.strip()
    if tables and line.startswith("|"):
        if not line.strip("|-: \t"):
            return ""
        cells = [cell.strip() for cell in line.split("|") if cell.strip()]
        line = cells[-1]
    marker = _MARKER.match(line)
    while marker and (several or line[marker.end()] in "*`_") and marker.end() < len(line):
        line = line[marker.end() :]
        marker = _MARKER.match(line)
    if "*" in line or "`" in line or "__" in line:
        line = _EMPHASIS.sub(r"\2", _EMPHASIS.sub(r"\2", line))
    if "\\" in line:
        line = _LABEL.sub(r"\1", line).replace("\\displaystyle", "")
    return line.strip()


def _number_in(line: str) -> tuple[str, int] | None:
    """The last complete number of a line with its unit, and about where it begins."""
    together = _SPACED.sub(r"\1", " ".join(line.split()))
    together = _SIGNED.sub(r"\1 -", _MONEY.sub(r"\1\2", together))
    runs = [
        match
        for match in _RUN.finditer(together)
        if match[1] is None and any(map(str.isdigit, match[0]))  # a letter makes it `2x`
    ]
    if not runs:
        return None
    unit = LEADING.match(together, runs[-1].end())
    run = runs[-1][0]
    bare = run + unit[0] if unit else run.rstrip(".,!(+-*/^×÷")
    return bare, max(0, line.rfind(run[:3]))
