"""The classes of `mrlm.trl` and `mrlm.comlrl` have the other library's defaults and counts, and all
problems of a config are one message. Their trainers are counted in `tests/borders`."""

import shutil
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, TrainerCallback

import mrlm
from mrlm import GRPOConfig
from mrlm.comlrl import IACConfig, IACTrainer, MAGRPOConfig, MAGRPOTrainer
from mrlm.config import ExperimentConfig, parse_config
from mrlm.config.errors import InvalidConfig
from mrlm.core.errors import ConfigError, DataError
from mrlm.trl import DPOConfig, DPOTrainer, GRPOTrainer, RLOOTrainer, SFTConfig, SFTTrainer
from mrlm.trl import GRPOConfig as TheirConfig

SETTINGS: Any = mrlm  # whose algorithms are called with wrong settings
ROWS = [{"prompt": f"Say {n}."} for n in range(12)]


def ones(completions: list[str]) -> list[float]:
    return [1.0] * len(completions)


def online(trainer: Any = GRPOTrainer, **words: Any) -> Any:
    parts: dict[str, Any] = {"train_dataset": ROWS, "reward_funcs": ones} | words
    return trainer(mrlm.default_model(), **parts)


@pytest.mark.parametrize(
    ("words", "tasks", "parts"),
    [
        ({}, 1, 1),
        ({"num_generations": 2}, 4, 1),
        ({"gradient_accumulation_steps": 4}, 4, 4),
        ({"gradient_accumulation_steps": 4, "num_generations": 16}, 2, 2),
        ({"per_device_train_batch_size": 16, "num_generations": 8}, 2, 1),
        ({"batch_size": 3}, 3, 1),
    ],
)
@pytest.mark.parametrize("trainer", [GRPOTrainer, mrlm.GRPOTrainer])
def test_a_batch_counts_completions_as_trl_does(trainer, words, tasks, parts):
    if trainer is mrlm.GRPOTrainer and "batch_size" not in words:
        words = {"per_device_train_batch_size": 8, **words}
    training = online(trainer, **words).config.training
    assert (training.batch_size, training.gradient_accumulation_steps) == (tasks, parts)


