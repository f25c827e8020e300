"""Files around the package: what they name exists, and their commands are commands."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import mrlm
from mrlm import cli
from mrlm.config import load_config
from places import ROOT
from shown_commands import check_command, commands_in

PAGES = ("AGENTS.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "skills/mrlm/SKILL.md")
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def read(name: str) -> Any:
    return yaml.safe_load(text_of(name))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_speaks_of_what_is_there(page: str) -> None:
    text = text_of(page)
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert ((ROOT / page).parent / target).exists(), target
    for words in commands_in(text):
        check_command(words)
    makefile = text_of("Makefile")
    for target in re.findall(r"^make ([a-z-]+)", text, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_skill_has_the_form_of_agent_skills() -> None:
    _, head, body = text_of("skills/mrlm/SKILL.md").split("---\n", 2)
    found = yaml.safe_load(head)
    assert found["name"] == "mrlm" and 0 < len(found["description"]) <= 1024
    assert set(found) <= {"name", "description", "license", "compatibility", "metadata"}
    assert len(body.splitlines()) < 500 and len(commands_in(body)) >= 10


def test_versions_and_addresses_agree() -> None:
    known, cited = PROJECT["urls"], read("CITATION.cff")
    assert cited["version"] == PROJECT["version"] == mrlm.__version__
    assert cited["repository-code"] == known["Repository"] == known["Homepage"]
    assert cited["license"] == PROJECT["license"] and cited["cff-version"] == "1.2.0"
    assert all(url.startswith(known["Homepage"]) for url in known.values())
    pythons = re.findall(r":: 3\.(\d+)", " ".join(PROJECT["classifiers"]))
    assert pythons == [str(minor) for minor in range(11, 15)]
    changes = text_of("CHANGELOG.md")
    assert changes.index("## [Unreleased]") < changes.index(f"## [{mrlm.__version__}]")


@pytest.mark.parametrize("form", [form for form in FORMS if form.stem != "config"], ids=str)
def test_an_issue_form_asks_for_the_versions(form: Path) -> None:
    found = yaml.safe_load(form.read_text())
    assert {"name", "description", "body"} <= set(found)
    assert all({"type", "id", "attributes"} <= set(part) for part in found["body"])
    assert len({part["id"] for part in found["body"]}) == len(found["body"])
    assert "mrlm info" in str(found["body"])
    for part in found["body"]:
        for words in commands_in(str(part["attributes"])):
            check_command(words)


def test_workflows_call_targets_and_publish_without_a_secret() -> None:
    makefile = text_of("Makefile")
    for name in ("ci", "publish"):
        text = text_of(f".github/workflows/{name}.yml")
        found = yaml.safe_load(text)
        assert True in found and found["permissions"] == {"contents": "read"}  # `on` is read so
        assert "secrets." not in text
        for job in found["jobs"].values():
            assert job["runs-on"] and all("uses" in step or "run" in step for step in job["steps"])
            assert job.get("needs") is None or job["needs"] in found["jobs"]
        for target in re.findall(r"run: make (\w+)", text):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    publish = read(".github/workflows/publish.yml")["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"} and publish["environment"]["name"]
    last = publish["steps"][-1]
    assert last["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert last["with"] == {"attestations": True}
    targets = {"check", "test", "quickstart"}
    assert targets == set(re.findall(r"make (\w+)", text_of(".github/workflows/ci.yml")))


def test_the_version_of_a_tag_is_read_from_the_project() -> None:
    steps = read(".github/workflows/publish.yml")["jobs"]["build"]["steps"]
    (check,) = (step["run"] for step in steps if "tag" in step.get("name", ""))
    for tag, code in ((f"v{mrlm.__version__}", 0), ("v9.9.9", 1)):
        done = subprocess.run(["bash", "-c", check], cwd=ROOT, env={"GITHUB_REF_NAME": tag})
        assert done.returncode == code


def test_images_install_what_is_there() -> None:
    text = text_of("Dockerfile")
    assert set(re.findall(r"^FROM \S+ AS (\w+)", text, re.MULTILINE)) == {"base", "cuda", "cpu"}
    for pin in re.findall(r"torch==\S+", text):
        assert f"\n{pin}\n" in text_of("constraints.txt")
    for extras in re.findall(r'"\.\[([\w,]+)\]"', text):
        assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    kept = re.findall(r"^!(\S+)", text_of(".dockerignore"), re.MULTILINE)
    assert all((ROOT / each).exists() for each in kept)
    assert {"src", "pyproject.toml", "README.md", "LICENSE", "constraints.txt"} <= set(kept)


def test_services_of_compose_are_commands_on_a_config_that_loads() -> None:
    found = read("compose.yaml")
    services, dockerfile = found["services"], text_of("Dockerfile")
    for service in services.values():
        check_command(["mrlm", *service["command"]])
        if "build" in service:
            assert f"AS {service['build']['target']}\n" in dockerfile
    server, trainer = services["environments"]["command"], services["trainer"]
    assert trainer["network_mode"] == "service:environments"
    mounted = [volume.split(":")[0] for volume in trainer["volumes"]]
    assert all(each in found["volumes"] or (ROOT / each).exists() for each in mounted)
    (environment,) = load_config(ROOT / "deploy" / "remote.yaml").environments
    served = server[server.index("--environments") + 1].split(",")
    port = server[server.index("--port") + 1]
    assert environment.remote and environment.env_type in served
    assert environment.server_address == [f"localhost:{port}"]
    assert services["environments"]["healthcheck"]["test"][-1] == f"localhost:{port}"


def test_the_ray_job_is_a_command_on_pods_that_mount_what_it_reads() -> None:
    job = read("deploy/rayjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec = job["spec"]
    words = spec["entrypoint"].split()
    check_command(words)
    cluster = spec["rayClusterSpec"]
    assert f"\nray=={cluster['rayVersion']}\n" in text_of("constraints.txt")
    (workers,) = cluster["workerGroupSpecs"]
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]
    for group in (cluster["headGroupSpec"], workers):
        pod = group["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        (container,) = pod["containers"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert set(mounts) == volumes and "/experiment" in mounts.values()
    settings = [word.split("=") for word in words if "=" in word]
    load_config(ROOT / "deploy/remote.yaml", [f"{key}={value}" for key, value in settings])


SLURM = """
scontrol() { echo node1; sleep 0.2; echo node2; }
srun() { printf '%s\\n' "$@"; }
export -f scontrol srun
SLURM_JOB_NODELIST=node[1-2] SLURM_JOB_NUM_NODES=2 SLURM_JOB_ID=7 bash "$0" "$@"
"""


def test_the_slurm_script_starts_and_resumes(tmp_path: Path) -> None:
    script = ROOT / "deploy" / "slurm.sh"
    assert subprocess.run(["bash", "-n", str(script)]).returncode == 0

    def printed() -> list[str]:
        words = ["bash", "-c", SLURM, str(script), "x.yaml", "out", "training.seed=1"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    begun = printed()
    assert begun[0] == "torchrun" and "--rdzv_endpoint=node1:29500" in begun
    start = begun.index("-m")
    assert begun[start:] == [
        *("-m", "mrlm", "train", "--config", "x.yaml", "--output", "out", "training.seed=1")
    ]
    check_command(begun[start + 1 :])
    (tmp_path / "out" / "1-warmup" / "checkpoint-3").mkdir(parents=True)
    assert printed()[start + 7 :] == ["--resume", "out", "training.seed=1"]
    usage = subprocess.run(["bash", str(script)], capture_output=True, text=True)
    assert usage.returncode != 0 and "usage: sbatch deploy/slurm.sh CONFIG FOLDER" in usage.stderr


def test_hints_of_the_package_name_commands() -> None:
    files = [
        file for kind in ("py", "json", "js") for file in (ROOT / "src" / "mrlm").rglob(f"*.{kind}")
    ]
    named = {
        name
        for file in files
        for name in re.findall(r"(?<!from )\bmrlm ([a-z]+)\b", file.read_text(encoding="utf-8"))
    }
    assert "view" in named and named <= set(cli.commands()), named - set(cli.commands())
