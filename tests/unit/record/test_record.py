"""The record of a run: packed columns, the file and its index, the choice, the reader."""

import gzip
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mrlm
from mrlm.core.episodes import Episode, Group
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Rollout, Task, Turn
from mrlm.record.files import COMPRESSED, INDEX, PLAIN, EpisodeFile, parts_of, rows_of
from mrlm.record.packing import pack_column, pack_ids, unpack, unpack_end
from mrlm.record.plan import RecordPlan
from mrlm.record.rows import episode_row
from mrlm.record.vocabulary import read_vocabulary, token_bytes, write_vocabulary
from mrlm.record.writer import write_episodes


def row(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "task_id": "t", "reward": 0.0, "agents": {}, **more}


def fill(folder: Path, steps: int = 6, **options: Any) -> EpisodeFile:
    file = EpisodeFile(folder, **options)
    for step in range(steps):
        if step % 3 == 0:
            file.append(step, [row(f"eval/{step}")], evaluation=True)
        file.append(step, [row(f"train/{step}/{i}", text="x" * 40) for i in range(4)])
    return file


@pytest.mark.parametrize(
    "ids", [[], [0], [5, 65535], [5, 65536], list(range(1000)), [(1 << 32) - 1]]
)
def test_ids_survive_packing(ids: list[int]) -> None:
    assert unpack(pack_ids(ids)).tolist() == ids
    for count in (1, 2, 5):
        assert unpack_end(pack_ids(ids), count) == ids[-count:]


def test_columns_survive_packing() -> None:
    numbers = np.random.default_rng(0).normal(size=300).astype(np.float32)
    assert np.abs(unpack(pack_column(numbers, 300)) - numbers).max() < 2e-3
    assert pack_column([0.25] * 7, 7) == 0.25 and unpack(0.25, 7).tolist() == [0.25] * 7
    assert pack_column(0.1, 7) == 0.1 and pack_column(None, 7) is None
    large = unpack(pack_column([1e9, -3.0], 2))
    assert large.tolist() == [1e9, -3.0], "float16 would be infinite"
    holes = unpack(pack_column([math.nan, 1.0], 2))
    assert math.isnan(holes[0]) and holes[1] == 1
    assert pack_column([math.nan, math.nan], 2) is not None and pack_column(math.inf, 1) is None
    for wrong in ("ids", "u8:AAAA", "f2:?", None, 3.0):
        with pytest.raises(ValueError):
            unpack(wrong)


