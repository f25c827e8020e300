"""A model that is given once and trained as several policies."""

import logging
from pathlib import Path
from typing import Any

import pytest

from mrlm import MAGRPOTrainer
from mrlm.build import policies


def built(folder: Path, model: Any, tokenizer: Any, share: bool | str | None) -> MAGRPOTrainer:
    trainer = MAGRPOTrainer(
        model=model,
        tokenizer=tokenizer,
        num_agents=3,
        share_policy=share,
        train_dataset=[{"prompt": "one"}],
        reward_func=lambda *texts: [1.0],
        output_dir=str(folder),
        report_to="none",
    )
    assert trainer.run
    trainer.run.log.close()
    return trainer


@pytest.mark.parametrize("much", [False, True])
def test_copies_of_a_given_model_are_announced(
    much: bool,
    tmp_path: Path,
    model: Any,
    tokenizer: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if much:
        monkeypatch.setattr(policies, "MUCH", 1)
    with caplog.at_level(logging.INFO, "mrlm"):
        trainer = built(tmp_path / "own", model, tokenizer, None)
    models = {id(learner.weights_of.model) for learner in trainer.run.learners}
    (said,) = [each for each in caplog.records if "was copied" in each.message]
    size = sum(each.numel() * each.element_size() for each in model.parameters())
    assert len(models) == 3 and "copied 2 times" in said.message
    assert f"{2 * size / 1e9:.3g} GB" in said.message and "share_policy=True" in said.message
    assert said.levelno == (logging.WARNING if much else logging.INFO)


def test_a_shared_model_is_not_copied(
    tmp_path: Path, model: Any, tokenizer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "mrlm"):
        trainer = built(tmp_path / "shared", model, tokenizer, True)
    assert len(trainer.run.learners) == 1 and "was copied" not in caplog.text
