"""`python -m benchmarks.app_team HumanEval.jsonl`: a pretrained model as planner, two coders and
reviewer of an app, trained on the rows that one coder alone solves sometimes but not always: about
a quarter of an hour of one core."""

from __future__ import annotations

import argparse
import ast
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from openai import AsyncOpenAI

import mrlm
from mrlm.core.statistics import share_interval
from mrlm.environments.app import AppEnvironment
from mrlm.environments.programs.code.answers import extract_code
from mrlm.sandbox import Limits, open_sandbox

CODE = "Complete this function. Answer with the code only.\n```python\n{prompt}\n```"
PLAN = "Say in one short sentence how to write this function.\n```python\n{prompt}\n```"
HELP = "\nPlan: {plan}"
JUDGE = (
    "Which code is right?\n1:\n```python\n{0}\n```\n2:\n```python\n{1}\n```\nAnswer with 1 or 2."
)
PARTS = """
passed = 0
for test in {tests!r}:
    try:
        exec(test, globals())
        passed += 1
    except Exception:
        pass
print(passed)
"""
client = AsyncOpenAI(api_key="none")


async def ask(agent: str, text: str, tokens: int) -> str:
    messages: Any = [{"role": "user", "content": text}]
    answer = await client.chat.completions.create(model=agent, messages=messages, max_tokens=tokens)
    return answer.choices[0].message.content or ""


async def passed(row: Any, code: str) -> float:
    """The share of a row's assertions that hold; of some, all in one."""
    tree = ast.parse(row["test"])
    check = next(node for node in tree.body if getattr(node, "name", "") == "check")
    tests = [ast.unparse(node) for node in check.body if isinstance(node, ast.Assert)]
    tests = tests or [f"{ast.unparse(check)}\ncheck(candidate)"]
    head = row["prompt"].split("def ")[0]
    program = f"{head}\n{code}\ncandidate = {row['entry_point']}\n{PARTS.format(tests=tests)}"
    result = await open_sandbox().run(program, limits=Limits(wall=5.0))
    last = result.stdout.strip().rpartition("\n")[2]
    return int(last) / len(tests) if result.status == "ok" and last.isdigit() else 0.0


async def alone(row: Any) -> float:
    return await passed(row, extract_code(await ask("coder", CODE.format(**row), 64)))


async def team(row: Any) -> dict[str, float]:
    """A coder is rewarded for its draft, the planner for both, the reviewer for its choice."""
    plan = await ask("planner", PLAN.format(**row), 24)
    text = CODE.format(**row) + HELP.format(plan=plan)
    answers = await asyncio.gather(*(ask(f"coder#{number}", text, 64) for number in (1, 2)))
    drafts = [*map(extract_code, answers)]
    values = await asyncio.gather(*(passed(row, draft) for draft in drafts))
    for number, value in enumerate(values, 1):
        await mrlm.reward(value, agent=f"coder#{number}")
    choice = await ask("reviewer", JUDGE.format(*drafts), 2)
    return {"reviewer": values[1] if "2" in choice else values[0], "planner": 0.0}


KEPT = ("loss", "turns/mean", "seconds/cpu")
AGENTS = ["planner", "coder", "reviewer"]


def trainer(model: str, rows: Any, app: Any, folder: str, tokens: int, steps: int = 1) -> Any:
    world = AppEnvironment(
        app,
        rows,
        agents=AGENTS if app is team else ["coder"],
        instances={"coder": "planner"} if app is team else (),
        eval_dataset=rows,
    )
    settings: dict[str, Any] = {"max_new_tokens": tokens, "learning_rate": 2e-4, "batch_size": 4}
    settings |= {"num_iterations": steps, "num_generations": 6, "lora": {"r": 16, "alpha": 32}}
    return mrlm.MAGRPOTrainer(
        model, environment=world, output_dir=folder, report_to="none", **settings
    )


def played(trained: Any, rows: Sequence[Any], samples: int) -> list[list[Any]]:
    """Episodes of every row."""
    episodes = trained.evaluate(len(rows), samples, greedy=False).episodes
    names = [f"row-eval-{number}" for number in range(len(rows))]
    return [[episode for episode in episodes if episode.task.id == name] for name in names]


def measured(trained: Any, rows: Sequence[Any], samples: int) -> dict[str, Any]:
    """Shares of assertions, mean over rows with a 95 % interval: of the drafts, of the choice, and
    of the better of the two drafts; and what one episode printed."""
    groups = played(trained, rows, samples)
    shares: dict[str, Any] = {}

    def share(name: str, of: Any) -> None:
        values = [fmean(of(episode) for episode in group) for group in groups]
        shares[name] = [round(value, 3) for value in share_interval(values)]

    def drafts(episode: Any) -> list[float]:
        return [r.reward for name, r in episode.rollouts.items() if name.startswith("coder")]

    share("drafts", lambda episode: fmean(drafts(episode)))
    share("choice", lambda episode: episode.rollouts["reviewer"].reward)
    share("best", lambda episode: max(drafts(episode)))
    best = max((e for group in groups for e in group), key=lambda e: e.rollouts["reviewer"].reward)
    turns = sorted(best.turns, key=lambda turn: (turn.order, turn.agent))
    shown = [f"{t.agent} ({t.reward:.2f}): {t.message.content}" for t in turns]
    return shares | {"shown": "\n".join([best.task.info["row"]["task_id"], *shown])}


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.app_team", description=__doc__)
    parser.add_argument("rows", type=Path, help="HumanEval as JSON lines")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--shortest", type=int, default=24, help="rows by length of the solution")
    parser.add_argument("--samples", type=int, default=6, help="of a row")
    parser.add_argument("--most", type=int, default=8, help="rows to train on")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    chosen = parser.parse_args(given)
    rows = [json.loads(line) for line in chosen.rows.read_text().splitlines()]
    rows = sorted(rows, key=lambda row: len(row["canonical_solution"]))[: chosen.shortest]
    record: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        scan = trainer(chosen.model, rows, alone, f"{folder}/scan", 64)
        rates = [fmean(e.reward for e in g) for g in played(scan, rows, chosen.samples)]
        record["scan"] = {row["task_id"]: rate for row, rate in zip(rows, rates, strict=True)}
        some = [pair for pair in zip(rates, rows, strict=True) if 0 < pair[0] < 1]
        some.sort(key=lambda pair: abs(pair[0] - 0.5))
        rows = [row for _, row in some[: chosen.most]]
        record["rows"] = [row["task_id"] for row in rows]
        print(record, f"{time.process_time():.0f} s", file=sys.stderr, flush=True)
        learned = trainer(chosen.model, rows, team, f"{folder}/team", 64, chosen.steps)
        record["before"] = measured(learned, rows, 8)
        record["history"] = [
            {key: value for key, value in row.items() if key in KEPT or key.startswith("reward/")}
            for row in learned.train().history
        ]
        record["after"] = measured(learned, rows, 8)
    record["seconds"] = round(time.process_time())
    for name in ("before", "after"):
        print(name, *(f"{key} {value}" for key, value in record[name].items() if key != "shown"))
        print(record[name]["shown"], "\n")
    print(f"{record['seconds']} s of the processor")
    chosen.output.mkdir(parents=True, exist_ok=True)
    (chosen.output / "app_team.json").write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
