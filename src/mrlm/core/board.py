"""Boards: drawings of an environment's state for people, as text or as HTML. Of HTML only a fixed
list of elements and classes is kept; all else is text, since environments show text of models."""

import re
import textwrap
from collections.abc import Iterable, Sequence
from functools import lru_cache
from html import escape, unescape
from html.parser import HTMLParser

TAGS = frozenset(
    ("b", "br", "caption", "code", "div", "em", "i", "li", "ol", "p", "pre", "span", "strong")
) | {"table", "tbody", "td", "th", "thead", "tr", "ul"}
"""Elements that are kept, without attributes other than `class`."""
CLASSES = frozenset(
    ("win", "lose", "good", "bad", "move", "dim", "player0", "player1", "grid", "num")
)
"""Classes that are kept. `move` is the last action (in text it is in brackets), `grid` a table of
square cells, `num` a number."""
BLOCKS = frozenset(("br", "caption", "div", "li", "ol", "p", "pre", "table", "tr", "ul"))
MOST_CHARACTERS = 4_000
"""Characters of a recorded board; the rest is cut off."""
MOST_HTML = 16_000
"""Characters of HTML that are read."""
MOST_ELEMENTS, DEEPEST = 1_000, 16
WIDEST = 48
"""Characters of a line in a cell of a table in text."""
CUT = " ..."
_PIECE = re.compile(r'<(/?)([a-z]+)(?: class="([^"<>&]*)")?>|[^<]+')
"""A tag as `table` and `stacked` write it, or a text."""

Node = str | list["Node"]
"""A text, or an element: its tag and classes joined by dots (`td.win`), then its children."""
Cell = str | float | tuple[str | float, str]
"""The content of a cell, or the content and classes separated by spaces."""


class Html(str):
    """A board as HTML, as `Environment.render` may return it."""

    __slots__ = ()


def table(rows: Iterable[Sequence[Cell]], head: Sequence[Cell] = (), kind: str = "") -> Html:
    """A table; contents are escaped.

    Args:
        rows: its rows of cells.
        head: the first row, if it has one.
        kind: class of the table.
    """
    lines = [_row("th", head)] if head else []
    lines += [_row("td", row) for row in rows]
    return Html(f"<table{_class(kind)}>{''.join(lines)}</table>")


def stacked(*parts: str) -> Html:
    """Parts of a board, one below the other; texts are escaped, empty ones are left out."""
    shown = (part for part in parts if part)
    return Html("".join(x if isinstance(x, Html) else f"<p>{escape(x)}</p>" for x in shown))


def shortened(text: str, most: int) -> str:
    """A text of at most so many characters, and a mark where it was cut off."""
    return text if len(text) <= most else text[:most] + CUT


def bounded(board: str) -> str:
    """A board of at most as many characters as are recorded (read, if it is HTML)."""
    return Html(board[:MOST_HTML]) if isinstance(board, Html) else shortened(board, MOST_CHARACTERS)


@lru_cache(maxsize=128)  # siblings have many boards in common
def board_tree(html: str) -> Node:
    """The tree of a board, with the elements and classes that are kept; not to be changed."""
    html, reader = html[:MOST_HTML], _Reader()
    pieces = list(_PIECE.finditer(html))
    if not _PIECE.sub("", html) and {piece[2] for piece in pieces} <= TAGS | {None}:
        reader.read(pieces)  # a tenth of the time
    else:
        reader.feed(html)
        reader.close()
    return reader.root


def as_text(board: str | Node) -> str:
    """A board (a drawing, or its tree) as plain text: tables are aligned."""
    if isinstance(board, Html):
        board = board_tree(board)
    if isinstance(board, str):
        return bounded(board)
    lines = [line.rstrip() for line in _text(board).splitlines()]
    return "\n".join(line for line in lines if line)


def _row(tag: str, cells: Sequence[Cell]) -> str:
    made = []
    for cell in cells:
        content, classes = cell if isinstance(cell, tuple) else (cell, "")
        if isinstance(content, float):
            content = f"{content:.4g}"
        made.append(f"<{tag}{_class(classes)}>{escape(str(content))}</{tag}>")
    return f"<tr>{''.join(made)}</tr>"


def _class(names: str) -> str:
    return f' class="{escape(names)}"' if names else ""


