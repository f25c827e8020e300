"""A language model in the place of an environment: it reads what it was trained on, token for
token, writes what the agent sees next, and is an environment by hand, in a trainer and in YAML."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from every_environment import settled
from mrlm import (
    ExperimentConfig,
    LLMEnvironment,
    Message,
    PPOTrainer,
    SFTTrainer,
    StepResult,
    load_config,
    run_experiment,
)
from mrlm.algorithms.sft import SFT
from mrlm.build.environments import make_environments
from mrlm.build.policies import LiveObjects, assign
from mrlm.core import registry
from mrlm.core.chat import Chat
from mrlm.core.environment import check_environment
from mrlm.core.errors import ChatTemplateError, ConfigError, DataError
from mrlm.core.types import Completion, Role, Turn
from mrlm.core.user_turn import open_user_turn
from mrlm.environments.games.tic_tac_toe import TicTacToeEnvironment
from mrlm.environments.world_model import WorldModelEnvironment
from mrlm.learn.data.observations import is_observation, with_observations
from mrlm.learn.policy.loading import load_model, load_tokenizer
from recorded import episodes as recorded
from templates import FOLDER, family

KEEP = ["chatml", "llama3", "mistral", "mistral-text", "gemma", "gemma3", "qwen3", "lowered"]
"""Families whose templates keep what was rendered when a message comes to it."""
REWRITE = ["qwen3-marked", "deepseek", "glm"]
SEEN = [
    "The board is 3.", "9 lives", "two\nlines", "é!", "Yes", " a space", "  two", "x\n", "\n\ny",
]  # fmt: skip


def named(name: str, tokenizer: Any) -> Any:
    return tokenizer if name == "embedded" else family(name)


def answered(chat: Chat) -> tuple[list[Message], tuple[Any, Turn]]:
    """A conversation in which the agent has just spoken."""
    shown = [Message("Hello there")]
    prompt = chat.prompt(shown)
    ids = [*chat.encode_text("good day"), chat.tokenizer.eos_token_id]
    turn = Turn("agent", "p", prompt.ids, ids)
    turn.message = Message("good day", Role.ASSISTANT, turn=turn)
    return [*shown, turn.message], (prompt, turn)


# -- what is read ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*KEEP, "embedded"])
def test_what_it_reads_is_what_it_was_trained_on(name: str, tokenizer: Any) -> None:
    """The tokens of `with_observations` begin with those of the world model, which end where
    the observation begins; and what was trained after them is read as the observation."""
    chat = Chat(named(name, tokenizer))
    messages, last = answered(chat)
    opening = open_user_turn(chat, messages, last)
    for text in SEEN:
        after = chat.prompt([*messages, Message(text)], last)
        turns = with_observations([last[1], Turn("agent", "p", after.ids, [1])], [])
        (observed,) = [turn for turn in turns if is_observation(turn)]
        trained = [*observed.prompt_ids, *observed.completion_ids]
        assert trained == after.ids and trained[: len(opening.ids)] == opening.ids, text
        assert len(opening.ids) > len(observed.prompt_ids), "the user's turn has begun"
        rest = trained[len(opening.ids) :]
        end = rest.index(opening.end) if opening.end is not None else None
        written = chat.tokenizer.decode(rest[:end], skip_special_tokens=True)
        assert opening.text(written).strip() == chat.decode(chat.encode_text(text)).strip()


@pytest.mark.parametrize("name", REWRITE)
def test_a_template_that_rewrites_the_past_is_read_as_it_renders(name: str) -> None:
    chat = Chat(family(name))
    messages, last = answered(chat)
    opening = open_user_turn(chat, messages, last)
    after = chat.prompt([*messages, Message("Next.")], last)
    assert after.forked and after.ids[: len(opening.ids)] == opening.ids
    assert opening.end in after.ids[len(opening.ids) :]


def test_a_first_observation_is_written_too(tokenizer: Any) -> None:
    opening = open_user_turn(Chat(tokenizer), [])
    assert tokenizer.decode(opening.ids) == "<|im_start|>user\n" and opening.lead == ""


def test_a_template_that_shows_no_user_is_refused(tokenizer: Any) -> None:
    chat = Chat(tokenizer)
    chat.template = "{% for m in messages %}{{ m['role'] }}{% endfor %}!"
    with pytest.raises(ChatTemplateError, match="as the same tokens"):
        open_user_turn(chat, [Message("a")])
    chat = Chat(tokenizer)
    chat.template = "{% for m in messages %}{{ m['role'] + m['content'] }}{% endfor %}"
    with pytest.raises(ChatTemplateError, match="writes nothing after a user's message"):
        open_user_turn(chat, [Message("a")])


def test_the_prompts_of_an_episode_are_those_of_training(tiny_path: str) -> None:
    """Episodes as they are played and credited for training, and the same actions and observations
    in a world model: every prompt, after what was sampled too."""
    world = TicTacToeEnvironment(opponent="expert", style="short", opening=2)
    trainer = SFTTrainer(
        tiny_path, world, mode="world_model", batch_size=8, max_new_tokens=4, report_to="none"
    )
    compared = 0
    for teacher in ("policy", "expert"):
        trainer.run.source.play.demonstrate = teacher == "expert"  # type: ignore[attr-defined]
        groups = asyncio.run(trainer.run.source.play.take(4))  # type: ignore[attr-defined]
        model = registry.load("engines", "world_model")(tiny_path)
        SFT(mode="world_model").credit(groups)
        for episode in (episode for group in groups for episode in group):
            (rollout,) = episode.rollouts.values()
            own = [turn for turn in rollout.turns if not is_observation(turn)]
            seen = {turn.index: turn for turn in rollout.turns if is_observation(turn)}
            messages = list(rollout.messages)
            place = messages.index(own[0].message)
            talk = model.talk(messages[:place])
            for turn in own:
                assert turn.message is not None
                model.answer(talk, turn.message)
                assert talk.last[1].prompt_ids == turn.prompt_ids
                if turn.index not in seen:  # a move that is not legal ends the game
                    continue
                observed = seen[turn.index]
                ids, trained = model.opening(talk).ids, observed.completion_ids
                assert len(ids) > len(observed.prompt_ids)
                assert [*observed.prompt_ids, *trained][: len(ids)] == ids
                place = messages.index(turn.message) + 1
                talk.messages.append(messages[place])
                compared += 1
    assert compared > 8


# -- what is written -------------------------------------------------------------------------------


class Says:
    """An engine that says the same to every request, and keeps what it was asked."""

    def __init__(self, inner: Any, text: str) -> None:
        self.policies, self.text, self.asked = inner.policies, text, list[Any]()

    async def generate(self, requests: Any) -> list[Completion]:
        self.asked.append(list(requests))
        ids = self.policies["world_model"].chat.encode_text(self.text)
        return [Completion(ids, [0.0] * len(ids), self.text, "stop", 0) for _ in requests]


def scripted(environment: Any, text: str) -> Says:
    model = environment._model
    model.__dict__["_loaded"] = Says(model._engine, text)
    return model.__dict__["_loaded"]


def paid(prompts: Any, completions: Any, observation: Any, done: Any, answer: Any) -> list[float]:
    """0.5 for the right word, 1 for the end."""
    pairs = zip(completions, answer, done, observation, strict=True)
    return [0.5 * (said == right) + over + 0.0 * len(seen) for said, right, over, seen in pairs]


def rows(count: int = 3) -> list[dict[str, Any]]:
    return [{"prompt": f"room {n}", "answer": "go"} for n in range(count)]


def test_rewards_and_the_end_of_an_episode(tiny_path: str) -> None:
    env = WorldModelEnvironment(
        tiny_path, rows(), reward_func=paid, done_text="out", max_turns=2, system_prompt="A maze."
    )
    engine = scripted(env, "a wall")
    result = env.reset(1)
    assert [each.content for each in result.messages] == ["A maze.", "room 1"]
    result = env.step(Message("go"))
    assert (result.reward, result.done, result.truncated) == (0.5, False, False)
    assert [each.content for each in result.messages] == ["a wall"]
    result = env.step(Message("stay"))
    assert (result.reward, result.done, result.truncated) == (0.0, False, True)
    env.reset(1)
    engine.text = "you are out"
    result = env.step(Message("go"))
    assert (result.reward, result.done, result.truncated) == (1.5, True, False)
    assert result.rewards["agent"].components == {"paid": 1.5}
    calls: list[list[str]] = []

    def done(messages: list[Message]) -> bool:
        calls.append([each.content for each in messages])
        return len(messages) > 4

    env = WorldModelEnvironment(tiny_path, rows(), done_func=done, max_turns=9)
    scripted(env, "a wall")
    env.reset(2)
    first, second = env.step(Message("a")), env.step(Message("b"))
    assert (first.done, second.done, second.rewards) == (False, True, {})
    assert calls[-1] == ["room 2", "a", "a wall", "b", "a wall"]


def test_copies_share_the_model_and_are_sampled_in_one_batch(tiny_path: str) -> None:
    env = WorldModelEnvironment(tiny_path, rows())
    engine = scripted(env, "a wall")

    async def play() -> None:
        copies = [env.spawn() for _ in range(3)]
        for number, each in enumerate(copies):
            await each.reset(number)
        await asyncio.gather(*(each.step({"agent": Message("go")}) for each in copies))

    asyncio.run(play())
    assert [len(asked) for asked in engine.asked] == [3]
    assert len({request.seed for request in engine.asked[0]}) == 3


@pytest.fixture
def imagined(model: Any, tokenizer: Any) -> LLMEnvironment:
    settings = {"max_new_tokens": 6}
    return LLMEnvironment(model, tokenizer, mode="client", generation_config=settings, max_turns=2)  # type: ignore[arg-type]


def over(result: StepResult) -> bool:
    return result.done or result.truncated


def test_what_cannot_be_an_environment_is_refused(imagined: LLMEnvironment, model: Any) -> None:
    with pytest.raises(ConfigError, match=r"respond\(messages\)"):
        imagined.step([Message("a")])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="call reset first"):
        imagined.step(Message("a"))
    with pytest.raises(ConfigError, match="mode='client'"):
        check_environment(LLMEnvironment(model, imagined.tokenizer))
    with pytest.raises(ConfigError, match="behind an API"):
        LLMEnvironment({"base_url": "http://localhost:1"}).reset(0)
    with pytest.raises(ConfigError, match="max_turns applies to a model used as an environment"):
        PPOTrainer(LLMEnvironment(model, imagined.tokenizer, max_turns=3), imagined)
    with pytest.raises(ConfigError, match="give the folder"):
        WorldModelEnvironment("policy:judge").reset(0)
    with pytest.raises(ConfigError, match="model is missing"):
        WorldModelEnvironment()
    with pytest.raises(ConfigError, match="needs a prompt"):
        WorldModelEnvironment("mrlm/tiny", [{"text": "x"}])


# -- trained, saved, and trained in ----------------------------------------------------------------

SMALL = {"max_new_tokens": 4, "report_to": "none", "batch_size": 4}


def longer(prompts: Any, completions: Any, observation: Any) -> list[float]:
    return [float(len(seen)) for seen in observation]


def test_an_agent_trains_in_what_another_run_trained(tiny_path: str, tmp_path: Path) -> None:
    world = TicTacToeEnvironment(opponent="expert", style="short", opening=2)
    watched = SFTTrainer(
        tiny_path,
        world,
        mode="world_model",
        teacher="expert",
        learning_rate=2e-3,
        output_dir=str(tmp_path / "watched"),
        **SMALL,
    ).train(num_iterations=3)
    assert watched.history[-1]["loss"] < watched.history[0]["loss"]
    for place in (watched.run_folder, watched.run_folder / "final"):
        imagined = LLMEnvironment(
            place,
            mode="client",  # type: ignore[arg-type]
            dataset=[{"prompt": "board"}],
            reward_fn=longer,
            max_turns=2,
            generation_config={"max_new_tokens": 6},
        )
        trainer = PPOTrainer(
            tiny_path,
            imagined,
            output_dir=str(tmp_path / f"practised in {place.name}"),
            learning_rate=1e-3,
            **SMALL,
        )
        row = trainer.train(num_iterations=1).history[-1]
        assert row["turns/mean"] == 2 and row["episodes/truncated"] == 1
        assert row["reward/mean"] > 0 and row["grad_norm"] > 0


@pytest.mark.parametrize("name", ["glm", "deepseek", "qwen3_marked"])
@pytest.mark.parametrize("mode", ["world_model", "combined"])
def test_a_template_that_leaves_no_observation_is_named(
    name: str, mode: str, tiny_path: str, tmp_path: Path
) -> None:
    model = shutil.copytree(tiny_path, tmp_path / "model")
    template = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    (model / "chat_template.jinja").write_text(template, encoding="utf-8")
    trainer = SFTTrainer(
        str(model),
        TicTacToeEnvironment(opponent="expert", style="short", opening=2),
        mode=mode,
        teacher="expert",
        output_dir=str(tmp_path / "run"),
        **SMALL,
    )
    with pytest.raises(ChatTemplateError, match=f"mode={mode} .*'policy'.* rewrites earlier turns"):
        trainer.train(num_iterations=1)


CONFIG = """
experiment_name: imagined
model: {model_name_or_path: MODEL}
generation: {max_new_tokens: 4}
training: {report_to: none, batch_size: 4, learning_rate: 1.0e-3, num_iterations: 1}
stages:
  - name: watch
    environments: [{env_type: tic_tac_toe, opponent: expert, style: short, opening: 2}]
    training: {algorithm: sft}
    sft: {mode: world_model, teacher: expert}
  - name: practise
    environments:
      - env_type: world_model
        model: "stage:watch"
        dataset: [{prompt: board}]
        reward_func: "test_world_model:longer"
        max_turns: 2
        max_new_tokens: 6
    training: {algorithm: ppo}
