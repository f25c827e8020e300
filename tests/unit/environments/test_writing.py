"""The writing world pays what its four gates say, and texts that only look right earn less."""

import random
import time
from typing import Any

import pytest

from mrlm.config import load_config
from mrlm.core.environment import check_environment
from mrlm.core.errors import ConfigError, DataError
from mrlm.core.types import Message, Role, StepResult, Task
from mrlm.environments.texts.writing import PRESETS, LengthSpan, WritingEnvironment
from mrlm.environments.texts.writing.environment import gates, transition_score
from mrlm.environments.texts.writing.quality import quality
from mrlm.environments.texts.writing.words import TRANSITIONS, categories, unique_words
from places import ROOT

TLDR, ARXIV = PRESETS["tldr"].rules, PRESETS["arxiv"].rules
BEST = {"tldr": 2.98, "arxiv": 2.98, "short": 3.0}
"""Twelve categories of transitions are worth 0.95."""
POST = (
    "I started running in March because my doctor told me that my blood pressure was too high. At "
    "first I could not run for more than a minute. Now I run five kilometres three times a week, "
    "and my blood pressure is normal. But my knees hurt after every run. My doctor says I should "
    "buy better shoes and rest for two weeks. I am afraid that I will lose everything I gained if "
    "I stop for so long. Has anyone taken a break like this and come back?"
)
SHORT = (
    "Running fixed my blood pressure, but now my knees ache. The doctor wants a break of two weeks "
    "and I fear losing progress."
)
DETAILED = (
    "After a warning about high blood pressure in March, this runner slowly built up from one "
    "minute to five kilometres. The numbers are healthy again; however, both knees complain each "
    "time. Therefore a doctor suggests new shoes, and then a pause of fourteen days. Although that "
    "sounds wise, the writer worries about going backwards, so the question is whether others have "
    "rested that long and returned to form."
)


def text_of(words: int, characters: int, different: int, prefix: str = "w") -> str:
    """Text with so many words, characters and different words, none of them a transition."""
    plain = [f"{prefix}{i % (different - 1) if i else different}" for i in range(words)]
    missing = characters - len(" ".join(plain))
    assert missing >= 0
    plain[0] += "x" * missing
    return " ".join(plain)


def played(
    world: WritingEnvironment, *said: str, document: str = POST, prompt: str | None = None
) -> StepResult:
    shown = [Message(document if prompt is None else prompt)]
    world.reset(Task("t", shown, info={"document": document}))
    return world.step(
        {a: Message(t, Role.ASSISTANT, agent=a) for a, t in zip(world.agents, said, strict=True)}
    )


def paid(*said: str, **settings: Any) -> float:
    """What every writer is paid; it must be the same for all."""
    world = WritingEnvironment(**settings)
    (value,) = {reward.value for reward in played(world, *said).rewards.values()}
    return value


# -- gates -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "length"),
    [
        ((8, 60, 8), (8, 120, 8), 0.5),
        ((256, 1000, 8), (256, 2000, 40), 0.5),
        ((7, 60, 7), (8, 120, 8), 0.0),
        ((8, 60, 8), (7, 120, 7), 0.0),
        ((257, 1100, 9), (256, 2000, 40), 0.0),
        ((8, 60, 8), (257, 1100, 40), 0.0),
    ],
)
def test_the_first_gate_wants_8_to_256_words_of_both(
    first: Any, second: Any, length: float
) -> None:
    found = gates([text_of(*first), text_of(*second)], TLDR)
    assert found["length"] == length
    if not length:
        assert set(found.values()) == {0.0}


@pytest.mark.parametrize(
    ("characters", "ratio"),
    [
        (110, 0.0), (135, 0.5), (160, 1.0), (240, 1.0), (320, 1.0), (410, 0.5), (500, 0.0),
        (100, 0.0), (900, 0.0),
    ],
)  # fmt: skip
def test_the_ratio_of_characters_for_summaries(characters: int, ratio: float) -> None:
    found = gates([text_of(10, 100, 10), text_of(20, characters, 20)], TLDR)
    assert found["ratio"] == pytest.approx(ratio)
    assert bool(found["variety"]) == bool(ratio), "a gate at zero stops"


