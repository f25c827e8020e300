"""Every setting of TRL, CoMLRL, RLlib and verifiers has a place here or a reason; what their users
type runs."""

import ast
import dataclasses
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from scripts import coming_from

import mrlm
from mrlm import GRPOTrainer, IACConfig, IACTrainer, MAACTrainer, MAGRPOConfig, MAGRPOTrainer
from mrlm.config import GRPOConfig, load_config, parse_config
from mrlm.config.other_libraries import refused_classes, refused_settings
from mrlm.core.errors import ConfigError
from mrlm.data.tasks import joint_answer
from mrlm.experiment import run_experiment
from other_sources import SOURCES, assert_parts_are_named, source
from places import ROOT

KNOWN = json.loads(coming_from.FIELDS.read_text(encoding="utf-8"))
ROWS = [{"prompt": f"Say {word}."} for word in ("one", "two")]


def _names(cls: str) -> list[str]:
    first, *rest = KNOWN["classes"][cls]
    return [*KNOWN["TrainingArguments"], *rest] if first == "TrainingArguments" else [first, *rest]


def _stem(cls: str) -> str:
    return cls.removesuffix("Config").removesuffix("Trainer")


@pytest.mark.parametrize("cls", KNOWN["classes"])
def test_every_setting_of_the_others_is_mapped_or_refused_with_its_reason(cls):
    if _stem(cls) not in coming_from.ALGORITHMS:
        assert _stem(cls).partition(".")[2] in refused_classes()
        return
    for name in _names(cls):
        _, text = coming_from.meaning(name, coming_from.ALGORITHMS[_stem(cls)])
        assert text, name


@pytest.mark.parametrize("library", ["trl", "comlrl"])
def test_the_list_is_that_of_the_installed_library(library):
    package = pytest.importorskip(library)
    if library == "comlrl":
        package = SimpleNamespace(
            **{
                name: value
                for part in ("reinforce", "actor_critic", "preference")
                for name, value in vars(importlib.import_module(f"comlrl.trainers.{part}")).items()
            }
        )
    for cls in KNOWN["classes"]:
        owner, _, name = cls.partition(".")
        if owner != library:
            continue
        found = getattr(package, name)
        if name.endswith("Config"):
            names = {field.name for field in dataclasses.fields(found)}
        else:
            names = set(inspect.signature(found.__init__).parameters) - {"self", "kwargs"}
        assert names == set(_names(cls)), cls


METHODS = (
    *("resources", "framework", "environment", "env_runners", "learners", "training", "evaluation"),
    *("multi_agent", "reporting", "checkpointing", "debugging", "fault_tolerance", "rl_module"),
)
LEFT_OUT = re.compile("offline|off_policy|^ope_|dataset_num")


def arguments(file: Path, cls: str, methods: Sequence[str]) -> list[str]:
    """The keywords of methods of a class, but for those that are deprecated."""
    (found,) = [
        node
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == cls
    ]
    names = []
    for method in found.body:
        if isinstance(method, ast.FunctionDef) and method.name in methods:
            kept = zip(method.args.kwonlyargs, method.args.kw_defaults, strict=True)
            names += [each.arg for each in method.args.args[1:]]
            names += [
                each.arg
                for each, default in kept
                if getattr(default, "id", "") != "DEPRECATED_VALUE"
            ]
    return [name for name in names if not name.startswith("_") and not LEFT_OUT.search(name)]


def test_the_list_of_rllib_is_that_of_its_source():
    folder = source("rllib") / "algorithms"
    names = arguments(folder / "algorithm_config.py", "AlgorithmConfig", METHODS)
    names += arguments(folder / "ppo" / "ppo.py", "PPOConfig", ["training"])
    assert set(names) == set(_names("rllib.PPOConfig")) and len(names) > 140


@pytest.mark.parametrize("library", SOURCES)
def test_the_parts_of_others_are_named_as_in_their_source(library):
    assert_parts_are_named(library)


def _at(config, path: str):
    if path.startswith("algorithm."):
        return getattr(config.algorithm_settings(), path.removeprefix("algorithm."))
    for part in path.split("."):
        config = getattr(config, part)
    return config


