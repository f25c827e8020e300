"""The environment for search and routing: a router thinks, queries, reads the returned information,
and answers. Queries go to agents of the episode, or to a search engine."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

from mrlm.core.board import Html, shortened, stacked, table
from mrlm.core.environment import Environment, Split
from mrlm.core.errors import ConfigError
from mrlm.core.matters import Matters
from mrlm.core.thoughts import OPENED, stated_text
from mrlm.core.types import Message, Observation, Reward, StepResult, Task
from mrlm.data.tasks import OnBadRow
from mrlm.environments.qa import ANSWERS, accepted_answers, problem_of
from mrlm.environments.search_qa import corpus, routing
from mrlm.environments.search_qa.models import Expert, experts_of, tokens_of
from mrlm.environments.search_qa.prompts import (
    Style,
    answers,
    askable,
    asks,
    information,
    instructions,
)
from mrlm.environments.shared.questions import QuestionTable
from mrlm.environments.shared.rows import RowTasks, row_matters, whole_number
from mrlm.environments.shared.short_answers import exact_match, f1
from mrlm.environments.tools.search import Document, LocalIndex, Search, source_of

Metric = Literal["em", "f1"]

ENGINE = "search"
"""Name of the search engine in queries, if there are models too."""
STOPS = ("</search>", "</answer>")
"""Stop strings of the router's turns."""
MAX_TURNS = 4
MOST_DRAWN = 600
"""Characters of a cell of the board."""
MAX_OBSERVATION = 2400
"""Maximum number of characters of returned information: about 600 tokens of English."""