def test_processes_count(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert parse_config({"per_device_train_batch_size": 8}).training.batch_size == 4
    data = {"training": {"algorithm": "sft"}, "per_device_train_batch_size": 8}
    assert parse_config(data).training.batch_size == 32


LATE: dict[str, Any] = {"num_iterations": 2, "max_steps": 6, "save_steps": 4, "push_to_hub": False}
LATE |= {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 0.5}
LATE |= {"steps_per_generation": 1, "generation_batch_size": 8}
LATE |= {"importance_sampling_level": "sequence", "loss_type": ["dapo"], "bf16": False}


def assigned(**words: Any) -> Any:
    args = TheirConfig()
    for name, value in words.items():
        setattr(args, name, value)
    return args


def test_settings_mean_the_same_wherever_they_are_given():
    configs = TheirConfig(**LATE), assigned(**LATE), replace(TheirConfig(max_steps=2), **LATE)
    given: list[Any] = [{"args": args} for args in (*configs, dict(LATE))]
    for words in (*given, LATE, {"args": TheirConfig(num_iterations=2), **LATE}):
        config = online(**words).config
        training, loss = config.training, config.grpo
        assert (training.num_iterations, training.save_steps, loss.update_epochs) == (3, 2, 2)
        assert (loss.loss_type, loss.aggregation, loss.clip_range) == ("gspo", "token_mean", 0.2)
        assert (training.lr_scheduler_type, training.warmup_ratio) == ("constant", 0.5)
        assert training.precision == "fp32"
    assert online(**LATE | {"loss_type": "dr_grpo"}).config.grpo.aggregation == "constant"


def test_a_wrong_assignment_is_an_error_as_in_the_constructor():
    for name, text in (("lerning_rate", "mean 'learning_rate'"), ("packing", "without padding")):
        with pytest.raises(InvalidConfig, match=rf"GRPOConfig\.{name}: .*{text}"):
            assigned(**{name: True})


def test_another_trainer_object_resumes(tmp_path):
    rows = [{"prompt": f"{n}", "completion": "b"} for n in range(8)]
    args = SFTConfig(
        str(tmp_path / "run"), per_device_train_batch_size=2, max_steps=4, save_steps=2
    )
    whole = SFTTrainer("mrlm/tiny", args=args, train_dataset=rows).train()
    checkpoint = shutil.copytree(whole.run_folder / "checkpoint-2", tmp_path / "checkpoint-2")
    args.output_dir = str(tmp_path / "again")
    rest = SFTTrainer("mrlm/tiny", args=args, train_dataset=rows).train(str(checkpoint))
    assert rest.metrics["loss"] == whole.metrics["loss"]


class Seen(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        self.args, self.steps = args, (state.global_step, state.max_steps)


def lengths(**columns: Any) -> list[float]:
    return [float(len(text)) for text in columns["completions"]]


def test_trainers_and_callbacks_have_what_those_of_trl_have(tmp_path, caplog):
    words = {"num_generations": 4, "per_device_train_batch_size": 4, "max_completion_length": 2}
    args = TheirConfig(str(tmp_path), num_iterations=2, max_steps=4, use_cpu=True, **words)
    trainer, seen = online(args=args, reward_funcs=lengths), Seen()
    assert "prompt: text is a user's message here" in caplog.text
    trainer.add_callback(seen)
    trainer.train()
    for settings in (seen.args, SimpleNamespace(**trainer.args.to_dict())):
        assert (settings.num_iterations, settings.max_steps, settings.use_cpu) == (2, 4, True)
    assert (seen.args.bf16, seen.args.eval_strategy, seen.args.lora_r) == (False, "no", None)
    assert not seen.args.push_to_hub and not args.push_to_hub
    assert seen.steps == (4, 4) == (trainer.state.global_step, trainer.state.max_steps)
    assert trainer.model.config and trainer.processing_class.chat_template
    assert trainer.save_model() == trainer.save_model(tmp_path) == tmp_path
    AutoModelForCausalLM.from_pretrained(tmp_path)
    assert (tmp_path / "checkpoint-2").is_dir() and (tmp_path / "metrics.jsonl").is_file()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"reward_funcs": lambda completion_ids: [0.0]}, "completion_ids is not passed"),
        ({"reward_funcs": SimpleNamespace(save_pretrained=1)}, "save this .* give the folder"),
        ({"train_dataset": [{"prompt": "a", "images": ["b.png"]}]}, "only text is trained"),
        ({"peft_config": {"r": 4}}, r"give a peft\.LoraConfig"),
        ({"optim": "adamw_bogus"}, "optim: must be one of 'adamw'"),
        ({"generation_batch_size": 64}, "generation_batch_size: no setting"),
        ({"num_iterations": 2, "max_steps": 7}, "max_steps: it counts optimiser steps.*use 6"),
        ({"args": TheirConfig(max_steps=4), "max_steps": 6}, "max_steps is given twice"),
        ({**LATE, "loss_type": "cispo"}, "loss_type='cispo' has no ratio of sequences"),
    ],
)
def test_what_would_change_nothing_is_refused(words, text):
    with pytest.raises(ConfigError, match=text):
        online(**words)


def test_what_is_given_goes_before_their_defaults():
    own = ExperimentConfig(**{"training": {"algorithm": "grpo", "seed": 3, "batch_size": 2}})
    config = online(config=own, learning_rate=1e-4).config
    training = config.training
    assert (training.seed, training.batch_size, training.learning_rate) == (3, 2, 1e-4)
    assert (training.lr_scheduler_type, training.num_epochs) == ("linear", 3)
    assert online(RLOOTrainer, args=mrlm.RLOOConfig()).config.rloo.kl_coef == 0.0  # ours
    assert online(RLOOTrainer).config.rloo.kl_coef == 0.05


