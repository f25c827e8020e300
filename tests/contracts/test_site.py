"""The documentation's site: every page has a place and no link is broken, every public name is
documented, and the tutorials are notebooks with a picture at their end."""

import inspect
import json
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripts import gallery, notebooks, protocol, site

import mrlm
from mrlm.core import registry
from mrlm.serving import mrlm_pb2
from places import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
LINK = re.compile(r"!?\[(?:[^\]]|\]\()*?\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```|(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
SHOWN = {f"gallery/{name}.html" for name in gallery.RUNS}
"""Pages of runs that are made while the site is built."""
LARGEST = 400_000
"""Bytes of all pictures of the tutorials."""


def places(entries: list[dict[str, Any]]) -> Iterator[str]:
    """The pages of a navigation, in its order."""
    for entry in entries:
        for found in entry.values():
            yield from [found] if isinstance(found, str) else places(found)


def anchors(page: Path) -> set[str]:
    """What the headings of a page are called in an address, as Python-Markdown and GitHub do."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    names = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in HEADING.findall(text)]
    return {re.sub(r"[\s]", "-", name) for name in names}


def broken(page: Path, text: str) -> list[str]:
    """Links in a text of a page that lead nowhere, or out of the site."""
    found = []
    written = site.reference().keys() | {"cli.md"} | SHOWN
    for target in LINK.findall(CODE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        inside = file.is_relative_to(DOCS)
        if inside and str(file.relative_to(DOCS)) in written:
            continue
        if not inside or not file.is_file() or (anchor and anchor not in anchors(file)):
            found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_no_link_is_broken(page: Path) -> None:
    assert broken(page, page.read_text(encoding="utf-8")) == []


def test_a_broken_link_is_seen() -> None:
    good = "[a](metrics.md) [b](data.md#presets) ![c](images/viewer.png) [d](https://x.org)"
    bad = "[a](nowhere.md) [b](data.md#nowhere) ![c](images/none.png) [d](../README.md)"
    assert broken(DOCS / "index.md", good + " `[e](no.md)`") == []
    assert broken(DOCS / "index.md", bad) == re.findall(r"\(([^)]+)\)", bad)


def test_every_page_is_in_the_navigation_once() -> None:
    config = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    named = list(places(config["project"]["nav"]))
    written = {str(page.relative_to(DOCS)) for page in PAGES} | site.reference().keys() | {"cli.md"}
    assert sorted(named) == sorted(written)


def test_every_public_name_is_on_a_page_of_the_reference() -> None:
    named = [name for _, _, names in site.PYTHON.values() for name in names.split()]
    assert sorted(named) == sorted(mrlm.HOME)


def undocumented(name: str) -> list[str]:
    """A public name and its public methods, where nothing describes them."""
    thing = getattr(mrlm, name)
    lacking = [] if inspect.getdoc(thing) else [name]
    if inspect.isclass(thing):
        for each, member in vars(thing).items():
            plain = inspect.isfunction(member) or isinstance(member, (classmethod, staticmethod))
            if plain and not each.startswith("_") and not inspect.getdoc(getattr(thing, each)):
                lacking.append(f"{name}.{each}")
    return lacking


@pytest.mark.parametrize("name", sorted(mrlm.HOME))
def test_a_public_name_has_a_docstring(name: str) -> None:
    assert undocumented(name) == []


def test_every_setting_of_an_algorithm_is_described() -> None:
    """Those of its bases, too."""
    page = site.reference()["api/algorithms.md"]
    rows = re.findall(r"^\| `(\w+)` \| `(.+?)` \| (.*) \|$", page, re.MULTILINE)
    assert len(rows) > 300 and "| `clip_range` | `0.2` |" in page.partition("## GRPO\n")[2]
    assert {name for name, _, meaning in rows if not meaning} == set()


def test_the_page_of_commands_has_every_command_and_option() -> None:
    text = site.commands()
    options = json.loads((ROOT / "src/mrlm/cli/options.json").read_text(encoding="utf-8"))
    for name in options.keys() - {"shared"}:
        assert f"## mrlm {name}\n" in text
    assert "| `--steps <" in text and "| `--config, -c <" in text.replace(
        "-c, --config", "--config, -c"
    )


def described() -> dict[str, set[str]]:
    """The services, messages and enumerations of the compiled protocol, and what is in each."""
    compiled = mrlm_pb2.DESCRIPTOR
    found = {name: set(each.methods_by_name) for name, each in compiled.services_by_name.items()}
    for name, message in compiled.message_types_by_name.items():
        found[name] = set(message.fields_by_name)
        for inner, values in message.enum_types_by_name.items():
            found[f"{name}.{inner}"] = set(values.values_by_name)
    return found


def test_the_page_of_the_protocol_is_that_of_the_compiled_one() -> None:
    listed = protocol.blocks(protocol.PROTO.read_text(encoding="utf-8"))
    assert {each.name: {row[0].strip("`") for row in each.rows} for each in listed} == described()
    numbers = {
        (block.name, row[0].strip("`")): int(row[2])
        for block in listed
        for row in block.rows
        if block.kind == "message"
    }
    messages = mrlm_pb2.DESCRIPTOR.message_types_by_name
    for (name, field), number in numbers.items():
        assert messages[name].fields_by_name[field].number == number
    page = protocol.page()
    anchors = {re.sub(r"\W", "", heading).lower() for heading in HEADING.findall(page)}
    assert set(re.findall(r"\(#(\w+)\)", page)) <= anchors and "failurekind" in anchors


def test_a_line_of_the_protocol_that_is_not_understood_is_named() -> None:
    with pytest.raises(ValueError, match="string broken"):
        protocol.blocks("message Broken {\n  string broken;\n}\n")


@pytest.mark.parametrize("page", list(site.tutorials()), ids=lambda page: page.stem)
def test_a_tutorial_is_a_notebook_that_ends_in_a_picture(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    made = notebooks.notebook(text)
    code = [cell["source"] for cell in made["cells"] if cell["cell_type"] == "code"]
    assert len(code) >= 3 and len({cell["id"] for cell in made["cells"]}) == len(made["cells"])
    for source in code:
        if not source.startswith("%%"):
            compile(source, page.name, "exec")
    pictures = re.findall(r"!\[[^\]]{20,}\]\((\.\./images/tutorials/[^)]+)\)", text)
    assert pictures and "```" not in text.partition(pictures[-1])[2]


def test_the_pictures_of_the_tutorials_are_small() -> None:
    sizes = [file.stat().st_size for file in (DOCS / "images" / "tutorials").glob("*.png")]
    assert sizes and sum(sizes) < LARGEST


def test_the_gallery_links_every_run_that_is_made_for_it() -> None:
    text = (DOCS / "gallery.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\((gallery/[^)]+)\)", text)) == SHOWN
    for name, commands in gallery.RUNS.items():
        (*_, last) = commands
        page = ROOT / last[-1]
        written = page.read_text(encoding="utf-8") if page.is_file() else " ".join(last)
        assert f"{name}.html" in written


@pytest.mark.slow
def test_a_page_of_the_gallery_is_made_and_then_current(tmp_path: Path) -> None:
    made = gallery.make("drafts", tmp_path)
    assert made == tmp_path / "drafts.html" and made.stat().st_size > 100_000
    assert gallery.is_current(made) and not gallery.is_current(tmp_path / "none.html")
    os.utime(made, (0, 0))
    assert not gallery.is_current(made)


def test_a_command_of_the_gallery_that_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gallery.RUNS, "broken", (("-c", "raise SystemExit('no run')"),))
    with pytest.raises(SystemExit, match=r"gallery broken: .*failed\nno run"):
        gallery.make("broken", tmp_path)


def test_the_config_of_a_how_to_page_is_the_file() -> None:
    cells = notebooks.cells((DOCS / "how_to" / "gsm8k_magrpo.md").read_text(encoding="utf-8"))
    (text,) = [cell.text for cell in cells if cell.name == "gsm8k_magrpo.yaml"]
    file = (ROOT / "configs" / "gsm8k_magrpo.yaml").read_text(encoding="utf-8")
    assert text == "# gsm8k_magrpo.yaml\n" + file.strip()


def test_every_rule_of_the_doctor_has_a_symptom() -> None:
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    assert {name for name in registry.names("rules") if f"`{name}`" not in text} == set()
