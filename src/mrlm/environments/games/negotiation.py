"""Negotiation: two agents divide items that each values privately; without a deal both get 0."""

import functools
import itertools
import random
import re
from collections.abc import Sequence
from typing import Literal

from mrlm.core.board import Html, stacked, table
from mrlm.core.environment import Split
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Task
from mrlm.environments.shared.games import Opponent, Style, Teaches, TurnGame
from mrlm.environments.shared.rows import is_held_out, penalty, whole_number

NAMES = ("books", "hats", "balls", "pens")
POINTS = 10
"""Total value of all items for each agent."""
MOST = 4
"""Maximum number of items of a kind."""
LONGEST = 200
"""Maximum number of characters of an answer; a longer one is malformed."""
Division = tuple[int, ...]
"""Numbers of items of each kind for the proposer; the other agent gets the rest."""
_VERB = re.compile(r"\b(propose|accept|reject)\b", re.IGNORECASE)
_NEGATIVE = re.compile(r"(?<!\S)-[0-9]")


class NegotiationEnvironment(TurnGame):
    """A game in which two agents divide items (Lewis et al. 2017). There are one to four items of
    each kind; their values differ for the two agents, and neither sees the other's values. The
    total value of all items is 10 points for each.

    The agents take turns. In its turn an agent proposes a division (the numbers of items of each
    kind for itself; the other gets the rest), accepts the other's last proposal, which ends the
    game, or rejects it. Without a deal after `max_turns` turns both get 0.

    An answer is `propose 2 0 1`, `accept` or `reject` (`201`, `a`, `r` in the `short` style); it
    begins with its verb and contains no other. Any other answer, a proposal of more items than
    exist, or acceptance without a proposal is malformed: it costs `illegal`, counts as a turn, and
    withdraws the offer.

    The reward of a deal, with `u` the points of each agent:

    - `selfish`: each its own `u / 10`;
    - `cooperative`: both the sum, as a fraction of the largest possible sum for these items;
    - `fair`: both the Nash product `u_1 u_2`, as a fraction of the largest.

    Components: `points`, `deal`, `illegal`, and the fractions `sum` and `product`, independently of
    the reward.

    The `expert`, unlike an agent, knows both agents' values: it proposes the division with the
    largest product (`cooperative`: the largest sum), and accepts a division that is as good by that
    measure, or gives it the same reward. In the last turn it accepts any division with a positive
    reward. It is not a hard bargainer.

    No observation of either agent in a held-out task occurs in training.

    Args:
        agents: names of the agents; `opener` and `partner` (`player` against a script).
        reward: `selfish`, `cooperative` or `fair`.
        kinds: kinds of items, 2 to 4.
        max_turns: turns of both together, at least 2.
        illegal: penalty of a malformed answer.
        opponent, seat, teaches, style: as for every two-player game. In the `short` style a
            question consists of the numbers of items, their values, and the items that the other
            wants for itself: `213 105 011?`.
        seed: another seed gives other items and values for the same task seed.
    """

    reward_range: tuple[float, float] | None = (-0.6, 1.0)
    roles: tuple[str, ...] = ("opener", "partner")

    def __init__(
        self,
        agents: str | Sequence[str] | None = None,
        reward: Literal["selfish", "cooperative", "fair"] = "selfish",
        kinds: int = 3,
        max_turns: int = 6,
        illegal: float = 0.2,
        opponent: Opponent = "agent",
        seat: str = "either",
        teaches: Teaches = "best",
        style: Style = "full",
        seed: int = 0,
    ) -> None:
        super().__init__(agents, opponent, seat, teaches, style)
        whole_number(2, len(NAMES), kinds=kinds)
        whole_number(2, max_turns=max_turns)
        self.reward: Literal["selfish", "cooperative", "fair"] = reward
        self.kinds = kinds
        self.max_turns: int | None = max_turns
        self.turns: int = max_turns
        self.illegal: float = penalty("illegal", illegal)
        self.seed = seed
        self._pool: Division = ()
        self._values: tuple[Division, Division] = ((), ())
        self._offer: Division | None = None
        self._deal: tuple[int, Division] | None = None
        """The role whose proposal was accepted, and its items."""
        self._taken = 0

    def task(self, seed: int, split: Split = "train") -> Task:
        name = f"negotiation-{self.kinds}-{self.seed}-{split}-{seed}"
        rng = random.Random(name)
        while True:
            pool = tuple(rng.randint(1, MOST) for _ in range(self.kinds))
            views = [
                values for values in valuations(pool) if held_out(pool, values) == (split == "eval")
            ]
            if len(views) < 2:
                continue
            first, second = rng.choice(views), rng.choice(views)
            if best_division(pool, first, second, "product")[1] > 0 and first != second:
                break
        info = {"pool": list(pool), "values": [list(first), list(second)]}
        return Task(name, [Message(self._shown(pool, first, None))], seed=seed, info=info)

    def begin(self, task: Task) -> None:
        pool, values = task.info.get("pool"), task.info.get("values")
        if not pool or not values or [len(row) for row in values] != [len(pool)] * 2:
            raise ConfigError(
                f"negotiation: task {task.id!r} needs info['pool'] (a number for each kind) and "
                "info['values'] (such a list for each agent)"
            )
        self._pool = tuple(pool)
        self._values = (tuple(values[0]), tuple(values[1]))
        self._offer, self._taken = None, 0
        ones = " ".join("1" * len(self._pool))
        self.explain(
            "Divide the items with the other player, who values them differently. Without a deal "
            f"after {self.turns} turns both get nothing. Answer with `propose` and how many of "
            f"each kind you want for yourself, in order, such as `propose {ones}`, or with "
            "`accept` or `reject`."
        )

    def question(self, role: int) -> str:
        return self._shown(self._pool, self._values[role], self._offer)

    def _shown(self, pool: Division, values: Division, offer: Division | None) -> str:
        if self.style == "short":
            parts = [pool, values] if offer is None else [pool, values, offer]
            return f"{' '.join(written(part) for part in parts)}?"
        items = [
            f"{count} {name}, {worth} points each"
            for count, name, worth in zip(pool, NAMES, values, strict=False)
        ]
        if offer is None:
            status = "Nothing is proposed. Your turn."
        else:
            left = " ".join(str(all_ - out) for all_, out in zip(pool, offer, strict=True))
            wants = " ".join(map(str, offer))
            status = f"The other wants {wants}, which leaves you {left}. Your turn."
        return f"Items: {'; '.join(items)}. {status}"

    def said(self, text: str) -> str | Division | None:
        """`accept`, `reject` or a division of the items; `None` for a malformed answer."""
        if len(text) > LONGEST:
            return None
        if self.style == "short":
            plain = text.strip()
            if not re.fullmatch(r"[0-9]+", plain):
                return {"a": "accept", "r": "reject"}.get(plain)
            division = tuple(int(digit) for digit in plain)
        else:
            verbs = list(_VERB.finditer(text))
            if len(verbs) != 1 or text[: verbs[0].start()].strip(" \t\n\r\"'`*("):
                return None
            if verbs[0][0].lower() != "propose":
                return verbs[0][0].lower()
            if _NEGATIVE.search(text):
                return None
            division = tuple(int(number) for number in re.findall(r"[0-9]+", text))
        fits = len(division) == len(self._pool) and all(
            0 <= want <= count for want, count in zip(division, self._pool, strict=True)
        )
        return division if fits else None

    def play(self, role: int, text: str) -> None:
        action, offer = self.said(text), self._offer
        self._offer, self._taken = None, self._taken + 1
        if action is None or (action == "accept" and offer is None):
            self.pay(role, -self.illegal, illegal=1.0)
            self.tell(role, "That was no valid answer.", "!")
            self.tell(1 - role, "The other said nothing valid.", "-")
        elif action == "accept" and offer is not None:
            self._deal = (1 - role, offer)
            for player in (0, 1):
                got, parts = self._worth(player, 1 - role, offer)
                self.pay(player, got, deal=1.0, **parts)
            self.mover = None
            return
        elif action == "reject":
            self.tell(1 - role, "The other rejects.", "r")
        elif not isinstance(action, str):
            self._offer = action
        self.mover = 1 - role
        if self._taken == self.turns:
            self.pay_all(0.0, deal=0.0)
            self.mover = None

    def _worth(self, role: int, proposer: int, offer: Division) -> tuple[float, dict[str, float]]:
        """A role's reward for a division, and the components."""
        points = divided(self._pool, self._values[proposer], self._values[1 - proposer], offer)
        mine = points[0] if role == proposer else points[1]
        parts = {"points": float(mine)}
        for goal, value in (("sum", sum(points)), ("product", points[0] * points[1])):
            most = best_division(self._pool, *self._values, goal)[1]
            parts[goal] = value / most if most else 0.0
        rewards = {"selfish": mine / POINTS, "cooperative": parts["sum"], "fair": parts["product"]}
        return rewards[self.reward], parts

    def state(self) -> str:
        first, second = (written(values) for values in self._values)
        now = "over" if self.mover is None else self.roles[self.mover]
        offer = "" if self._offer is None else f", offer {written(self._offer)}"
        turn = f"turn {self._taken + 1} of {self.turns}"
        return f"{written(self._pool)} worth {first} and {second}, {turn}, {now}{offer}"

    def render(self, agent: str | None = None) -> Html:
        """The items with their values and the current division; an agent sees its own values."""
        visible = (0, 1) if agent is None else (self._who.index(agent),)
        division = self._deal
        if division is None and self._offer is not None and self.mover is not None:
            division = (1 - self.mover, self._offer)
        rows = []
        for kind, count in enumerate(self._pool):
            values = [self._values[role][kind] if role in visible else "?" for role in (0, 1)]
            taken = division and division[1][kind]
            parts = ["", ""] if taken is None else [taken, count - taken]
            parts = parts if division is None or division[0] == 0 else parts[::-1]
            rows.append([NAMES[kind], count, *values, *((part, "num move") for part in parts)])
        one, other = self.roles
        head = ("items", "number", f"value for {one}", f"for {other}", f"{one} gets")
        return stacked(table(rows, (*head, f"{other} gets")), self._outcome(visible))

    def _outcome(self, visible: Sequence[int]) -> str:
        if self._deal is None:
            if self.mover is None:
                return "no deal"
            now = f"turn {self._taken + 1} of {self.turns}: {self.roles[self.mover]}"
            return now if self._offer is None else f"{now} may accept the proposal"
        proposer, offer = self._deal
        points = divided(self._pool, self._values[proposer], self._values[1 - proposer], offer)
        points = points if proposer == 0 else points[::-1]
        parts = (f"{points[role]} points for {self.roles[role]}" for role in visible)
        return f"a deal: {', '.join(parts)}"

    def best(self, role: int) -> str:
        goal = "sum" if self.reward == "cooperative" else "product"
        division, _ = best_division(self._pool, self._values[role], self._values[1 - role], goal)
        if self._offer is not None:
            offered, parts = self._worth(role, 1 - role, self._offer)
            good = parts[goal] == 1.0 or offered >= self._worth(role, role, division)[0]
            if good or (self._taken + 1 == self.turns and offered > 0):
                return self._written("accept")
        return self._written(division)

    def anything(self, role: int) -> str:
        rng = self.drawn()
        kind = rng.choice(["propose", "reject"] + ["accept"] * (self._offer is not None))
        if kind != "propose":
            return self._written(kind)
        return self._written(tuple(rng.randint(0, count) for count in self._pool))

    def _written(self, action: str | Division) -> str:
        if isinstance(action, str):
            return action[0] if self.style == "short" else action
        return written(action) if self.style == "short" else f"propose {' '.join(map(str, action))}"