def test_buffers_of_comlrl_count_nodes_and_rollouts():
    parts = {"train_dataset": ROWS, "reward_func": lambda a, b: [1.0]}
    again = {"external_transition": lambda **history: ["Again."] * 2}
    model = mrlm.default_model()
    one = MAGRPOTrainer(agent_model=model, **parts, args=MAGRPOConfig(num_turns=1)).config
    assert (one.training.batch_size, one.magrpo.group_size) == (2, 4)
    args = MAGRPOConfig(rollout_buffer_size=10)
    tree = MAGRPOTrainer(agent_model=model, **parts, **again, args=args).config
    assert tree.workflow.name == "tree" and tree.workflow.parameters["branches"] == 4
    assert tree.training.batch_size == 2  # two trees of 1 + 4 nodes
    critic = IACTrainer(agent_model=model, **parts, **again, args=IACConfig()).config
    assert critic.training.batch_size == 4  # of two rollouts each
    with pytest.raises(InvalidConfig, match="must divide rollout_buffer_size"):
        args = MAGRPOConfig(num_turns=1, rollout_buffer_size=4, train_batch_size=3)
        MAGRPOTrainer(agent_model=model, **parts, args=args)
    with pytest.raises(ConfigError, match="use_separate_critic=True"):
        args = IACConfig(num_turns=1, use_separate_critic=False)
        IACTrainer(agent_model=model, **parts, args=args, critics=[model] * 2)


def test_all_problems_of_a_config_are_one_message():
    wrong: dict[str, Any] = {"scale_rewards": None, "learning_rate": "fast", "nonsense": 1}
    wrong |= {"overwrite_output_dir": True, "logging_dir": "logs", "fsdp": True}
    wrong["load_best_model_at_end"] = True
    with pytest.raises(InvalidConfig) as caught:
        GRPOConfig(**wrong)
    text = str(caught.value)
    assert text.startswith("7 problems") and "validation error" not in text
    for name in ("scale_rewards", "overwrite", "logging_dir", "keep_best", "fsdp", "nonsense"):
        assert name in text


def test_problems_that_a_trainer_would_meet_are_in_that_message_too():
    wrong = dict.fromkeys(("save_strategy", "logging_strategy", "lr_scheduler_type"), "epoch")
    with pytest.raises(InvalidConfig) as caught:
        TheirConfig(output_dir="o", optim="adamw_8bit", num_generations="two", **wrong)
    assert str(caught.value).startswith("5 problems")
    for name in (*wrong, "optim", "num_generations"):
        assert f"GRPOConfig.{name}: " in str(caught.value)
    with pytest.raises(ConfigError, match=r"GRPO\.kl_coef: must be a valid number, not 'x'"):
        mrlm.GRPO(kl_coef="x")


def test_one_turn_of_comlrl_is_no_tree_and_combines_answers():
    args = MAGRPOConfig(num_agents=2, num_turns=1, joint_mode="cross", num_generations=2)
    parts: dict[str, Any] = {"train_dataset": ROWS, "reward_func": ones, "args": args}
    config = MAGRPOTrainer(agents=["mrlm/tiny"] * 2, **parts).config
    assert config.workflow.name != "tree"
    assert config.algorithm_settings().spec.sampling.cross


def test_prompts_that_comlrl_does_not_render_are_said_once(caplog):
    said = "text is a user's message here, in the chat template; CoMLRL continues it raw"
    turn = [{"role": "user", "content": "Say 1."}]
    for rows, formatters, times in (
        ([{"prompt": turn}], None, 0),
        (ROWS, None, 1),
        ([{"topic": "owls"}], [lambda row: row["topic"]] * 2, 1),
    ):
        caplog.clear()
        parts = {"reward_func": ones, "formatters": formatters, "train_dataset": rows}
        MAGRPOTrainer(agents=["mrlm/tiny"] * 2, **parts, args=MAGRPOConfig(num_turns=1))
        assert caplog.text.count(said) == times


def test_one_model_starts_all_critics_of_comlrl():
    parts: dict[str, Any] = {"train_dataset": ROWS, "reward_func": ones}
    parts |= {"critic_model": "mrlm/tiny", "args": IACConfig(num_agents=2, num_turns=1)}
    trainer = IACTrainer(agents=["mrlm/tiny"] * 2, **parts)
    assert trainer.config.training.critic_model == "mrlm/tiny"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("load_best_model_at_end", True), ("save_strategy", "epoch"), ("eval_strategy", "epoch"),
        ("fsdp", True), ("deepspeed", True), ("eval_delay", 1), ("logging_strategy", "no"),
        ("local_rank", 3), ("packing", True), ("per_device_eval_batch_size", 4),
    ],
)  # fmt: skip
def test_a_value_is_dropped_only_where_it_describes_the_behaviour(name, value):
    with pytest.raises(ConfigError, match=name):
        online(args=TheirConfig(**{name: value}))
    with pytest.raises(ConfigError, match=name):
        parse_config({name: value})