class SearchQAEnvironment(RowTasks, Environment):
    """An environment of questions answered with queries (Router-R1, arXiv 2506.09033, and
    Search-R1, arXiv 2503.09516). In each turn the router thinks and then sends a query,
    `<search>name: question</search>` (without models: `<search>a few words</search>`), or states
    the answer, `<answer>..</answer>`, which ends the episode; its turn ends with either closing tag
    (`stops`). The result of a query is returned as `<information>..</information>`, in a separate
    message, so that these tokens are not trained on; an invalid name or question returns `None`.
    After `max_turns` turns the router has one more, without a query.

    The router is rewarded at the end: -1.0 if the form of the whole transcript is invalid
    (`routing.form`) or it wrote an `<information>` itself; else the score of the answer, by exact
    match or token F1 after SQuAD's normalisation. The components `em`, `f1`, `form`, `routes`
    (number of valid queries), `cost` (price times tokens of the models, which the algorithm
    `router_r1` weighs) and `latency` (seconds, from the table) are logged.

    Args:
        models: models that the router can query: names, or name -> `{agent, price, latency,
            about}`: the agent that answers (by default the name), the price of a million output
            tokens, seconds per token, and its description in the prompt. Any frozen agent can play
            a model, local or behind an API. Without models there is one search engine.
        search: source of the search engine: `builtin` (people, books, towns, rivers and lakes of a
            fictional country), documents (rows with `text`, a file, a folder of texts), the URL of
            a retrieval server, or a `Search`. With models it is an additional one, `search`.
        dataset: rows with `question` (or `prompt`) and `answer` (or `answers`, `golden_answers`);
            questions about the built-in corpus when `None`.
        eval_dataset: held-out rows; a tenth of `dataset` when `None`.
        hops: hops of the built-in questions, 1, 2 or both.
        max_turns: turns with a query.
        reward: `em` or `f1`.
        topk: number of documents per search.
        max_observation: maximum number of characters of returned information.
        prompts: `full`, or `short`: the question alone, for models trained on the format.
        router: name of the router's role.
        split, columns, on_bad_row, seed: settings of rows.

    Raises:
        ConfigError: impossible arguments, or a row without question or answer.
    """

    reward_range: tuple[float, float] | None = (-1.0, 1.0)
    expert_return: float | None = 1.0
    alone: Mapping[str, Any] = {"rounds": 0}
    matters: ClassVar[Mapping[str, Matters]] = row_matters(
        "dataset", rows=["seed"], generated=["hops"]
    )
    _table: QuestionTable | None = None

    def __init__(
        self,
        models: Mapping[str, Any] | Sequence[str] | None = None,
        search: Any = None,
        dataset: Any = None,
        *,
        eval_dataset: Any = None,
        hops: int | Sequence[int] = (1, 2),
        max_turns: int = MAX_TURNS,
        reward: Metric = "em",
        topk: int = 3,
        max_observation: int = MAX_OBSERVATION,
        prompts: Style = "full",
        router: str = "router",
        split: str | None = None,
        columns: Mapping[str, str] | None = None,
        on_bad_row: OnBadRow = "raise",
        seed: int = 0,
    ) -> None:
        whole_number(0, max_turns=max_turns)
        whole_number(1, topk=topk, max_observation=max_observation)
        self.experts: dict[str, Expert] = {} if models is None else experts_of(models)
        self.search: Search | None = None
        if models is None or search is not None:
            self.search = _source("builtin" if search is None else search)
        if self.experts and self.search is not None:
            if ENGINE in (name.lower() for name in self.experts):
                raise ConfigError(f"models: {ENGINE!r} is the search engine; rename the model")
            self.experts[ENGINE] = Expert(ENGINE, "", about="a search engine")
        self.router = router
        expert_agents = (expert.agent for expert in self.experts.values() if expert.agent)
        self.agents: tuple[str, ...] = (router, *expert_agents)
        if len(set(self.agents)) < len(self.agents):
            raise ConfigError(f"models: the agent {router!r} is the router; rename one of them")
        self.rounds = max_turns
        self.max_turns: int | None = 1 + max_turns * (2 if len(self.agents) > 1 else 1)
        self.blocking: bool = not isinstance(self.search, LocalIndex | None)
        self.reward: Metric = reward
        self.topk = topk
        self.max_observation = max_observation
        self.prompts: Style = prompts
        self.hops: tuple[int, ...] = _hops(hops)
        if dataset is not None:
            settings = (eval_dataset, split, columns, on_bad_row, seed)
            self._table = QuestionTable(
                "search_qa data set", ANSWERS, dataset, *settings, problem=problem_of
            )
        self._begin(Task("none"))

    def num_tasks(self, split: Split = "train") -> int | None:
        count = super().num_tasks(split)
        return len(corpus.questions(split, self.hops)) if count is None else count

    def task(self, seed: int, split: Split = "train") -> Task:
        if self._table is not None:
            row = self._table.question(seed, split)
            index, text, info = row.index, row.text, row.info
            gold = accepted_answers(row.gold)
        else:
            pool = corpus.questions(split, self.hops)
            index = seed % len(pool)
            one = pool[index]
            text, gold = one.text, [one.answer]
            info = {"question": text, "hops": [list(hop) for hop in one.hops]}
        about = {name: expert.about for name, expert in self.experts.items()}
        opening = Message(instructions(text, about or None, self.rounds, self.prompts))
        return Task(f"search-{split}-{index}", [opening], gold, seed, info)

    @property
    def stops(self) -> dict[str, tuple[str, ...]]:
        """Stop strings of the router: its turn ends with a query or an answer."""
        return {self.router: STOPS}

    def reset(self, task: Task | None = None, seed: int | None = None) -> StepResult:
        task = task or self.task(seed or 0)
        self._begin(task)
        if not self._accepted:
            raise ConfigError(f"environment search_qa: task {task.id!r} has no answer")
        return StepResult({self.router: Observation(list(task.prompt))})

    def _begin(self, task: Task) -> None:
        self._task = task
        self._accepted = accepted_answers(task.answer)
        self._said: tuple[str, ...] = ()
        """The router's messages, turn by turn."""
        self._shown: tuple[str, ...] = ()
        """The information returned after each turn."""
        self._asked: Expert | None = None
        self._routes = 0
        self._tokens: dict[str, int] = {}

    @property
    def transcript(self) -> str:
        """The whole text from the router's first token on."""
        observations = (*self._shown, *[""] * (len(self._said) - len(self._shown)))
        return "".join(a + b for a, b in zip(self._said, observations, strict=True))

    def step(self, actions: dict[str, Message]) -> StepResult:
        if self._asked is not None:
            return self._told(next(iter(actions.values())))
        message = actions[self.router]
        text = _whole(message)
        last = len(self._said) == self.rounds
        self._said = (*self._said, text)
        action, body = _action(text)
        if action == "answer" or last:
            return self._paid()
        if action is None:
            return self._shows("")
        query = routing.route(body, list(self.experts) or None)
        if query is None:
            return self._shows(information(None, self.max_observation))
        name, question = query
        self._routes += 1
        expert = self.experts.get(name)
        if expert is None or not expert.agent:
            return self._shows(self._searched(question))
        self._asked = expert
        seen = Observation([Message(question)], info={"new_conversation": True})
        return StepResult({expert.agent: seen})

    def _told(self, message: Message) -> StepResult:
        expert, self._asked = self._asked, None
        assert expert is not None
        counted = self._tokens.get(expert.name, 0) + tokens_of(message)
        self._tokens = {**self._tokens, expert.name: counted}
        return self._shows(information(stated_text(message), self.max_observation))

    def _searched(self, question: str) -> str:
        assert self.search is not None
        documents = self.search.search(question, self.topk)
        lines = (f"{n}. {one.title}: {one.text}" for n, one in enumerate(documents, 1))
        return information("\n".join(lines) if documents else None, self.max_observation)

    def _shows(self, text: str) -> StepResult:
        self._shown = (*self._shown, text)
        return StepResult({self.router: Observation([Message(text)])})

    def _paid(self) -> StepResult:
        text, names = self.transcript, list(self.experts) or None
        forged = any("<information>" in answer for answer in self._said)
        shape = routing.WORST if forged else routing.form(text, names)
        value = (
            routing.WORST
            if forged
            else routing.routing_reward(text, self._accepted, names, self.reward)
        )
        stated = [body for tag, body in routing.blocks(text) or () if tag == "answer"]
        answer = stated[0] if shape == 0 else ""
        prices = {name: expert.price / 1e6 for name, expert in self.experts.items()}
        latency = {name: expert.latency for name, expert in self.experts.items()}
        components = {
            "em": exact_match(answer, self._accepted),
            "f1": f1(answer, self._accepted),
            "form": shape,
            "routes": float(self._routes),
            "cost": routing.asking_cost(self._tokens, prices),
            "latency": routing.asking_cost(self._tokens, latency),
            "turns": float(len(self._said)),
        }
        return StepResult(rewards={self.router: Reward(value, components)}, done=True)

    def state(self) -> str:
        return f"{self._task.info.get('question', '')}\n{self.transcript}"

    def render(self, agent: str | None = None) -> Html | None:
        """The queries with their information, and the accepted answers; not for the agents."""
        if agent is not None:
            return None
        rows = []
        for number, text in enumerate(self._said):
            action, body = _action(text)
            result = self._shown[number] if number < len(self._shown) else ""
            kind = ""
            if action == "answer":
                right = exact_match(body, self._accepted)
                result, kind = ("right", "good") if right else ("wrong", "bad")
            written, seen = shortened(body.strip(), MOST_DRAWN), shortened(result, MOST_DRAWN)
            rows.append((number + 1, action or "neither", written, (seen, kind)))
        drawn = table(rows, ("turn", "", "text", "information")) if rows else ""
        return stacked(drawn, shortened(f"accepted: {' or '.join(self._accepted)}", MOST_DRAWN))

    def expert(self, agent: str, messages: list[Message]) -> str | None:
        """The expert message: the router queries its first model, or the search engine, for every
        hop, and then answers; a model knows the answer of every hop."""
        hops = self._task.info.get("hops") or [[self._task.info["question"], self._accepted[0]]]
        if agent != self.router:
            question = messages[-1].content
            known = (answer for hop, answer in hops if askable(hop) == question)
            return next(known, "I do not know")
        done = len(self._said)
        if done < min(len(hops), self.rounds):
            names = list(self.experts)
            model = names[self._task.seed % len(names)] if names else ""
            return asks(hops[done][0], model, f"step {done + 1} of {len(hops)}", self.prompts)
        return answers(self._accepted[0])


