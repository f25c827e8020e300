"""The page of a run shows what was trained, for every workflow: the tokens of turns that are not
trained are hatched and no others, and the painted advantages of a turn add up to those that the
learner computed its loss from."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from chromium import MISSING, Browser, chromium
from every_workflow import SPECS, WORKFLOWS, Talk, config_of
from every_workflow import small as small
from mrlm.build.policies import LiveObjects
from mrlm.build.run import build
from mrlm.core.episodes import Episode
from mrlm.core.types import Turn
from mrlm.learn import learner
from mrlm.runs import run_to_end
from mrlm.training.run import Callback
from mrlm.viewer.export import export_run

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(chromium() is None, reason=MISSING),
]
__all__ = ["small"]

HALF = 2.0**-10
"""Relative error of float16, with room for the sum."""


@dataclass
class Watched(Callback):
    """The episodes of a run, and the sums of the advantages that the learners used."""

    episodes: dict[tuple[int, str, tuple[int, ...]], Episode] = field(default_factory=dict)
    used: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    size: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    turns: dict[int, Turn] = field(default_factory=dict)

    def on_episodes(self, run: Any, step: int, episodes: list[Episode]) -> None:
        for episode in episodes:  # leaves of a tree differ in their paths
            self.episodes[step, episode.id, tuple(episode.path)] = episode

    def catch(self, batch: Any) -> None:
        for number, turn in enumerate(batch.turns):
            values = batch.advantages[batch.turn == number].double().cpu().numpy()
            assert len(values) == len(turn.completion_ids)
            self.turns[id(turn)] = turn
            self.used[id(turn)] += float(values.sum())
            self.size[id(turn)] += float(np.abs(values).sum())


@pytest.fixture(scope="module")
def played(small: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A page with a run of each workflow as a stage, and what was watched in each of them."""
    folder = tmp_path_factory.mktemp("workflows")
    watched = {name: Watched() for name in WORKFLOWS}
    real = learner.micro_batches
    with pytest.MonkeyPatch.context() as patch:
        for number, (name, watch) in enumerate(watched.items(), 1):

            def caught(*given: Any, watch: Watched = watch, **more: Any) -> Iterator[Any]:
                for batch, own, last in real(*given, **more):
                    if own:
                        watch.catch(batch)
                    yield batch, own, last

            patch.setattr(learner, "micro_batches", caught)
            config = config_of(name, small, folder / "run" / f"{number}-{name}")
            agents = tuple(config.agents)
            world = Talk(("player",) if SPECS[name].single_agent else agents)
            run_to_end(build(config, LiveObjects(environments=[world], callbacks=[watch])))
    page = export_run(folder / "run", folder / "x.html").path
    browser = Browser()
    browser.open(page)
    yield browser, watched
    browser.close()


SHOWN = """[...document.querySelectorAll('.turn')].map(turn => {
  const box = turn.querySelector('.tokens'), tokens = [...box.children]
  return {
    agent: box.turn.agent, place: box.turn.place, all: tokens.length,
    hatched: tokens.filter(t => t.classList.contains('x')).length,
    sum: tokens.filter(t => !t.classList.contains('x')).reduce((s, t) => s + (t.value ?? 0), 0),
  }
})"""


@pytest.mark.parametrize("name", WORKFLOWS)
def test_every_workflow_is_shown_as_it_was_trained(name: str, played: Any) -> None:
    browser, watched = played
    watch, stage = watched[name], f"{WORKFLOWS.index(name) + 1}-{name}"
    listed = browser.js(
        "import('viewer/data.js').then(({list, episode}) => Promise.all("
        "list.columns.id.map((_, i) => i)"
        f".filter(i => list.codes.stage[list.columns.stage[i]] === '{stage}')"
        ".map(async i => { const row = await episode(i);"
        " return [i, row.step, row.id, row.path ?? []] })))"
    )
    assert {(step, each, tuple(path)) for _, step, each, path in listed} == set(watch.episodes)
    kinds, moved, seen = set(), 0, set()
    for number, step, name_of, path in listed:
        browser.go(f"/episode/{number}")
        episode = watch.episodes[step, name_of, tuple(path)]
        shown = {(each["agent"], each["place"]): each for each in browser.js(SHOWN)}
        turns = {
            (agent, place): turn
            for agent, rollout in episode.rollouts.items()
            for place, turn in enumerate(rollout.turns)
        }
        assert shown.keys() == turns.keys()
        for key, turn in turns.items():
            own, trained = shown[key], turn.trained and not name_of.startswith("eval/")
            kinds.add((name_of.startswith("eval/"), turn.trained))
            assert own["all"] == len(turn.completion_ids) > 0
            assert own["hatched"] == (0 if trained else own["all"])
            used = watch.used.get(id(turn), 0.0)
            error = HALF * watch.size.get(id(turn), 0.0)
            assert own["sum"] == pytest.approx(used if trained else 0.0, abs=error + 1e-7)
            if trained and used:
                moved += 1
                seen.add(id(turn))
    assert {(False, True), (False, False), (True, True)} <= kinds
    assert moved and seen == {turn for turn, used in watch.used.items() if used}
    assert browser.problems() == [] and browser.requests() == []
