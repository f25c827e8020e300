"""Teachers: on a server they give the numbers of a teacher here; one that reads more has the
gradient of autograd with its longer prompts; and whoever plays, the policy's tokens are trained."""

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from chat_server import serving
from distilled import TURNS, group, moved, stated
from mrlm import Learner, load_config, run_experiment
from mrlm.algorithms.distill import Distill
from mrlm.build.served_policies import HostedPolicies
from mrlm.core.environment import Environment, Split
from mrlm.core.errors import ConfigError, EndpointError, MRLMError
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.learn.data.batch import merge, pack
from mrlm.learn.policy.policy import Policy
from mrlm.serving.policies.http_server import HttpServer
from mrlm.serving.policies.hub import PolicyHub
from mrlm.serving.policies.openai_http import OpenAIHandler
from mrlm.tracking.summary import tied_steps
from mrlm.training.run import Callback
from places import ROOT

pytestmark = pytest.mark.system

MORE = [[20, 21, 22], [20, 21, 22], []]
"""What the teacher reads before the prompts of `TURNS`."""


@contextmanager
def served(model: Any, tokenizer: Any) -> Iterator[dict[str, str]]:
    """The endpoint of a model on a server of this machine."""
    policy = Policy("teacher", model, tokenizer)
    hub = PolicyHub(HostedPolicies({"teacher": policy}, {"teacher": "tiny"}).served())
    server = HttpServer(OpenAIHandler(hub)).start()
    try:
        yield {"base_url": f"{server.url}/v1", "model": "teacher"}
    finally:
        server.stop()
        hub.close()


def revealed() -> Any:
    episodes = group()
    turns = [turn for episode in episodes for turn in episode.turns]
    for turn, more in zip(turns, MORE, strict=True):
        turn.teacher_ids = [*more, *turn.prompt_ids]
    return episodes


def taught_logits(model: Any) -> Any:
    """Logits that predict the completions after the teacher's prompts, one turn at a time."""
    rows = []
    for more, (prompt, answer) in zip(MORE, TURNS, strict=True):
        ids = torch.tensor([[*more, *prompt, *answer]])
        rows.append(model(ids).logits[0, len(more) + len(prompt) - 1 : -1])
    return torch.cat(rows)


def own_logits(model: Any) -> Any:
    rows = [model(torch.tensor([p + a])).logits[0, len(p) - 1 : -1] for p, a in TURNS]
    return torch.cat(rows)


# -- a teacher that reads more ---------------------------------------------------------------------


@pytest.mark.parametrize("lean", [True, False], ids=["fast path", "own forward"])
def test_gradients_of_longer_prompts_are_those_of_autograd(
    lean: bool, model: Any, tokenizer: Any
) -> None:
    student, teacher = moved(model).double(), moved(model, seed=4).double().requires_grad_(False)
    for kind in ("reverse", "forward", "jsd"):
        distance = stated(kind, 0.3, own_logits(student), taught_logits(teacher)).mean()
        expected = torch.autograd.grad(distance, list(student.parameters()))
        policy = Policy("policy", student, tokenizer, reference=teacher.eval(), lean=lean)
        loss = Learner(policy, algorithm=Distill(divergence=kind, beta=0.3)).calculate_loss(
            [revealed()]
        )
        loss.backward()
        assert float(loss.detach()) == pytest.approx(float(distance.detach()), abs=1e-6)
        for weight, gradient in zip(student.parameters(), expected, strict=True):
            torch.testing.assert_close(weight.grad, gradient, rtol=1e-6, atol=1e-6)
        student.zero_grad()


def test_only_the_policys_tokens_are_scored_and_nothing_more_to_read_changes_nothing(
    model: Any, tokenizer: Any
) -> None:
    episodes = revealed()
    samples = [sample for episode in episodes for sample in merge(episode.turns)]
    batch = pack(samples)
    assert batch.as_taught is not batch and torch.equal(batch.as_taught.tokens, batch.tokens)
    assert batch.as_taught.trained_token_ids() == [answer for _, answer in TURNS]
    for turn in batch.turns:
        turn.teacher_ids = list(turn.prompt_ids)
    student = copy.deepcopy(model)
    loss = Learner(student, tokenizer, Distill()).calculate_loss([episodes])
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert all(not bool(p.grad.any()) for p in student.parameters() if p.grad is not None)