@pytest.mark.parametrize("compress", [True, False])
def test_a_resumed_file_has_the_bytes_of_an_uninterrupted_one(
    compress: bool, tmp_path: Path
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
        fill(folder, compress=compress)
    file = EpisodeFile(cut, 4, compress=not compress)  # one that exists stays as it is
    for step in (4, 5):
        file.append(step, [row(f"train/{step}/{i}", text="x" * 40) for i in range(4)])
    name = COMPRESSED if compress else PLAIN
    assert (whole / name).read_bytes() == (cut / name).read_bytes()
    assert (whole / INDEX).read_bytes() == (cut / INDEX).read_bytes()
    assert [each["step"] for each in rows_of(whole)][:6] == [0] * 5 + [1]


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("index", ["whole", "none", "short", "torn", "of another file"])
def test_a_file_that_was_cut_anywhere_opens(index: str, compress: bool, tmp_path: Path) -> None:
    path = fill(tmp_path, compress=compress).path
    data, lines = path.read_bytes(), (tmp_path / INDEX).read_text().splitlines(keepends=True)
    known = {
        "whole": lines,
        "none": [],
        "short": lines[:3],
        "torn": [*lines[:-1], lines[-1][:9]],
        "of another file": ['{"step": 0, "evaluation": false, "at": 7, "size": 9, "episodes": 1}'],
    }[index]
    full = list(rows_of(tmp_path))
    rng = random.Random(0)
    for size in [len(data), len(data) - 1, *(rng.randrange(len(data)) for _ in range(20))]:
        path.write_bytes(data[:size])
        (tmp_path / INDEX).write_text("".join(known))
        read = list(rows_of(tmp_path))
        assert read == full[: len(read)]
        least = sum(p.episodes for p in map(part, lines) if p.end <= size)
        assert len(read) >= least
        EpisodeFile(tmp_path, 3)
        assert {each["step"] for each in rows_of(tmp_path)} <= {0, 1, 2}
        if size == len(data):  # parts that the index did not have are in it as they would be
            early = [line for line in lines if part(line).step < 3]
            assert (tmp_path / INDEX).read_text() == "".join(early)


def part(line: str) -> Any:
    from mrlm.record.files import Part

    return Part(**json.loads(line))


def test_a_file_over_its_limit_is_thinned_and_keeps_evaluations(tmp_path: Path) -> None:
    file = EpisodeFile(tmp_path, compress=False, max_bytes=20_000)
    thinned = 0
    for step in range(400):
        if step % 100 == 0:
            file.append(step, [row(f"eval/{step}")], evaluation=True)
        thinned += file.append(step, [row(f"train/{step}", text="x" * 300)])
        assert file.size <= 20_000 and file.size == file.path.stat().st_size
    parts = parts_of(tmp_path)
    assert [p.step for p in parts if p.evaluation] == [0, 100, 200, 300]
    steps = [p.step for p in parts if not p.evaluation]
    assert thinned >= 2 and steps == list(range(0, 400, file.every))
    assert len(steps) > 10 and [each["step"] for each in rows_of(tmp_path)] == [
        p.step for p in parts
    ]
    assert EpisodeFile(tmp_path, 400).every == file.every, "a resumed run goes on in the same way"


def test_all_episodes_are_written_and_the_first_rows_returned(tmp_path: Path) -> None:
    groups = [[episode(f"train/t/{place}") for place in range(4)]]
    rows, _ = write_episodes(EpisodeFile(tmp_path), RecordPlan(), 3, groups, most=2)
    written = list(rows_of(tmp_path))
    assert [each["id"] for each in written] == [f"train/t/{place}" for place in range(4)]
    assert json.loads(json.dumps([{"step": 3, **each} for each in rows])) == written[:2]


def test_evaluations_alone_may_exceed_the_limit(tmp_path: Path) -> None:
    file = EpisodeFile(tmp_path, compress=False, max_bytes=500)
    for step in range(20):
        file.append(step, [row(f"eval/{step}", text="x" * 100)], evaluation=True)
    assert len(list(rows_of(tmp_path))) == 20


def episode(name: str = "train/t/0", **fields: Any) -> Episode:
    first = Turn("a", "p", [1, 2, 3], [4, 5], [-0.5, -1.0], reward=1.0, advantages=0.5)
    second = Turn("a", "p", [1, 2, 3, 4, 5, 6], [7], [-0.1], step=1, advantages=[0.25])
    messages = [
        Message("hi"),
        Message("one", "assistant", turn=first),  # type: ignore[arg-type]
        Message("more"),
        Message("two", "assistant", turn=second),  # type: ignore[arg-type]
    ]
    rollout = Rollout("a", "p", turns=[first, second], messages=messages)
    task = Task("t", [Message("hi")], answer="2", info={"big": "y" * 9000})
    return Episode.recorded(name, task, {"a": rollout}, **fields)


def test_a_row_has_only_what_is_new_in_a_prompt_and_the_reader_joins_it(tmp_path: Path) -> None:
    found = episode_row(episode())
    one, two = found["agents"]["a"]["turns"]
    assert two["prompt"][0] == 5 and unpack(two["prompt"][1]).tolist() == [6]
    assert (one["message"], two["message"]) == (1, 3)
    assert found["task"] == {
        "prompt": [{"role": "user", "content": "hi", "agent": None}],
        "answer": "2",
    }, "a table of 9,000 characters is not recorded"
    EpisodeFile(tmp_path).append(1, [found])
    run = mrlm.read_run(tmp_path)
    (read,) = run.episodes()
    assert read.id == "train/t/0" and read.step == 1 and not read.evaluation
    assert [turn.text for turn in read.turns] == ["one", "two"]
    assert read.turns[1].prompt_ids is not None and read.turns[1].ids is not None
    assert read.turns[1].prompt_ids.tolist() == [1, 2, 3, 4, 5, 6]
    columns = read.turns[0].columns
    assert columns["logprobs"].tolist() == [-0.5, -1.0]
    assert columns["advantages"].tolist() == [0.5, 0.5] and columns["mask"].tolist() == [1, 1]
    frame = run.frame()
    assert list(frame["text"]) == ["one", "two"] and list(frame["advantage"]) == [0.5, 0.25]


def test_the_choice_of_episodes_and_tokens() -> None:
    train = [Group([episode(f"train/{g}/{i}") for i in range(2)]) for g in range(4)]
    held = [Group([episode(f"eval/{g}")]) for g in range(3)]

    def chosen(plan: RecordPlan) -> tuple[int, int, int, int]:
        found = [list(plan.chosen(groups)) for groups in (train, held)]
        (a, b), (c, d) = ((len(f), sum(tokens for *_, tokens in f)) for f in found)
        return a, b, c, d

    assert chosen(RecordPlan()) == (8, 4, 3, 3)
    assert chosen(RecordPlan("all")) == (8, 8, 3, 3)
    assert chosen(RecordPlan("none")) == (8, 0, 3, 0)
    assert chosen(RecordPlan(keep=1)) == (2, 2, 3, 3)
    assert chosen(RecordPlan(keep="evaluations")) == (0, 0, 3, 3)
    bare = episode_row(episode(), tokens=False)["agents"]["a"]["turns"][0]
    assert "ids" not in bare and bare["tokens"] == 2 and len(bare["digest"]) == 16


def test_logs_of_earlier_versions_open(tmp_path: Path) -> None:
    said = [{"role": "assistant", "content": "five", "agent": "a"}]
    turn = {"ids": [3, 4], "digest": "0", "version": 2}
    agent = {"policy": "p", "reward": 1.0, "messages": said, "turns": [turn]}
    old = row("train/x/0", agents={"a": agent}, environment="e", status="done")
    (tmp_path / PLAIN).write_text(json.dumps({"step": 3, **old}) + '\n{"step": 4, "id"')
    run = mrlm.read_run(tmp_path)
    (read,) = run.episodes([3])
    (turn,) = read.turns  # as of `Turn`, and indices for torch
    assert turn.completion_ids is not None and torch.as_tensor(turn.ids).tolist() == [3, 4]
    assert torch.arange(9)[torch.as_tensor(turn.completion_ids)].tolist() == [3, 4]
    assert run.steps == [3] and len(run.frame()) == 1


def test_a_folder_without_a_record_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a run folder"):
        mrlm.read_run(tmp_path)
    (tmp_path / "1-warmup").mkdir()
    (tmp_path / "1-warmup" / "metrics.jsonl").write_text("")
    with pytest.raises(ConfigError, match="give one: 1-warmup"):
        mrlm.read_run(tmp_path)


def test_the_file_is_read_by_any_gzip_reader(tmp_path: Path) -> None:
    path = fill(tmp_path).path
    with gzip.open(path, "rt") as file:
        assert [json.loads(line)["id"] for line in file] == [r["id"] for r in rows_of(tmp_path)]


def byte_level() -> Any:
    from mrlm.learn.policy.loading import load_tokenizer

    return load_tokenizer("mrlm/tiny")


def sentence_pieces() -> Any:
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    tokens = ["<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁two", "▁", "é", "words", "▁a"]
    table = {token: i for i, token in enumerate(tokens)}
    core = Tokenizer(models.BPE(table, [], byte_fallback=True))
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>")


@pytest.mark.parametrize("make", [byte_level, sentence_pieces])
def test_the_bytes_of_tokens_join_to_the_text(make: Any) -> None:
    tokenizer = make()
    pieces = token_bytes(tokenizer)
    special = set(tokenizer.get_added_vocab().values())
    rng = random.Random(0)
    for _ in range(200):
        ids = [i for i in rng.choices(range(len(tokenizer)), k=12) if i not in special]
        joined = b"".join(pieces[i] for i in ids).decode(errors="replace")
        text = tokenizer.decode(ids)
        try:
            b"".join(pieces[i] for i in ids).decode()
        except UnicodeDecodeError:
            continue  # decoders differ in how they show broken characters
        assert joined == text
    assert pieces[min(special)].decode() == tokenizer.convert_ids_to_tokens(min(special))


def test_equal_vocabularies_are_written_once(tmp_path: Path) -> None:
    one, two = byte_level(), byte_level()
    write_vocabulary(tmp_path, {"a": one, "b": two, "c": sentence_pieces()})
    known = read_vocabulary(tmp_path)
    assert known["a"] == known["b"] == token_bytes(one) and known["a"] != known["c"]
    assert known["a"] is known["b"] and read_vocabulary(tmp_path / "none") == {}


def test_an_episode_is_found_without_reading_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the index is of an earlier version, or where there is none."""
    fill(tmp_path, steps=40)
    index = (tmp_path / INDEX).read_text()
    old = "".join(
        json.dumps({k: v for k, v in json.loads(line).items() if k != "ids"}) + "\n"
        for line in index.splitlines()
    )
    read: list[int] = []
    unpacked = gzip.decompress
    monkeypatch.setattr(gzip, "decompress", lambda data: read.append(1) or unpacked(data))
    for text, most in ((index, 2), (old, 60), (None, 2)):
        (tmp_path / INDEX).unlink() if text is None else (tmp_path / INDEX).write_text(text)
        run = mrlm.read_run(tmp_path)
        read.clear()
        assert run.episode("train/33/2").step == 33 and len(read) <= most
        assert [each["id"] for each in run.rows([33], "train/33/1")] == ["train/33/1"]
        for other in ("train/33/9", "train/3", "eval/34"):
            with pytest.raises(KeyError, match="no episode"):
                run.episode(other)
    assert [part.ids for part in mrlm.read_run(tmp_path).parts] == [
        json.loads(line)["ids"] for line in index.splitlines()
    ]
