"""Whatever a file or a command line holds, it is a config or one of our own errors."""

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mrlm.config import ExperimentConfig, TrainingConfig, load_config, parse_config
from mrlm.config.yaml import read
from mrlm.core.errors import ConfigError, MRLMError

LAUGHS = "\n".join(
    ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [{f'*a{i - 1}, ' * 9}]" for i in range(1, 9))]
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1", "line"),
        (
            "seed: 1\nseed: 2\n",
            "line 2: not valid YAML: the key 'seed' is given twice (first on line 1)",
        ),
        ("training: {seed: 1, seed: 1}", "twice"),
        ("- 1\n", "a mapping of keys to values"),
        ("? [1, 2]\n: 3\n", "line 1"),
        ("a: &a [*a]\n", "recursive"),
        ("[" * 70 + "]" * 70, "64 levels deep"),
        ("a: &a {<<: *a}\n", "recursive"),
        ("[" * 4000 + "]" * 4000, "nested"),
        ("- " * 500_000, "nested"),
        (LAUGHS, "aliases"),
        ("a: \x00", "character"),
        ("a: !!python/object:os.system x", "line 1"),
        ("a: !!timestamp x", "x.yaml"),
        ("seed: " + "9" * 5000, "x.yaml"),
        ("seed: 0x" + "f" * 5000, "training.seed"),
    ],
)
def test_a_file_that_is_no_config_says_where(tmp_path, text, said):
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert said in str(caught.value) and "x.yaml" in str(caught.value)


def doubled(levels: int, merge: bool) -> str:
    """A text whose values double with every line, by merges or by aliases."""
    twice = "{{<<: [*a{0}, *a{0}]}}" if merge else "[*a{0}, *a{0}]"
    first = "a0: &a0 {k: 1}\n"
    return first + "".join(f"a{i}: &a{i} {twice.format(i - 1)}\n" for i in range(1, levels))


@pytest.mark.parametrize("merge", [True, False], ids=["merges", "aliases"])
def test_what_aliases_and_merges_write_out_is_measured_before_it_is_made(tmp_path, merge):
    """A refused text costs time that grows with its length, whatever it would have written out."""
    costs = {}
    for levels in (21, 42, 84, 168, 336):
        file = tmp_path / "x.yaml"
        file.write_text(doubled(levels, merge))
        begin = time.process_time()
        with pytest.raises(ConfigError, match=r"x\.yaml.*(aliases|merges|levels deep)"):
            load_config(file)
        costs[levels] = time.process_time() - begin
    assert costs[336] < max(40 * costs[21], 2.0)
    file.write_text(doubled(14, True))
    with pytest.raises(ConfigError, match=r"merges \(<<\) add 16382 entries"):
        load_config(file)


def test_merges_of_a_config_hold(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text("base: &base {seed: 3, batch_size: 2}\nmore: {<<: [*base, {seed: 4}], x: 1}\n")
    more = read(file.read_text(), "x")["more"]
    assert more == {"seed": 3, "batch_size": 2, "x": 1}


def test_a_file_that_is_not_there_or_not_text(tmp_path):
    for path in (tmp_path / "none.yaml", tmp_path, "a\0b"):
        with pytest.raises(ConfigError):
            load_config(path)
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_config(tmp_path / "x")


# -- overrides of a pipeline ----------------------------------------------------------------------

PIPELINE = {
    "environments": [{"env_type": "relay", "max_number": 3}],
    "training": {"batch_size": 4},
    "stages": [
        {"name": "imitate", "training": {"algorithm": "sft", "learning_rate": 2e-3}},
        {
            "name": "together",
            "environments": [{"env_type": "length"}],
            "training": {"algorithm": "magrpo", "learning_rate": 2e-4, "num_iterations": 5},
            "magrpo": {"group_size": 2},
        },
    ],
}


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "training.learning_rate=1e-4",
            "training.learning_rate: stages have settings of their own, which take precedence: "
            "imitate (0.002), together (0.0002); write stages.0.training.learning_rate=1e-4 "
            "stages.1.training.learning_rate=1e-4",
        ),
        ("learning_rate=1e-4", "stages.0.training.learning_rate=1e-4"),
        ("magrpo.group_size=4", "together (2); write stages.1.magrpo.group_size=4"),
        ("training.algorithm=ppo", "imitate ('sft'), together ('magrpo')"),
        ("training={learning_rate: 1e-4, seed: 1}", "imitate (0.002)"),
        ("grpo.beta=0.5", "no stage uses this section"),
    ],
)
def test_an_override_that_no_stage_takes_is_an_error(override, said):
    with pytest.raises(ConfigError) as caught:
        parse_config(PIPELINE, [override], "x.yaml")
    assert said in str(caught.value)
    assert f"'{override}'" in str(caught.value) and "x.yaml" in str(caught.value)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("training.num_iterations=9", "together (5); write stages.1.training.num_iterations=9"),
        ("environments.0.max_number=5", "write stages.1.environments.0.max_number=5"),
        ("training.learning_rate=2e-3", "together (0.0002)"),
        ("training.seed=3", None),
        ("stages.1.training.learning_rate=1", None),
        ("generation.max_new_tokens=3", None),
    ],
)
def test_an_override_that_some_stages_take_is_a_warning(override, said, caplog):
    with caplog.at_level("WARNING"):
        config = parse_config(PIPELINE, [override])
    assert [said in record.message for record in caplog.records] == ([True] if said else [])
    if said:
        assert f"override '{override}'" in caplog.text
    if override == "stages.1.training.learning_rate=1":
        assert config.stage_configs()[1][1].training.learning_rate == 1


# -- anything at all ------------------------------------------------------------------------------

OTHER_KEYS = ["grpo", "ppo", "algorithm", "eval_envs", "env_type", "lora", "r", "0", "x", "name"]
OTHER_KEYS += ["a.b", "gamma", "clip_range", "beta"]
KEYS = st.sampled_from(
    [*ExperimentConfig.model_fields, *TrainingConfig.model_fields, *OTHER_KEYS, ""]
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["grpo", "ppo", "sft", "math", "turns", "fp32", "1e-6", "a:b", "json:dumps"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
FUZZ = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


@FUZZ
@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_any_mapping_is_a_config_or_our_own_error(data):
    try:
        config = parse_config(data)
    except MRLMError as error:
        assert str(error)
    else:
        assert ExperimentConfig(**config.resolved()).resolved() == config.resolved()


@FUZZ
@given(
    st.lists(st.lists(KEYS, min_size=1, max_size=3).map(".".join), max_size=3),
    st.lists(st.text(max_size=12), min_size=3, max_size=3),
)
def test_any_override_is_a_config_or_our_own_error(paths, texts):
    data = {"environments": [{"env_type": "math"}], "grpo": {"group_size": 4}}
    overrides = [f"{path}={text}" for path, text in zip(paths, texts, strict=False)]
    try:
        parse_config(data, overrides)
    except MRLMError as error:
        assert str(error)


@FUZZ
@given(st.text(max_size=80) | st.binary(max_size=40))
def test_any_file_is_a_config_or_our_own_error(tmp_path_factory, content):
    file = tmp_path_factory.mktemp("fuzz") / "x.yaml"
    if isinstance(content, str):
        content = content.encode("utf-8", "surrogatepass")
    file.write_bytes(content)
    try:
        load_config(file)
    except MRLMError as error:
        assert "x.yaml" in str(error)