@pytest.mark.parametrize(
    ("characters", "ratio"),
    [(800, 0.0), (1050, 0.5), (1300, 1.0), (1600, 1.0), (1800, 0.5), (2000, 0.0), (2400, 0.0)],
)
def test_the_ratio_of_characters_for_papers(characters: int, ratio: float) -> None:
    found = gates([text_of(130, 1000, 100), text_of(130, characters, 100)], ARXIV)
    assert found["ratio"] == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("rules", "different", "variety"),
    [
        (TLDR, 130, 0.0), (TLDR, 165, 0.25), (TLDR, 200, 0.5), (TLDR, 250, 0.5),
        (ARXIV, 50, 0.0), (ARXIV, 60, 0.25), (ARXIV, 70, 0.5), (ARXIV, 130, 0.5),
        (ARXIV, 150, 0.25), (ARXIV, 170, 0.0),
    ],
)  # fmt: skip
def test_the_ratio_of_different_words(rules: Any, different: int, variety: float) -> None:
    low = 1600 if rules is TLDR else 1400
    found = gates([text_of(150, 1000, 100), text_of(250, low, different, "v")], rules)
    assert found["variety"] == pytest.approx(variety)
    if not variety:
        assert found["style"] == 0.0


@pytest.mark.parametrize(("count", "score"), [(0, 0.0), (1, 0.4), (2, 0.45), (5, 0.6), (12, 0.95)])
def test_categories_of_transitions(count: int, score: float) -> None:
    assert len(TRANSITIONS) == 12
    phrases = [phrases[-1] for phrases in TRANSITIONS.values()][:count]
    assert len(categories(" x ".join(phrases))) == count
    assert transition_score(count, TLDR) == pytest.approx(score)
    first = text_of(10, 100, 10)
    second = " ".join([*phrases, text_of(30, 180, 30, "v")])
    found = gates([first, second], TLDR)
    assert found["style"] == pytest.approx(0.4 * score)


@pytest.mark.parametrize(
    ("rules", "common", "share"),
    [(TLDR, 0, 0.0), (TLDR, 3, 3 / 197 / 0.03), (TLDR, 6, 1.0), (ARXIV, 20, 20 / 180 / 0.23)],
)
def test_content_words_in_common(rules: Any, common: int, share: float) -> None:
    numbers = [f"w{i}" for i in range(100)]
    other = [*numbers[:common], *(f"v{i}" for i in range(100 - common))]
    few = rules.changed(
        {"words": [8, 256], "unique": [0.1, 0.2, 8, 9], "characters": [0.1, 0.2, 8, 9]}
    )
    found = gates([" ".join(numbers), " ".join(other)], few)
    assert found["style"] == pytest.approx(0.6 * share)


def test_transitions_are_whole_words_and_phrases_belong_to_one_category() -> None:
    assert categories("butter, alsoran, thence, sofa, iffy, thenar, sincerely") == set()
    assert categories("BUT also.") == {"contrast", "addition"}
    assert categories("As  a\nresult, on the other hand") == {"result", "contrast"}
    listed = [phrase for phrases in TRANSITIONS.values() for phrase in phrases]
    assert len(set(listed)) == len(listed)


def test_words_count_by_what_they_are() -> None:
    assert unique_words("The the THE, 'the' dog. dog!") == 2
    span = LengthSpan(1.0, 2.0)
    assert [span(x) for x in (0, 1, 1.5, 2, 1e9)] == [0, 0, 0.5, 1, 1]


# -- honest texts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_able_writers_earn_the_most_there_is(preset: Any) -> None:
    world = WritingEnvironment(preset)
    seen = set()
    for seed in range(120):
        task = world.task(seed)
        said = list(task.answer)
        result = played(world, *said, document=task.info["document"])
        for reward in result.rewards.values():
            assert reward.value == pytest.approx(BEST[preset])
            assert reward.components["quality"] == 1.0 and result.done
            assert reward.value == pytest.approx(
                sum(reward.components[g] for g in ("length", "ratio", "variety", "style"))
            )
        seen.add(task.info["document"])
    assert len(seen) >= 40


def test_what_a_person_writes_is_of_quality() -> None:
    assert paid(SHORT, DETAILED) == pytest.approx(2.62, abs=0.3)
    for said, other in ((SHORT, DETAILED), (DETAILED, SHORT)):
        found = quality(said, POST, [], TLDR, [other])
        assert found["quality"] > 0.95, found


# -- hacks -----------------------------------------------------------------------------------------

SENTENCES = [part.strip() + "." for part in POST.split(".")]
NONSENSE = ["xq", "zzkw", "brrt", "pfft", "grkl", "mnbv", "qwrt", "tzpl", "vbnm", "lkjh", "hgfd"]
OFF_TOPIC = (
    "The old harbour was quiet in the winter, and the fishermen mended their nets beside a stove. "
    "However, when the ice broke they went out with the tide and stayed at sea until dusk. Then "
    "the women of the village lit lamps in the windows, so that the boats could find their way. "
    "Although nobody spoke of it, each of them counted the masts as they came round the point. "
    "Meanwhile the children slept above the shop, and the cat kept watch on the stairs."
)


