"""What every world of another library promises, tried on one that is given."""

import copy
import time
from pathlib import Path
from typing import Any

from mrlm.core.environment import Environment, check_environment
from mrlm.core.types import Message, Role, StepResult

HOSTILE = (
    "", "\x00\ud800", "\x1b[2J\x1b]0;x\x07", "[" * 5_000, "9" * 30_000,
    "<answer>" * 4_000 + "</answer>", " \n" * 20_000, "action: " * 9_000, "{}" * 9_000,
    "__import__('os').system('touch touched')",
)  # fmt: skip


def played(
    world: Environment, seed: int, words: Any, split: Any = "train", most: int = 60
) -> tuple[list[str], dict[str, float], StepResult]:
    """Transcript, what every seat earns, and how it ended; `words(world, seat, messages)` says what
    is said."""
    world = world.spawn()
    task = world.task(seed, split)
    result: StepResult = world.reset(task, task.seed)
    seen, total = [repr(result)], dict.fromkeys(world.agents, 0.0)
    for _ in range(most):
        if result.done or result.truncated:
            break
        said = {
            seat: Message(words(world, seat, each.messages), Role.ASSISTANT, agent=seat)
            for seat, each in result.observations.items()
        }
        result = world.step(said)
        seen.append(repr(result))
        for seat, reward in result.rewards.items():
            total[seat] += reward.value
    world.close()
    return seen, total, result


def keeps_the_contract(make: Any) -> None:
    """Seeded, separate copies, nothing hostile breaks it, cheap to spawn."""
    world = make()
    check_environment(world)
    check_environment(world, seed=7)
    for split in ("train", "eval"):
        one, two = (played(each, 5, lambda w, s, m: "a 1", split)[0] for each in (world, make()))
        assert one == two
        task = world.task(3, split)
        assert task.id and task.prompt and task.id == make().task(3, split).id
    for words in HOSTILE:
        played(world, 3, lambda w, s, m, words=words: words, most=15)
    assert not Path("touched").exists()
    alone = repr(world.spawn().reset(world.task(0), 0))
    first, second = world.spawn(), world.spawn()
    first.reset(world.task(0), 0)
    second.reset(world.task(1), 1)
    assert repr(first.reset(world.task(0), 0)) == alone
    begun = time.process_time()
    for _ in range(100):
        world.spawn()
    assert time.process_time() - begun < 0.5


def can_be_forked(world: Environment, words: str, then: str) -> None:
    """A copy in the middle of an episode goes on by itself, as the first would."""
    world = world.spawn()
    (seat,) = world.reset(world.task(1), 1).observations
    (seat,) = world.step({seat: Message(words)}).observations
    twin = copy.deepcopy(world)
    before = world.state()
    assert before and twin.state() == before
    further = repr(twin.step({seat: Message(then)}))
    assert world.state() == before
    assert repr(world.step({seat: Message(then)})) == further


def trains(
    folder: Path, environment: dict[str, Any], algorithm: str = "grpo", **training: Any
) -> Any:
    """Two steps of a run of the embedded model, from a config as a file would hold it."""
    from mrlm.config import parse_config
    from mrlm.experiment import run_experiment

    config = parse_config(
        {
            "model": {"model_name_or_path": "mrlm/tiny"},
            "environments": [environment],
            "generation": {"max_new_tokens": 4},
            "output_dir": str(folder / "run"),
            "training": {
                "algorithm": algorithm,
                "num_iterations": 2,
                "batch_size": 2,
                "report_to": "none",
                **training,
            },
        }
    )
    result = run_experiment(config)
    assert len(result.history) >= 2
    for step in result.history[:2]:
        assert step["episodes/failed"] == 0, step
        assert "reward/mean" in step
    return result.history
