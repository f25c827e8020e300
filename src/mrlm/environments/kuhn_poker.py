"""Kuhn poker: a zero-sum game with three cards, one card per player and a single bet."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

from mrlm.core.episodes import Episode
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message
from mrlm.environments.shared import poker, zero_sum
from mrlm.environments.shared.games import Opponent, Style, Teaches
from mrlm.environments.shared.poker import PokerGame
from mrlm.environments.shared.rows import at_least
from mrlm.environments.shared.zero_sum import Policy

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


def words_after(history: str) -> tuple[str, str]:
    """The two legal moves, the passive one first."""
    return ("fold", "call") if "b" in history else ("check", "bet")


class KuhnPokerEnvironment(PokerGame):
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
    rules = RULES

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
        self.game = KUHN
        super().__init__(agents, num_hands, illegal, opponent, seat, teaches, style, seed)
        at_least("alpha", alpha, 0)
        if alpha > 1 / 3:
            raise ConfigError(f"alpha must be at most 1/3, not {alpha!r}")
        self.alpha = alpha
        self.max_turns: int | None = 3 * num_hands

    @property
    def kind(self) -> str:
        return "kuhn_poker"

    def words(self) -> tuple[str, ...]:
        """The two legal moves now, the passive one first."""
        return ("p", "b") if self.style == "short" else words_after(self._history)

    def spoken(self, history: str) -> list[str]:
        return moves_of(history)

    def asked(self, view: str, history: str) -> str:
        if self.style == "short":
            return f"{view}{history}?"
        lines = [
            f"{'you' if (len(history) - i) % 2 == 0 else 'the other'}: {move}"
            for i, move in enumerate(moves_of(history))
        ]
        moves = "fold or call" if "b" in history else "check or bet"
        return f"Your card: {view}. Moves: {', '.join(lines) or 'none'}. {moves}?"

    def stake(self, history: str) -> float:
        return 1.0

    def chance(self, card: str, history: str) -> float:
        """Probability that the expert bets or calls, given its information set."""
        return equilibrium(self.alpha)[card, history]

    def equilibrium(self) -> Policy:
        return policy_of(equilibrium(self.alpha))


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
    return {(card, history): table[history][card] for card, history in SEEN}


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


def payoff(deal: str, history: str) -> float | None:
    """Chips that the first player wins; `None` if the hand is not over."""
    better = 1.0 if CARDS.index(deal[0]) > CARDS.index(deal[1]) else -1.0
    if history.endswith("bp"):
        return 1.0 if history == "bp" else -1.0
    return {"pp": better, "bb": 2 * better, "pbb": 2 * better}.get(history)


class KuhnRules:
    """The rules, for the exact solution."""

    deals = DEALS

    def moves(self, history: str) -> str:
        return "pb" if history in MOVES else ""

    def mover(self, history: str) -> int:
        return len(history) % 2

    def after(self, history: str, move: str) -> str:
        return history + move

    def view(self, deal: str, history: str) -> str:
        return deal[self.mover(history)]

    def chips(self, deal: str, history: str) -> float:
        chips = payoff(deal, history)
        assert chips is not None, "the hand is not over"
        return chips


KUHN = KuhnRules()


def policy_of(strategy: Strategy) -> Policy:
    """The probabilities of both moves. Raises `ValueError`: see `checked`."""
    checked(strategy)
    return {seen: (1 - strategy[seen], strategy[seen]) for seen in SEEN}


def expected(first: Strategy, second: Strategy) -> float:
    """Expected reward of the first player in chips per hand, the mean over all deals."""
    return zero_sum.expected(KUHN, policy_of(first), policy_of(second))


def best_response(strategy: Strategy, role: int) -> float:
    """Expected reward of a best response in role `role` (0 is the first) against `strategy` in the
    other role, in chips per hand."""
    return zero_sum.best_response(KUHN, policy_of(strategy), role)


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
    return zero_sum.exploitability(KUHN, policy_of(strategy))


# -- strategies ------------------------------------------------------------------------------------


def conversations(env: KuhnPokerEnvironment) -> dict[tuple[str, str], list[Message]]:
    """The conversation of a player in each of the twelve information sets."""
    table = poker.conversations(env)
    return {seen: table[seen] for seen in SEEN}


def read_strategy(
    env: KuhnPokerEnvironment, scores: Callable[[list[Message], tuple[str, ...]], Sequence[float]]
) -> dict[tuple[str, str], float]:
    """A player's probability of a bet or call in every information set, from its answer
    probabilities.

    Args:
        env: environment with two agents, which defines the prompts.
        scores: (conversation, the two moves) -> their probabilities, which need not be normalised.
    """
    return {seen: bets for seen, (_, bets) in poker.read_policy(env, scores).items()}


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
    played = poker.played_policy(env, episodes, policy)
    return {seen: bets for seen, (_, bets) in played.items()}


PLUGIN = KuhnPokerEnvironment