def shuffled(text: str, seed: int = 0) -> str:
    words = text.replace(".", "").replace(",", "").split()
    random.Random(seed).shuffle(words)
    return ". ".join(" ".join(words[i : i + 9]) for i in range(0, len(words), 9)) + "."


HACKS: dict[str, tuple[str, str]] = {
    "empty": ("", ""),
    "only one writes": (SHORT, ""),
    "one word again and again": ("run " * 20, "run " * 45),
    "one sentence again and again": (SHORT, (SENTENCES[0] + " ") * 4),
    "two sentences in turn": (SHORT, f"{SENTENCES[1]} {SENTENCES[3]} " * 4),
    "every word twice": (SHORT, " ".join(f"{w} {w}" for w in DETAILED.split()[:35])),
    "transitions alone": (SHORT, ", ".join(p for ps in TRANSITIONS.values() for p in ps[:3])),
    "words of the source alone": (
        "running march doctor blood pressure high minute kilometres week",
        "running march doctor blood pressure high minute kilometres week normal knees hurt shoes "
        "rest weeks afraid lose everything gained stop break anyone taken come back",
    ),
    "nonsense": (" ".join(NONSENSE), " ".join(NONSENSE[::-1] * 2)),
    "long words": (SHORT, " ".join("runnnnnning" * 3 for _ in range(8))),
    "the source itself": (" ".join(SENTENCES[:2]), POST),
    "the instruction": (PRESETS["tldr"].asked[0] + " run run", PRESETS["tldr"].asked[1]),
    "the other writer and more": (SHORT, f"{SHORT} {SENTENCES[4]} {SENTENCES[1]}"),
    "another subject": (OFF_TOPIC[:180], OFF_TOPIC),
    "padding": (SHORT, SHORT + " very" * 40),
    "punctuation": (SHORT, ". , ; " * 40),
    "function words": (SHORT, "of the and to in that it is was for on with as by at from " * 3),
    "short sentences": (SHORT, " ".join(w + "." for w in DETAILED.split())),
}


@pytest.mark.parametrize("name", HACKS)
def test_a_hack_earns_less_than_half_of_honest_play(name: str) -> None:
    assert paid(*HACKS[name]) < 0.5 * paid(SHORT, DETAILED), name


@pytest.mark.parametrize("other", [POST, DETAILED])
def test_words_in_another_order_earn_less_than_half_of_honest_play(other: str) -> None:
    found = [paid(shuffled(SHORT, seed), shuffled(other, seed)) for seed in range(20)]
    assert sum(found) / len(found) < 0.5 * paid(SHORT, DETAILED)


def test_stuffing_transitions_into_an_honest_text_loses_by_it() -> None:
    stuffed = (
        DETAILED + " However, moreover, because, therefore, for example, likewise, if, indeed."
    )
    few = gates([SHORT, DETAILED], TLDR)["style"]
    assert gates([SHORT, stuffed], TLDR)["style"] > few
    assert paid(SHORT, stuffed) < paid(SHORT, DETAILED)


def test_without_quality_the_gates_alone_pay_and_it_is_still_logged() -> None:
    world = WritingEnvironment(quality=False)
    said = HACKS["two sentences in turn"]
    reward = played(world, *said).rewards["concise"]
    assert reward.value == pytest.approx(sum(gates(said, TLDR).values())) and reward.value > 1.0
    assert reward.components["quality"] < 0.3
    assert reward.components["repetition"] < 0.3 and reward.components["relevance"] == 1.0


# -- writers ---------------------------------------------------------------------------------------


def test_rewards_of_each_writer_follow_its_own_text() -> None:
    world = WritingEnvironment(rewards="individual")
    result = played(world, SHORT, "run " * 30)
    honest, lazy = (result.rewards[name] for name in world.agents)
    assert honest.components["quality"] == 1.0 and lazy.components["quality"] == 0.0
    assert honest.value > 0.4 and lazy.value == 0.0
    both = played(world, SHORT, DETAILED)
    assert both.rewards["detailed"].value > both.rewards["concise"].value, "own transitions"
    silent = played(world, SHORT, "").rewards
    assert [r.value for r in silent.values()] == [0.5, 0.0]


def test_three_writers_are_paid_for_the_worst_pair() -> None:
    world = WritingEnvironment(agents=["a", "b", "c"])
    assert len(world.instructions) == 3 and "writer b" in world.instructions[2]
    opening = world.reset(world.task(0))
    assert set(opening.observations) == {"a", "b", "c"}
    assert all(world.expert(name, []) is None for name in world.agents)
    texts = [text_of(20, 100, 10), text_of(40, 200, 30, "v"), text_of(80, 410, 75, "u")]
    good = gates(texts, TLDR)
    assert good["ratio"] == 1.0 and good["variety"] == 0.5
    assert gates([*texts[:2], texts[1]], TLDR)["ratio"] == 0.0
    assert gates([*texts[:2], texts[1]], TLDR, own=0)["ratio"] == 1.0
    assert played(world, *texts).rewards["c"].value == 0.0, "lengths alone are worth nothing"
    check_environment(world)


