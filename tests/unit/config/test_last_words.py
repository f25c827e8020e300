"""Settings as arguments of trainers, by the last word of their path."""

from typing import Any

import pytest

import mrlm
from mrlm.build.arguments import last_words
from mrlm.core.errors import ConfigError

ROWS = [{"prompt": "2+2=", "completion": "4"}]


def trainer(**words: Any) -> Any:
    return mrlm.SFTTrainer(model=mrlm.default_model(), train_dataset=ROWS, **words)


@pytest.mark.parametrize(
    ("word", "value", "section"),
    [
        ("max_tokens_per_microbatch", 512, "training"),
        ("save_total_limit", 3, "training"),
        ("dropout", True, "training"),
        ("on_long_row", "truncate", "data"),
        ("max_prompt_tokens", 99, "generation"),
    ],
)
def test_a_setting_by_its_last_word(word: str, value: Any, section: str) -> None:
    config = trainer(**{word: value}).config
    assert getattr(getattr(config, section), word) == value
    assert last_words()[word] == f"{section}.{word}"


def test_words_of_several_sections_are_not_guessed() -> None:
    with pytest.raises(ConfigError, match=r"give engine=\{'timeout': \.\.\.\} or distributed="):
        trainer(timeout=1)
    assert trainer(engine={"timeout": 1}).config.engine.timeout == 1
    with pytest.raises(ConfigError, match=r"unknown argument; did you mean 'train_dataset'\?"):
        trainer(dataset=[])
    with pytest.raises(ConfigError, match="unknown argument"):
        trainer(no_such_setting=1)
