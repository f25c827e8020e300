"""Kuhn poker: a zero-sum game with three cards, one card per player and a single bet."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence

from mrlm.core.board import Html, table
from mrlm.core.environment import Split
from mrlm.core.episodes import Episode
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Role, Task
from mrlm.environments.shared.games import Opponent, Style, Teaches, TwoPlayerGame
from mrlm.environments.shared.rows import at_least, penalty
from mrlm.environments.shared.text import only_word

CARDS = "JQK"
DEALS = tuple(first + second for first, second in itertools.permutations(CARDS, 2))
VALUE = -1 / 18
"""Value of the game for the first player, in chips per hand (Kuhn 1950)."""
MOVES = ("", "p", "b", "pb")
"""Histories at which a player moves: `p` is check or fold, `b` bet or call. The second player moves
after `p` or `b`."""

Strategy = Mapping[tuple[str, str], float]
"""(card, history) -> probability of a bet or call."""
SEEN = tuple((card, said) for said in MOVES for card in CARDS)
"""The twelve information sets."""
RULES = (
    "Kuhn poker. The cards are J, Q and K, and K is the highest; you and the other player hold one "
    "each. Both have put 1 chip in. Who has the move checks, or bets 1 more chip; against a bet "
    "one folds, or calls with 1 chip. The higher card wins what is in. Answer with one word."
)
TOLD = {"p": ("check", "fold"), "b": ("bet", "call")}


def moves_of(history: str) -> list[str]:
    """The moves of a history as words."""
    return [TOLD[move]["b" in history[:i]] for i, move in enumerate(history)]


def words_after(said: str) -> tuple[str, str]:
    """The two legal moves, the passive one first."""
    return ("fold", "call") if "b" in said else ("check", "bet")


class KuhnPokerEnvironment(TwoPlayerGame):
    """A game of poker with three cards (Kuhn 1950). Both players put in a chip and get a card that
    the other never sees; the first checks or bets one chip, and against a bet a player folds or
    calls. The reward is the number of chips won: 1 or 2, or -1 or -2.

    An answer is a move if it is one of the two words in the question, or contains exactly one of
    them as a whole word. Any other answer folds the hand and costs `illegal` in addition, which is
    worse than any legal move. The other player does not receive the penalty.

    With best play the first player loses 1/18 chip per hand. The `expert` plays an equilibrium and
    cannot be exploited by any opponent.

    There are only six deals, so that training and held-out tasks contain the same deals.

    Args:
        agents: names of the agents; `first` and `second` (`player` against a script).
        num_hands: hands in an episode; the same player is first in all of them.
        illegal: chips that an illegal answer costs in addition to the hand.
        alpha: probability that the expert as first player bets with J; from 0 to 1/3. It bets with
            K three times as often. All values are equilibria.
        opponent, seat, teaches, style: as for every two-player game. In the `short` style `p`
            (pass) is check or fold, `b` is bet or call, and a question is the card with the moves
            so far: `Kpb?`.
        seed: another seed gives other deals for the same task seed.

    Raises:
        ConfigError: a number out of its range.
    """

    reward_range: tuple[float, float] | None = (-2.0, 2.0)

    def __init__(
        self,
        agents: str | Sequence[str] | None = None,
        num_hands: int = 1,
        illegal: float = 1.0,
        alpha: float = 1 / 3,
        opponent: Opponent = "agent",
        seat: str = "either",
        teaches: Teaches = "best",
        style: Style = "full",
        seed: int = 0,
    ) -> None:
        super().__init__(agents, opponent, seat, teaches, style)
        at_least("num_hands", num_hands, 1, whole=True)
        at_least("alpha", alpha, 0)
        if alpha > 1 / 3:
            raise ConfigError(f"alpha must be at most 1/3, not {alpha!r}")
        self.num_hands = num_hands
        self.illegal: float = penalty("illegal", illegal)
        self.alpha = alpha
        self.seed = seed
        self.max_turns: int | None = 3 * num_hands
        self._deals: tuple[str, ...] = ()
        self._hand, self._history = 0, ""
        self._finished: tuple[tuple[str, int], ...] = ()
        """Moves of the hands that are over, and the chips that the first player won."""

    def task(self, seed: int, split: Split = "train") -> Task:
        name = f"kuhn_poker-{self.seed}-{split}-{seed}"
        rng = random.Random(name)
        deals = [rng.choice(DEALS) for _ in range(self.num_hands)]
        prompt = [Message(self._question(deals[0][0], ""))]
        return Task(name, prompt, seed=seed, info={"deals": deals})

    def begin(self, task: Task) -> None:
        deals = task.info.get("deals")
        if not deals or any(deal not in DEALS for deal in deals):
            raise ConfigError(
                f"kuhn_poker: task {task.id!r} needs info['deals'], a list of {', '.join(DEALS)}"
            )
        self._deals, self._hand, self._history = tuple(deals), 0, ""
        self._finished = ()
        self.explain(RULES)

    def words(self) -> tuple[str, str]:
        """The two legal moves now, the passive one first."""
        return ("p", "b") if self.style == "short" else words_after(self._history)

    def question(self, role: int) -> str:
        return self._question(self._deals[self._hand][role], self._history)

    def _question(self, card: str, history: str) -> str:
        if self.style == "short":
            return f"{card}{history}?"
        said = [
            f"{'you' if (len(history) - i) % 2 == 0 else 'the other'}: {move}"
            for i, move in enumerate(moves_of(history))
        ]
        moves = "fold or call" if "b" in history else "check or bet"
        return f"Your card: {card}. Moves: {', '.join(said) or 'none'}. {moves}?"

    def play(self, role: int, text: str) -> None:
        words = self.words()
        said = only_word(text, words)
        if said is None:
            self.pay(role, -self.illegal, illegal=1.0)
            self.tell(role, "No move: folded.", "!")
            self._settle(1 - role, 1)
            return
        self._history += "pb"[words.index(said)]
        if self._history.endswith("bp"):
            self._settle(1 - role, 1)
        elif self._history in ("pp", "bb", "pbb"):
            first, second = self._deals[self._hand]
            winner = int(CARDS.index(second) > CARDS.index(first))
            self._settle(winner, 1 if self._history == "pp" else 2)
        else:
            self.mover = 1 - role

    def _settle(self, winner: int, chips: int) -> None:
        """Reward a hand, and deal the next."""
        for role, won in ((winner, chips), (1 - winner, -chips)):
            self.pay(role, won, chips=won)
            self.tell(role, f"You {'win' if won > 0 else 'lose'} {chips}. Next hand.", f"{won:+d}")
        won = chips if winner == 0 else -chips
        self._finished = (*self._finished, (self._history, won))
        self._hand, self._history = self._hand + 1, ""
        self.mover = 0 if self._hand < len(self._deals) else None

    @property
    def seen(self) -> tuple[str, str]:
        """The information set of the player to move: its card and the moves so far."""
        assert self.mover is not None
        return self._deals[self._hand][self.mover], self._history

    def state(self) -> str:
        if self.mover is None:
            return "over"
        hand = f"hand {self._hand + 1} of {len(self._deals)}"
        return f"{hand}: {self._deals[self._hand]} {self._history}".rstrip()

    def render(self, agent: str | None = None) -> Html:
        """The hands so far; an agent sees its own cards only."""
        known = (0, 1) if agent is None else (self._who.index(agent),)
        hands = [*self._finished] if self.mover is None else [*self._finished, (self._history, 0)]
        rows = []
        for number, ((history, chips), deal) in enumerate(zip(hands, self._deals, strict=False)):
            over = number < len(self._finished)
            cards = [
                (deal[role], f"player{role}") if role in known else ("?", "dim") for role in (0, 1)
            ]
            won = (f"{chips:+d}", "num win" if chips > 0 else "num lose") if over else "to play"
            rows.append([number + 1, *cards, ", ".join(moves_of(history)), won])
        first, second = self.roles
        return table(rows, ("hand", first, second, "moves", f"chips of {first}"))

    def chance(self, card: str, history: str) -> float:
        """Probability that the expert bets or calls, given its information set."""
        return equilibrium(self.alpha)[card, history]

    def best(self, role: int) -> str:
        often = self.chance(self._deals[self._hand][role], self._history)
        return self.words()[self.drawn().random() < often]

    def anything(self, role: int) -> str:
        return self.drawn().choice(self.words())


# -- the exact solution, over the twelve information sets ----------------------------------------


def equilibrium(alpha: float = 1 / 3) -> dict[tuple[str, str], float]:
    """An equilibrium strategy for both roles.

    Args:
        alpha: probability that the first player bets with J, from 0 to 1/3.
    """
    table = {
        "": {"J": alpha, "Q": 0.0, "K": 3 * alpha},
        "p": {"J": 1 / 3, "Q": 0.0, "K": 1.0},
        "b": {"J": 0.0, "Q": 1 / 3, "K": 1.0},
        "pb": {"J": 0.0, "Q": alpha + 1 / 3, "K": 1.0},
    }
    return {(card, said): table[said][card] for card, said in SEEN}


def checked(strategy: Strategy) -> Strategy:
    """The strategy itself. Raises `ValueError`: it lacks a probability from 0 to 1 for one of
    `SEEN`."""
    for seen in SEEN:
        if not 0.0 <= strategy.get(seen, -1.0) <= 1.0:
            raise ValueError(
                f"a strategy needs the probability of a bet or call, from 0 to 1, at {seen!r}; "
                f"this one has {strategy.get(seen)!r}"
            )
    return strategy


def payoff(deal: str, said: str) -> float | None:
    """Chips that the first player wins; `None` if the hand is not over."""
    better = 1.0 if CARDS.index(deal[0]) > CARDS.index(deal[1]) else -1.0
    if said.endswith("bp"):
        return 1.0 if said == "bp" else -1.0
    return {"pp": better, "bb": 2 * better, "pbb": 2 * better}.get(said)


def expected(first: Strategy, second: Strategy) -> float:
    """Expected reward of the first player in chips per hand, the mean over all deals."""
    sides = (checked(first), checked(second))

    def worth(deal: str, said: str) -> float:
        paid = payoff(deal, said)
        if paid is not None:
            return paid
        role = len(said) % 2
        bets = sides[role][deal[role], said]
        return bets * worth(deal, said + "b") + (1 - bets) * worth(deal, said + "p")

    return sum(worth(deal, "") for deal in DEALS) / len(DEALS)


def best_response(strategy: Strategy, role: int) -> float:
    """Expected reward of a best response in role `role` (0 is the first) against `strategy` in the
    other role, in chips per hand."""
    checked(strategy)

    def worth(card: str, said: str, chances: Mapping[str, float]) -> float:
        """Expected reward with a card; `chances` maps each card of the opponent to the probability
        of the moves so far."""
        deals = {theirs: card + theirs if role == 0 else theirs + card for theirs in chances}
        if payoff(next(iter(deals.values())), said) is not None:
            sign = 1.0 if role == 0 else -1.0
            return sign * sum(c * (payoff(deals[t], said) or 0.0) for t, c in chances.items())
        if len(said) % 2 == role:
            return max(worth(card, said + move, chances) for move in "pb")
        bets = {theirs: strategy[theirs, said] for theirs in chances}
        return worth(card, said + "b", {t: c * bets[t] for t, c in chances.items()}) + worth(
            card, said + "p", {t: c * (1 - bets[t]) for t, c in chances.items()}
        )

    others = {card: dict.fromkeys(CARDS.replace(card, ""), 1 / len(DEALS)) for card in CARDS}
    return sum(worth(card, "", chances) for card, chances in others.items())


def exploitability(strategy: Strategy) -> float:
    """Exploitability of a strategy: the reward of a best response against it in chips per hand,
    averaged over both roles; 0 for an equilibrium, above 0 for any other strategy.

    Args:
        strategy: probability of a bet or call, for each of `SEEN`.

    Raises:
        ValueError: it lacks a probability for one of them.

    Examples:
        >>> round(exploitability({seen: 1.0 for seen in SEEN}), 3)  # bets and calls with anything
        0.333
    """
    return (best_response(strategy, 0) + best_response(strategy, 1)) / 2


# -- strategies ------------------------------------------------------------------------------------


def conversations(env: KuhnPokerEnvironment) -> dict[tuple[str, str], list[Message]]:
    """The conversation of a player in each of the twelve information sets."""
    found: dict[tuple[str, str], list[Message]] = {}
    for card, said in SEEN:
        other = CARDS.replace(card, "")[0]
        deal = other + card if len(said) % 2 else card + other
        game = env.spawn()
        result = game.reset(Task("read", info={"deals": [deal]}))
        read: dict[str, list[Message]] = {name: [] for name in game.agents}
        for move in [*said, None]:
            ((name, observation),) = result.observations.items()
            read[name] += observation.messages
            if move is None:
                found[card, said] = read[name]
                break
            spoken = Message(game.words()["pb".index(move)], Role.ASSISTANT, agent=name)
            read[name].append(spoken)
            result = game.step({name: spoken})
    return found


def read_strategy(
    env: KuhnPokerEnvironment, scores: Callable[[list[Message], tuple[str, str]], Sequence[float]]
) -> dict[tuple[str, str], float]:
    """A player's probability of a bet or call in every information set, from its answer
    probabilities.

    Args:
        env: environment with two agents, which defines the prompts.
        scores: (conversation, the two moves) -> their probabilities, which need not be normalised.
    """
    chances: dict[tuple[str, str], float] = {}
    for seen, messages in conversations(env).items():
        words = ("p", "b") if env.style == "short" else words_after(seen[1])
        passes, bets = scores(messages, words)
        chances[seen] = bets / (passes + bets)
    return chances


def played_strategy(
    env: KuhnPokerEnvironment, episodes: Iterable[Episode], policy: str | None = None
) -> dict[tuple[str, str], float]:
    """The empirical strategy of a player: relative frequency of a bet or call in every information
    set. Illegal answers are left out, and an information set that never occurred counts as 0.5;
    with few games a player appears more exploitable than it is.

    Args:
        env: environment of the episodes, with two agents.
        policy: count only this policy's moves.
    """
    moves: dict[tuple[str, str], list[int]] = {seen: [] for seen in SEEN}
    for episode in episodes:
        game = env.spawn()
        game.reset(episode.task)
        for turn in sorted(episode.turns, key=lambda each: each.step):
            assert turn.message is not None and game.mover is not None
            said = only_word(turn.message.content, game.words())
            if said is not None and policy in (None, turn.policy):
                moves[game.seen].append(game.words().index(said))
            game.step({game.agents[game.mover]: turn.message})
    return {seen: sum(each) / len(each) if each else 0.5 for seen, each in moves.items()}


PLUGIN = KuhnPokerEnvironment
