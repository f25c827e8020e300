"""The embedded model: found, built, raced for and loaded as any Hugging Face folder is."""

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrlm.core.errors import ModelError
from mrlm.core.tiny_model import default_model, resolve_model


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MRLM_MODEL", raising=False)
    monkeypatch.setenv("MRLM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MRLM_MODEL", raising=False)
        patch.setenv("MRLM_CACHE", str(tmp_path_factory.mktemp("cache")))
        return default_model()


@pytest.fixture(scope="module")
def tokenizer(folder: str):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_fresh_process_loads_and_samples_without_a_network(folder: str) -> None:
    code = (
        "import sys; from transformers import AutoModelForCausalLM as M, AutoTokenizer as T\n"
        "model, tokenizer = M.from_pretrained(sys.argv[1]), T.from_pretrained(sys.argv[1])\n"
        "inputs = tokenizer(['2+3=', 'a longer one'], padding=True, return_tensors='pt')\n"
        "print(model.num_parameters(), len(tokenizer), model.config.max_position_embeddings,\n"
        "      model.generation_config.eos_token_id, tokenizer.padding_side,\n"
        "      model.generate(**inputs, max_new_tokens=2, min_new_tokens=2).shape[1])"
    )
    process = start(code, folder)
    out, err = process.communicate()
    assert process.returncode == 0, err
    parameters, *rest = out.split()
    assert 400_000 < int(parameters) < 450_000
    assert rest == ["259", "8192", "2", "left", str(len("a longer one") + 2)]


