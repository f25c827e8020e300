"""Exact values of small card games of two players: expected reward, best response, exploitability,
and equilibria by CFR+. All chance is in the deal: cards that are revealed later are hidden."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

Seen = tuple[str, str]
"""An information set: the cards that the player to move sees, and the history."""
Policy = Mapping[Seen, Sequence[float]]
"""Information set -> probability of each legal move, in the order of `CardGame.moves`."""


class CardGame(Protocol):
    """The rules of a zero-sum game in which all cards are dealt before the first move."""

    @property
    def deals(self) -> Sequence[str]:
        """All deals, equally likely; one that is more likely than another occurs more often."""
        ...

    def moves(self, history: str) -> str:
        """The legal moves, a letter each; none if the game is over."""
        ...

    def mover(self, history: str) -> int:
        """The role to move, 0 or 1."""
        ...

    def after(self, history: str, move: str) -> str:
        """The history after a legal move."""
        ...

    def view(self, deal: str, history: str) -> str:
        """The cards that the player to move sees."""
        ...

    def chips(self, deal: str, history: str) -> float:
        """Reward of role 0 when the game is over."""
        ...


@dataclass(slots=True)
class Node:
    """A history of the game, with values for every deal at once.

    Args:
        keys: its information sets; a row of every table.
        rows: deal -> index of its information set, shape `[deals]`.
        member: 1 where a deal belongs to an information set, shape `[deals, information sets]`.
        children: by move; none if the game is over.
        chips: reward of role 0 by deal, shape `[deals]`, if the game is over.
        chances: probabilities of the moves, shape `[information sets, moves]`.
        regrets, last, sums: of CFR+, in the same shape: regrets of all iterations and of the last,
            and the weighted sum of the strategies.
    """

    role: int
    keys: list[Seen]
    rows: np.ndarray
    member: np.ndarray
    children: "list[Node]"
    chips: np.ndarray
    chances: np.ndarray
    regrets: np.ndarray
    last: np.ndarray
    sums: np.ndarray

    def walk(self) -> "list[Node]":
        """This node and all below it where a player moves."""
        below = [node for child in self.children for node in child.walk()]
        return [self, *below] if self.children else []


class GameTree:
    """All histories of a game."""

    def __init__(self, game: CardGame) -> None:
        counts = Counter(game.deals)
        self.deals: list[str] = list(counts)
        self.weights = np.array([*counts.values()], dtype=float) / counts.total()
        self.root: Node = self._node(game, "")
        self.nodes: list[Node] = self.root.walk()

    def _node(self, game: CardGame, history: str) -> Node:
        moves = game.moves(history)
        if not moves:
            chips = np.array([game.chips(deal, history) for deal in self.deals], dtype=float)
            empty = np.zeros((0, 0))
            return Node(0, [], np.zeros(0, int), empty, [], chips, empty, empty, empty, empty)
        views = [game.view(deal, history) for deal in self.deals]
        order = list(dict.fromkeys(views))
        rows = np.array([order.index(view) for view in views])
        shape = (len(order), len(moves))
        return Node(
            game.mover(history),
            [(view, history) for view in order],
            rows,
            np.eye(len(order))[rows],
            [self._node(game, game.after(history, move)) for move in moves],
            np.zeros(0),
            np.full(shape, 1 / len(moves)),
            np.zeros(shape),
            np.zeros(shape),
            np.zeros(shape),
        )

    def load(self, policy: Policy, role: int | None = None) -> None:
        """Set the probabilities of the moves (of one role). Raises `ValueError`: the policy lacks
        probabilities for an information set, or they are none."""
        for node in self.nodes:
            if role in (None, node.role):
                count = len(node.children)
                node.chances = np.array([probabilities(policy, key, count) for key in node.keys])

    def value(self) -> float:
        """Expected reward of role 0 under the probabilities that were loaded."""

        def below(node: Node) -> np.ndarray:
            if not node.children:
                return node.chips
            chances = node.chances[node.rows]
            parts = [chances[:, i] * below(child) for i, child in enumerate(node.children)]
            return np.sum(parts, axis=0)

        return float(self.weights @ below(self.root))

    def best_response(self, role: int) -> float:
        """Expected reward of the best response of `role` to the probabilities of the other role."""
        sign = 1.0 if role == 0 else -1.0
        places = np.arange(len(self.deals))

        def below(node: Node, reach: np.ndarray) -> np.ndarray:
            """Reward by deal, times the probability that chance and the other role get here."""
            if not node.children:
                return sign * reach * node.chips
            if node.role != role:
                chances = node.chances[node.rows]
                parts = [below(c, reach * chances[:, i]) for i, c in enumerate(node.children)]
                return np.sum(parts, axis=0)
            options = np.array([below(child, reach) for child in node.children])
            best = np.argmax(options @ node.member, axis=0)
            return options[best[node.rows], places]

        return float(below(self.root, self.weights).sum())

    def improve(self, iteration: int) -> None:
        """One iteration of predictive CFR+ (Farina et al. 2021) for each role in turn, with
        quadratic averaging."""
        for role in (0, 1):
            for node in self.nodes:
                node.chances = _normalised(np.maximum(node.regrets + node.last, 0.0))
            self._update(self.root, role, np.ones(len(self.deals)), self.weights, iteration)

    def _update(
        self, node: Node, role: int, own_reach: np.ndarray, other: np.ndarray, iteration: int
    ) -> np.ndarray:
        """Counterfactual values of `role` by deal; its regrets and average strategy are updated.

        Args:
            own_reach: probability by deal that `role` gets here, shape `[deals]`.
            other: probability that chance and the other role get here, shape `[deals]`.
        """
        if not node.children:
            return (other if role == 0 else -other) * node.chips
        chances = node.chances[node.rows].T
        moves = zip(node.children, chances, strict=True)
        if node.role != role:
            parts = [self._update(c, role, own_reach, other * p, iteration) for c, p in moves]
            return np.sum(parts, axis=0)
        parts = [self._update(c, role, own_reach * p, other, iteration) for c, p in moves]
        values = np.array(parts)
        total = (chances * values).sum(axis=0)
        reached = np.zeros(len(node.keys))
        reached[node.rows] = own_reach  # equal for all deals of an information set
        node.sums += iteration**2 * reached[:, None] * node.chances
        node.last = ((values - total) @ node.member).T
        node.regrets = np.maximum(node.regrets + node.last, 0.0)
        return total

    def average(self) -> dict[Seen, tuple[float, ...]]:
        """The average policy of all iterations, which converges to an equilibrium."""
        return {
            key: tuple(float(chance) for chance in chances)
            for node in self.nodes
            for key, chances in zip(node.keys, _normalised(node.sums), strict=True)
        }


def probabilities(policy: Policy, key: Seen, count: int) -> Sequence[float]:
    """The probabilities of a policy at an information set. Raises `ValueError`: they are not
    `count` numbers from 0 to 1 with the sum 1."""
    chances = policy.get(key, ())
    if len(chances) != count or not all(0 <= chance <= 1 for chance in chances):
        raise ValueError(
            f"a strategy needs {count} probabilities, from 0 to 1, at {key!r}; this one has "
            f"{policy.get(key)!r}"
        )
    if abs(sum(chances) - 1) > 1e-6:
        raise ValueError(f"the probabilities at {key!r} must have the sum 1, not {sum(chances)!r}")
    return chances


def expected(game: CardGame, first: Policy, second: Policy) -> float:
    """Expected reward of role 0, the mean over all deals."""
    tree = GameTree(game)
    tree.load(first, 0)
    tree.load(second, 1)
    return tree.value()


def best_response(game: CardGame, policy: Policy, role: int) -> float:
    """Expected reward of a best response in role `role` to `policy` in the other role."""
    tree = GameTree(game)
    tree.load(policy, 1 - role)
    return tree.best_response(role)


def exploitability(game: CardGame, policy: Policy) -> float:
    """Reward of a best response to a policy, averaged over both roles; 0 for an equilibrium, above
    0 for any other policy (half of what is also called NashConv)."""
    tree = GameTree(game)
    tree.load(policy)
    return (tree.best_response(0) + tree.best_response(1)) / 2


def solve(game: CardGame, tolerance: float, most: int = 5000) -> dict[Seen, tuple[float, ...]]:
    """An approximate equilibrium by predictive CFR+ (Farina et al. 2021, "Faster game solving via
    predictive Blackwell approachability").

    Args:
        tolerance: exploitability at which it is good enough.
    """
    tree, strategy = GameTree(game), {}
    for iteration in range(1, most + 1):
        tree.improve(iteration)
        if iteration % 50 == 0 or iteration == most:
            strategy = tree.average()
            if exploitability(game, strategy) <= tolerance:
                break
    return strategy


def _normalised(table: np.ndarray) -> np.ndarray:
    """Rows in proportion to their sum; equal chances where it is 0."""
    sums = table.sum(axis=1, keepdims=True)
    even = np.full_like(table, 1 / table.shape[1])
    return np.divide(table, sums, out=even, where=sums > 0)