"""


def test_a_pipeline_trains_a_world_model_and_an_agent_in_it(tiny_path: str, tmp_path: Path) -> None:
    file = tmp_path / "imagined.yaml"
    file.write_text(CONFIG.replace("MODEL", tiny_path))
    config = load_config(file)
    result = run_experiment(config)
    assert result.metrics["turns/mean"] == 2 and result.metrics["reward/mean"] > 0
    rows = recorded("outputs/imagined/2-practise")
    assert rows and all(row["environment"] == "world_model" for row in rows)
    wrong = yaml.safe_load(file.read_text().replace("stage:watch", "stage:see"))
    wrong["experiment_name"] = "wrong"
    file.write_text(yaml.safe_dump(wrong))
    with pytest.raises(ConfigError, match="model='stage:see': no earlier stage"):
        run_experiment(load_config(file))


def test_the_world_is_the_model_of_its_arguments(
    tiny_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`model` and `tokenizer` change what it reads and writes, `device` is where it is loaded."""

    def seen(model: Any, **given: Any) -> str:
        world = WorldModelEnvironment(model, [{"prompt": "a"}], max_new_tokens=8, **given)
        settled(world.reset(world.task(0)))
        settled(world.step({"agent": Message("b")}))
        ids = world._model.opening(world._model.talk([Message("a"), Message("b", Role.ASSISTANT)]))
        return f"{ids.ids} {world.state()}"

    asked: list[str] = []

    def loaded(*arguments: Any, device: str, **more: Any) -> Any:
        asked.append(device)
        return load_model(*arguments, device="cpu", **more)

    monkeypatch.setattr("mrlm.engines.world_model.load_model", loaded)
    base = seen(tiny_path)
    assert base == seen(tiny_path, device="cuda:1") and asked == ["auto", "cuda:1"]
    other = load_model(tiny_path)
    with torch.no_grad():
        for weight in other.parameters():
            weight *= 1.5
    assert seen(other) != base
    tokenizer = load_tokenizer(tiny_path)
    assert seen(tiny_path, tokenizer=tokenizer) == base
    tokenizer.chat_template = "~" + tokenizer.chat_template
    assert seen(tiny_path, tokenizer=tokenizer) != base


