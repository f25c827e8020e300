"""The app of three agents as a program of Node with the npm package `openai`, also in the sandbox:
the losses are those of the Python client (`make test-extras`)."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import mrlm
import three_agents
from app_play import ROWS
from mrlm.environments.app import AppEnvironment

pytestmark = pytest.mark.filterwarnings("ignore")
NODE, NPM = shutil.which("node"), Path(os.environ.get("MRLM_NPM", ".venv-extras/npm")).absolute()
PROGRAM = """
import OpenAI from "openai";
import fs from "node:fs";

const client = new OpenAI();
async function ask(model, content) {
  const messages = [{ role: "user", content }];
  const answer = await client.chat.completions.create({ model, messages });
  return answer.choices[0].message.content;
}
const row = JSON.parse(fs.readFileSync(0, "utf8"));
const plan = await ask("planner", row.question);
const drafts = [await ask("coder", plan), await ask("coder", plan)];
console.log(JSON.stringify(await ask("reviewer", drafts.join("\\n"))));
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The program, beside the package."""
    if NODE is None:
        pytest.skip("node is not installed")
    if not (NPM / "node_modules" / "openai").is_dir():
        pytest.skip(f"npm install --prefix {NPM} openai")
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "node_modules").symlink_to(NPM / "node_modules")
    (tmp_path / "app" / "solve.mjs").write_text(PROGRAM)
    return tmp_path / "app" / "solve.mjs"


def losses(folder: Path, app: Any = None, **settings: Any) -> list[tuple[float, ...]]:
    agents = ["planner", "coder", "reviewer"]
    world = AppEnvironment(app, ROWS, three_agents.score, agents, **settings)
    numbers: dict[str, Any] = {
        "num_generations": 4,
        "max_new_tokens": 8,
        "batch_size": 2,
        "num_iterations": 2,
    }
    trainer = mrlm.MAGRPOTrainer(
        environment=world, output_dir=str(folder), report_to="none", learning_rate=1e-3, **numbers
    )
    return [(row["loss"], row["reward/mean"]) for row in trainer.train().history]


@pytest.mark.parametrize("isolated", [False, True])
def test_losses_are_those_of_the_python_client(
    program: Path, tmp_path: Path, isolated: bool
) -> None:
    sandbox = [str(program.parent), str(NPM)] if isolated else False
    command = [str(NODE), str(program)]
    result = losses(tmp_path / "node", command=command, sandbox=sandbox)
    assert result == losses(tmp_path / "python", three_agents.solve) and result[0][0]
