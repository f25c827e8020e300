"""What a user writes is read strictly: right things arrive, wrong things are one clear sentence."""

import subprocess
import sys
from pathlib import Path

import pytest

from mrlm import GRPOTrainer
from mrlm.cli.train import closing
from mrlm.config import (
    AgentConfig,
    EnvironmentConfig,
    ExperimentConfig,
    GenerationConfig,
    PPOConfig,
    TrainingConfig,
    WorkflowConfig,
    diff,
    load_config,
    parse_config,
)
from mrlm.core.errors import ConfigError
from mrlm.runs import TrainResult
from places import ROOT

CONFIGS = ROOT / "configs"


def message(data, *overrides) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(data, list(overrides))
    return str(caught.value)


# -- what is read ---------------------------------------------------------------------------------


def test_defaults_are_a_valid_experiment():
    config = ExperimentConfig()
    assert config.training.algorithm == "grpo"
    assert config.algorithm_settings().group_size == 8
    assert config.resolved()["output_dir"] == "outputs/experiment"


def test_sections_built_in_python_are_kept():
    config = ExperimentConfig(
        training=TrainingConfig(algorithm="ppo", num_epochs=2),
        ppo=PPOConfig(clip_range=0.3, gamma=0.99, learning_rate=1e-5),
        output_dir="somewhere",
    )
    assert (config.training.num_epochs, config.training.learning_rate) == (2, 1e-5)
    assert (config.ppo.clip_range, config.ppo.gamma) == (0.3, 0.99)
    assert config.algorithm_settings().gamma == 0.99
    assert config.algorithm_settings() is not config.algorithm_settings()


def test_an_algorithm_of_ones_own_is_named_by_module_and_class():
    config = ExperimentConfig(
        training={"algorithm": "mrlm.algorithms.grpo:GRPO"}, algorithm={"group_size": 3}
    )
    assert config.algorithm_settings().group_size == 3
    assert ExperimentConfig(**config.resolved()).algorithm_settings().group_size == 3
    assert "is not an algorithm" in message({"training": {"algorithm": "json:dumps"}})


def test_the_shipped_ppo_config_is_read(tmp_path):
    config = load_config(CONFIGS / "code_generation_ppo.yaml", ["training.num_iterations=2"])
    assert config.training.learning_rate == 5e-6
    assert config.training.num_iterations == 2
    assert [(world.env_type, world.max_turns) for world in config.environments] == [("code", 3)]
    again = load_config(config.save(tmp_path / "config.yaml"))
    assert again.resolved() == config.resolved()
    assert again.hash() == config.hash()


def test_an_algorithm_that_does_not_exist_is_one_error_that_names_it():
    said = message({"training": {"algorithm": "mappoo"}})
    assert "mappoo" in said and "did you mean 'mappo'" in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"training": {"algorithm": "mappo"}, "mappo": {"critic": "shared"}}, "central"),
        ({"training": {"algorithm": "ppo"}, "ppo": {"critic": "central"}}, "mappo"),
        ({"training": {"algorithm": "ippo"}, "ippo": {"critic": "seperate"}}, "separate"),
        ({"training": {"algorithm": "ppo"}, "ppo": {"critic_warmup": 2}}, "separate"),
        ({"training": {"algorithm": "ppo", "critic_model": "x"}}, "training.critic_model"),
    ],
)
def test_a_critic_that_does_not_fit_is_refused_with_one_that_does(data, said):
    assert said in message(data)


@pytest.mark.parametrize("text", ["1e-6", "5.0e-6", "1E-6", ".5", "-2e3"])
def test_numbers_are_numbers(tmp_path, text):
    file = tmp_path / "x.yaml"
    file.write_text(f"environments: [{{env_type: math, number: {text}}}]\n")
    value = load_config(file).environments[0].parameters["number"]
    assert value == float(text) and isinstance(value, float)


@pytest.mark.parametrize(
    "text", ["1e5", "2024-01-01", "no", "12", "null", "a: b", "# x", ".inf", "é\n"]
)
def test_text_comes_back_as_text(tmp_path, text):
    config = ExperimentConfig(agents={"a": {"system_prompt": text}})
    assert load_config(config.save(tmp_path / "c.yaml")).agents["a"].system_prompt == text


