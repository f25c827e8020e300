"""Kuhn poker: a zero-sum game with three cards, one card per player and a single bet."""

import itertools
from collections.abc import Mapping, Sequence

from mrlm.environments.poker import zero_sum
from mrlm.environments.poker.hands import PokerGame
from mrlm.environments.poker.zero_sum import Policy
from mrlm.environments.shared.games import Opponent, Style, Teaches
from mrlm.environments.shared.rows import at_least

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
    """

    reward_range: tuple[float, float] | None = (-2.0, 2.0)
    rules = RULES
    kind = "kuhn_poker"

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
        at_least(0, 1 / 3, alpha=alpha)
        self.alpha = alpha
        self.max_turns: int | None = 3 * num_hands

    def words(self) -> tuple[str, ...]:
        """The two legal moves now, the passive one first."""
        if self.style == "short":
            return "p", "b"
        return ("fold", "call") if "b" in self._history else ("check", "bet")

    def spoken(self, history: str) -> list[str]:
        return [TOLD[move]["b" in history[:i]] for i, move in enumerate(history)]

    def asked(self, view: str, history: str) -> str:
        if self.style == "short":
            return f"{view}{history}?"
        lines = [
            f"{'you' if (len(history) - i) % 2 == 0 else 'the other'}: {move}"
            for i, move in enumerate(self.spoken(history))
        ]
        moves = "fold or call" if "b" in history else "check or bet"
        return f"Your card: {view}. Moves: {', '.join(lines) or 'none'}. {moves}?"

    def stake(self, history: str) -> float:
        return 1.0

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
        if history.endswith("bp"):  # folded
            return 1.0 if history == "bp" else -1.0
        won = 1.0 if CARDS.index(deal[0]) > CARDS.index(deal[1]) else -1.0
        return won if history == "pp" else 2 * won


KUHN = KuhnRules()


def policy_of(strategy: Strategy) -> Policy:
    """The probabilities of both moves; out of their range where the strategy has none."""
    bets = {seen: strategy.get(seen, -1.0) for seen in SEEN}
    return {seen: (1 - bet, bet) for seen, bet in bets.items()}


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


PLUGIN = KuhnPokerEnvironment
