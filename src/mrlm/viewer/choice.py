"""The choice of episodes for a page with a size limit: what alarms cite, evaluations, then of each
training step the best, the median and the worst group."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """An episode that may be chosen.

    Args:
        number: its place in the run.
        group: its group, unique in the run.
        size: its size in bytes.
        cited: whether an alarm cites it, or `mrlm why` explained it.
    """

    number: int
    stage: str
    step: int
    group: str
    evaluation: bool
    reward: float
    size: int
    cited: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """The places of the chosen episodes in the run, and the rule, for readers of the page; empty if
    all are chosen."""

    numbers: frozenset[int]
    sentence: str


def choose(candidates: Sequence[Candidate], limit: float) -> Choice:
    """Chooses episodes whose sizes add up to at most the limit, in bytes."""
    if sum(candidate.size for candidate in candidates) <= limit:
        return Choice(frozenset(candidate.number for candidate in candidates), "")
    cited = [*_within((e for e in candidates if e.cited), limit)]
    limit -= sum(e.size for e in cited)
    taken = {e.number for e in cited}
    tests = [e for e in candidates if e.evaluation and e.number not in taken]
    groups = _three_per_step([e for e in candidates if not e.evaluation and e.number not in taken])
    chosen_tests, every = _thinned(tests, limit)
    left = limit - sum(candidate.size for candidate in chosen_tests)
    trained, each_of = _thinned(groups, left) if every == 1 else ([], 0)
    phrases = []
    if chosen_tests:
        phrases.append(every_nth(every, "evaluation"))
    if trained:
        step = "every training step" if each_of == 1 else every_nth(each_of, "training step")
        phrases.append(f"of {step} the groups with the highest, median and lowest mean reward")
    phrases += ["the episodes that alarms cite or `mrlm why` explained"] if cited else []
    rule = "; ".join(phrases) or "none"
    return Choice(frozenset(e.number for e in (*cited, *chosen_tests, *trained)), rule)


def every_nth(number: int, what: str) -> str:
    """The rule by which one of so many is shown: `every second evaluation`."""
    return {1: f"all {what}s", 2: f"every second {what}"}.get(number, f"every {number}th {what}")


def _thinned(candidates: Sequence[Candidate], limit: float) -> tuple[list[Candidate], int]:
    """The episodes of every n-th step of each stage, n the smallest power of two within the limit;
    the last step of a stage is kept as long as possible. Without any step that fits: of the last
    step as many episodes as do."""
    sizes: dict[tuple[str, int], int] = defaultdict(int)
    for candidate in candidates:
        sizes[candidate.stage, candidate.step] += candidate.size
    steps, every = list(sizes), 1
    stages = dict.fromkeys(stage for stage, _ in steps)
    places = [
        (index, step)
        for stage in stages
        for index, step in enumerate(step for step in reversed(steps) if step[0] == stage)
    ]
    while steps:
        steps_kept = {step for index, step in places if index % every == 0}
        if sum(sizes[step] for step in steps_kept) <= limit:
            return [e for e in candidates if (e.stage, e.step) in steps_kept], every
        if every > len(steps):
            break
        every *= 2
    last = (e for e in candidates if (e.stage, e.step) in steps[-1:])
    return [*_within(last, limit)], every


def _within(candidates: Iterable[Candidate], limit: float) -> Iterable[Candidate]:
    """The first of them, up to a size."""
    for candidate in candidates:
        limit -= candidate.size
        if limit < 0:
            return
        yield candidate


def _three_per_step(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Of each step the groups with the highest, the median and the lowest mean reward."""
    steps: dict[tuple[str, int], dict[str, list[Candidate]]] = defaultdict(dict)
    for candidate in candidates:
        steps[candidate.stage, candidate.step].setdefault(candidate.group, []).append(candidate)
    group_names: set[str] = set()
    for groups in steps.values():
        means = {name: sum(e.reward for e in some) / len(some) for name, some in groups.items()}
        ordered = sorted(means, key=lambda name: means[name])
        group_names |= {ordered[0], ordered[len(ordered) // 2], ordered[-1]}
    return [candidate for candidate in candidates if candidate.group in group_names]