def test_a_row_without_an_observation_may_be_left_out(tiny_path: str) -> None:
    rows = [{"prompt": "a"}, {"text": "b"}]
    with pytest.raises(DataError, match="needs a prompt"):
        WorldModelEnvironment(tiny_path, rows)
    world = WorldModelEnvironment(tiny_path, rows, on_bad_row="skip")
    assert world.num_tasks() == 1


def frozen(tiny_path: str, **changes: Any) -> Any:
    sections: dict[str, Any] = {
        "model": {"model_name_or_path": "mrlm/tiny"},
        "environments": [
            {"env_type": "world_model", "model": "policy:nature", "dataset": [{"prompt": "a"}]}
        ],
        "policies": {"player": {}, "nature": {"model": tiny_path, "trainable": False} | changes},
        "training": {"algorithm": "ppo"},
    }
    return ExperimentConfig(**sections)


def test_a_frozen_policy_of_the_run_may_be_the_world(tiny_path: str) -> None:
    config = frozen(tiny_path)
    worlds = make_environments(config, LiveObjects())
    template: Any = worlds[0].template
    assert template._model.model == tiny_path
    cast = assign(config, worlds, LiveObjects())
    assert cast.policy_of == {"agent": "player"} and list(cast.policies) == ["player"]
    with pytest.raises(ConfigError, match=r"policies\.nature\.trainable: false"):
        make_environments(frozen(tiny_path, trainable=True), LiveObjects())
    with pytest.raises(ConfigError, match="policy 'nature' does not exist"):
        make_environments(config.model_copy(update={"policies": {}}), LiveObjects())
