"""Base class of poker games of two players, and strategies of models and of recorded episodes."""

import random
from collections.abc import Callable, Iterable, Sequence

from mrlm.core.board import Cell, Html, table
from mrlm.core.environment import Split
from mrlm.core.episodes import Episode
from mrlm.core.errors import ConfigError
from mrlm.core.thoughts import stated_text
from mrlm.core.types import Message, Role, Task
from mrlm.environments.poker.zero_sum import CardGame, GameTree, Policy, Seen
from mrlm.environments.shared.games import Opponent, Style, Teaches, TurnGame
from mrlm.environments.shared.rows import penalty, whole_number
from mrlm.environments.shared.short_answers import only_word

Chances = dict[Seen, tuple[float, ...]]


class PokerGame(TurnGame):
    """Hands of a card game for chips. An illegal answer folds the hand and costs `illegal`.

    A game sets `game` (its rules for the solver) before it calls `super().__init__`, `rules` and
    `kind`, and implements `words`, `spoken`, `asked`, `stake`, `revealed` and `equilibrium`.
    """

    game: CardGame
    rules: str
    """Explanation of the game in the first prompt."""
    kind: str
    """Name of the game in the ids of tasks."""

    def __init__(
        self,
        agents: str | Sequence[str] | None,
        num_hands: int,
        illegal: float,
        opponent: Opponent,
        seat: str,
        teaches: Teaches,
        style: Style,
        seed: int,
    ) -> None:
        super().__init__(agents, opponent, seat, teaches, style)
        whole_number(1, num_hands=num_hands)
        self.num_hands = num_hands
        self.illegal: float = penalty("illegal", illegal)
        self.seed = seed
        self._deals: tuple[str, ...] = ()
        self._hand, self._history = 0, ""
        self._finished: tuple[tuple[str, float], ...] = ()
        """Histories of the hands that are over, and the chips that the first player won."""

    # -- implemented by a game ---------------------------------------------------------------------

    def words(self) -> tuple[str, ...]:
        """The legal moves now, in the order of `CardGame.moves`."""
        raise NotImplementedError

    def spoken(self, history: str) -> list[str]:
        """The moves of a history as words."""
        raise NotImplementedError

    def asked(self, view: str, history: str) -> str:
        """The prompt of an information set."""
        raise NotImplementedError

    def stake(self, history: str) -> float:
        """Chips that the player to move has put in."""
        raise NotImplementedError

    def revealed(self, deal: str, history: str) -> list[tuple[str, Cell]]:
        """The parts of a board for everyone besides the moves: headings and cells."""
        return []

    def equilibrium(self) -> Policy:
        """The strategy of the expert."""
        raise NotImplementedError

    # -- the game ----------------------------------------------------------------------------------

    def task(self, seed: int, split: Split = "train") -> Task:
        name = f"{self.kind}-{self.seed}-{split}-{seed}"
        rng = random.Random(name)
        deals = [rng.choice(self.game.deals) for _ in range(self.num_hands)]
        prompt = [Message(self.asked(self.game.view(deals[0], ""), ""))]
        return Task(name, prompt, seed=seed, info={"deals": deals})

    def begin(self, task: Task) -> None:
        deals, legal_deals = task.info.get("deals"), set(self.game.deals)
        if not deals or any(deal not in legal_deals for deal in deals):
            some = ", ".join(sorted(legal_deals)[:6])
            raise ConfigError(
                f"{self.kind}: task {task.id!r} needs info['deals'], a list of deals such as {some}"
            )
        self._deals, self._hand, self._history = tuple(deals), 0, ""
        self._finished = ()
        self.explain(self.rules)

    def question(self, role: int) -> str:
        return self.asked(*self.seen)

    def play(self, role: int, text: str) -> None:
        words = self.words()
        move = only_word(text, words)
        if move is None:
            self.pay(role, -self.illegal, illegal=1.0)
            self.tell(role, "No move: folded.", "!")
            lost = self.stake(self._history)
            self._settle(-lost if role == 0 else lost)
            return
        letter = self.game.moves(self._history)[words.index(move)]
        self._history = self.game.after(self._history, letter)
        if self.game.moves(self._history):
            self.mover = self.game.mover(self._history)
        else:
            self._settle(self.game.chips(self._deals[self._hand], self._history))

    def _settle(self, won: float) -> None:
        """Reward a hand, and deal the next."""
        for role, chips in ((0, won), (1, 0.0 - won)):
            self.pay(role, chips, chips=chips)
            result = f"You {'win' if chips > 0 else 'lose'} {abs(chips):g}." if chips else "A draw."
            self.tell(role, f"{result} Next hand.", f"{chips:+g}")
        self._finished = (*self._finished, (self._history, won))
        self._hand, self._history = self._hand + 1, ""
        self.mover = 0 if self._hand < len(self._deals) else None

    @property
    def seen(self) -> Seen:
        """The information set of the player to move: the cards it sees, and the moves so far."""
        return self.game.view(self._deals[self._hand], self._history), self._history

    def state(self) -> str:
        if self.mover is None:
            return "over"
        hand = f"hand {self._hand + 1} of {len(self._deals)}"
        return f"{hand}: {self._deals[self._hand]} {self._history}".rstrip()

    def render(self, agent: str | None = None) -> Html:
        """The hands so far; an agent sees its own cards only."""
        visible = (0, 1) if agent is None else (self._who.index(agent),)
        hands = [*self._finished] if self.mover is None else [*self._finished, (self._history, 0)]
        first, second = self.roles
        more = [name for name, _ in self.revealed(self._deals[0], "")]
        rows = []
        for number, ((history, chips), deal) in enumerate(zip(hands, self._deals, strict=False)):
            over = number < len(self._finished)
            cards = [
                (deal[role], f"player{role}") if role in visible else ("?", "dim")
                for role in (0, 1)
            ]
            kind = "num" + (" win" if chips > 0 else " lose" if chips < 0 else "")
            won = (f"{chips:+g}" if chips else "0", kind) if over else "to play"
            cells = [cell for _, cell in self.revealed(deal, history)]
            rows.append([number + 1, *cards, *cells, ", ".join(self.spoken(history)), won])
        return table(rows, ("hand", first, second, *more, "moves", f"chips of {first}"))

    def best(self, role: int) -> str:
        return self.drawn().choices(self.words(), self.equilibrium()[self.seen])[0]

    def anything(self, role: int) -> str:
        return self.drawn().choice(self.words())


