"""Judges of texts and debates: replies as models write them, and reward models as transformers
scores them."""

from pathlib import Path
from typing import Any

import pytest

from mrlm.environments.debate.llm import LLMJudge
from mrlm.environments.shared.text_judge import read

TITLE = "Verdicts of judges and scores of reward models"
JUDGE = "transformers: the tokenizer's pair and the classifier's own forward pass"
DIFFERENCES = (
    "a model with missing weights is an error here: transformers fills them with random numbers",
)
LONG = "It has a reason for each claim, and it answers the other one.\n" * 200


@pytest.mark.parametrize(
    ("reply", "grade"),
    [
        ("Score: 8", 0.8),
        ("**Score:** 8/10", 0.8),
        ("Score: 8 out of 10", 0.8),
        ("Score: [[8]]", 0.8),
        ("[[8]]", 0.8),
        ("8/10", 0.8),
        ("Score: .8", 0.08),
        ("Final score: 7.5.", 0.75),
        ("Score: 3\nOn second thought:\nScore: 8", 0.8),
        (LONG + "Score: 6", 0.6),
        ("Score: -5", None),
        ("Score: −5", None),
        ("Score: <5", None),
        ("Score: >5", None),
        ("Score: 11", None),
        ("Score: 8\nScore: 80", None),
        ("Score: high", None),
        ("no grade", None),
    ],
)
def test_the_last_grade_counts(reply: str, grade: float | None) -> None:
    assert read(reply) == (None if grade is None else pytest.approx(grade))


@pytest.mark.parametrize(
    ("reply", "pro"),
    [
        ("Winner: A", 1.0),
        ("**Winner: Speaker B**", 0.0),
        ("Verdict: tie", 0.5),
        ("[[A]]", 1.0),
        ("[[C]]", 0.5),
        ("Speaker B wins.", 0.0),
        ("B", 0.0),
        ("A:\nclear and short\nB:\nlong\nWinner: B", 0.0),
        ("A:\nclear and short\nB:\nlong", None),
        ("Winner: A\nNo, I was wrong.\nWinner: B", 0.0),
        (LONG + "Winner: A", 1.0),
        ("A is better than B in places", None),
    ],
)
def test_the_last_winner_counts(reply: str, pro: float | None) -> None:
    ballot = LLMJudge("judge").read(reply, ("pro", "con"))
    assert ballot == (None if pro is None else {"pro": pro, "con": 1 - pro})


@pytest.mark.parametrize(
    ("reply", "scores"),
    [
        ("A: 8\nB: 6", (0.8, 0.6)),
        ("**A:** 8/10\n**B:** 6 out of 10", (0.8, 0.6)),
        ("Speaker A: 8\nSpeaker B: [[6]]", (0.8, 0.6)),
        ("A: 3\nB: 4\nThen again:\nA: 8\nB: 6", (0.8, 0.6)),
        ("A: 8\nB: -6", None),
        ("A: 8\nB: 60", None),
        ("A: 8\nB: <6", None),
        ("A: 8", None),
    ],
)
def test_the_last_scores_count(reply: str, scores: tuple[float, float] | None) -> None:
    ballot = LLMJudge("judge", mode="scores").read(reply, ("pro", "con"))
    assert (None if ballot is None else tuple(ballot.values())) == scores


def _folder(folder: Path, kind: str) -> Path:
    """A classifier of pairs with random weights, and a tokenizer of words."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "is", "it", "yes", "no", "?", "rather"]
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, **names)
    tokenizer.model_max_length = 64
    tokenizer.save_pretrained(folder)
    config: Any = getattr(transformers, f"{kind}Config")(
        vocab_size=len(words), hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=2, num_labels=1, max_position_embeddings=64, initializer_range=1.0,
    )  # fmt: skip
    torch.manual_seed(0)
    getattr(transformers, f"{kind}ForSequenceClassification")(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["Bert", "DebertaV2"])
def test_a_classifier_of_pairs_scores_the_tokenizers_pair(
    kind: str, tmp_path: Path, record_property: Any
) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from mrlm.engines.reward_model import RewardModel

    folder = _folder(tmp_path, kind)
    judge = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    pairs = [("is it ?", "yes"), ("is it ?", "rather no"), ("it", "yes yes no")]
    with torch.no_grad():
        scores = [
            float(judge(**tokenizer(*pair, return_tensors="pt")).logits[0, 0]) for pair in pairs
        ]
    prompts, replies = zip(*pairs, strict=True)
    assert RewardModel(folder)(prompts, replies) == pytest.approx(scores, abs=1e-6)
    assert len({round(score, 5) for score in scores}) == 3
    record_property("cases", len(pairs))


@pytest.mark.parametrize("part", ["classifier", "embedding", "module"])
def test_missing_weights_stop_every_load_of_a_classifier(part: str, tmp_path: Path) -> None:
    from mrlm.core.errors import ModelError
    from mrlm.engines.reward_model import RewardModel

    file = _folder(tmp_path, "Bert") / "model.safetensors"
    assert RewardModel(tmp_path)(["is it ?"], ["yes"])
    _without(file, part)
    with pytest.raises(ModelError, match="weights of the model are missing"):
        RewardModel(tmp_path)(["is it ?"], ["yes"])


DOORS = [
    "model",
    "adapter",
    "adapter in pickle",
    "policy",
    "policy's adapter",
    "value head",
    "value head's file",
]


@pytest.mark.parametrize("door", DOORS)
def test_missing_weights_stop_every_load(door: str, tmp_path: Path, tiny_path: str) -> None:
    """Folders that this library or PEFT wrote, without one tensor."""
    import torch
    from safetensors.torch import load_file

    from mrlm.core.errors import ModelError
    from mrlm.learn.policy.loading import load_model, load_tokenizer
    from mrlm.learn.policy.lora import add_adapter
    from mrlm.learn.policy.policy import Policy

    model, tokenizer = load_model(tiny_path, device="cpu"), load_tokenizer(tiny_path)
    name = None
    if "adapter" in door:
        pytest.importorskip("peft")
        model, name = add_adapter(model, "one", {"r": 2}), "one"
    policy = Policy("one", model, tokenizer, adapter=name)
    if "value head" in door:
        policy.add_value_head()
    policy.save(tmp_path)
    file = tmp_path / ("adapter_model.safetensors" if name else "model.safetensors")
    file = tmp_path / "value_head.safetensors" if "value head" in door else file

    def load() -> Any:
        if door in ("model", "adapter", "adapter in pickle"):
            return load_model(str(tmp_path), device="cpu")
        return policy.load(tmp_path)

    load()
    if door == "value head's file":
        file.unlink()
    else:
        _without(file, next(iter(load_file(file))))
    if door == "adapter in pickle":
        torch.save(load_file(file), tmp_path / "adapter_model.bin")
        file.unlink()
    with pytest.raises(ModelError, match="missing"):
        load()


def _without(file: Path, part: str) -> None:
    """Take tensors out of a file, or put `module.` before the names of all."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(file)
    if part == "module":
        tensors = {f"module.{name}": tensor for name, tensor in tensors.items()}
    else:
        tensors = {name: tensor for name, tensor in tensors.items() if part not in name}
    save_file(tensors, file, metadata={"format": "pt"})