def test_environments_may_be_called_eval_envs_but_not_both():
    world = {"env_type": "math"}
    assert parse_config({"eval_envs": [world]}).environments[0].env_type == "math"
    assert "eval_envs" in message({"eval_envs": [world], "environments": [world]})


# -- overrides ------------------------------------------------------------------------------------


def test_overrides_reach_everywhere():
    data = {"environments": [{"env_type": "math", "difficulty_range": [1, 3]}]}
    overrides = [
        "training.num_iterations=50", "environments.0.difficulty_range=[1, 2]", "model.lora.r=4",
        "num_generations=4", "algorithm.kl_coef=0.1", "training.learning_rate=1e-5",
    ]  # fmt: skip
    config = parse_config(data, overrides)
    assert config.training.num_iterations == 50
    assert config.environments[0].parameters["difficulty_range"] == [1, 2]
    assert config.model.lora is not None and config.model.lora.r == 4
    assert (config.grpo.group_size, config.grpo.kl_coef) == (4, 0.1)
    assert config.training.learning_rate == 1e-5


def test_a_whole_list_can_be_overridden_and_the_last_override_wins():
    data = {"environments": [{"env_type": "code"}]}
    config = parse_config(data, ["eval_envs=[{env_type: math}]", "seed=1", "seed=2"])
    assert [world.env_type for world in config.environments] == ["math"]
    assert config.training.seed == 2


def test_an_override_replaces_what_the_file_said_with_another_word():
    config = parse_config({"training": {"num_generations": 2}}, ["grpo.group_size=4"])
    assert config.grpo.group_size == 4
    config = parse_config({"batch_size": 4}, ["per_device_train_batch_size=16"])
    assert config.training.batch_size == 2  # prompts, with 8 answers each


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("training.batchsize=3", "did you mean 'batch_size'"),
        ("training", "key=value"),
        ("=3", "key=value"),
        ("environments.5.weight=1", "list of 1"),
        ("environments.0.env_type.x=1", "so it has no 'x'"),
        ("training.seed=[", "override"),
        ("training.seed=-1", "from the override"),
        ("learning_rate=fast", "from the override"),
    ],
)
def test_a_wrong_override_says_which(override, said):
    assert said in message({"environments": [{"env_type": "math"}]}, override)


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"trainng": {}}, "trainng: unknown key; did you mean 'training'?"),
        (
            {"training": {"batchsize": 3}},
            "training.batchsize: unknown key; did you mean 'batch_size'",
        ),
        ({"policies": {"a": {"lora": {"rank": 3}}}}, "policies.a.lora.rank: unknown key"),
        ({"grpo": {"gruop_size": 3}}, "grpo.gruop_size: unknown key; did you mean 'group_size'"),
        ({"ppo": {}}, "ppo: training.algorithm is 'grpo'"),
        (
            {"training": {"batch_size": 0}},
            "training.batch_size: must be greater than or equal to 1",
        ),
        ({"training": {"batch_size": True}}, "training.batch_size: must be a number, not true"),
        ({"training": {"learning_rate": "x"}}, "training.learning_rate: must be a valid number"),
        ({"training": {"learning_rate": float("nan")}}, "training.learning_rate: must be"),
        ({"training": {"optimizer": "lion"}}, "must be one of 'adamw', 'adam', 'sgd'"),
        ({"training": 3}, "training: must be a mapping"),
        ({"grpo": 3}, "grpo: must be a mapping"),
        ({"grpo": {"clip_range": -1}}, "grpo.clip_range: must be greater than 0"),
        ({"generation": {"max_completion_length": 5}}, "the setting is generation.max_new_tokens"),
        ({"environments": [{"weight": 2}]}, "environments.0.env_type: it is required"),
        (
            {"environments": [{"env_type": "math", "mode": "server"}]},
            "an environment is not trained",
        ),
        ({"policies": {"a": {"endpoint": "localhost"}}}, "policies.a.endpoint"),
        ({"agents": {"a": {"generation": {"temprature": 1}}}}, "did you mean 'temperature'"),
        ({"agents": {"a": {"generation": {"top_p": 2}}}}, "agents.a.generation"),
        ({"evaluation": {"samples": 4}}, "evaluation.samples"),
        ({"experiment_name": "../x"}, "experiment_name"),
        ({"data": {"dataset": [1]}}, "data.dataset"),
        ({"training": {"warmup_steps": 3, "warmup_ratio": 0.1}}, "training.warmup_ratio"),
        ({"generation": {"temperature": 0}}, "generation.temperature"),
        ({"agents": {"a": {"policy": "q"}}, "policies": {"p": {}}}, "agents.a.policy"),
    ],
)
def test_what_is_wrong_is_said_with_its_key(data, said):
    assert said in message(data)


