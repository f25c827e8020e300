"""Checkpoints of a run: their content, how a run continues from one, and rollbacks."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mrlm.core.errors import NonFiniteError
from mrlm.core.log import log
from mrlm.core.timing import span
from mrlm.learn.checkpoint import read_checkpoint, read_state, write_checkpoint, writing
from mrlm.play.sources.source import StateLater
from mrlm.training.metrics import remote_engines
from mrlm.training.rollback import count_at, go_back
from mrlm.training.run import Phase, Run


def state_of(run: Run) -> dict[str, StateLater]:
    """The state of a run that an iteration changes before it changes weights; empty where a run is
    not saved after an error: in several processes, and where sampling continues in the meantime."""
    if not run.defers or run.config.training.max_lag:
        return {}
    algorithm, population = run.algorithm.state_dict(), run.population.state_dict()
    return {
        "source": run.source.state_later(),
        "algorithm": lambda: algorithm,
        "population": lambda: population,
    }


@contextmanager
def saved_before(run: Run) -> Iterator[None]:
    """Context of an iteration: an error that ends the run there (of a reward function, an
    environment, a check) leaves a checkpoint of the last whole step, and says so. Nothing is
    written once weights have changed since."""
    begun = state_of(run)
    try:
        yield
    except NonFiniteError:  # the run may go back to a checkpoint
        raise
    except Exception as error:
        exists = (run.folder / f"checkpoint-{run.step}").is_dir()
        whole = begun and run.phase is not Phase.UPDATING and not run.failing
        if run.step and whole and not exists and run.saves_end:
            save(run, begun)
            error.add_note(f"checkpoint-{run.step} is saved")
        raise


def save(run: Run, begun: Mapping[str, StateLater] | None = None) -> Path:
    """Writes a checkpoint of the whole run; `begun` is its state if it has changed since its last
    step. Raises `TrainingError`: the disk refused; the previous checkpoint is unchanged."""
    parts = {
        "source": run.source.state_dict(),
        "algorithm": run.algorithm.state_dict(),
        "population": run.population.state_dict(),
        "log": run.log.state(),
        **{name: state() for name, state in (begun or {}).items()},
        "run": {"tokens": run.tokens, "rollbacks": run.rollbacks, "config": run.config.hash()},
        "api": {name: engine.state_dict() for name, engine in remote_engines(run.engines).items()},
    }
    keep = run.config.training.save_total_limit
    with span("saving"), writing(run.folder / f"checkpoint-{run.step}"):
        shard_folder = run.folder / f".checkpoint-{run.step}.tmp-shards"
        shards = None
        if _cut(run):
            from mrlm.distributed.checkpoint import write_shards

            shards = write_shards(shard_folder, run.learners, run.critics, run.peers)
        folder = run.peers.first(
            lambda: write_checkpoint(
                run.folder, run.step, run.learners, parts, keep, run.critics, shards
            )
        )
    run.population.tidy()
    for callback in run.callbacks:
        callback.on_save(run, folder)
    return folder


def restore(run: Run, folder: Path) -> None:
    """Restores the state of a verified checkpoint folder."""
    shards_of = None
    if _cut(run) or (folder / "shards").is_dir():
        from mrlm.distributed.checkpoint import CheckpointReader

        shards_of = CheckpointReader(folder)
    state = read_checkpoint(folder, run.learners, run.critics, shards_of)
    run.step, run.tokens = state["step"], state["parts"]["run"]["tokens"]
    run.ease(count_at(folder.parent, run.step, state["parts"]["run"].get("rollbacks", 0)))
    run.source.load_state_dict(state["parts"]["source"])
    run.algorithm.load_state_dict(state["parts"]["algorithm"])
    if "population" in state["parts"]:
        run.population.load_state_dict(state["parts"]["population"], folder.parent)
    remote = remote_engines(run.engines)
    for name, counters in state["parts"].get("api", {}).items():
        if name in remote:
            remote[name].load_state_dict(counters)


def go_back_to_checkpoint(run: Run, error: NonFiniteError) -> None:
    """Returns to the last good checkpoint, with a lower learning rate from there. Raises
    `NonFiniteError`: the given error, where no rollback is allowed or possible."""
    allowed = run.config.training.rollback
    failed = run.step

    def decide() -> Path | NonFiniteError:
        try:
            return go_back(run.folder, failed, run.rollbacks, allowed, error)
        except NonFiniteError as refused:
            return refused

    with writing(run.folder):
        folder = run.peers.first(decide)
        if isinstance(folder, NonFiniteError):
            raise folder
        state = read_state(folder)
        run.log.back(state["step"], state["parts"]["log"])
    restore(run, folder)
    factor = run.config.training.rollback_factor**run.rollbacks
    log.warning("%s", error)
    run.log.note(
        f"step {failed + 1} failed; continuing from {folder.name} with {factor:g} times the "
        f"learning rate (rollback {run.rollbacks} of {allowed})"
    )


def _cut(run: Run) -> bool:
    """Whether weights are sharded over processes."""
    section = run.config.distributed
    return section.enabled and section.strategy == "fsdp"
