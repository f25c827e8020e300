"""What the pages say of a plug-in is what its file says."""

import re

import pytest
from scripts import pages

from mrlm.core import registry
from places import ROOT


def part(file: str) -> str:
    """The part of a page that is written from plug-ins."""
    text = (ROOT / "docs" / file).read_text(encoding="utf-8")
    return pages.split(text, pages.PARTS[file][0])[1]


def on_page(file: str) -> list[str]:
    """Names of the plug-ins that a page has."""
    return re.findall(r"^(?:### |\| `)(\w+)", part(file), re.MULTILINE)


@pytest.mark.parametrize("file", pages.PARTS)
def test_a_page_says_of_a_plug_in_what_its_file_says(file: str) -> None:
    """One that is newer than the page may be missing: `make check` asks for it."""
    made = pages.PARTS[file][1]()
    shown = re.split(r"^(?=#+ |\| `)", part(file), flags=re.MULTILINE)
    assert len(shown) > 12
    assert [text for text in shown if text not in made] == []


@pytest.mark.parametrize("wing", ["algorithms", "environments", "workflows"])
def test_a_page_has_the_plug_ins_of_its_wing_and_no_others(wing: str) -> None:
    names = on_page(f"{wing}.md")
    assert len(names) > 15 and len(names) == len(set(names))
    assert set(names) <= set(registry.names(wing))


def test_a_page_without_its_marks_is_an_error() -> None:
    with pytest.raises(SystemExit, match="lacks the marks of its workflows"):
        pages.split("# Workflows\n", "workflows")


def test_a_sentence_describes_a_plug_in() -> None:
    assert registry.describe("environments", "summarization").endswith("graded by a judge.")
    assert registry.describe("algorithms", "dr_mas").startswith("Dr. MAS: rewards")
    for wing in registry.WINGS:
        for name in registry.names(wing):
            assert registry.describe(wing, name).endswith("."), (wing, name)