def test_every_problem_gets_its_line():
    text = message({"training": {"seed": -1, "sead": 1}, "grpo": {"clip_range": 0}, "x": 1})
    assert text.startswith("4 problems")
    assert len(text.splitlines()) == 5


def test_a_section_of_its_own_is_strict_too():
    with pytest.raises(ConfigError, match="did you mean 'batch_size'"):
        TrainingConfig(batchsize=3)  # pyright: ignore[reportCallIssue]
    config = TrainingConfig()
    with pytest.raises(ConfigError, match="greater than or equal to 1"):
        config.batch_size = 0


def test_a_batch_that_cannot_be_cut_names_sizes_that_can():
    training = {"algorithm": "ppo", "batch_size": 5, "gradient_accumulation_steps": 2}
    text = message({"training": training, "ppo": {"num_minibatches": 2}})
    assert "use 4 or 8" in text


# -- worlds and workflows -------------------------------------------------------------------------


class World:
    def __init__(self, size: int, span: tuple[int, int] = (1, 2), max_attempts: int = 1) -> None:
        self.size, self.span, self.max_attempts = size, span, max_attempts


def test_constructor_arguments_fit_the_signature():
    section = EnvironmentConfig(env_type="world", size="3", span=[4, 5], max_turns=6)
    made = World(**section.constructor_arguments(World))
    assert (made.size, made.span, made.max_attempts) == (3, (4, 5), 6)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"size": 1, "spam": 2}, "did you mean 'span'"),
        ({}, "'size' is required"),
        ({"size": "many"}, "size must be a valid integer"),
        ({"size": 1, "span": [1]}, "span"),
    ],
)
def test_wrong_constructor_arguments_are_named(arguments, said):
    with pytest.raises(ConfigError, match="environment 'w'") as caught:
        EnvironmentConfig(env_type="x", name="w", **arguments).constructor_arguments(World)
    assert said in str(caught.value)


def test_a_workflow_may_be_a_name():
    config = parse_config({"workflow": "single_turn", "num_turns": 2})
    assert (config.workflow.name, config.workflow.parameters) == ("single_turn", {"max_turns": 2})
    assert WorkflowConfig(name="turns", max_turns=2).parameters == {"max_turns": 2}


def test_sampling_parameters_take_overrides():
    section = GenerationConfig(stop=["x"], top_p=0.9)
    sampling = section.sampling(**AgentConfig(generation={"temperature": 0.5}).generation)
    assert (sampling.temperature, sampling.top_p, sampling.stop) == (0.5, 0.9, ("x",))
    with pytest.raises(ConfigError, match="temperature"):
        section.sampling(temperature=-1)


def test_warmup_may_be_a_share_of_the_run():
    assert TrainingConfig(warmup_ratio=0.1).warmup(50) == 5
    assert TrainingConfig(warmup_steps=3).warmup(50) == 3


# -- stages, changes, resume ----------------------------------------------------------------------


def staged(**first):
    return ExperimentConfig(
        training={"algorithm": "grpo", "batch_size": 4},
        grpo={"group_size": 4},
        stages=[
            {"name": "warm", "training": {"algorithm": "sft", "num_iterations": 3}, **first},
            {"name": "learn", "learning_rate": 2e-4},
        ],
    )


def test_stages_are_the_base_with_changes():
    (warm_name, warm), (learn_name, learn) = staged(sft={"mode": "combined"}).stage_configs()
    assert (warm_name, learn_name) == ("warm", "learn")
    assert (warm.training.algorithm, warm.training.batch_size) == ("sft", 4)
    assert warm.sft.mode == "combined" and "grpo" not in warm.resolved()
    assert (learn.grpo.group_size, learn.training.learning_rate) == (4, 2e-4)
    assert ExperimentConfig().stage_configs()[0][0] == ""


