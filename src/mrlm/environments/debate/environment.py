"""The debate environment: debaters speak for and against a topic, judges decide, and debaters are
rewarded."""

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, ClassVar, Literal

from mrlm.core.board import Html, shortened, stacked, table
from mrlm.core.environment import Environment, Split
from mrlm.core.errors import ConfigError
from mrlm.core.language_model import LLMEnvironment
from mrlm.core.matters import Matters
from mrlm.core.registry import unknown
from mrlm.core.thoughts import stated_by
from mrlm.core.types import Message, Observation, StepResult, Task
from mrlm.data.tasks import OnBadRow
from mrlm.environments.debate import judging
from mrlm.environments.debate.llm import Hearing, LLMJudge
from mrlm.environments.debate.prompts import between, honest, opening
from mrlm.environments.debate.rules import RuleBasedJudge
from mrlm.environments.debate.topics import SIDES, RowTopics, Side, Topic, topics_of
from mrlm.environments.shared.games import Style
from mrlm.environments.shared.rows import RowTasks, agent_names, built, row_matters, whole_number
from mrlm.environments.shared.text_judge import LONGEST

KINDS = {
    "rules": RuleBasedJudge,
    "truth": judging.TruthJudge,
    "llm": LLMJudge,
    "majority": judging.MajorityJudge,
}
"""Kind -> class of judges."""
Order = Literal["simultaneous", "sequential"]
MOST_DRAWN, LONGEST_DRAWN = 12, 300
"""Speeches of a board, the last ones, and characters of each."""
Opponent = str | Sequence[str] | Callable[[Topic, Side, list[judging.Speech]], str]


