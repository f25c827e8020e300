"""The rules of Hanabi (Bauza 2010; Bard et al. 2020), for any number of colours and ranks."""

from collections import Counter
from dataclasses import dataclass, field, replace

COLOURS = {"r": "red", "g": "green", "b": "blue", "y": "yellow", "w": "white"}


@dataclass(frozen=True, slots=True)
class Move:
    """A move.

    Args:
        kind: `play`, `discard` or `hint`.
        slot: index of a card in the own hand, for `play` and `discard`.
        target: how many turns after the own the receiver of a hint has its turn, from 1.
        value: letter of a colour, or a rank, for `hint`.
    """

    kind: str
    slot: int = 0
    target: int = 0
    value: str = ""


@dataclass(slots=True)
class HeldCard:
    """A card in a hand, and what hints tell its player about it.

    Args:
        card: colour and rank, as `r1`.
        colours, ranks: those that the hints leave possible.
        pointed: whether it is the first card that the last hint named.
    """

    card: str
    colours: str
    ranks: str
    pointed: bool = False

    @property
    def known(self) -> str:
        """Colour and rank, each `.` if it is not known."""
        colour = self.colours if len(self.colours) == 1 else "."
        return colour + (self.ranks if len(self.ranks) == 1 else ".")


def full_deck(colours: int, ranks: int) -> list[str]:
    """All cards, sorted: three of rank 1, one of the highest, two of each other."""
    counts = [3, *[2] * (ranks - 2), 1]
    letters = list(COLOURS)[:colours]
    return [
        f"{colour}{rank}"
        for colour in letters
        for rank, count in enumerate(counts, 1)
        for _ in range(count)
    ]


@dataclass(slots=True)
class Table:
    """The state of a game.

    Args:
        players, colours, ranks, hand: numbers of players, colours, ranks, and cards in a hand.
        most_tokens: hint tokens at most.
        tokens, lives: that are left.
        deck: cards that are left to draw, the next one first.
        hands: of every player, the oldest card first.
        stacks: colour -> rank of its highest card; 0 if it has none.
        discarded: cards that are out of the game.
        turns_left: once no card is left to draw.
    """

    players: int
    colours: str
    ranks: str
    most_tokens: int
    tokens: int
    lives: int
    deck: list[str]
    hands: list[list[HeldCard]] = field(default_factory=list)
    stacks: dict[str, int] = field(default_factory=dict)
    discarded: list[str] = field(default_factory=list)
    turns_left: int | None = None

    def deal(self, hand: int) -> None:
        """Deal the first hands."""
        self.stacks = dict.fromkeys(self.colours, 0)
        self.hands = [[self._draw() for _ in range(hand)] for _ in range(self.players)]

    def copy(self) -> "Table":
        """A table that shares nothing with this one."""
        hands = [[replace(held) for held in hand] for hand in self.hands]
        piles = {"deck": [*self.deck], "discarded": [*self.discarded]}
        return replace(self, **piles, hands=hands, stacks={**self.stacks})

    @property
    def score(self) -> int:
        """Cards on all stacks."""
        return sum(self.stacks.values())

    @property
    def best_score(self) -> int:
        return len(self.colours) * len(self.ranks)

    @property
    def over(self) -> bool:
        return not self.lives or self.turns_left == 0 or self.score == self.best_score

    def playable(self, card: str) -> bool:
        """Whether a card continues its stack."""
        return int(card[1]) == self.stacks[card[0]] + 1

    def useless(self, card: str) -> bool:
        """Whether a card can never be played any more."""
        gone = Counter(self.discarded)
        copies = Counter(full_deck(len(self.colours), len(self.ranks)))
        needed = range(self.stacks[card[0]] + 1, int(card[1]))
        dead = any(gone[f"{card[0]}{r}"] == copies[f"{card[0]}{r}"] for r in needed)
        return dead or int(card[1]) <= self.stacks[card[0]]

    def receiver(self, role: int, move: Move) -> int:
        """The player that a hint of `role` is for."""
        return (role + move.target) % self.players

    def touched(self, role: int, move: Move) -> list[int]:
        """Slots of the receiver's hand that a hint of `role` names."""
        hand = self.hands[self.receiver(role, move)]
        return [slot for slot, held in enumerate(hand) if move.value in held.card]

    def moves(self, role: int) -> list[Move]:
        """All moves of a game, legal now or not, that the sizes of hands allow."""
        slots = range(len(self.hands[role]))
        hints = [
            Move("hint", target=target, value=value)
            for target in range(1, self.players)
            for value in self.colours + self.ranks
        ]
        return [*(Move("play", s) for s in slots), *(Move("discard", s) for s in slots), *hints]

    def problem(self, role: int, move: Move) -> str | None:
        """The reason why a move is illegal, or `None`."""
        if move.kind == "discard" and self.tokens == self.most_tokens:
            return "No card may be discarded while all hints are left."
        if move.kind == "hint" and not self.tokens:
            return "No hint is left."
        if move.kind == "hint" and not self.touched(role, move):
            return "A hint must name at least one card."
        return None

    def legal(self, role: int) -> list[Move]:
        """The legal moves of the player to move."""
        return [move for move in self.moves(role) if self.problem(role, move) is None]

    def apply(self, role: int, move: Move) -> bool:
        """Make a legal move. Returns whether a card was played on its stack."""
        for held in self.hands[role]:
            held.pointed = False
        played = False
        if move.kind == "hint":
            self.tokens -= 1
            self._hint(role, move)
        else:
            card = self.hands[role].pop(move.slot).card
            played = move.kind == "play" and self.playable(card)
            if played:
                self.stacks[card[0]] += 1
                complete = card[1] == self.ranks[-1]
                self.tokens = min(self.tokens + complete, self.most_tokens)
            else:
                self.discarded.append(card)
                self.lives -= move.kind == "play"
                self.tokens += move.kind == "discard"
        self._count(role, drawn=move.kind != "hint")
        return played

    def _hint(self, role: int, move: Move) -> None:
        named = self.touched(role, move)
        for slot, held in enumerate(self.hands[self.receiver(role, move)]):
            colour = move.value in self.colours
            before = held.colours if colour else held.ranks
            after = move.value if slot in named else before.replace(move.value, "")
            if colour:
                held.colours = after
            else:
                held.ranks = after
            held.pointed = slot == named[0]

    def _count(self, role: int, drawn: bool) -> None:
        """Draw a card and count the last turns."""
        if self.turns_left is not None:
            self.turns_left -= 1
        elif drawn:
            self.hands[role].append(self._draw())
            if not self.deck:
                self.turns_left = self.players

    def _draw(self) -> HeldCard:
        return HeldCard(self.deck.pop(0), self.colours, self.ranks)
