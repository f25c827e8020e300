"""The package without its repository: sdist and wheel are built, and the wheel is used in a virtual
environment of its own.

No network is needed: hatchling is called directly, and the dependencies of the tests are lent to
the environment by a `.pth` file. Python reads no `.pth` files of a folder that is named in one, so
the editable installation of the repository stays invisible.
"""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from mrlm import __version__
from places import ROOT

pytest.importorskip("hatchling", reason="the wheel is built by hatchling (extra `dev`)")

COMMANDS = [
    ["quickstart", "--steps", "2"],
    ["init", "team", "--yes"],
    ["train", "--config", "team/config.yaml", "--steps", "2"],
    ["export", "outputs/team", "-o", "run.html"],
    ["info"],
]
PROGRAM = f"""
import sys
sys.path.insert(0, "")
import mrlm
from mrlm.cli import main
print(mrlm.__file__)
for words in {COMMANDS!r}:
    print("$ mrlm", *words, flush=True)
    sys.argv = ["mrlm", *words]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
"""
"""All commands in one process: importing torch takes longer than they do."""
DATA = (
    *("viewer/static", "cli/examples", "cli/options.json", "algorithms/presets", "rules"),
    "recipes",
    *("planning/devices.yaml", "data/presets.yaml", "core/tiny_model.jinja", "py.typed"),
    *("__init__.pyi", "serving/mrlm.proto", "tracking/metrics.json", "sandbox/filters.yaml"),
)


def called(words: list[str], folder: Path, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        words, cwd=folder, env=clean | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sdist of the repository, and the wheel that is built from the unpacked sdist."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    imports = os.environ.get("PYTHONPATH", "")
    called([*build, "-t", "sdist"], ROOT, PYTHONPATH=imports)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        if hasattr(tarfile, "data_filter"):  # from 3.11.4 on
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder)
    called([*build, "-t", "wheel"], folder / f"mrlm-{__version__}", PYTHONPATH=imports)
    (wheel,) = folder.glob("*.whl")
    return {"sdist": sdist, "wheel": wheel}


def test_the_wheel_has_the_data_of_the_package_and_no_tests(dist: dict[str, Path]) -> None:
    with zipfile.ZipFile(dist["wheel"]) as archive:
        names = set(archive.namelist())
        (metadata,) = (archive.read(name).decode() for name in names if name.endswith("/METADATA"))
    package = ROOT / "src" / "mrlm"
    for data in DATA:
        place = package / data
        files = (
            [place] if place.is_file() else [each for each in place.rglob("*") if each.is_file()]
        )
        wanted = {
            f"mrlm/{file.relative_to(package).as_posix()}"
            for file in files
            if file.suffix != ".pyc"
        }
        assert wanted and wanted <= names, wanted - names
    assert {name.split("/")[0] for name in names} == {"mrlm", f"mrlm-{__version__}.dist-info"}
    assert not [name for name in names if "test_" in name or name.endswith(".pyc")]
    assert f"Version: {__version__}\n" in metadata and "Project-URL: Documentation, " in metadata


def test_the_sdist_can_test_itself(dist: dict[str, Path]) -> None:
    with tarfile.open(dist["sdist"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {
        "tests/conftest.py",
        "Makefile",
        "pyproject.toml",
        "configs/quickstart.yaml",
        "LICENSE",
    }
    assert needed <= names, needed - names
    assert not [name for name in names if name.startswith((".venv", "outputs"))]


@pytest.mark.slow
def test_the_wheel_works_without_the_repository(dist: dict[str, Path], tmp_path: Path) -> None:
    home, empty = tmp_path / "venv", tmp_path / "empty"
    empty.mkdir()
    venv.create(home, with_pip=False, symlinks=True)
    python = str(home / "bin" / "python")
    paths = [sysconfig.get_paths()[name] for name in ("purelib", "platlib")]
    own = Path(sysconfig.get_path("purelib", "venv", {"base": str(home)}))
    lent = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    outside = [place for place in lent if not Path(place).resolve().is_relative_to(ROOT)]
    (own / "lent.pth").write_text("\n".join(dict.fromkeys([*paths, *outside])) + "\n")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index"]
    called([*pip, "--quiet", "--disable-pip-version-check", str(dist["wheel"])], empty)
    command = str(home / "bin" / "mrlm")
    assert called([command, "--version"], empty) == f"mrlm {__version__}\n"

    out = called([python, "-I", "-c", PROGRAM], empty, HF_HUB_OFFLINE="1", NO_COLOR="1")
    assert out.startswith(f"{own / 'mrlm' / '__init__.py'}\n"), out[:200]
    assert str(ROOT / "src") not in called([python, "-c", "import sys; print(sys.path)"], empty)
    assert "  mrlm view outputs/quickstart\n" in out
    assert "  mrlm train --config team/config.yaml\n" in out
    assert "  mrlm view outputs/team\n" in out
    assert f"mrlm          {__version__}\n" in out and "\n  magrpo" in out
    for file in ("outputs/quickstart/final", "outputs/team/final/model.safetensors", "run.html"):
        assert (empty / file).exists(), file
    assert (empty / "run.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "\nrun.html: " in out and " episodes, " in out