class DebateEnvironment(RowTasks, Environment):
    """An environment in which two or more debaters speak for and against a topic, and judges decide
    which side was better.

    Args:
        judge: the judge, as `judge_of` reads it: `rules`, `truth`, `{kind: llm, agent: judge}`, a
            list of judges, ...; by default `truth` if `reward` is, else `rules`. A judging agent is
            an agent of the environment, and acts after the debate.
        topics: `motions` (built in), `arithmetic` (generated claims that are true or false), a list
            of claims, or rows; see `topics_of`.
        max_turns: speeches of every debater.
        agents: names of the debaters.
        opponents: debater -> its script; a scripted debater is part of the environment and not an
            agent: `expert`, a list of its speeches, or a function `(topic, side, speeches) ->
            text`.
        reward: `graded`: a debater's score, 0 to 1; `winner`: 1 for the better side and -1 for the
            other (scaled to equal totals if the sides differ in size), 0 for a draw; `truth`: 1 for
            stating the right answer in the last speech, else 0, regardless of the judge.
        share: sharing of `graded` and `truth`: `own` reward, mean of the `side`, or of the `team`.
        order: `simultaneous`: all speak at once in each round; `sequential`: one by one, PRO first.
        draw_sides: assign sides at random from the seed; else sides alternate in the order of
            `agents`, PRO first. True unless the agents are called pro and con.
        prompts: `full`, or `short` for models with little context.
        eval_dataset, split, columns, on_bad_row: settings of topics from rows.
        seed: seed of generated topics, and of the split.
    """

    reward_range: tuple[float, float] | None = (0.0, 1.0)
    matters: ClassVar[Mapping[str, Matters]] = row_matters(
        "topics", kinds=("motions", "arithmetic")
    )
    alone: Mapping[str, Any] = {"judge": judging.TruthJudge(), "share": "own", "_opponents": {}}
    least: ClassVar[int] = 2
    """The least number of debaters."""

    def __init__(
        self,
        judge: Any = None,
        topics: Any = None,
        max_turns: int = 2,
        *,
        agents: Sequence[str] = SIDES,
        opponents: Mapping[str, Any] | None = None,
        reward: judging.Pay = "graded",
        share: judging.Share = "own",
        order: Order = "simultaneous",
        draw_sides: bool | None = None,
        prompts: Style = "full",
        eval_dataset: Any = None,
        split: str | None = None,
        columns: Mapping[str, str] | None = None,
        on_bad_row: OnBadRow = "raise",
        seed: int = 0,
    ) -> None:
        whole_number(1, max_turns=max_turns)
        if reward == "winner" and share == "team":
            raise ConfigError("share=team: the shared zero-sum reward is always 0; use share=own")
        self.debaters: tuple[str, ...] = agent_names(agents)
        if len(self.debaters) < self.least:
            raise ConfigError(f"agents: a debate needs two debaters, not {self.debaters!r}")
        self.rounds: int = max_turns
        self.reward: judging.Pay = reward
        self.share: judging.Share = share
        self.order: Order = order
        self.prompts: Style = prompts
        other_names = set(self.debaters) != set(SIDES)
        self.draw_sides: bool = other_names if draw_sides is None else draw_sides
        judge_setting = judge if judge is not None else "truth" if reward == "truth" else "rules"
        self.judge: judging.Judge = judge_of(judge_setting)
        self._opponents = _opponents(opponents or {}, self.debaters)
        live = [debater for debater in self.debaters if debater not in self._opponents]
        if not live:
            raise ConfigError("opponents: every debater is scripted; remove at least one")
        self.agents: tuple[str, ...] = agent_names([*live, *self.judge.by_agent])
        truth = reward == "truth" or isinstance(self.judge, judging.TruthJudge)
        rows = (eval_dataset, split, columns, on_bad_row)
        self._topics = topics_of(topics, truth, seed, *rows)
        if isinstance(self._topics, RowTopics) and reward == "truth":
            self._table, self.expert_return = self._topics, 1.0
        if truth and not self._topics.topic(0, "train").known:
            raise ConfigError("topics: their truth is not known; rows need truth or answer")
        questions = [judge.most_questions for judge in self.judge.by_agent.values()]
        steps = max_turns * (1 if order == "simultaneous" else len(live))
        self.max_turns: int | None = steps + max(questions, default=0)
        self._begin(Topic(""), 0, "none")

    def num_tasks(self, split: Split = "train") -> int | None:
        return self._topics.count(split)

    def task(self, seed: int, split: Split = "train") -> Task:
        topic, count = self._topics.topic(seed, split), self._topics.count(split)
        number = seed if count is None else seed % count
        answer = topic.solution if topic.known else None
        prompt = [Message(topic.claim)]
        return Task(f"debate-{split}-{number}", prompt, answer, seed, topic.info())

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        task = task or self.task(seed or 0)
        if "claim" not in task.info:
            raise ConfigError(f"debate: task {task.id!r} has no 'claim' in its info")
        truths = {key: task.info.get(key) for key in ("truth", "answer")}
        topic = Topic(task.info["claim"], task.info.get("points") or {}, **truths)
        self._begin(topic, task.seed if seed is None else seed, task.id)
        return self._advance()

    def step(self, actions: dict[str, Message]) -> Any:
        if self._queue:
            self._speak({debater: stated_by(actions, debater) for debater in self._queue[0]})
            return self._advance()
        for agent, hearing in self._hearings.items():
            if not hearing.over and not hearing.answer(stated_by(actions, agent)):
                self._unread[agent] = self._unread.get(agent, 0) + 1
        return self._advance()

    def state(self) -> str:
        sides = [f"{debater}: {side}" for debater, side in self._sides.items()]
        lines = [f"{speech.debater} said: {speech.text}" for speech in self._speeches]
        return "\n".join([self._topic.claim, *sides, *lines])

    def render(self, agent: str | None = None) -> Html | None:
        """The speeches by side, and the verdict; not for the agents."""
        if agent is not None:
            return None
        rows: dict[int, list[str]] = {}
        for speech in self._speeches[-MOST_DRAWN:]:
            cells = rows.setdefault(speech.moment, [str(speech.moment + 1), "", ""])
            side = self._sides[speech.debater]
            name = "" if speech.debater == side else f"{speech.debater}: "
            text, column = name + shortened(speech.text, LONGEST_DRAWN), 1 + SIDES.index(side)
            cells[column] = f"{cells[column]}\n{text}".strip()
        drawn = table(rows.values(), ("", *SIDES)) if rows else ""
        return stacked(self._topic.claim, *self._outcome(), drawn)

    def _outcome(self) -> list[Html]:
        """The verdict with the scores of the debaters."""
        verdict = self._verdict
        if verdict is None:
            return []
        rows = [
            (name, side, (verdict.scores.get(name, 0.0), "num"))
            for name, side in self._sides.items()
        ]
        truth = f"; the answer: {self._topic.solution}" if self._topic.known else ""
        winner = stacked(f"better side: {verdict.winner or 'void, no verdict was read'}{truth}")
        return [winner, table(rows, ("debater", "side", "score"))]

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        """The expert speech; for a judge, the right verdict (by rules, if the truth is unknown)."""
        if agent in self._hearings:
            return self._right_verdict(agent)
        return self._honest(agent)

    # -- the course of a debate --------------------------------------------------------------------

    def _begin(self, topic: Topic, seed: int, name: str) -> None:
        order = list(self.debaters)
        if self.draw_sides:
            random.Random(f"debate/{name}/{seed}").shuffle(order)
        drawn: dict[str, Side] = {speaker: SIDES[i % 2] for i, speaker in enumerate(order)}
        self._sides: dict[str, Side] = {debater: drawn[debater] for debater in self.debaters}
        self._topic = topic
        pro, con = ([d for d in self.debaters if drawn[d] == side] for side in SIDES)
        one_by_one = [d for d in chain(*zip_longest(pro, con)) if d is not None]
        together = [self.debaters] if self.order == "simultaneous" else [(d,) for d in one_by_one]
        self._queue: list[tuple[str, ...]] = together * self.rounds
        self._speeches: list[judging.Speech] = []
        self._moment = 0
        self._heard: dict[str, int] = {}
        self._hearings: dict[str, Hearing] = {}
        self._unread: dict[str, int] = {}
        self._verdict: judging.DebateVerdict | None = None

    @property
    def debate(self) -> judging.DebateRecord:
        """The debate so far."""
        return judging.DebateRecord(self._topic, self._sides, tuple(self._speeches), self.rounds)

    def _speak(self, speeches: Mapping[str, str]) -> None:
        """Add the speeches of the next speakers, including scripted opponents."""
        scripted = [speaker for speaker in self._queue[0] if speaker in self._opponents]
        texts = {**speeches, **{speaker: self._scripted(speaker) for speaker in scripted}}
        for debater in self._queue.pop(0):
            self._speeches.append(judging.Speech(debater, self._moment, texts.get(debater, "")))
        self._moment += 1

    def _advance(self) -> Any:
        """The next observations, or the rewards after the last judge's answer."""
        while self._queue and all(speaker in self._opponents for speaker in self._queue[0]):
            self._speak({})
        if self._queue:
            speakers = [speaker for speaker in self._queue[0] if speaker not in self._opponents]
            return StepResult({speaker: self._seen_by(speaker) for speaker in speakers})
        if not self._hearings:
            judges = self.judge.by_agent
            self._hearings = {agent: Hearing(judge, self.debate) for agent, judge in judges.items()}
        questions = {
            agent: Observation([hearing.question()], info={"new_conversation": hearing.opens})
            for agent, hearing in self._hearings.items()
            if not hearing.over
        }
        if questions:
            return StepResult(questions)
        agent_verdicts = {agent: hearing.verdict() for agent, hearing in self._hearings.items()}
        verdict = self.judge.decide(self.debate, agent_verdicts)
        if isinstance(verdict, judging.DebateVerdict):
            return self._rewarded(verdict)

        async def waiting() -> StepResult:
            return self._rewarded(await verdict)

        return waiting()

    def _rewarded(self, verdict: judging.DebateVerdict) -> StepResult:
        self._verdict = verdict
        rewards = judging.pay(self.debate, verdict, self.reward, self.share)
        unread = float(sum(self._unread.values()))
        for reward in rewards.values():
            if self._hearings:
                reward.components["unread_verdicts"] = unread
        mine = {debater: reward for debater, reward in rewards.items() if debater in self.agents}
        return StepResult(rewards=mine, done=True, info={"winner": verdict.winner})

    def _seen_by(self, debater: str) -> Observation:
        """The observation of a debater: its side at first, and others' speeches since its last."""
        start = self._heard.get(debater, 0)
        messages = []
        if debater not in self._heard:
            messages.append(Message(self._prompt(debater)))
        for speech in self._speeches[start:]:
            if speech.debater != debater:
                short = judging.Speech(speech.debater, speech.moment, speech.text[:LONGEST])
                messages.append(Message(self._prompt(debater, short), agent=speech.debater))
        self._heard[debater] = len(self._speeches)
        return Observation(messages)

    def _prompt(self, debater: str, speech: judging.Speech | None = None) -> str:
        """The first message a debater sees; another's speech as it sees it."""
        if speech is None:
            return opening(self._topic, self._sides[debater], self.rounds, self.prompts)
        return between(speech, self._sides[speech.debater], self.prompts)

    # -- scripted debaters and experts -------------------------------------------------------------

    def _scripted(self, debater: str) -> str:
        script, side = self._opponents[debater], self._sides[debater]
        if script == "expert":
            return self._honest(debater) or ""
        if callable(script):
            return str(script(self._topic, side, list(self._speeches)))
        return script[self._turns_of(debater) % len(script)]

    def _honest(self, debater: str) -> str | None:
        side = self._sides[debater]
        position = self.debate.of(side).index(debater)
        return honest(self._topic, side, self._turns_of(debater), position, self.prompts)

    def _turns_of(self, debater: str) -> int:
        return sum(speech.debater == debater for speech in self._speeches)

    def _right_verdict(self, agent: str) -> str | None:
        hearing, judge = self._hearings[agent], self.judge.by_agent[agent]
        if hearing.over:
            return None
        winner = RuleBasedJudge().decide(self.debate, {}).winner
        if self._topic.truth is not None:
            winner = "pro" if self._topic.truth else "con"
        elif self._topic.answer is not None:
            winner = judging.TruthJudge().decide(self.debate, {}).winner
        labels: dict[str | None, str] = dict(zip(hearing.order, "AB", strict=True))
        if judge.mode == "winner":
            return f"Winner: {labels.get(winner, 'tie')}"
        scores = {label: 10 if side == winner else 5 for side, label in labels.items()}
        return "\n".join(f"{label}: {scores[label]}" for label in "AB")