class Questions(Environment):
    """Questions with an answer, and a hint after the first of two attempts."""

    agents = ("student",)
    max_turns = 2

    def task(self, seed: int, split: Split = "train") -> Task:
        return Task(f"{split}-{seed}", [Message(f"Add {seed}")], f"sum {seed}", seed)

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        self.count, opening = 0, (task or self.task(seed or 0)).prompt
        return StepResult({"student": Observation(list(opening))})

    def step(self, actions: dict[str, Message]) -> StepResult:
        self.count += 1
        rewards = {"student": Reward(0.25)}
        if self.count == 2:
            return StepResult(rewards=rewards, done=True)
        return StepResult({"student": Observation([Message("a hint")])}, rewards)


PLAYED = """
environments: [{{env_type: "test_teachers:Questions"}}]
workflow: {{name: chain, alone: {alone}}}
agents: {{helper: {{policy: helper}}, student: {{policy: student}}}}
policies: {{helper: {{trainable: false}}, student: {{}}}}
training: {{algorithm: distill, num_iterations: 1, batch_size: 2, learning_rate: 1.0e-3,
  report_to: none}}
distill: {{privileged: {privileged}}}
generation: {{max_new_tokens: 4}}
output_dir: {folder}
"""


class Kept(Callback):
    """Keeps the episodes."""

    def __init__(self) -> None:
        self.episodes: list[Any] = []

    def on_episodes(self, run: Any, step: int, episodes: Any) -> None:
        self.episodes += episodes


def played(
    folder: Path, privileged: str, alone: str = "true"
) -> tuple[list[Any], dict[str, float]]:
    """The episodes of an iteration, and its metrics."""
    folder.mkdir()
    (folder / "c.yaml").write_text(
        PLAYED.format(folder=folder / "run", privileged=privileged, alone=alone)
    )
    kept = Kept()
    result = run_experiment(load_config(folder / "c.yaml"), callbacks=[kept])
    return kept.episodes, result.history[-1]


def test_the_teacher_reads_what_the_last_speaker_of_the_team_would(
    tokenizer: Any, tmp_path: Path
) -> None:
    """Its prompt of the first turn is that of the same agent in the chain, and the student's has
    the question alone."""
    alone, metrics = played(tmp_path / "alone", "[partners]")
    team, _ = played(tmp_path / "team", "[answer]", alone="false")
    assert metrics["divergence"] != 0
    for one, whole in zip(alone, team, strict=True):
        turn, last = (x.rollouts["student"].turns[0] for x in (one, whole))
        assert one.rollouts["helper"].turns[0].message == whole.rollouts["helper"].turns[0].message
        assert "helper: " not in tokenizer.decode(turn.prompt_ids)
        assert turn.teacher_ids == last.prompt_ids != turn.prompt_ids
        later = [tokenizer.decode(x.teacher_ids) for x in one.rollouts["student"].turns]
        assert [text.count("helper: ") for text in later] == [1, 2]
        assert f"The right answer: sum {whole.task.seed}" in tokenizer.decode(last.teacher_ids)
        assert "The right" not in tokenizer.decode(last.prompt_ids)
        assert one.rollouts["helper"].turns[0].teacher_ids is None


