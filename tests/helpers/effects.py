"""A case is another value of a setting; a setting without one names the test of its effect."""

import re
from typing import Any

from places import file_of


def case(value: Any, **on: Any) -> tuple[Any, dict[str, Any]]:
    """Another value of a setting, and settings of both that are compared."""
    return value, on


def again(prompt: str, agent_completions: list[str], **more: Any) -> list[str]:
    """An external transition."""
    return [f"{prompt} Again." for _ in agent_completions]


def assert_tests_exist(elsewhere: dict[str, str], words: dict[str, str | None]) -> None:
    """Every test that is named is there, and its file has the word of the setting.

    Args:
        elsewhere: `name.setting` -> `file::test`.
        words: setting -> the word for it there, where it is another; `None` where it has none.
    """
    for key, path in elsewhere.items():
        file, name = path.split("::")
        text = file_of(file).read_text(encoding="utf-8")
        assert re.search(rf"^def {name}\(", text, re.MULTILINE), path
        setting = key.split(".")[1]
        word = words.get(setting, setting)
        assert word is None or re.search(rf"\b{word}\b", text), (key, file)