def test_defaults_of_trl_may_be_written():
    TheirConfig(per_device_eval_batch_size=8, data_seed=None, model_init_kwargs=None, fsdp=None)
    assert DPOConfig(loss_type=["sigmoid"], max_length=1024).loss_type == "sigmoid"
    for words in ({"save_strategy": "no"}, {"args": TheirConfig(save_strategy="no")}):
        assert online(**words).config.training.save_steps is None


def test_dropout_of_a_model_without_any_is_only_an_error_under_our_name(tmp_path):
    words = {"output_dir": str(tmp_path), "report_to": "none", "max_steps": 1}
    rows = [{"prompt": "a", "chosen": "b", "rejected": "c"}] * 2
    args = DPOConfig(**words, disable_dropout=False)
    DPOTrainer("mrlm/tiny", args=args, train_dataset=rows).train()
    with pytest.raises(ConfigError, match=r"training\.dropout=true .*changes nothing"):
        mrlm.DPOTrainer("mrlm/tiny", train_dataset=rows, disable_dropout=False).train()


def test_rows_for_evaluation_that_nothing_plays_are_an_error():
    rows = [{"prompt": "a", "completion": "b"}]
    with pytest.raises(ConfigError, match="eval_dataset="):
        SFTTrainer(mrlm.default_model(), train_dataset=rows, eval_dataset=rows)
    with pytest.raises(DataError, match=r"several data sets \('easy', 'hard'\); give one"):
        online(eval_dataset={"easy": ROWS, "hard": ROWS})


def test_their_trainers_hold_no_row_out_where_none_is_for_evaluation():
    args = MAGRPOConfig(num_agents=2, num_turns=1, num_generations=2)
    team = MAGRPOTrainer(agents=["mrlm/tiny"] * 2, train_dataset=ROWS, reward_func=ones, args=args)
    made = [online(), team, online(mrlm.GRPOTrainer), online(eval_dataset=ROWS[:2])]
    tasks = [trainer._parts.environments[0].num_tasks for trainer in made]
    assert [count("train") for count in tasks] == [12, 12, 10, 12]
    assert tasks[-1]("eval") == 2


def test_the_first_line_of_a_run_states_its_amounts(tmp_path, launcher):
    program = f"""
import mrlm
from mrlm.trl import GRPOConfig, GRPOTrainer
args = GRPOConfig(
    num_generations=4, max_steps=1, max_completion_length=2, output_dir={str(tmp_path / "run")!r}
)
rows = [{{"prompt": "Say one."}}] * 16
rewards = lambda completions: [float(len(text)) for text in completions]
GRPOTrainer(mrlm.default_model(), train_dataset=rows, reward_funcs=rewards, args=args).train()
"""
    (tmp_path / "program.py").write_text(program)
    done = launcher.run([str(tmp_path / "program.py")], tmp_path)
    assert "2 prompts x 4 samples = 8 completions a step, 1 step\n" in done.out + done.err


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: SETTINGS.GRPO(epsilon=0.2),
            "GRPO.epsilon: unknown key; the setting is clip_range",
        ),
        (lambda: SETTINGS.SFT(mod="x"), "SFT.mod: unknown key; did you mean 'mode'"),
        (lambda: SETTINGS.GRPO(model=object()), "has a model and no tokenizer; give tokenizer="),
    ],
)
def test_wrong_settings_of_an_algorithm_are_errors_of_this_library(make, text):
    with pytest.raises(ConfigError, match=text):
        make()


def test_the_first_argument_of_a_config_is_its_folder() -> None:
    assert DPOConfig("there").output_dir == "there" == mrlm.GRPOConfig("there").output_dir
    assert TheirConfig("there", beta=0.1) == TheirConfig(output_dir="there", beta=0.1)
    with pytest.raises(InvalidConfig):
        DPOConfig("there", output_dir="elsewhere")


def test_an_experiment_is_a_config() -> None:
    with pytest.raises(ConfigError, match="config is a dict; give an ExperimentConfig"):
        SETTINGS.run_experiment({"algorithm": "grpo"})
