"""Exact solution of Kuhn poker: expected rewards of two strategies, best responses, and
exploitability, over its twelve information sets."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

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

    Example:
        >>> round(exploitability({seen: 1.0 for seen in SEEN}), 3)  # bets and calls with anything
        0.333
    """
    return (best_response(strategy, 0) + best_response(strategy, 1)) / 2