def test_the_end_of_a_run_tells_of_the_stages_that_were_run_and_of_no_finished_one(tmp_path):
    def shown(*stages):
        rows = [{"stage": n, "step": 1, "reward/mean": 0.25 + n} for n in stages]
        return closing(staged(), TrainResult({}, rows, tmp_path), "again")

    both, last = shown(0, 1), shown(0)
    assert (
        "stage warm: sampled reward 0.250" in both and "stage learn: sampled reward 1.250" in both
    )
    assert "stage learn: sampled reward 0.250" in last and "stage warm" not in last


def test_a_wrong_stage_is_named():
    with pytest.raises(ConfigError, match=r"stages.0 \(warm\).sft.mood: unknown key"):
        staged(sft={"mood": 1})
    with pytest.raises(ConfigError, match="no stage uses"):
        ExperimentConfig(stages=[{"name": "a"}], dpo={"beta": 0.2})


def test_staged_experiments_come_back_from_their_file(tmp_path):
    config = staged()
    assert load_config(config.save(tmp_path / "c.yaml")).resolved() == config.resolved()


def test_changes_are_laid_over_a_config():
    base = ExperimentConfig(environments=[{"env_type": "math"}], grpo={"group_size": 4})
    changed = base.merged({"training": {"seed": 1}, "training.num_epochs": 2, "num_generations": 2})
    assert (changed.training.seed, changed.training.num_epochs) == (1, 2)
    assert (changed.grpo.group_size, base.grpo.group_size) == (2, 4)
    assert changed.environments[0].env_type == "math"
    assert base.joined({"training.seed": 1}).training.seed == 1
    with pytest.raises(ConfigError, match="group_size"):
        base.joined({"num_generations": 2})


def test_resume_may_change_only_what_it_may():
    old = ExperimentConfig(training={"num_iterations": 2}, environments=[{"env_type": "math"}])
    longer = old.merged({"num_iterations": 3, "output_dir": "b", "save_steps": 1, "report_to": []})
    assert diff(old, longer) == [] and old.hash() == longer.hash()
    other = old.merged({"training.seed": 1, "grpo.group_size": 4})
    assert diff(old, other) == ["training.seed: 0 -> 1", "grpo.group_size: 8 -> 4"]
    assert old.hash() != other.hash()
    more = old.merged({"environments": [{"env_type": "math", "level": 2}]})
    assert diff(old, more) == ["environments.0.level: (not set) -> 2"]


def test_the_default_learning_rate_is_spelled_out():
    config = ExperimentConfig(training={"algorithm": "sft"})
    assert config.training.learning_rate is None
    assert config.resolved()["training"]["learning_rate"] == 2e-5


def test_reading_configs_needs_no_torch():
    code = (
        "import sys; from mrlm.config import TrainingConfig, EnvironmentConfig, load_config; "
        "TrainingConfig(); EnvironmentConfig(env_type='math'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("key", ["checks", "doctor"])
def test_off_may_be_written_as_yaml_reads_it(key: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(f"training: {{{key}: off}}")
    assert getattr(load_config(tmp_path / "c.yaml").training, key) == "off"
    assert getattr(load_config(tmp_path / "c.yaml", [f"training.{key}=off"]).training, key) == "off"
    with pytest.raises(ConfigError, match=f"training.{key}"):
        load_config(tmp_path / "c.yaml", [f"training.{key}=on"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "training:\n\tseed: 1\n",
            "line 2: not valid YAML: .*; indent with spaces instead of tabs",
        ),
        (
            "a: [{b: c}\nd: {e: f}\n",
            "line 2: not valid YAML: .*; a bracket may be open in a line above",
        ),
        ("a: b: c\n", "line 1: not valid YAML: mapping values are not allowed here$"),
    ],
)
def test_a_syntax_error_names_its_line_and_common_remedies(
    text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(tmp_path / "c.yaml")


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("dataset", "train_dataset"),
        ("reward_fn", "reward_func"),
        ("lerning_rate", "learning_rate"),
        ("group_sise", "group_size"),
    ],
)
def test_an_unknown_argument_of_a_trainer_names_the_nearest(word: str, near: str) -> None:
    for given in ({word: 1}, {"args": {word: 1}}):
        with pytest.raises(ConfigError, match=f"{word}: unknown argument; did you mean '{near}'"):
            GRPOTrainer(**given)  # pyright: ignore
    with pytest.raises(ConfigError, match="qqq: unknown argument; docs/trainers"):
        GRPOTrainer(qqq=1)  # pyright: ignore
