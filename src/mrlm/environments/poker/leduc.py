"""Leduc poker: a zero-sum game with six cards, two rounds of bets, and a card revealed between."""

import functools
import itertools
from collections.abc import Sequence

from mrlm.core.board import Cell
from mrlm.core.content import content
from mrlm.environments.poker import zero_sum
from mrlm.environments.poker.hands import PokerGame
from mrlm.environments.poker.zero_sum import Policy, Seen
from mrlm.environments.shared.games import Opponent, Style, Teaches
from mrlm.environments.shared.rows import level_settings, whole_number

RANKS = "9TJQKA"
"""All ranks, the lowest first; a game has the `ranks` of them around Q."""
LEVELS: dict[int, dict[str, int]] = content(__file__)
"""Level -> settings; 3 is Leduc poker."""
ANTE, SIZES = 1, (2, 4)
"""Chips that both put in at first, and the raise of each round."""
VALUE = -0.0856
"""Value of Leduc poker for the first player, in chips per hand, rounded."""
TOLERANCE = 0.003
"""Exploitability of the expert at most, in chips per hand."""
WORDS = {"f": ("fold", "fold"), "c": ("check", "call"), "r": ("bet", "raise")}
"""Move -> its word without and with a bet to answer."""


class LeducRules:
    """The rules, for the exact solution. A history has the moves `f` (fold), `c` (check or call)
    and `r` (bet or raise), with `/` at the end of a round; a deal is the cards of both players and
    the one that is revealed after the first round, of two suits that are never shown.

    Args:
        raises: bets and raises in a round at most, of both players together.
    """

    def __init__(self, ranks: int = 3, raises: int = 2) -> None:
        self.raises = raises
        start = 3 - ranks // 2 if ranks > 3 else 2
        self.ranks = RANKS[start : start + ranks]
        self.deals: list[str] = [
            "".join(deal) for deal in itertools.permutations(self.ranks * 2, 3)
        ]

    def moves(self, history: str) -> str:
        now = history.split("/")
        if history.endswith("f") or len(now) > len(SIZES):
            return ""
        fold = "f" if now[-1].endswith("r") else ""
        return fold + "c" + ("r" if now[-1].count("r") < self.raises else "")

    def mover(self, history: str) -> int:
        return len(history.split("/")[-1]) % 2

    def after(self, history: str, move: str) -> str:
        history += move
        ends = move == "c" and len(history.split("/")[-1]) > 1
        return history + "/" if ends else history

    def view(self, deal: str, history: str) -> str:
        return deal[self.mover(history)] + (deal[2] if "/" in history else "")

    def chips(self, deal: str, history: str) -> float:
        first, second = self.stakes(history)
        if history.endswith("f"):
            folded = 1 - self.mover(history)
            return -first if folded == 0 else second
        hands = [(card == deal[2], self.ranks.index(card)) for card in deal[:2]]
        return 0.0 if hands[0] == hands[1] else first if hands[0] > hands[1] else -second

    def stakes(self, history: str) -> list[float]:
        """Chips that each player has put in."""
        put = [float(ANTE)] * 2
        for size, moves in zip(SIZES, history.split("/"), strict=False):
            for player, move in enumerate(moves):
                if move != "f":
                    put[player % 2] = max(put) + (size if move == "r" else 0)
        return put


