"""Kuhn poker as a table: what any two players earn, the best answer to a player, and how far a
player is from one that cannot be beaten. All of it is exact: there are twelve things to see."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

CARDS = "JQK"
DEALS = tuple(first + second for first, second in itertools.permutations(CARDS, 2))
VALUE = -1 / 18
"""Chips a hand that the first player earns where both play their best (Kuhn 1950)."""
MOVES = ("", "p", "b", "pb")
"""What has been said where somebody has the move: `p` is check or fold, `b` bet or call. Being
second means `p` or `b`."""

Strategy = Mapping[tuple[str, str], float]
"""(card, what has been said) -> chance to bet or call there."""
SEEN = tuple((card, said) for said in MOVES for card in CARDS)
"""The twelve things that can be seen."""


def equilibrium(alpha: float = 1 / 3) -> dict[tuple[str, str], float]:
    """A strategy for both seats that cannot be beaten.

    Args:
        alpha: how often the first player bets with J; any number from 0 to 1/3.
    """
    table = {
        "": {"J": alpha, "Q": 0.0, "K": 3 * alpha},
        "p": {"J": 1 / 3, "Q": 0.0, "K": 1.0},
        "b": {"J": 0.0, "Q": 1 / 3, "K": 1.0},
        "pb": {"J": 0.0, "Q": alpha + 1 / 3, "K": 1.0},
    }
    return {(card, said): table[said][card] for card, said in SEEN}


def checked(strategy: Strategy) -> Strategy:
    """The strategy itself.

    Raises:
        ValueError: it does not say for each of `SEEN` a chance from 0 to 1.
    """
    for seen in SEEN:
        if not 0.0 <= strategy.get(seen, -1.0) <= 1.0:
            raise ValueError(
                f"a strategy says how often one bets or calls, from 0 to 1, having seen {seen!r}; "
                f"this one says {strategy.get(seen)!r}"
            )
    return strategy


def payoff(deal: str, said: str) -> float | None:
    """Chips the first player wins; `None` where somebody has the move."""
    better = 1.0 if CARDS.index(deal[0]) > CARDS.index(deal[1]) else -1.0
    if said.endswith("bp"):
        return 1.0 if said == "bp" else -1.0
    return {"pp": better, "bb": 2 * better, "pbb": 2 * better}.get(said)


def expected(first: Strategy, second: Strategy) -> float:
    """Chips a hand that the first player earns, the mean over all deals.

    Args:
        first: who has the first move.
        second: the other.
    """
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
    """Chips a hand that the best player in seat `role` (0 is the first) earns against somebody in
    the other seat who plays `strategy`."""
    checked(strategy)

    def worth(card: str, said: str, chances: Mapping[str, float]) -> float:
        """What a card comes to; `chances` (of the other's cards) hold how likely the moves that
        were made are with each."""
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
    """Chips a hand that the best opponent of a strategy wins from it, the mean of both seats: 0 for
    a strategy that cannot be beaten, above 0 for any other.

    Args:
        strategy: how often one bets or calls, for each of `SEEN`.

    Raises:
        ValueError: it says nothing, or no chance, for one of them.

    Example:
        >>> round(exploitability({seen: 1.0 for seen in SEEN}), 3)  # bets and calls with anything
        0.333
    """
    return (best_response(strategy, 0) + best_response(strategy, 1)) / 2