class _Reader(HTMLParser):
    """Reads HTML into a tree; tags that are not kept become text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root: list[Node] = ["div"]
        self._open: list[tuple[str, list[Node]]] = [("div", self.root)]
        self._characters, self._elements = MOST_CHARACTERS, MOST_ELEMENTS

    def read(self, pieces: Iterable[re.Match[str]]) -> None:
        """Reads HTML of nothing but texts, tags that are kept, and their classes."""
        for piece in pieces:
            end, tag, classes = piece.groups()
            if tag is None:
                self.handle_data(unescape(piece[0]))
            elif not end:
                self._start(tag, classes or "", piece[0])
            elif classes is None:
                self.handle_endtag(tag)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        class_names = " ".join(value or "" for name, value in attrs if name == "class")
        self._start(tag, class_names, self.get_starttag_text() or f"<{tag}>")

    def _start(self, tag: str, class_names: str, text: str) -> None:
        """Opens an element with classes, or keeps the text of its tag."""
        if tag not in TAGS or not self._elements or len(self._open) > DEEPEST:
            self.handle_data(text)
            return
        self._elements -= 1
        node: list[Node] = [_kind(tag, class_names)]
        self._open[-1][1].append(node)
        if tag != "br":
            self._open.append((tag, node))

    def handle_endtag(self, tag: str) -> None:
        if tag not in TAGS:
            self.handle_data(f"</{tag}>")
            return
        for index in range(len(self._open) - 1, 0, -1):
            if self._open[index][0] == tag:
                del self._open[index:]
                return

    def handle_data(self, data: str) -> None:
        if len(data) > self._characters:
            data = data[: self._characters] + (CUT if self._characters else "")
            self._characters = 0
        else:
            self._characters -= len(data)
        children = self._open[-1][1]
        if len(children) > 1 and isinstance(children[-1], str):
            children[-1] += data
        elif data:
            children.append(data)

    def handle_comment(self, data: str) -> None:
        self.handle_data(f"<!--{data}-->")

    def handle_decl(self, decl: str) -> None:
        self.handle_data(f"<!{decl}>")

    def handle_pi(self, data: str) -> None:
        self.handle_data(f"<?{data}>")

    def unknown_decl(self, data: str) -> None:
        self.handle_data(f"<![{data}]>")


@lru_cache(maxsize=512)
def _kind(tag: str, class_names: str) -> str:
    """The beginning of an element: its tag, and those of the given classes that are kept."""
    classes = dict.fromkeys(name for name in class_names.split() if name in CLASSES)
    return ".".join([tag, *classes])


def _tag(node: Node) -> str:
    return "" if isinstance(node, str) else str(node[0]).partition(".")[0]


def _classes(node: Sequence[Node]) -> list[str]:
    return str(node[0]).split(".")[1:]


def _text(node: Node) -> str:
    if isinstance(node, str):
        return node
    if _tag(node) == "table":
        return f"\n{_table_text(node)}\n"
    inner = "".join(map(_text, node[1:]))
    if "move" in _classes(node):
        inner = f"[{inner}]"
    return f"\n{inner}\n" if _tag(node) in BLOCKS else inner


def _table_text(node: Sequence[Node]) -> str:
    """A table with aligned columns; long contents of cells are wrapped."""
    rows = [[_lines(cell) for cell in row] for row in _rows(node)]
    count = max(map(len, rows), default=0)
    rows = [row + [[""]] * (count - len(row)) for row in rows]
    widths = [max(len(line) for row in rows for line in row[at]) for at in range(count)]
    gap = " " if "grid" in _classes(node) else "  "
    texts = []
    for row in rows:
        for number in range(max(map(len, row), default=0)):
            parts = (cell[number] if number < len(cell) else "" for cell in row)
            texts.append(gap.join(part.ljust(w) for part, w in zip(parts, widths, strict=True)))
    return "\n".join(texts)


def _rows(node: Sequence[Node]) -> Iterable[list[Node]]:
    """The rows of a table, each as its cells."""
    for child in node[1:]:
        if _tag(child) == "tr":
            yield [cell for cell in child[1:] if not isinstance(cell, str)]
        elif not isinstance(child, str):
            yield from _rows(child)


def _lines(cell: Node) -> list[str]:
    lines = [part for line in _text(cell).splitlines() for part in textwrap.wrap(line, WIDEST)]
    return lines or [""]
