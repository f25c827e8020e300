"""`python -m benchmarks.doctor`: runs, their examination, and the counts of the tables."""

import json
from pathlib import Path

import pytest
from benchmarks.doctor.__main__ import main
from benchmarks.doctor.found import Finding
from benchmarks.doctor.report import RESULTS, markdown, merged
from benchmarks.doctor.runs import bases_of, config_of, jobs_of
from benchmarks.doctor.table import CONTROLS, DISEASES, STEPS, WITHIN

from mrlm.core import registry


def _alarm(rule: str, step: int) -> dict[str, object]:
    return {"rule": rule, "step": step, "because": "a number is wrong"}


@pytest.mark.slow
def test_quick_runs_are_trained_once_and_examined(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--quick", "--jobs", "1", "--output", str(tmp_path)]
    assert main(options) == 0
    out, err = capsys.readouterr()
    assert "1 healthy runs and 1 with a disease" in out
    assert "constant reward" in err and "grpo-xor" in err
    rows = json.loads((tmp_path / RESULTS).read_text())["runs"]
    (sick,) = [row for row in rows if row["kind"] == "disease"]
    assert sick["onset"] == 3 and [row["rule"] for row in sick["alarms"]] == ["nothing_learned"]
    folder = tmp_path / "runs" / "disease" / "constant_reward-0"
    assert not list(folder.rglob("*.safetensors")), "weights are not kept"
    assert (folder / "run" / "episodes.jsonl.gz").is_file()
    assert main(options) == 0
    assert "constant reward" not in capsys.readouterr().err, "runs that are there are not repeated"


def test_every_config_of_the_benchmark_is_valid(tmp_path: Path) -> None:
    for job in jobs_of(tmp_path, seeds=1):
        if job.name == "wrong template":  # needs its model
            continue
        config = config_of(job)
        if job.kind == "disease":
            assert config.training.num_iterations == STEPS >= DISEASES[job.name].onset + WITHIN


def test_every_rule_that_is_right_exists() -> None:
    rules = set(registry.names("rules"))
    for name, disease in DISEASES.items():
        assert disease.rules and set(disease.rules) <= rules, name


def test_a_disease_is_found_by_a_right_rule_in_time() -> None:
    def finding(*alarms: dict[str, object]) -> Finding:
        return Finding("disease", "mute agent", 0, 11, list(alarms))

    assert finding(_alarm("lazy_agent", 14)).delay == 3
    assert finding(_alarm("lazy_agent", 11 + WITHIN)).delay == WITHIN
    assert finding(_alarm("lazy_agent", 12 + WITHIN)).delay is None
    assert finding(_alarm("cliff", 14)).delay is None
    early = finding(_alarm("lazy_agent", 10))
    assert early.delay is None and early.early
    second = finding(_alarm("cliff", 12), _alarm("lazy_agent", 14))
    assert second.delay == 3 and not second.first and not second.early
    assert finding(_alarm("cliff", 14), _alarm("lazy_agent", 14)).first


def test_the_tables_count_runs_and_not_alarms() -> None:
    found = [
        Finding("disease", "mute agent", 0, 11, [_alarm("lazy_agent", 14)] * 2),
        Finding("disease", "mute agent", 1, 11, [_alarm("lazy_agent", 5)]),
        Finding("healthy", "team", 0, 99, [_alarm("lazy_agent", 3)] * 2),
        Finding("healthy", "team", 1, 99),
    ]
    real = [Finding("real", "relay/one", n, 1, [_alarm("nothing_learned", 8 + n)]) for n in (0, 1)]
    found = merged(found, [*real, Finding("healthy", "team", 1, 99)])
    text = markdown(found, "a machine")
    assert "| relay/one | 2 | `nothing_learned` | `nothing_learned`: 2, 8 |" in text
    assert "| mute agent |" in text and "| 1 of 2 | 3 | 1 of 2 |" in text
    assert "| `lazy_agent` | 1 of 2 | 1 of 2 | 9.5% to 90.5% | 1 of 2 |" in text
    assert "- missed: mute agent, seed 1" in text
    assert "- false: `lazy_agent` in team, seed 0, step 3: a number is wrong" in text


def test_controls_are_the_bases_of_the_diseases(tmp_path: Path) -> None:
    bases = {disease.base for disease in DISEASES.values()} - {"circle"}
    assert bases == set(CONTROLS)
    healthy = {job.name for job in jobs_of(tmp_path, seeds=2) if job.kind == "healthy"}
    assert {*CONTROLS, "quickstart"} <= healthy
    assert {name.partition("-")[0] for name in healthy} >= set(registry.names("algorithms"))


def test_fresh_seeds_begin_where_they_are_told(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path, seeds=2, first=10)
    assert {job.seed for job in jobs if job.kind == "disease"} == {10, 11}
    assert min(job.seed for job in jobs) == 10
    assert len(jobs) == len(jobs_of(tmp_path, seeds=2))


def test_every_run_finds_the_model_it_starts_from(tmp_path: Path) -> None:
    jobs = jobs_of(tmp_path, seeds=1)
    taught = {job.taught.base for job in bases_of(jobs)}
    assert taught == {job.taught.base for job in jobs if job.name != "quickstart"}
    assert "quickstart" not in {job.name for job in bases_of(jobs)}


def test_a_page_takes_whole_results_only(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--quick", "--page", "doctor.md"])
    assert "needs whole runs" in capsys.readouterr().err