def _whole(message: Message) -> str:
    """The message, completed by the opening tag that its prompt ends in, and by the closing tag
    that a stop string has cut off."""
    text, turn = message.content, message.turn
    if OPENED in message.metadata:
        text = f"<think>{text}"  # written by the chat template
    if turn is None or turn.finish_reason != "stop":
        return text
    ends = (f"</{tag}>" for tag in routing.TAGS if f"</{tag}>" in turn.sampling.stop)
    cut = (end for end in ends if text.count(end) < text.count(end.replace("/", "")))
    return text + next(cut, "")


_THOUGHTS = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
"""Thoughts in a transcript, which may have several; one that is open lasts to the end."""


def _action(text: str) -> tuple[str | None, str]:
    """The first `<search>` or `<answer>` of a message outside its thoughts, and its content."""
    text = _THOUGHTS.sub("", text)
    matches: list[tuple[int, str, str]] = []
    for tag in ("search", "answer"):
        start = text.find(f"<{tag}>")
        end = text.find(f"</{tag}>", start)
        if start >= 0 and end >= 0:
            matches.append((start, tag, text[start + len(tag) + 2 : end]))
    return min(matches)[1:] if matches else (None, "")


def _source(setting: Any) -> Search:
    if setting == "builtin":
        return _builtin()
    if isinstance(setting, str | Path) and Path(setting).is_dir():
        files = [path for end in ("txt", "md") for path in sorted(Path(setting).rglob(f"*.{end}"))]
        if files:
            texts = ((path.read_text(encoding="utf-8", errors="replace"), path) for path in files)
            return LocalIndex(Document(text, path.stem) for text, path in texts)
    return source_of(setting)


@cache
def _builtin() -> LocalIndex:
    return LocalIndex(corpus.documents())


def _hops(hops: int | Sequence[int]) -> tuple[int, ...]:
    values = (hops,) if isinstance(hops, int) else tuple(hops)
    if not values or any(hop not in (1, 2) or isinstance(hop, bool) for hop in values):
        raise ConfigError(f"hops must be 1, 2 or both, not {hops!r}")
    return tuple(sorted(set(values)))