def test_weights_do_not_depend_on_the_callers_seed_and_leave_it_alone(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    def built_with(seed: int, name: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        torch.manual_seed(seed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MRLM_CACHE", str(tmp_path / name))
            path = default_model()
        return load_file(Path(path) / "model.safetensors"), torch.rand(3)

    (one, after_one), (two, _) = built_with(1, "one"), built_with(2, "two")
    assert all(torch.equal(one[name], two[name]) for name in one)
    torch.manual_seed(1)
    assert torch.equal(after_one, torch.rand(3))


@pytest.mark.slow
def test_processes_that_build_at_the_same_time_all_get_a_whole_model(own_cache: Path) -> None:
    """Two that were forked once everything was imported, so that they begin at the same moment."""
    code = (
        "import os, sys, transformers\n"
        "from transformers.models.qwen3 import modeling_qwen3\n"
        "from mrlm.core.tiny_model import default_model\n"
        "def build():\n"
        "    path = default_model()\n"
        "    transformers.AutoModelForCausalLM.from_pretrained(path)\n"
        "    os.write(1, f'{path}\\n'.encode())\n"
        "def child():\n"
        "    try: build()\n"
        "    except BaseException as error: os.write(2, repr(error).encode()); os._exit(1)\n"
        "    os._exit(0)\n"
        "children = [os.fork() or child() for _ in range(2)]\n"
        "sys.exit(max(os.waitpid(pid, 0)[1] for pid in children))"
    )
    process = start(code)
    out, err = process.communicate()
    assert process.returncode == 0, err
    one, two = out.split()
    assert one == two
    assert [path.name[:5] for path in own_cache.iterdir()] == ["tiny-"]  # nothing is left behind


def test_the_slower_of_two_builders_takes_the_folder_of_the_faster(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mrlm.core import tiny_model

    write = tiny_model._write

    def write_while_another_process_finishes(built: Path) -> None:
        write(built)
        shutil.copytree(built, own_cache / built.name)
        (own_cache / built.name / "first").touch()

    monkeypatch.setattr(tiny_model, "_write", write_while_another_process_finishes)
    path = Path(default_model())
    assert (path / "first").exists()
    assert list(own_cache.iterdir()) == [path]


def test_the_second_call_finds_what_the_first_one_built(own_cache: Path) -> None:
    first = default_model()
    written = (Path(first) / "model.safetensors").stat().st_mtime_ns
    assert default_model() == first
    assert (Path(first) / "model.safetensors").stat().st_mtime_ns == written
    assert Path(first).parent == own_cache


def test_a_folder_that_lost_a_file_is_built_again() -> None:
    path = Path(default_model())
    (path / "config.json").unlink()
    assert Path(default_model()) == path
    assert json.loads((path / "config.json").read_text())["model_type"] == "qwen3"


def test_a_new_recipe_does_not_use_an_old_build(monkeypatch: pytest.MonkeyPatch) -> None:
    old = default_model()
    monkeypatch.setattr("mrlm.core.tiny_model.CHAT_TEMPLATE", "{{- 'other' -}}")
    new = default_model()
    assert new != old
    assert (Path(new) / "chat_template.jinja").read_text() == "{{- 'other' -}}"


def test_the_variable_names_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv("MRLM_MODEL", str(tmp_path / "mine"))
    assert default_model() == resolve_model("mrlm/tiny") == str(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MRLM_MODEL", "mine")
    assert default_model() == str(tmp_path / "mine"), "a relative folder survives a chdir"
    monkeypatch.setenv("MRLM_MODEL", str(tmp_path / "absent"))
    with pytest.raises(ModelError, match=r"MRLM_MODEL=.*absent.*not a folder"):
        default_model()


def test_only_the_embedded_name_is_resolved() -> None:
    assert resolve_model("mrlm/tiny") == default_model()
    assert resolve_model("some/other-model") == "some/other-model"


def test_the_cache_follows_xdg_and_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MRLM_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert Path(default_model()).parent == tmp_path / "xdg" / "mrlm"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the specification says to ignore it
    assert Path(default_model()).parent == tmp_path / "home" / ".cache" / "mrlm"


def test_a_cache_that_cannot_be_written_is_replaced_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MRLM_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with caplog.at_level(logging.WARNING, logger="mrlm"):
        path = Path(default_model())
    assert path.parent.parent == tmp_path and (path / "model.safetensors").is_file()
    assert "MRLM_CACHE" in caplog.text and str(tmp_path / "file" / "cache") in caplog.text
    assert path.parent.stat().st_mode & 0o077 == 0, "nobody else may put a model there"
    assert Path(default_model()) == path, "the next call finds it again"


def test_a_temporary_folder_that_others_can_write_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MRLM_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    taken = tmp_path / f"mrlm-{os.getuid()}"
    taken.mkdir()
    taken.chmod(0o777)
    assert Path(default_model()).parent != taken


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(codec="utf-8")))
def test_any_text_survives_the_tokenizer(tokenizer, text: str) -> None:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text
    if "<|" not in text:
        assert len(ids) == len(text.encode())


@pytest.mark.parametrize("written", ["5", "", "日本 🙂\n", "  two  spaces  ", "<b>|im_end|</b>"])
def test_the_masks_cover_the_words_and_the_end_token_exactly(tokenizer, written: str) -> None:
    conversation = [
        {"role": "system", "content": "be brief"}, {"role": "user", "content": "2+3?"},
        {"role": "assistant", "content": written}, {"role": "tool", "content": "a tool"},
        {"role": "environment", "content": "no"}, {"role": "system", "content": "late"},
        {"role": "assistant", "content": written}, {"role": "assistant", "content": "again"},
    ]  # fmt: skip
    encoded = tokenizer.apply_chat_template(
        conversation, return_dict=True, return_assistant_tokens_mask=True
    )
    ids, mask = encoded["input_ids"], encoded["assistant_masks"]
    trained = tokenizer.decode([token for token, bit in zip(ids, mask, strict=True) if bit])
    assert trained == f"{written}<|im_end|>" * 2 + "again<|im_end|>"
    assert tokenizer.decode(ids).count("<|im_start|>") == len(conversation)


def test_a_longer_conversation_begins_with_the_shorter_one(tokenizer) -> None:
    def render(messages: list[dict[str, str]], generate: bool) -> str:
        return tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=generate
        )

    asked = [{"role": "user", "content": "2+3?"}]
    answered = [*asked, {"role": "assistant", "content": "5"}]
    prompt = render(asked, generate=True)
    assert prompt == "<|im_start|>user\n2+3?<|im_end|>\n<|im_start|>assistant\n"
    assert render(answered, generate=False) == prompt + "5<|im_end|>\n"