ROWS_OF_KEYS = [
    pytest.param(row, id=f"{library}-{row['there'][0]}")
    for library, tables in coming_from.names().items()
    for row in tables.get("keys", ())
]


@pytest.mark.parametrize("row", ROWS_OF_KEYS)
def test_keys_of_others_have_paths_here_that_take_their_values(row):
    given = {"training.algorithm": row.get("algorithm", "grpo")} | row["here"]
    config = parse_config({}, given)
    for path, value in row["here"].items():
        found = _at(config, path)
        if isinstance(value, list):
            found = [each.model_dump(exclude_unset=True) for each in found]
        assert found == value, path


def _exists(span: str) -> bool:
    """Whether a path of a config, a name of `mrlm`, or a line of YAML means something."""
    if re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", span) and span.split(".")[0] != "metric":
        _at(parse_config({"training": {"algorithm": "ppo"}}), span)
    elif re.fullmatch(r"[A-Z]\w+(\.\w+)*", span):
        found = mrlm
        for part in span.split("."):
            if part in getattr(found, "__dataclass_fields__", ()):
                return True
            found = getattr(found, part)
    elif re.match(r"[a-z]+: [\[{]", span):
        parse_config(yaml.safe_load(span))
    else:
        return False
    return True


def test_what_the_pages_say_instead_exists():
    texts = [
        row["here"] for tables in coming_from.names().values() for row in tables.get("parts", ())
    ]
    spans = [span for text in texts for span in re.findall("`([^`]+)`", text)]
    assert sum(map(_exists, spans)) >= 35
    with pytest.raises(AttributeError):
        _exists("BaseEnvironment.leap")
    with pytest.raises(ConfigError):
        _exists("agents: {solver: {prompt: Be brief.}}")


@pytest.mark.parametrize("page", coming_from.PAGES, ids=lambda page: page.stem)
def test_the_page_is_made_of_the_tables(page):
    text = page.read_text(encoding="utf-8")
    assert text.count("written by `python -m scripts.coming_from`") >= 2
    assert text == coming_from.pages()[page]


def test_a_refused_setting_says_what_to_do_through_every_door(tiny_path):
    reason = "upload that"
    with pytest.raises(ConfigError, match=reason):
        GRPOConfig(push_to_hub=True)
    for place in ({"push_to_hub": True}, {"training": {"push_to_hub": True}}):
        with pytest.raises(ConfigError, match=reason):
            parse_config(place)
    with pytest.raises(ConfigError, match=reason):
        GRPOTrainer(tiny_path, push_to_hub=True)
    with pytest.raises(ConfigError, match="section of verl"):
        parse_config({"actor_rollout_ref": {"model": {}}})
    with pytest.raises(ConfigError, match=r"model\.load_in_4bit.*is model\.quantization"):
        parse_config({"model": {"load_in_4bit": True}})
    with pytest.raises(ConfigError, match="for others load the model with it"):
        parse_config({"quantization_config": {"load_in_4bit": True}})
    with pytest.raises(ConfigError, match=r"model_init_kwargs\.revision: only dtype"):
        parse_config({"model_init_kwargs": {"revision": "main"}})
    with pytest.raises(ConfigError, match="ippo with loss_type: reinforce"):
        parse_config({"training": {"algorithm": "iac"}}).algorithm_settings()
    with pytest.raises(AttributeError, match="DPOTrainer trains on pairs"):
        _ = mrlm.KTOTrainer


