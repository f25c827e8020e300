r"""Data sets with short names: their hub ids, the meaning of their columns, their training and
held-out splits. A table only; rows are read in `data/sources.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mrlm.core.errors import DataError
from mrlm.data.final_answer import after_hashes, boxed

Extract = Callable[[Any], Any]
"""Function that extracts a value from a column; `None` leaves the column out."""


@dataclass(frozen=True, slots=True)
class DatasetPreset:
    r"""A data set with a short name.

    Args:
        name: its short name.
        hub: its id on the hub.
        about: a short description.
        columns: our name -> its name, of the columns that every row has.
        keep: further optional columns, under their own names.
        extract: our name -> function that extracts its value, such as the `42` of `... #### 42`.
        config: its configuration on the hub, also the folder in a snapshot of it.
        train: the training split.
        held_out: the held-out split; `None`: a tenth of the prompts of `train`.
        revision, files: revision and files (split -> files) on the hub, if the data are not in the
            main branch.
    """

    name: str
    hub: str
    about: str
    columns: Mapping[str, str]
    keep: tuple[str, ...] = ()
    extract: Mapping[str, Extract] = field(default_factory=dict)
    config: str | None = None
    train: str = "train"
    held_out: str | None = None
    revision: str | None = None
    files: Mapping[str, str] | None = None

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits in use: training, and held out."""
        return (self.train, self.held_out) if self.held_out else (self.train,)

    def row(self, value: Mapping[str, Any], where: str) -> dict[str, Any]:
        """A row under our names.

        Args:
            value: the original row.
            where: its location, for errors.

        Raises:
            DataError: a column is missing, or contains no answer.
        """
        row: dict[str, Any] = {}
        for ours, theirs in self.columns.items():
            if value.get(theirs) is None:
                raise DataError(
                    f"{where}, column {theirs!r}: missing; the preset {self.name!r} needs it, and "
                    f"the row has {', '.join(map(str, value)) or 'none'}"
                )
            read = self.extract.get(ours)
            if read is None:
                row[ours] = value[theirs]
                continue
            try:
                found = read(value[theirs])
            except (ValueError, TypeError, AttributeError, RecursionError) as error:
                raise DataError(f"{where}, column {theirs!r}: {error}") from error
            if found is not None:
                row[ours] = found
        return row | {name: value[name] for name in self.keep if value.get(name) is not None}


def _hashes(text: str) -> str:
    found = after_hashes(text)
    if found is None:
        raise ValueError("no answer after '####'")
    return found


def _box(text: str) -> str:
    found = boxed(text)
    if not found:
        raise ValueError("no answer in a \\boxed{}")
    return found


def _answers(value: Any) -> list[str]:
    found = [value] if isinstance(value, str) else [str(each) for each in value]
    if not any(each.strip() for each in found):
        raise ValueError("no answer")
    return found


def _first_program(value: str) -> str | None:
    """The first solution of a JSON list in a text; `None` for rows without one."""
    found = json.loads(value) if value.strip() else []
    return found[0] if found else None


PRESETS: dict[str, DatasetPreset] = {
    preset.name: preset
    for preset in (
        DatasetPreset(
            "gsm8k",
            "openai/gsm8k",
            "grade school mathematics, with a number as the answer",
            {"prompt": "question", "answer": "answer", "completion": "answer"},
            extract={"answer": _hashes},
            config="main",
            held_out="test",
        ),
        DatasetPreset(
            "math",
            "DigitalLearningGmbH/MATH-lighteval",
            "competition mathematics (Hendrycks MATH), with a boxed answer",
            {"prompt": "problem", "answer": "solution", "completion": "solution"},
            keep=("level", "type"),
            extract={"answer": _box},
            held_out="test",
        ),
        DatasetPreset(
            "humaneval",
            "openai/openai_humaneval",
            "functions to complete, with a check (HumanEval)",
            {
                "prompt": "prompt",
                "entry_point": "entry_point",
                "test": "test",
                "canonical_solution": "canonical_solution",
                "completion": "canonical_solution",
            },
            keep=("task_id",),
            config="openai_humaneval",
            train="test",
        ),
        DatasetPreset(
            "mbpp",
            "google-research-datasets/mbpp",
            "short functions to write, with asserts (MBPP, sanitized)",
            {"prompt": "prompt", "test_list": "test_list", "code": "code", "completion": "code"},
            keep=("task_id", "test_imports"),
            config="sanitized",
            held_out="test",
        ),
        DatasetPreset(
            "coophumaneval",
            "OpenMLRL/CoopHumanEval",
            "functions that two writers can share (CoopHumanEval)",
            {"prompt": "prompt", "entry_point": "entry_point", "test": "test"},
            keep=("task_id",),
            train="test",
        ),
        DatasetPreset(
            "classeval",
            "FudanSELab/ClassEval",
            "classes to complete, with tests for every method (ClassEval)",
            {
                "prompt": "skeleton",
                "completion": "solution_code",
                "skeleton": "skeleton",
                "solution_code": "solution_code",
                "test": "test",
                "class_name": "class_name",
                "methods_info": "methods_info",
            },
            keep=(
                "task_id",
                "import_statement",
                "class_description",
                "test_classes",
                "class_constructor",
                "fields",
            ),
            train="test",
        ),
        DatasetPreset(
            "apps",
            "codeparrot/apps",
            "programs that read input and print, or functions to call (APPS)",
            {
                "prompt": "question",
                "input_output": "input_output",
                "solutions": "solutions",
                "completion": "solutions",
            },
            keep=("problem_id", "difficulty", "starter_code"),
            extract={"completion": _first_program},
            config="all",
            held_out="test",
            revision="refs/convert/parquet",
            files={"train": "all/train/*.parquet", "test": "all/test/*.parquet"},
        ),
        DatasetPreset(
            "tldr",
            "trl-lib/tldr",
            "posts to summarise (Reddit TL;DR)",
            {"prompt": "prompt", "completion": "completion"},
            held_out="validation",
        ),
        DatasetPreset(
            "arxiv",
            "OpenMLRL/arXiv_abstract",
            "abstracts of papers to write an introduction for",
            {"prompt": "abstract_text"},
            keep=("article_id",),
            held_out="val",
        ),
        DatasetPreset(
            "nq",
            "google-research-datasets/nq_open",
            "questions to a search engine, with short answers (Natural Questions)",
            {"prompt": "question", "answer": "answer"},
            extract={"answer": _answers},
            config="nq_open",
            held_out="validation",
        ),
        DatasetPreset(
            "hotpotqa",
            "hotpotqa/hotpot_qa",
            "questions that need two facts, with short answers (HotpotQA)",
            {"prompt": "question", "answer": "answer"},
            keep=("id", "type", "level"),
            config="distractor",
            held_out="validation",
        ),
        DatasetPreset(
            "ultrafeedback",
            "HuggingFaceH4/ultrafeedback_binarized",
            "a better and a worse answer to a request (UltraFeedback)",
            {"chosen": "chosen", "rejected": "rejected"},
            keep=("prompt", "score_chosen", "score_rejected"),
            train="train_prefs",
            held_out="test_prefs",
        ),
    )
}
"""Name -> data set."""
