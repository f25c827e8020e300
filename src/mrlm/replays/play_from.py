"""Play on from a turn of a recorded episode: the turns before are those of the record, and the turn
is sampled again, or replaced."""

import os

from mrlm.build.policies import LiveObjects
from mrlm.replays.other_weights import Weights
from mrlm.replays.session import Branch, ForkSession


def play_from(
    run: str | os.PathLike[str],
    episode: str,
    *,
    step: int | None = None,
    agent: str,
    turn: int,
    n: int = 1,
    weights: Weights | None = None,
    greedy: bool = False,
    message: str | None = None,
    keep_seeds: bool = False,
    parts: LiveObjects | None = None,
) -> list[Branch]:
    """Play on from a turn of a recorded episode. Turns before it are exactly those of the record;
    concurrent ones too. For several calls use a `ForkSession`, which rebuilds the run once.

    Args:
        run: a run folder, or that of a stage.
        episode: its `id` in the record.
        step: its `step` there, if the id occurs in several.
        agent: the agent of the turn.
        turn: its `index`: number of earlier turns of the agent.
        n: number of continuations, which are played concurrently.
        weights: of the trained policies from the turn on: `checkpoint-40`, `final` or a folder.
            `None`: those that the episode was played with.
        greedy: the turn is sampled greedily; later ones as in the run.
        message: the text of the turn.
        keep_seeds: use the random numbers of the run, not new ones: with nothing changed the
            continuation then equals the record.
        parts: live objects that replaced sections of the config, in their initial state.

    Raises:
        ConfigError: the episode, turn or weights do not exist, or the run cannot be rebuilt.
    """
    with ForkSession(run, episode, step, parts=parts) as session:
        return session.play_from(
            agent=agent,
            turn=turn,
            n=n,
            weights=weights,
            greedy=greedy,
            message=message,
            keep_seeds=keep_seeds,
        )