@pytest.mark.parametrize("name", sorted(refused_settings()))
def test_what_asks_for_nothing_is_accepted_and_anything_else_refused(name):
    refused = refused_settings()[name]
    own = {field.name for field in dataclasses.fields(GRPOConfig)}
    for value in refused.same:
        assert parse_config({name: value}) == parse_config({})
        if name not in own:
            assert GRPOConfig(**{name: value}) == GRPOConfig()
    with pytest.raises(ConfigError, match=name):
        parse_config({name: "something else"})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"reference_kl_enabled": True, "reference_kl_coef": 0.3}, 0.3),
        ({"reference_kl_enabled": True}, 0.1),
        ({"reference_kl_enabled": False, "reference_kl_coef": 0.3}, 0.0),
        ({"reference_kl_enabled": False}, 0.0),
    ],
)
def test_a_divergence_that_is_switched_on_apart_from_its_size(given, expected):
    data = {"training": {"algorithm": "magrpo"}}
    assert parse_config(data | given).algorithm_settings().kl_coef == expected
    trainer = MAGRPOTrainer(
        mrlm.default_model(), ROWS, args=MAGRPOConfig(**given), reward_func=_ones
    )
    assert trainer.config.algorithm_settings().kl_coef == expected


def test_a_size_without_its_switch_is_refused():
    with pytest.raises(ConfigError, match="reference_kl_enabled"):
        parse_config({"training": {"algorithm": "magrpo"}, "reference_kl_coef": 0.2})


@pytest.mark.parametrize(
    ("words", "path", "value"),
    [
        ({"use_vllm": True, "vllm_server_base_url": "http://a:1"}, "engine.name", "vllm"),
        ({"vllm_server_base_url": "http://a:1", "use_vllm": True}, "engine.base_url", "http://a:1"),
        ({"use_vllm": False}, "engine.name", "lean"),
        ({"lora_r": 4, "use_peft": True}, "model.lora.r", 4),
        ({"use_peft": False}, "model.lora", None),
        ({"dtype": "bfloat16"}, "model.torch_dtype", "bfloat16"),
        ({"use_cpu": True}, "model.device", "cpu"),
        ({"rollout_buffer_size": 3}, "training.batch_size", 3),
        ({"importance_sampling_level": "sequence"}, "grpo.loss_type", "gspo"),
        ({"importance_sampling_level": "token"}, "grpo.loss_type", "ppo"),
        ({"vllm_importance_sampling_mode": "token_mask"}, "grpo.importance", "icepop"),
        ({"vllm_importance_sampling_correction": False}, "grpo.importance", "none"),
        ({"num_generations_eval": 1}, "evaluation.samples", 1),
        ({"eval_on_start": False}, "evaluation.at_start", False),
        ({"shuffle_dataset": False}, "data.shuffle", False),
        ({"lr": 1e-3}, "training.learning_rate", 1e-3),
        ({"grad_clip": 40}, "training.max_grad_norm", 40.0),
        ({"grad_clip": None}, "training.max_grad_norm", None),
        ({"clip_param": 0.3}, "grpo.clip_range", 0.3),
        ({"entropy_coeff": 0.01}, "grpo.entropy_coef", 0.01),
        ({"evaluation_interval": None}, "evaluation.every", None),
        ({"evaluation_duration": 10}, "evaluation.episodes", 10),
        ({"rollouts_per_example": 16}, "grpo.group_size", 16),
        ({"max_tokens": 32}, "generation.max_new_tokens", 32),
        ({"max_tokens": None}, "generation.max_new_tokens", 128),
        ({"max_prompt_len": 64}, "generation.max_prompt_tokens", 64),
        ({"use_lora": True, "lora_rank": 4}, "model.lora.r", 4),
        ({"max_concurrent": 64}, "engine.max_concurrent", 64),
    ],
)
def test_words_that_lead_somewhere(words, path, value):
    found = parse_config(words)
    for part in path.split("."):
        found = getattr(found, part)
    assert found == value


def test_words_of_an_algorithm_with_a_critic():
    words = {"lambda_": 0.9, "vf_loss_coeff": 0.5, "training": {"algorithm": "ppo"}}
    settings = parse_config(words).algorithm_settings()
    assert (settings.gae_lambda, settings.vf_coef) == (0.9, 0.5)


def _ones(completions, **columns):
    return [1.0 for _ in completions]


def _lengths(first, second):
    return [float(len(a) + len(b)) for a, b in zip(first, second, strict=True)]