def written(numbers: Division) -> str:
    """The numbers as digits without spaces."""
    return "".join(map(str, numbers))


def held_out(pool: Division, values: Division) -> bool:
    """Whether the observation of a role belongs to the held-out tenth."""
    return is_held_out(f"negotiation {written(pool)} {written(values)}")


def divided(pool: Division, mine: Division, other: Division, taken: Division) -> tuple[int, int]:
    """Points of the agent that takes `taken`, and of the other, which gets the rest."""
    rest = [count - out for count, out in zip(pool, taken, strict=True)]
    return (
        sum(v * n for v, n in zip(mine, taken, strict=True)),
        sum(v * n for v, n in zip(other, rest, strict=True)),
    )


@functools.lru_cache(maxsize=4096)
def valuations(pool: Division) -> tuple[Division, ...]:
    """All valuations from 0 to 9 with a total of 10 points for these items."""
    choices = itertools.product(*(range(min(9, POINTS // count) + 1) for count in pool))
    return tuple(
        values
        for values in choices
        if sum(v * n for v, n in zip(values, pool, strict=True)) == POINTS
    )


@functools.lru_cache(maxsize=4096)
def best_division(
    pool: Division, mine: Division, other: Division, goal: str
) -> tuple[Division, int]:
    """The taker's items in the division with the largest sum or product of points, and that
    maximum; ties are broken by the largest product, then the most even division, then the most
    points for the taker."""

    def rank(taken: Division) -> tuple[int, int, int, int]:
        a, b = divided(pool, mine, other, taken)
        return (a + b if goal == "sum" else a * b, a * b, -abs(a - b), a)

    taken = max(itertools.product(*(range(count + 1) for count in pool)), key=rank)
    return taken, rank(taken)[0]


PLUGIN = NegotiationEnvironment