class LeducEnvironment(PokerGame):
    """Leduc poker (Southey et al. 2005). There are the cards J, Q and K in two suits. Both
    players put in a chip and get a card that the other never sees. In each of two rounds they check
    or bet, and against a bet fold, call or raise; a bet or raise is 2 chips in the first round and
    4 in the second, at most two in a round, and the first player begins both. After the first round
    a card is revealed: a player with a card of its rank wins, else the higher rank; equal ranks are
    a draw. The reward is the number of chips won, up to 13.

    An answer is a move if it is one of the words in the question, or contains exactly one of them
    as a whole word. Any other answer folds the hand and costs `illegal` in addition. The other
    player does not receive the penalty.

    With best play the first player loses 0.0856 chips per hand. The `expert` plays an approximate
    equilibrium, computed by CFR+ at first use (about a second; level 4 a few): no opponent wins
    more than 0.003 chips per hand against it, the mean over both roles. There are only 24 different
    deals, so that training and held-out tasks contain the same deals.

    Args:
        agents: names of the agents; `first` and `second` (`player` against a script).
        level: 1: two ranks and one raise in a round (56 information sets); 2: three ranks and one
            raise (120); 3: Leduc poker (288); 4: six ranks (1116).
        ranks: number of ranks, 2 to 6, instead of that of the level.
        raises: bets and raises in a round at most, 1 to 3, instead of those of the level.
        num_hands: hands in an episode; the same player is first in all of them.
        illegal: chips that an illegal answer costs in addition to the hand.
        opponent, seat, teaches, style: as for every two-player game. In the `short` style `f` is
            fold, `c` check or call, `r` bet or raise, and a question is the card, the moves so far,
            and after `/` the revealed card with the moves since: `Kcrc/Qr?`.
        seed: another seed gives other deals for the same task seed.
    """

    reward_range: tuple[float, float] | None = (-13.0, 13.0)

    def __init__(
        self,
        agents: str | Sequence[str] | None = None,
        level: int = 3,
        ranks: int | None = None,
        raises: int | None = None,
        num_hands: int = 1,
        illegal: float = 1.0,
        opponent: Opponent = "agent",
        seat: str = "either",
        teaches: Teaches = "best",
        style: Style = "full",
        seed: int = 0,
    ) -> None:
        settings = level_settings(LEVELS, level, ranks=ranks, raises=raises)
        self.ranks: int = settings["ranks"]
        self.raises: int = settings["raises"]
        whole_number(2, 6, ranks=self.ranks)
        whole_number(1, 3, raises=self.raises)
        self.game = self._rules = leduc_rules(self.ranks, self.raises)
        super().__init__(agents, num_hands, illegal, opponent, seat, teaches, style, seed)
        self.kind: str = f"leduc-{self.ranks}-{self.raises}"
        self.max_turns: int | None = len(SIZES) * (self.raises + 2) * num_hands
        self.rules: str = (
            f"Leduc poker. The cards are {', '.join(self._rules.ranks)}, two of each, the highest "
            "last; you and the other player hold one each. Both have put 1 chip in. There are two "
            f"rounds. In a round you check or bet; against a bet you fold, call or raise. A bet or "
            f"raise is {SIZES[0]} chips in the first round and {SIZES[1]} in the second, at most "
            f"{self.raises} in a round. After the first round a card is revealed to both. In the "
            "end a card equal to it wins, else the higher card; equal cards share what is in. "
            "Answer with one word."
        )

    def words(self) -> tuple[str, ...]:
        moves = self.game.moves(self._history)
        if self.style == "short":
            return tuple(moves)
        return tuple(WORDS[move]["f" in moves] for move in moves)

    def spoken(self, history: str) -> list[str]:
        words = []
        for moves in history.split("/"):
            words += [WORDS[move]["r" in moves[:i]] for i, move in enumerate(moves)]
        return words

    def asked(self, view: str, history: str) -> str:
        rounds = history.split("/")
        if self.style == "short":
            return f"{view[0]}{'/'.join([rounds[0], *(view[1:] + r for r in rounds[1:])])}?"
        mine = self.game.mover(history)
        texts = []
        for number, moves in enumerate(rounds, 1):
            who = ("you" if index % 2 == mine else "the other" for index in range(len(moves)))
            words = [f"{a}: {b}" for a, b in zip(who, self.spoken(moves), strict=True)]
            texts.append(f"Round {number}: {', '.join(words) or 'no moves'}.")
        revealed = f" Revealed card: {view[1]}." if len(view) > 1 else ""
        put = self._rules.stakes(history)
        legal = self.game.moves(history)
        choices = [WORDS[move]["f" in legal] for move in legal]
        return (
            f"Your card: {view[0]}.{revealed} {' '.join(texts)} You have put in {put[mine]:g}, the "
            f"other {put[1 - mine]:g}. {', '.join(choices[:-1])} or {choices[-1]}?"
        )

    def stake(self, history: str) -> float:
        return self._rules.stakes(history)[self.game.mover(history)]

    def revealed(self, deal: str, history: str) -> list[tuple[str, Cell]]:
        first, second = self._rules.stakes(history)
        card: Cell = (deal[2], "good") if "/" in history else ("?", "dim")
        return [("revealed", card), ("put in", f"{first:g} : {second:g}")]

    def equilibrium(self) -> Policy:
        return leduc_equilibrium(self.ranks, self.raises)


@functools.cache
def leduc_rules(ranks: int = 3, raises: int = 2) -> LeducRules:
    """The rules of a game, made once."""
    return LeducRules(ranks, raises)


@functools.cache
def leduc_equilibrium(ranks: int = 3, raises: int = 2) -> dict[Seen, tuple[float, ...]]:
    """An approximate equilibrium, whose exploitability is at most `TOLERANCE`."""
    return zero_sum.solve(leduc_rules(ranks, raises), TOLERANCE)


def leduc_exploitability(policy: Policy, ranks: int = 3, raises: int = 2) -> float:
    """Exploitability of a strategy: the reward of a best response against it in chips per hand,
    averaged over both roles; 0 for an equilibrium, above 0 for any other strategy.

    Args:
        policy: (cards that are seen, history) -> probability of each legal move, in the order fold,
            check or call, bet or raise, as `read_policy` and `played_policy` of
            `mrlm.environments.poker.hands` return it.
        ranks, raises: of the game.

    Raises:
        ValueError: it lacks probabilities for an information set.
    """
    return zero_sum.exploitability(leduc_rules(ranks, raises), policy)


PLUGIN = LeducEnvironment