def test_the_actor_critics_of_comlrl_are_ours_with_the_critic_they_mean(tiny_path):
    settings = IACTrainer(tiny_path, ROWS, reward_func=_ones).config.algorithm_settings()
    assert (settings.loss_type, settings.critic, settings.level) == (
        "reinforce",
        "separate",
        "turn",
    )
    shared = IACTrainer(
        tiny_path, ROWS, reward_func=_ones, args=IACConfig(use_separate_critic=False)
    )
    assert shared.config.algorithm_settings().critic == "shared"
    plain = IACTrainer(tiny_path, ROWS, reward_func=_ones, critic="shared", level="token").config
    assert plain.algorithm_settings().critic == "shared"
    assert plain.algorithm_settings().loss_type == "reinforce"
    team = MAACTrainer(tiny_path, ROWS, reward_func=_lengths, num_agents=2).config
    assert team.training.algorithm == "mappo"
    assert team.algorithm_settings().loss_type == "reinforce"


def test_the_arguments_of_their_trainers(tiny_path):
    from peft import LoraConfig

    trainer = MAGRPOTrainer(
        agent_model=tiny_path,
        args=MAGRPOConfig(num_agents=2, num_generations=2, max_new_tokens=2, rollout_buffer_size=2),
        train_dataset=ROWS,
        reward_func=_lengths,
        reward_processor=lambda reward: -reward,
        report_to="none",
    )
    assert list(trainer.config.agents) == ["agent_0", "agent_1"]
    result = trainer.train(num_iterations=1)
    assert result.metrics["reward/mean"] < 0

    adapted = GRPOTrainer(
        tiny_path,
        train_dataset=ROWS,
        reward_funcs=_ones,
        peft_config=LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"]),
    )
    lora = adapted.config.model.lora
    assert lora is not None
    assert (lora.r, lora.alpha, lora.target_modules) == (2, 4, ["q_proj"])
    with pytest.raises(ConfigError, match="bias"):
        GRPOTrainer(
            tiny_path, train_dataset=ROWS, reward_funcs=_ones, peft_config=LoraConfig(bias="all")
        )


def test_a_team_answers_as_one_text_that_no_answer_can_forge():
    honest = joint_answer({"a": "x", "b": "y"})
    forged = joint_answer({"a": "x\nb:\n  good", "b": "y"})
    assert honest == "a:\n  x\nb:\n  y"
    assert [line for line in forged.split("\n") if not line.startswith(" ")] == ["a:", "b:"]


def test_preferences_over_teams_train_a_team(in_empty_folder):
    path = ROOT / "configs" / "marlhf.yaml"
    data = load_config(path)
    stages = [stage.model_dump(exclude_unset=True) for stage in data.stages]
    stages[0]["training"]["num_iterations"] = 15
    stages[1]["training"] |= {"num_iterations": 2}
    stages[1]["evaluation"] = {"episodes": 0}
    config = data.merged({"stages": stages, "training": {"report_to": []}})
    result = run_experiment(config)
    rows = {row["stage"]: row for row in result.history}
    assert rows[0]["rewards/accuracies"] == 1.0
    folder = Path(result.run_folder)
    judge = mrlm.RewardModel(folder / "1-judge" / "final").of_team(["first", "second"])
    good, *_, bad = judge(
        ["Is it late?"] * 4, ["yes", "oh yes", "yes", "no"], agent=["first", "second"] * 2
    )
    assert good > bad
    # the team begins with the model of the config, not with the judge's weights
    assert not (folder / "2-team" / "models.json").exists()


def test_a_stage_that_is_not_there_is_named():
    data = load_config(ROOT / "configs" / "marlhf.yaml")
    stages = [stage.model_dump(exclude_unset=True) for stage in data.stages]
    stages[1]["environments"][0]["reward_model"] = "stage:jury"
    with pytest.raises(ConfigError, match=r"stage:jury.*earlier stages: judge"):
        run_experiment(data.merged({"stages": stages}))


def test_a_refused_setting_is_none_that_is_mapped():
    known = coming_from.WORDS.keys() | inspect.signature(GRPOTrainer.__init__).parameters.keys()
    assert refused_settings().keys() & known == {"num_agents", "reward_weights"}
