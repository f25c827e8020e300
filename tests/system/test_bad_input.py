"""Whatever is wrong with what a user typed ends in one sentence, exit code 2 and nothing lost; and
the commands that look or collect do what they say. All through the command line."""

import json
from pathlib import Path
from typing import Any

import pytest

from commands import Mrlm
from forking import Launcher
from refusals import CONFIG, PLAY, copied_model, earlier_run, refused, tree, write

SFT: dict[str, Any] = {
    **{key: value for key, value in CONFIG.items() if key != "environments"},
    "training": {**CONFIG["training"], "algorithm": "sft"},
    "data": {"dataset": "rows.jsonl"},
}
ROW = {"prompt": "2+2=", "completion": "4"}


def rows(*items: Any, name: str = "rows.jsonl") -> None:
    lines = [item if isinstance(item, str) else json.dumps(item) for item in items]
    Path(name).write_text("\n".join(lines) + "\n")


# -- what stands in the config ---------------------------------------------------------------------

WRONG: dict[str, tuple[list[str], list[str]]] = {
    "unknown key": (["training.learning_rat=1"], ["training.learning_rat", "'learning_rate'"]),
    "unknown section": (["trainning.seed=1"], ["trainning", "'training'"]),
    "wrong type": (["training.batch_size=many"], ["training.batch_size", "many"]),
    "out of range": (["generation.top_p=1.5"], ["generation.top_p", "1.5"]),
    "batch not divisible": (
        ["training.batch_size=3", "training.gradient_accumulation_steps=2"],
        ["training.batch_size", "use 2 or 4"],
    ),
    "group of one": (["grpo.group_size=1"], ["grpo.group_size", "2"]),
    "no equals sign": (["training.seed"], ["'training.seed'", "key=value"]),
    "algorithm": (["training.algorithm=reinforse"], ["reinforse", "'reinforce'"]),
    "environment": (["environments.0.env_type=maths"], ["maths", "'math'"]),
    "environment argument": (["environments.0.dificulty_range=[1,2]"], ["difficulty_range"]),
    "workflow": (["workflow.name=turn"], ["'turn'", "'turns'"]),
    "engine": (["engine.name=hff"], ["'hff'", "'hf'"]),
    "tracker": (["training.report_to=tensorbord"], ["tensorbord", "'tensorboard'"]),
    "several devices": (["distributed.strategy=fdsp"], ["distributed.strategy", "'fsdp'"]),
    "endpoint": (["policies.a.endpoint=http://localhost:1"], ["policies.a.endpoint", "mapping"]),
    "two agents in a game of one": (
        ["agents.writer.policy=p", "agents.reader.policy=p", "policies.p.trainable=true"],
        ["'math'", "one agent", "'turns'"],
    ),
    "idle policy": (
        ["policies.used.trainable=true", "policies.idle.trainable=true", "agents.a.policy=used"],
        ["policies.idle", "no agent"],
    ),
    "unknown policy": (
        ["policies.solver.trainable=true", "agents.a.policy=solvr"],
        ["agents.a.policy", "'solvr'", "'solver'"],
    ),
    "nothing trainable": (["policies.agent.trainable=false"], ["no policy is trainable"]),
    "no such model": (["model.model_name_or_path=./nowhere"], ["./nowhere", "does not exist"]),
    "unwritable": (["output_dir=config.yaml/below"], ["output_dir", "config.yaml/below"]),
    "no such device": (["model.device=gpu7"], ["model.device='gpu7'"]),
    "prompt and answer too long": (["generation.max_new_tokens=9000"], ["max_new_tokens=9000"]),
    "sibling comparison when greedy": (["generation.temperature=0"], ["generation.temperature"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_setting_is_one_sentence(case: str, run: Mrlm) -> None:
    earlier_run()
    overrides, said = WRONG[case]
    refused(run, ["train", "--config", write(PLAY), *overrides], *said)


def test_a_wrong_stage_leaves_the_earlier_run_alone(run: Mrlm) -> None:
    earlier_run()
    stages = [{"name": "one", "model": {"model_name_or_path": "./nowhere"}}, {"name": "two"}]
    config = write({**PLAY, "stages": stages})
    refused(run, ["train", "--config", config], "./nowhere")


@pytest.mark.parametrize("stages", [[], [{"name": "one"}]])
def test_a_folder_with_files_of_others_is_left_alone(stages: list[Any], run: Mrlm) -> None:
    Path("run").mkdir()
    write("mine: 1", "run/config.yaml")
    config = write({**PLAY, "stages": stages}, "c.yaml")
    refused(run, ["train", "--config", config], "run has other files; give a new folder")


def test_a_wrong_plug_in_of_a_later_stage_is_found_before_the_first_is_trained(
    run: Mrlm,
) -> None:
    later = {"name": "two", "environments": [{"env_type": "maths"}]}
    config = write({**PLAY, "stages": [{"name": "one"}, later]})
    refused(run, ["train", "--config", config], "maths")


def test_a_config_file_that_is_not_there_or_not_yaml(run: Mrlm) -> None:
    earlier_run()
    refused(run, ["train", "--config", "lost.yaml"], "lost.yaml: this file does not exist")
    broken = write("experiment_name: x\ntraining:\n  seed: [1\nmodel: {}\n", "broken.yaml")
    refused(run, ["train", "--config", broken], "broken.yaml, line ")
    refused(run, ["eval", "--config", "lost.yaml"], "lost.yaml", "does not exist")


# -- models ----------------------------------------------------------------------------------------


def test_a_folder_that_holds_no_model(run: Mrlm, tiny_path: str) -> None:
    earlier_run()
    copied_model(tiny_path, "no-config", ("config.json",))
    parts = ("tokenizer*", "chat_template*", "vocab*", "special_tokens*")
    copied_model(tiny_path, "no-tokenizer", parts)
    config = write(PLAY)
    for folder, said in (("no-config", "no config.json"), ("no-tokenizer", "no tokenizer")):
        model = f"model.model_name_or_path=./{folder}"
        refused(run, ["train", "--config", config, model], folder, said)
        refused(run, ["eval", "--config", config, "--model", folder], folder, said)


def test_a_template_that_hides_what_the_assistant_wrote(run: Mrlm, tiny_path: str) -> None:
    folder = copied_model(tiny_path, "counting")
    (folder / "chat_template.jinja").write_text(
        "{{ messages | length }} messages\n{% for m in messages %}{{ m['role'] }}: "
        "{{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    )
    earlier_run()
    rows(ROW, ROW)
    command = ["train", "--config", write(SFT), "model.model_name_or_path=./counting"]
    refused(run, command, "chat template", "{% generation %}")


# -- data ------------------------------------------------------------------------------------------

BAD_ROWS: dict[str, tuple[list[Any], list[str], list[str]]] = {
    "not json": ([ROW, '{"prompt": "2+2='], [], ["rows.jsonl, line 2, column"]),
    "not an object": ([ROW, ROW, "[1]"], [], ["rows.jsonl, line 3"]),
    "wrong role": ([{"messages": [{"role": "bot", "content": "x"}]}], [], ["line 1", "'bot'"]),
    "renamed column": ([ROW], ["data.columns.prompt=question"], ["line 1", "'question'"]),
    "missing column": ([ROW, {"prompt": "2+2="}], [], ["row", "completion", "data.columns"]),
    "no rows": ([""], [], ["rows.jsonl", "no row"]),
    "no file": ([ROW], ["data.dataset=gone.jsonl"], ["gone.jsonl", "does not exist"]),
    "unknown agent": ([{**ROW, "agent": "bob"}], [], ["'bob'", "agent"]),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_a_bad_row_is_named_with_its_place(case: str, run: Mrlm) -> None:
    earlier_run()
    items, overrides, said = BAD_ROWS[case]
    rows(*items)
    refused(run, ["train", "--config", write(SFT), *overrides], *said)


def test_preference_learning_needs_pairs(run: Mrlm) -> None:
    rows(ROW, ROW)
    config = {**SFT, "training": {**SFT["training"], "algorithm": "dpo"}}
    refused(run, ["train", "--config", write(config)], "chosen", "rejected")
    del config["data"]
    refused(run, ["train", "--config", write(config)], "data.dataset")


# -- resume ----------------------------------------------------------------------------------------


def test_what_cannot_be_resumed_stays_as_it_is(run: Mrlm) -> None:
    config = write(PLAY)
    again = ["train", "--config", config, "--resume"]
    refused(run, [*again, "gone"], "--resume gone: folder 'gone' does not exist")
    Path("empty").mkdir()
    refused(run, [*again, "empty"], "no config.yaml")
    earlier_run()
    command = [*again, "run"]
    refused(run, command, "run", "no checkpoint")
    changed = ["training.seed=7", "generation.max_new_tokens=3"]
    refused(run, [*command, *changed], "training.seed: 0 -> 7", "generation.max_new_tokens: 2 -> 3")


# -- eval and collect ------------------------------------------------------------------------------


def test_eval_and_collect_refuse_what_makes_no_sense(run: Mrlm) -> None:
    earlier_run()
    config = write(PLAY)
    refused(run, ["eval"], "no experiment is given", "--config", "--model")
    refused(run, ["collect", "-o", "t.json"], "--config", "--model")
    both = ["--samples", "4", "--greedy"]
    refused(run, ["eval", "--config", config, *both], "--samples", "--sampled")
    refused(run, ["eval", "--model", "mrlm/tiny"], "environment")
    refused(run, ["eval", "-m", "mrlm/tiny", "-e", "maths"], "maths", "did you mean 'math'")
    play = ["--config", config, "-n", "1", "-o", "config.yaml/t.json"]
    refused(run, ["collect", *play], "config.yaml/t.json", "cannot be written")


def test_eval_counts_greedy_and_sampled_plays(run: Mrlm) -> None:
    world = ["--model", "mrlm/tiny", "--environment", "math", "generation.max_new_tokens=2"]
    code, out, err = run("eval", *world, "--num-episodes", "8", "--output", "eval.json")
    assert code == 0, err
    report = json.loads(Path("eval.json").read_text())
    assert (len(report["episodes"]), report["samples"], report["greedy"]) == (8, 1, True)
    assert all(name in out for rows in report["environments"].values() for name in rows)
    more = ["--sampled", "--samples", "3", "--num-episodes", "2", "--output", "sampled.json"]
    code, _, err = run("eval", *world, *more)
    assert code == 0, err
    report = json.loads(Path("sampled.json").read_text())
    assert (len(report["episodes"]), report["samples"], report["greedy"]) == (6, 3, False)
    assert len({row["task_id"] for row in report["episodes"]}) == 2
    assert set(map(str, Path().iterdir())) == {"eval.json", "sampled.json"}


def test_a_dry_run_says_everything_and_writes_nothing(run: Mrlm) -> None:
    earlier_run()
    config = write(PLAY)
    before = tree()
    code, out, err = run("train", "--config", config, "--dry-run", "training.num_iterations=5")
    assert code == 0, err
    assert "num_iterations: 5" in out and "group_size: 2" in out and "top_p: 1.0" in out
    assert "2 tasks x 2 = 4 episodes" in out and "5 iterations" in out
    assert tree() == before
    wrong = ["environments.0.env_type=maths"]
    refused(run, ["train", "--config", config, "--dry-run", *wrong], "maths", "'math'")
    wrong = ["model.device=gpu7"]
    refused(run, ["train", "--config", config, "--dry-run", *wrong], "model.device='gpu7'")


# -- in processes of their own ---------------------------------------------------------------------


def test_a_real_process_says_one_sentence_and_exits_2(launcher: Launcher) -> None:
    words = ["mrlm", "train", "--config", write(PLAY), "grpo.beta2=1"]
    done = launcher.run(words, Path.cwd())
    assert done.code == 2 and done.out == ""
    assert done.err.startswith("error: ") and "grpo.beta2" in done.err
    assert not Path("run").exists()
