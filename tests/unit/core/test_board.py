"""Boards: of HTML only known elements and classes are kept, all else is text, within bounds."""

import json
import random
import re
from typing import Any

import pytest

from mrlm.core import board
from mrlm.core.board import (
    CLASSES,
    MOST_CHARACTERS,
    MOST_ELEMENTS,
    TAGS,
    Html,
    Node,
    as_text,
    board_tree,
    bounded,
    stacked,
    table,
)

HOSTILE = [
    "<script>alert(1)</script>", "<svg onload=alert(1)>", "<style>*{display:none}</style>",
    "<a href='javascript:alert(1)'>x</a>", "<img src=x onerror=alert(1)>",
    "<iframe srcdoc='<script>1</script>'></iframe>", "<!--<script>alert(1)</script>-->",
    "<![CDATA[<script>]]><?php echo 1 ?><!DOCTYPE x>",
    "<td onclick=alert(1) style='position:fixed' id=app class='win evil turn'>cell</td>",
    "<template><b>x</b></template><math><mtext></math>", "<SCRIPT/SRC=//example.invalid>",
    "<b\x00onclick=1>x</b>",
]  # fmt: skip


def parts(tree: Node) -> tuple[set[str], set[str], str]:
    """Tags, classes and text of a tree."""
    if isinstance(tree, str):
        return set(), set(), tree
    tag, *classes = str(tree[0]).split(".")
    found = [parts(child) for child in tree[1:]]
    tags = {tag}.union(*(each[0] for each in found))
    return tags, set(classes).union(*(e[1] for e in found)), "".join(e[2] for e in found)


@pytest.mark.parametrize("html", HOSTILE)
def test_all_but_known_elements_and_classes_is_text(html: str) -> None:
    tags, classes, text = parts(board_tree(html))
    assert tags <= TAGS and classes <= CLASSES
    assert not {"script", "svg", "style", "a", "img", "iframe", "template"} & tags
    if "<td" not in html and "\x00" not in html:
        assert "alert" not in html or "alert" in text, "nothing is lost"
    else:
        assert "alert" not in text, "attributes of kept elements are dropped"
    assert "evil" not in json.dumps(board_tree(html))


def test_text_of_a_model_in_a_table_stays_one_text() -> None:
    for text in HOSTILE:
        tree: Any = board_tree(table([[text, (text, "good")]]))
        assert tree == ["div", ["table", ["tr", ["td", text], ["td.good", text]]]]
    assert board_tree(stacked("<b>x", "", "y")) == ["div", ["p", "<b>x"], ["p", "y"]]


@pytest.mark.parametrize(
    "html",
    [
        "<b>" * 5000, "<" * 16_000, "<table><tr>" * 900, "x" * 100_000, "</p>" * 3000, "<p",
        "&#x;" * 99,
    ],
)  # fmt: skip
def test_boards_are_bounded(html: str) -> None:
    tree = board_tree(html)
    assert len(parts(tree)[2]) <= MOST_CHARACTERS + 10
    assert json.dumps(tree).count("[") <= MOST_ELEMENTS + 1

    def depth(node: Node) -> int:
        return 0 if isinstance(node, str) else 1 + max(map(depth, node[1:]), default=0)

    assert depth(tree) < 20
    assert isinstance(as_text(tree), str)
    assert len(bounded(html)) <= MOST_CHARACTERS + 10
    assert isinstance(bounded(Html(html)), Html) and len(bounded(Html(html))) <= 16_000


def test_broken_html_is_read_like_a_browser_would_close_it() -> None:
    assert board_tree("<p>a<b>b</p>c</b>d") == ["div", ["p", "a", ["b", "b"]], "cd"]
    assert board_tree("a<br>b<br/>c") == ["div", "a", ["br"], "b", ["br"], "c"]
    assert board_tree("1 &lt; 2 &amp; &#51;") == ["div", "1 < 2 & 3"]


def test_tables_are_aligned_in_text() -> None:
    grid = table([[("X", "player0 move"), "2"], ["3", "O"]], kind="grid")
    assert as_text(stacked(grid, "O to move")) == "[X] 2\n3   O\nO to move"
    wide = table([["a " * 40, 0.5], ["b\nc", -30.0]], head=("text", "value"))
    lines = as_text(wide).splitlines()
    assert lines[0].split() == ["text", "value"] and len(lines) == 5
    assert (
        len({line.index(word) for line, word in zip(lines[:2], ("value", "0.5"), strict=True)}) == 1
    )
    assert max(map(len, lines)) < 60
    assert as_text("plain\ntext") == "plain\ntext"


PIECES = ["<table>", "</table>", "<tr>", "</tr>", "<td>", '<td class="win num">', '<p class="x">']
PIECES += ["</td>", "<br>", "</br>", "<b>", "</p>", "<script>", "<i class='win'>", "<I>", "<br/>"]
PIECES += ["1 < 2", "a&amp;b", "&lt;b&gt;", "x" * 2000, "<!-- a -->", "&", "", "text", "</td >"]


@pytest.mark.parametrize("seed", range(40))
def test_a_board_is_read_alike_with_and_without_the_pattern(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    known = [*PIECES[:12], "text", "a&amp;b", "x" * 2000] if seed % 2 else PIECES
    html = "".join(rng.choices(known, k=rng.choice([3, 10, 1200])))
    quick = board_tree.__wrapped__(html)
    monkeypatch.setattr(board, "_PIECE", re.compile("(?!)"))  # matches nothing
    assert board_tree.__wrapped__(html) == quick
