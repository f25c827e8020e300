"""A sampling parameter, and a column of numbers per token, is declared once: with one more line in
`core/sampling.py` or `core/types.py`, every door has the new one or refuses it by name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import mrlm

SOURCES = Path(mrlm.__file__).parent
LISTS = {"core/sampling.py", "engines/shared/sampling.py", "serving/mrlm.proto"}
"""The files that name the parameters: the declaration, what carries it out, the wire."""
REFUSED = {
    "column, misspelt": "Spec.columns: surprize is none of surprise, ",
    "OpenAI, range": "top_a must be from 0 to 1",
    "OpenAI, closed": "a judge has no sampling parameter top_b",
    "vLLM, closed": "vllm has no sampling parameter top_b",
    "gRPC, sent": "has no sampling parameter top_a",
    "gRPC, served": "that this server does not know",
    "lean, hf": "has no sampling parameter top_a",
}
PROGRAM = """
import asyncio, inspect, pathlib, sys, types

def declared(name, last, new):
    source = (pathlib.Path(sys.argv[1]) / "core" / f"{name}.py").read_text()
    assert source.count(last) == 1
    module = sys.modules["mrlm.core." + name] = types.ModuleType("mrlm.core." + name)
    exec(source.replace(last, last + new), vars(module))

declared("sampling", "    stop: tuple[str, ...] = _field(())\\n", '''
    top_a: float = _field(0.0, high=1, truncates=True)
    top_b: float = _field(0.0, body="no")
''')
declared("types", "    fed: bool = False\\n", '''
    surprise: Column | None = field(default=None, metadata={"by": "policy", "recorded": True})
''')

import torch
from mrlm.config.aliases import WORDS
from mrlm.config.play_sections import AgentConfig, GenerationConfig
from mrlm.core import registry
from mrlm.core.timing import PHASES
from mrlm.core.records import _rollout_of, _rollout_record
from mrlm.core.episodes import Episode, Group
from mrlm.core.types import Rollout, SamplingParams, Task, Turn
from mrlm.distributed.on_ray.weight_transfer import write_on, written
from mrlm.distributed.serialization import dumps, loads
from mrlm.engines.shared.calls import body_of, sampling_fields
from mrlm.engines.shared.sampling import Columns
from mrlm.learn.bases.spec import Spec
from mrlm.learn.credit.user_rollouts import RolloutReader
from mrlm.learn.data.first_pass import FirstPass
from mrlm.play.engine import Request
from mrlm.record.rows import episode_row
from mrlm.serving import mrlm_pb2 as pb
from mrlm.serving.client.policies import PolicyClient
from mrlm.serving.policies import grpc
from mrlm.serving.policies.openai_fields import Fields
from mrlm.serving.policies.trainer_http import _sampling as of_sglang

params, closed = SamplingParams(top_a=0.3), SamplingParams(top_b=0.3)
def turn(**columns):
    return Turn("a", "p", [1], [2], [-1.0], sampling=params, **columns)
one, there, again = turn(surprise=0.3), turn(), turn()
rollout, sent_to = (Rollout("a", "p", turns=[x]) for x in (one, there))
episode, copy = (Episode("e", Task("t"), rollouts={"a": x}) for x in (rollout, sent_to))
row = episode_row(episode)["agents"]["a"]["turns"][0]
changes = written([Group([copy])], lambda: setattr(there, "surprise", 0.3))
there.surprise = None
write_on([Group([copy])], changes)
first = FirstPass()
first.keep(rollout, [one])
first.recall(rollout, [again])
newer = pb.Sampling.FromString(bytes([8, 1, 0x78, 1]))  # with a field 15
sent = pb.GenerateRequest(prompts=[pb.Prompt(sampling=newer)]).SerializeToString()
world = inspect.signature(registry.load("environments", "world_model")).parameters
reader = RolloutReader("p", None, None)
doors = {
    "column, record": lambda: row["columns"]["surprise"],
    "column, processes": lambda: loads(dumps(one)).surprise,
    "column, workers": lambda: there.surprise,
    "column, first pass": lambda: again.surprise,
    "column, spec": lambda: 0.3 * ("surprise" in Spec(columns=frozenset(["surprise"])).columns),
    "column, misspelt": lambda: Spec(columns=frozenset(["surprize"])),
    "section": lambda: GenerationConfig(top_a=0.3).sampling().top_a,
    "agent": lambda: AgentConfig(generation={"top_a": 0.3}).generation["top_a"],
    "matters": lambda: 0.3 * ("top_a" in GenerationConfig.matters),
    "word": lambda: 0.3 * (WORDS["top_a"].path == "generation.top_a"),
    "truncates": lambda: 0.3 * (params.truncates and not params.untruncated().truncates),
    "world": lambda: 0.3 * ("top_a" in world),
    "checkpoint": lambda: _rollout_of(_rollout_record(rollout)).turns[0].sampling.top_a,
    "record": lambda: row["sampling"]["top_a"],
    "OpenAI, sent": lambda: body_of(params, "a judge")["top_a"],
    "OpenAI, closed": lambda: body_of(closed, "a judge"),
    "vLLM, SGLang": lambda: sampling_fields(params, "vllm", 0)["top_a"],
    "vLLM, closed": lambda: sampling_fields(closed, "vllm", 0),
    "OpenAI, served": lambda: Fields({"top_a": 0.3}, closed=True).sampling(1).top_a,
    "OpenAI, range": lambda: Fields({"top_a": 2}, closed=True).sampling(1),
    "SGLang, served": lambda: of_sglang({"top_a": 0.3})[0].top_a,
    "gRPC, sent": lambda: asyncio.run(
        PolicyClient("localhost:1").generate("p", [Request("p", [1], params, 0)])
    ),
    "gRPC, served": lambda: grpc._requests(sent),
    "lean, hf": lambda: Columns([params], torch.device("cpu")),
    "column, profile": lambda: 0.3 * ("surprise" in PHASES),
    "column, own loop": lambda: 0.3 * (reader.turns(rollout)[0].surprise is None),
}
for name, door in doors.items():
    try:
        answer = door()
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"
    print(name, answer, sep=" = ")
"""


def test_what_is_new_is_carried_or_refused_by_name_at_every_door() -> None:
    command = [sys.executable, "-c", PROGRAM, str(SOURCES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers = dict(line.split(" = ", 1) for line in done.stdout.splitlines())
    refused = {name: answer for name, answer in answers.items() if answer != "0.3"}
    for name, reason in REFUSED.items():
        assert reason in refused.pop(name), answers
    assert refused == {} and len(answers) == 26


def test_no_other_file_lists_the_parameters() -> None:
    kinds = (".py", ".yaml", ".proto", ".js", ".json")
    texts = {p for p in SOURCES.rglob("*") if p.suffix in kinds and "_pb2" not in p.name}
    listing = {p for p in texts if re.search(r"\bmin_p\b", p.read_text(encoding="utf-8"))}
    assert {p.relative_to(SOURCES).as_posix() for p in listing} == LISTS