def test_what_writers_are_asked_can_be_changed() -> None:
    world = WritingEnvironment("short", instructions=["short", "long"], agents=("x", "y"))
    opening = world.reset(world.task(1))
    text = world.task(1).info["document"]
    assert [o.messages[0].content for o in opening.observations.values()] == [
        f"short\n\n{text}",
        f"long\n\n{text}",
    ]
    assert text in world.state()


def test_rules_can_be_changed() -> None:
    world = WritingEnvironment(
        rules={"words": [2, 300], "characters": [1, 2, 3, 4], "overlap": 0.1}
    )
    assert world.rules.words == (2, 300) and world.rules.characters == LengthSpan(1, 2, 3, 4)
    assert world.rules.overlap == 0.1 and world.rules.unique == TLDR.unique


# -- data sets -------------------------------------------------------------------------------------


def test_rows_of_the_known_data_sets() -> None:
    prompt = f"SUBREDDIT: r/running\n\nTITLE: Knees\n\nPOST: {POST}\n\nTL;DR:"
    world = WritingEnvironment("tldr", [{"prompt": prompt, "completion": " rest"}])
    task = world.task(0)
    assert task.info["document"] == POST and task.prompt[0].content == prompt
    assert world.expert("concise", []) is None
    row = {"article": "Long.", "abstract": "We propose a method.", "section_names": "x"}
    paper = WritingEnvironment("arxiv", [row]).task(0)
    assert paper.info["document"] == paper.prompt[0].content == "We propose a method."
    named = WritingEnvironment("arxiv", [{"summary": "We find."}], columns={"document": "summary"})
    assert named.task(0).info["document"] == "We find."
    both = {"prompt": "Sum up.", "document": POST, "texts": [SHORT, DETAILED]}
    world = WritingEnvironment(dataset=[both])
    world.reset(world.task(0))
    assert world.expert("detailed", []) == DETAILED
    assert world.task(0).prompt[0].content == "Sum up."


def test_rows_are_held_out() -> None:
    world = WritingEnvironment(dataset=[{"document": f"Text {i}."} for i in range(40)])
    train, held = world.num_tasks("train"), world.num_tasks("eval")
    assert train and held and train + held == 40
    assert world.spawn()._table is world._table


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"title": "x"}, "needs a text"),
        ({"document": "  "}, "its text is empty"),
        ({"document": "x", "texts": ["one"]}, "expected 2 texts"),
        ({"document": "x", "texts": "one"}, "expected 2 texts"),
    ],
)
def test_a_malformed_row_says_where(row: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=rf"row 0.*{says}"):
        WritingEnvironment(dataset=[row])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"preset": "tl"}, "did you mean 'tldr'"),
        ({"agents": ["one"]}, "at least two"),
        ({"agents": ["one", "one"]}, "different names"),
        ({"instructions": ["one"]}, "1 texts for 2"),
        ({"rewards": "both"}, "one of team, individual"),
        ({"rules": {"length": 3}}, "unknown rule 'length'"),
        ({"rules": {"words": [8]}}, "rules.words: invalid value"),
        ({"rules": {"words": [8, 2]}}, "rules.words: invalid value"),
        ({"rules": {"unique": [2, 1, 3, 4]}}, "rules.unique: invalid value"),
        ({"rules": {"overlap": 0}}, "rules.overlap: invalid value"),
        ({"rules": {"step": "x"}}, "rules.step: invalid value"),
    ],
)
def test_impossible_arguments_are_named(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        WritingEnvironment(**settings)


# -- the contract ----------------------------------------------------------------------------------


def test_a_missing_answer_and_a_flood_cost_what_silence_costs() -> None:
    world = WritingEnvironment()
    world.reset(world.task(0))
    assert [r.value for r in world.step({}).rewards.values()] == [0.0, 0.0]
    start = time.process_time()
    for flood in ("\ud800 " * 100_000, "a" * 200_000, "a " * 9_999, "in " + " " * 19_000 + "x"):
        assert paid(flood, flood) == 0.0
        assert paid(f"{flood[:19_000].strip()} a b c d e f g h", DETAILED) < 0.7
    assert time.process_time() - start < 2.0


def test_the_config_makes_the_world_it_describes() -> None:
    config = load_config(ROOT / "configs" / "writing.yaml")
    (section,) = config.environments
    world = WritingEnvironment(**section.constructor_arguments(WritingEnvironment))
    assert world.rules == PRESETS["short"].rules