def judge_of(judge: Any) -> judging.Judge:
    """A judge.

    Args:
        judge: a judge; `rules`, `truth`, `llm` (the agent `judge`) or a mapping with such a `kind`
            and the judge's arguments; a list of these, which is a panel (the same as
            `kind: majority` with `judges`); a function or an `LLMEnvironment` to call.

    Raises:
        ConfigError: it is none of these, or has arguments that the judge does not accept.
    """
    if isinstance(judge, judging.Judge):
        return judge
    if isinstance(judge, list | tuple):
        return judging.MajorityJudge([judge_of(member) for member in judge])
    if isinstance(judge, LLMEnvironment) or callable(judge):
        return LLMJudge(ask=judge)
    if not isinstance(judge, str | Mapping):
        raise ConfigError(f"judge={judge!r} is not a judge; name one of {', '.join(KINDS)}")
    arguments: dict[str, Any] = {"kind": judge} if isinstance(judge, str) else dict(judge)
    kind = arguments.pop("kind", None)
    if kind not in KINDS:
        raise ConfigError(unknown(str(kind), list(KINDS), "judge.kind"))
    if kind == "majority":
        arguments["judges"] = [judge_of(member) for member in arguments.get("judges") or ()]
    if kind == "llm" and not {"agent", "ask"} & set(arguments):
        arguments["agent"] = "judge"
    return built(KINDS[kind], arguments, f"judge {kind!r}")


def _opponents(scripts: Mapping[str, Any], debaters: Sequence[str]) -> dict[str, Any]:
    for name, script in scripts.items():
        if name not in debaters:
            raise ConfigError(f"opponents.{name}: the debaters are {', '.join(debaters)}")
        listed = isinstance(script, list | tuple) and script
        texts = listed and all(isinstance(text, str) for text in script)
        if script != "expert" and not callable(script) and not texts:
            raise ConfigError(
                f"opponents.{name} must be 'expert', a list of texts or a function, not {script!r}"
            )
    return dict(scripts)
