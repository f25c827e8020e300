"""`mrlm new`: what it writes trains as it is, is what CONTRIBUTING.md shows, and is never laid over
a file that exists."""

import re
import sys
from pathlib import Path
from typing import get_args

import pytest

from commands import Mrlm
from mrlm.cli.new import EXAMPLES, Kind, written
from places import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
KINDS = get_args(Kind)


def test_the_page_shows_what_is_written() -> None:
    for language in ("python", "yaml"):
        shown = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
        texts = [each.code if language == "python" else each.config for each in EXAMPLES.values()]
        assert sorted(shown) == sorted(texts)
    assert set(EXAMPLES) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_trains_as_it_is(
    kind: Kind, run: Mrlm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"my_{EXAMPLES[kind].name}s"
    done = run("new", kind, name)
    assert done.code == 0 and f"mrlm train --config {name}.yaml" in done.out
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.py", f"{name}.yaml"}
    again = run("new", kind, name)
    assert again.code == 2 and f"{name}.py exists already" in again.err
    done = run("train", "--config", f"{name}.yaml")
    assert done.code == 0, done.err
    assert "step 1/1" in done.err + done.out
    assert f"{name}:" in (tmp_path / "outputs" / name / "config.yaml").read_text()


@pytest.mark.parametrize("name", ["My", "a-b", "class", "1st", "json"])
def test_a_name_that_cannot_be_imported_is_refused(
    name: str, run: Mrlm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("new", "algorithm", name)
    assert done.code == 2 and f"NAME={name!r}" in done.err
    assert not list(tmp_path.iterdir())


def test_a_name_is_put_in_everywhere() -> None:
    files = written("environment", "echoes_of_echo")
    assert files["echoes_of_echo.py"].startswith('"""Echoes of echo: one agent')
    assert files["echoes_of_echo.py"].endswith("PLUGIN = EchoesOfEcho\n")
    assert 'env_type: "echoes_of_echo:EchoesOfEcho"' in files["echoes_of_echo.yaml"]