# -- strategies ------------------------------------------------------------------------------------


def conversations(env: PokerGame) -> dict[Seen, list[Message]]:
    """The conversation of a player in every information set, with one of the deals that lead there.

    Args:
        env: environment with two agents, which defines the prompts.
    """
    table: dict[Seen, list[Message]] = {}
    tree = GameTree(env.game)
    for node in tree.nodes:
        for row, key in enumerate(node.keys):
            deal = tree.deals[node.rows.tolist().index(row)]
            table[key] = _conversation(env.spawn(), deal, key[1])
    return table


def _conversation(game: PokerGame, deal: str, history: str) -> list[Message]:
    result = game.reset(Task("read", info={"deals": [deal]}))
    read: dict[str, list[Message]] = {name: [] for name in game.agents}
    while True:
        ((name, observation),) = result.observations.items()
        read[name] += observation.messages
        _, now = game.seen
        if now == history:
            return read[name]
        moves = game.game.moves(now)
        move = next(m for m in moves if history.startswith(game.game.after(now, m)))
        message = Message(game.words()[moves.index(move)], Role.ASSISTANT, agent=name)
        read[name].append(message)
        result = game.step({name: message})


def read_policy(
    env: PokerGame, scores: Callable[[list[Message], tuple[str, ...]], Sequence[float]]
) -> Chances:
    """A player's probability of every move in every information set, from its answer probabilities.

    Args:
        env: environment with two agents, which defines the prompts.
        scores: (conversation, the legal moves) -> their probabilities, which need not be
            normalised.
    """
    game, chances = env.spawn(), {}
    for key, messages in conversations(env).items():
        game._history = key[1]
        weights = scores(messages, game.words())
        chances[key] = tuple(score / sum(weights) for score in weights)
    return chances


def played_policy(
    env: PokerGame, episodes: Iterable[Episode], policy: str | None = None
) -> Chances:
    """The empirical strategy of a player: relative frequency of every move in every information
    set. Illegal answers are left out, and all moves of an information set that never occurred count
    alike; with few games a player appears more exploitable than it is.

    Args:
        env: environment of the episodes, with two agents.
        policy: count only this policy's moves.
    """
    moves = {key: [0] * len(env.game.moves(key[1])) for key in conversations(env)}
    for episode in episodes:
        game = env.spawn()
        game.reset(episode.task)
        for turn in sorted(episode.turns, key=lambda other: other.step):
            assert turn.message is not None and game.mover is not None
            move = only_word(stated_text(turn.message), game.words())
            if move is not None and policy in (None, turn.policy):
                moves[game.seen][game.words().index(move)] += 1
            game.step({game.agents[game.mover]: turn.message})
    return {
        key: tuple((n / sum(counts) if sum(counts) else 1 / len(counts)) for n in counts)
        for key, counts in moves.items()
    }