def test_feedback_is_what_comes_after_the_first_turn(
    tokenizer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Equal rewards are not named as a reason for nothing."""
    settings = "[feedback], group_size: 2, reward_weight: 0.5"
    episodes, metrics = played(tmp_path / "run", settings)
    assert metrics["advantage/student/zero"] == 1 and "nothing" not in caplog.text
    assert not tied_steps([metrics])
    first, second = episodes[0].rollouts["student"].turns
    for turn in (first, second):
        text = tokenizer.decode(turn.teacher_ids)
        assert text.index("a hint") < text.index("Reward: 0.5")
    assert "Reward" not in tokenizer.decode(second.prompt_ids)
    ids = [*first.teacher_ids, *first.completion_ids]
    assert second.teacher_ids[: len(ids)] == ids  # its own tokens, and one sample with the first


# -- a teacher on a server -------------------------------------------------------------------------


def test_a_teacher_on_a_server_gives_the_numbers_of_one_here(model: Any, tokenizer: Any) -> None:
    """Sampled: loss and gradient, to rounding. `top_k`: less than `forward`, of which it knows a
    part of the tokens."""
    teacher = moved(model, seed=4).eval().requires_grad_(False)
    runs: dict[tuple[str, int], list[Any]] = {}
    with served(teacher, tokenizer) as endpoint:
        for kind, top_k in (("sampled", 20), ("sampled", 0), ("forward", 0), ("top_k", 60)):
            student = moved(model)
            far = {"teacher_endpoint": endpoint} if top_k else {}
            far |= {"top_k": top_k} if kind == "top_k" else {}
            algorithm = Distill(divergence=kind, **far)
            learner = Learner(student, tokenizer, algorithm, reference=None if far else teacher)
            assert not far or learner.weights_of.reference is None
            loss = learner.calculate_loss([revealed()])
            loss.backward()
            runs[kind, top_k] = [loss.detach(), *(x.grad for x in student.parameters())]
    for one, other in zip(runs["sampled", 20], runs["sampled", 0], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    whole, part = (float(runs[key][0]) for key in (("forward", 0), ("top_k", 60)))
    assert 0 < part < whole < 2 * part


def test_the_likeliest_tokens_have_the_gradient_of_autograd() -> None:
    """All other tokens are one outcome; a teacher equal to the policy has none."""
    torch.manual_seed(0)
    p, q = torch.randn(2, 5, 30, dtype=torch.float64)
    p.requires_grad_()
    top, ids = q.log_softmax(-1).topk(4)
    known = torch.full_like(q, -torch.inf).scatter(1, ids, top)
    inside = p.log_softmax(-1).gather(1, ids)
    rest = [(1 - x.exp().sum(-1)).log() for x in (inside, top)]
    distance = (top.exp() * (top - inside)).sum(-1) + rest[1].exp() * (rest[1] - rest[0])
    (expected,) = torch.autograd.grad(distance.sum(), p)
    logprobs = p.log_softmax(-1)
    value, weights = Distill(divergence="forward")._measure(logprobs.detach(), q.log_softmax(-1))
    algorithm = Distill(
        divergence="top_k", teacher_endpoint={"base_url": "http://localhost/v1", "model": "x"}
    )
    value, weights = algorithm._measure(logprobs.detach(), known)
    (gradient,) = torch.autograd.grad((weights * logprobs).sum(), p)
    torch.testing.assert_close(value, distance.detach())
    torch.testing.assert_close(gradient, expected)
    same = torch.full_like(q, -torch.inf).scatter(1, ids, logprobs.detach().gather(1, ids))
    value, weights = algorithm._measure(logprobs.detach(), same)
    assert value.abs().max() < 1e-15 and weights.abs().max() < 1e-15


def test_the_server_scores_as_the_client_of_its_protocol_reads(model: Any, tokenizer: Any) -> None:
    openai = pytest.importorskip("openai")
    ids = [5, 6, 7, 10, 11]
    expected = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    with served(model, tokenizer) as endpoint:
        client = openai.OpenAI(base_url=endpoint["base_url"], api_key="none")
        answer = client.completions.create(
            model="teacher", prompt=ids, max_tokens=1, extra_body={"prompt_logprobs": 3}
        )
        with pytest.raises(openai.BadRequestError, match="prompt_logprobs"):
            client.completions.create(
                model="teacher", prompt=ids, max_tokens=1, extra_body={"prompt_logprobs": -1}
            )
    none, *rows = answer.choices[0].model_dump()["prompt_logprobs"]
    assert none is None and len(rows) == len(ids) - 1
    for place, row in enumerate(rows):
        best = expected[place].topk(3).indices.tolist()
        assert {*row} == {str(x) for x in (*best, ids[place + 1])}
        for token, entry in row.items():
            assert entry["logprob"] == pytest.approx(expected[place, int(token)].item(), abs=1e-5)
            rank = 1 + int((expected[place] > expected[place, int(token)]).sum())
            assert entry["rank"] == rank and entry["decoded_token"] == tokenizer.decode(
                [int(token)]
            )


def test_a_server_that_cannot_score_is_named(model: Any, tokenizer: Any) -> None:
    answer = {"id": "x", "object": "text_completion", "created": 0, "model": "x"}
    choice = {"index": 0, "text": "", "finish_reason": "stop", "logprobs": None}
    with serving(lambda body, number: answer | {"choices": [choice]}) as server:
        endpoint = {"base_url": server.url, "model": "x"}
        learner = Learner(
            model, tokenizer, Distill(divergence="sampled", teacher_endpoint=endpoint)
        )
        text = r"^distill.teacher_endpoint \(x at .*returns no prompt_logprobs.*vLLM or mrlm serve"
        with pytest.raises(EndpointError, match=text):
            learner.calculate_loss([group()])


# -- who plays -------------------------------------------------------------------------------------


MIXED = """
environments: [{{env_type: "test_teachers:Questions"}}]
training: {{algorithm: distill, num_iterations: 2, batch_size: 4, learning_rate: 1.0e-3,
  report_to: none}}
distill: {{teacher_model: {teacher}, lmbda: {share}, sampler: teacher}}
generation: {{max_new_tokens: 4}}
output_dir: {folder}
"""


def test_the_teacher_plays_a_share_of_the_tasks_and_its_tokens_are_trained(
    model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    """At the tasks that it plays it writes what it would write as the policy of a run."""
    teacher = moved(model)
    teacher.save_pretrained(tmp_path / "teacher")
    tokenizer.save_pretrained(tmp_path / "teacher")
    texts = {}
    for share in (1.0, 0.5, 0.0):
        file, kept = tmp_path / "c.yaml", Kept()
        folder = tmp_path / str(share)
        file.write_text(MIXED.format(teacher="teacher", share=share, folder=folder))
        if share == 1:
            file.write_text(file.read_text().replace(", sampler: teacher", ""))
        result = run_experiment(load_config(file), callbacks=[kept])
        assert result.history[-1]["divergence"] != 0
        texts[share] = [x.turns[0] for x in kept.episodes[:4]]
        assert all(turn.policy == "policy" and turn.advantages is not None for turn in texts[share])
    assert [turn.logprobs is None for turn in texts[0.5]] == [False, True, False, True]
    for mixed, own, other in zip(texts[0.5], texts[1.0], texts[0.0], strict=True):
        source = own if mixed.logprobs is not None else other
        assert mixed.completion_ids == source.completion_ids
    assert texts[1.0] != texts[0.0]


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"teacher_endpoint": {}}, "needs the teacher's logits, and an endpoint gives none"),
        ({"teacher_endpoint": {}, "teacher_model": "x"}, "either teacher_model or"),
        ({"divergence": "top_k"}, "set divergence=forward"),
        ({"lmbda": 0.5, "divergence": "sampled"}, "own tokens only"),
        ({"teacher_model": ""}, "names no model"),
        ({"reward_weight": 1.0}, "set group_size to 2"),
        ({"privileged": ["answer", "answer"]}, "names one twice"),
        ({"teacher_endpoint": {"price": {"prompt": 1}}, "divergence": "sampled"}, "has a price"),
        ({"lmbda": 0.5, "sampler": "teacher"}, "samples from teacher_model, which is not set"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, Any], text: str) -> None:
    if "teacher_endpoint" in settings:
        settings["teacher_endpoint"] |= {"base_url": "http://localhost/v1", "model": "x"}
    with pytest.raises(ConfigError, match=text):
        Distill(**settings)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("privileged: [partners]", "the one agent has no partners"),
        ("teacher_endpoint: {endpoint}, divergence: sampled", "set generation.temperature=1"),
        ("teacher_endpoint: {endpoint}, divergence: jsd", "an endpoint gives none"),
        ("teacher_model: {b: teacher}", "names teachers of b"),
        ("lmbda: 0.5", "environment 'questions' has no expert"),
        ("privileged: [answer]", "environment 'letters' has no answer to reveal"),
        ("teacher_model: 'stage:x'", r"no earlier stage is called 'x' \(earlier stages: none\)"),
    ],
)
def test_refusals_before_a_model_is_loaded(
    line: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mrlm.learn.policy.loading.load_model", None)
    line = line.replace("{endpoint}", json.dumps({"base_url": "http://localhost/v1", "model": "x"}))
    start, _, end = MIXED.partition("distill: ")
    body = (start + "distill: {{" + line + "}}\n" + end.partition("\n")[2]).replace("{{", "{")
    body = body.replace("}}", "}").replace("{folder}", str(tmp_path / "run"))
    body = body.replace("teachers:Questions", "distillation:Letters") if "answer" in line else body
    (tmp_path / "c.yaml").write_text(body.replace("max_new_tokens: 4", "temperature: 0.7"))
    with pytest.raises(ConfigError, match=text):
        run_experiment(load_config(tmp_path / "c.yaml"))


FAR = {"teacher_endpoint": {"base_url": "http://localhost/v1", "model": "x"}}
FAR |= {"divergence": "sampled"}


@pytest.mark.parametrize(
    ("settings", "live", "text"),
    [
        ({"teacher_model": {"a": "x"}}, None, "names teachers of a"),
        ({"teacher_model": "x"}, 0, "not both"),
        ({"lmbda": 0.5}, None, "lmbda lets others play"),
        (FAR, None, r"sampled at temperature 0\.5"),
        ({}, 8, r"reference: it predicts \d+ tokens"),
    ],
)
def test_a_loop_of_your_own_refuses_the_same(
    settings: Any, live: int | None, text: str, model: Any, tokenizer: Any
) -> None:
    reference, episodes = None if live is None else copy.deepcopy(model), group()
    if live:
        reference.resize_token_embeddings(model.config.vocab_size + live)
    for turn in (turn for episode in episodes for turn in episode.turns):
        turn.sampling = replace(turn.sampling, temperature=0.5)
    with pytest.raises(MRLMError, match=text):
        learner = Learner(model, tokenizer, Distill(**settings), reference=reference)
        learner.calculate_loss([episodes])


# -- a pipeline ------------------------------------------------------------------------------------


def test_a_team_is_trained_and_distilled_in_one_file(tmp_path: Path) -> None:
    """The teacher is the last speaker of the stage before; what is left is the one model."""
    file = ROOT / "configs" / "team_to_one.yaml"
    folder = tmp_path / "run"
    changes = [f"output_dir={folder}", "stages.0.training.num_iterations=1"]
    changes += ["stages.1.training.num_iterations=2", "stages.2.training.num_iterations=2"]
    changes += ["stages.1.evaluation.every=null", "stages.2.evaluation.every=null"]
    kept = Kept()
    run_experiment(load_config(file, changes), callbacks=[kept])
    last = load_config(folder / "3-alone" / "config.yaml").algorithm_settings()
    assert last.teacher_model == str(folder / "2-team" / "final" / "last")
    turns = [x.rollouts["one"].turns[0] for x in kept.episodes if "one" in x.rollouts]
    one = [turn for turn in turns if turn.advantages is not None]  # not of an evaluation
    assert len(one) == 128 and all(len(turn.teacher_ids) > len(turn.prompt_ids) for turn in one)
    assert (folder / "final" / "model.safetensors").is_file()
    wrong = load_config(file, [*changes, "stages.2.distill.teacher_model=stage:teem/last"])
    with pytest.raises(ConfigError, match=r"no earlier stage is called 'teem' .*: words, team"):
        run_experiment(wrong)
