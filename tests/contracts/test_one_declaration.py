"""A sampling parameter, and a column of numbers per token, is declared once: with one more line in
`core/sampling.py` or `core/types.py`, every door has the new one or refuses it by name."""

import re
import subprocess
import sys
from pathlib import Path

import mrlm

SOURCES = Path(mrlm.__file__).parent
LISTS = {"core/sampling.py", "engines/shared/sampling.py", "serving/mrlm.proto"}
"""The files that name the parameters: the declaration, what carries it out, the wire."""
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
carried = {
    "record": lambda: row["columns"]["surprise"] == row["sampling"]["top_a"],
    "processes": lambda: loads(dumps(one)).surprise,
    "workers": lambda: there.surprise,
    "first pass": lambda: again.surprise,
    "spec": lambda: "surprise" in Spec(columns=frozenset(["surprise"])).columns,
    "profile": lambda: "surprise" in PHASES,
    "own loop": lambda: reader.turns(rollout)[0].surprise is None,
    "checkpoint": lambda: _rollout_of(_rollout_record(rollout)).turns[0].sampling.top_a,
    "section": lambda: GenerationConfig(top_a=0.3).sampling().top_a,
    "agent": lambda: AgentConfig(generation={"top_a": 0.3}).generation["top_a"],
    "matters": lambda: "top_a" in GenerationConfig.matters,
    "word": lambda: WORDS["top_a"].path == "generation.top_a",
    "truncates": lambda: params.truncates and not params.untruncated().truncates,
    "world": lambda: "top_a" in world,
    "OpenAI, sent": lambda: body_of(params, "a judge")["top_a"],
    "vLLM, SGLang": lambda: sampling_fields(params, "vllm", 0)["top_a"],
    "OpenAI, served": lambda: Fields({"top_a": 0.3}, closed=True).sampling(1).top_a,
    "SGLang, served": lambda: of_sglang({"top_a": 0.3})[0].top_a,
}
client, request = PolicyClient("localhost:1"), Request("p", [1], params, 0)
refused = {
    "Spec.columns: surprize is none of ": lambda: Spec(columns=frozenset(["surprize"])),
    "a judge has no sampling parameter top_b": lambda: body_of(closed, "a judge"),
    "vllm has no sampling parameter top_b": lambda: sampling_fields(closed, "vllm", 0),
    "top_a must be from 0 to 1": lambda: Fields({"top_a": 2}, closed=True).sampling(1),
    "1 has no sampling parameter top_a": lambda: asyncio.run(client.generate("p", [request])),
    "parameter that this server does not know": lambda: grpc._requests(sent),
    "this process has no sampling parameter top_a": lambda: Columns([params], torch.device("cpu")),
}
for name, door in carried.items():
    assert door() in (0.3, True), name
for reason, door in refused.items():
    try:
        raise AssertionError(f"{reason}: {door()}")
    except Exception as error:
        assert str(error).count(reason) == 1 and type(error) is not AssertionError, error
"""


def test_what_is_new_is_carried_or_refused_by_name_at_every_door() -> None:
    command = [sys.executable, "-c", PROGRAM, str(SOURCES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_other_file_lists_the_parameters() -> None:
    kinds = (".py", ".yaml", ".proto", ".js", ".json")
    texts = {p for p in SOURCES.rglob("*") if p.suffix in kinds and "_pb2" not in p.name}
    listing = {p for p in texts if re.search(r"\bmin_p\b", p.read_text(encoding="utf-8"))}
    assert {p.relative_to(SOURCES).as_posix() for p in listing} == LISTS
