"""The environment: questions, answers, rewards and boards."""

import random
import re
from collections.abc import Sequence
from typing import Literal

from mrlm.core.board import Cell, Html, stacked, table
from mrlm.core.content import content
from mrlm.core.environment import Split
from mrlm.core.errors import ConfigError
from mrlm.core.types import Message, Task
from mrlm.environments.games.hanabi.convention import chosen
from mrlm.environments.games.hanabi.rules import COLOURS, HeldCard, Move, Table, full_deck
from mrlm.environments.shared.games import Style, Teaches, TurnGame
from mrlm.environments.shared.generators import first_of
from mrlm.environments.shared.rows import level_settings, penalty, whole_number

LEVELS: dict[int, dict[str, int]] = content(__file__)
"""Level -> settings; 4 is the usual game of two or three players."""
BOUNDS = {"colours": (1, 5), "ranks": (2, 5), "hand": (1, 5), "tokens": (1, 8), "lives": (1, 5)}
NAMES = ("first", "second", "third")
SHORT = {"play": "p", "discard": "d", "hint": "h"}


class HanabiEnvironment(TurnGame):
    """A game of Hanabi (Bard et al. 2020). The players build a stack of each colour, from rank 1
    upwards, and see all cards but their own. In its turn a player plays a card (one that does not
    continue its stack costs a life and is lost), discards a card, which restores a hint, or gives a
    hint: all cards of one colour or one rank in another player's hand. A played or discarded card
    is replaced from the pile. The game ends when all stacks are complete, when no life is left, or
    when every player has had one more turn after the last card was drawn.

    All players receive the same reward: each card on a stack adds `1 / (colours x ranks)`, so that
    the best return is 1. With `crash: zero` the loss of the last life takes all of it back.

    An answer is a move if it is one of the moves of the game (`play 1`, `discard 2`, `hint red`,
    `hint 3`; with three players `hint NAME red`), or contains exactly one of them. An answer that
    is none, or that the rules forbid, costs all players `illegal`; the player is shown the reason
    and may retry, up to `forgiven` times in a game, and then the game ends as without a life.

    The `expert` follows a convention, which uses only what the player sees: the first card that a
    hint names can be played. It is not optimal. A tenth of the orders of the cards is held out.

    Components: `score` (cards on the stacks, 0 after a crash with `crash: zero`), `perfect`,
    `crash`, `misplay`, `illegal`.

    Args:
        agents: names of the agents; `first`, `second` and `third`.
        players: 2 or 3.
        level: 1: one colour, ranks 1 to 3, two cards in a hand; 2: two colours; 3: three colours,
            ranks 1 to 4, three cards; 4: the usual game of five colours, ranks and cards.
        colours, ranks, hand, tokens, lives: instead of those of the level; `tokens` is the number
            of hints.
        crash: `zero` takes the reward back when the last life is lost; `keep` does not.
        illegal: penalty of an illegal answer.
        forgiven: number of illegal answers that a player may give; with 0 the first one ends the
            game.
        teaches, style: as for every game. In the `short` style moves are `p1`, `d2`, `hr`, `h3`
            (with three players `h1r`: the next player, `h2r`: the one after), and a question has
            the moves since the own last turn, stacks, hints, lives and cards that are left, each
            card of the others with what they know of it, and what is known of the own cards:
            `hr 1 h2 l2 d2 r2:r. r3:.. r. r.?`.
        seed: another seed gives other orders of the cards for the same task seed.

    Raises:
        ConfigError: a number out of its range, or no card left after the deal.
    """

    reward_range: tuple[float, float] | None = (-0.5, 1.0)

    def __init__(
        self,
        agents: Sequence[str] | None = None,
        players: int = 2,
        level: int = 2,
        colours: int | None = None,
        ranks: int | None = None,
        hand: int | None = None,
        tokens: int | None = None,
        lives: int | None = None,
        crash: Literal["zero", "keep"] = "zero",
        illegal: float = 0.5,
        forgiven: int = 0,
        teaches: Teaches = "best",
        style: Style = "full",
        seed: int = 0,
    ) -> None:
        whole_number(2, len(NAMES), players=players)
        self.roles: tuple[str, ...] = NAMES[:players]
        super().__init__(agents, teaches=teaches, style=style)
        values = level_settings(
            LEVELS, level, colours=colours, ranks=ranks, hand=hand, tokens=tokens, lives=lives
        )
        for name, (least, most) in BOUNDS.items():
            whole_number(least, most, **{name: values[name]})
        whole_number(0, forgiven=forgiven)
        self.players_count = players
        self.settings = values
        self.crash: Literal["zero", "keep"] = crash
        self.illegal: float = penalty("illegal", illegal)
        self.forgiven = forgiven
        self.seed = seed
        self.deck: list[str] = full_deck(values["colours"], values["ranks"])
        left = len(self.deck) - players * values["hand"]
        if left < 1:
            raise ConfigError(
                f"a pile of {len(self.deck)} cards leaves none after {players} hands of "
                f"{values['hand']}; set a smaller hand, or more colours or ranks"
            )
        turns = left + players  # moves that draw a card or are among the last ones
        self.max_turns: int | None = 2 * turns + values["tokens"] + players * (forgiven + 1)
        self._game = self._dealt(self.deck)
        self._erred = [0] * players
        self._log: list[tuple[int, str, str]] = []
        """Moves so far: role, its word, and what came of it."""

    # -- tasks -------------------------------------------------------------------------------------

    def task(self, seed: int, split: Split = "train") -> Task:
        sizes = "-".join(str(number) for number in self.settings.values())
        name = f"hanabi-{self.players_count}-{sizes}-{self.seed}-{split}-{seed}"
        rng = random.Random(name)
        deck = [*self.deck]
        first_of(split, lambda: rng.shuffle(deck), lambda _: f"hanabi {' '.join(deck)}")
        prompt = [Message(self._question(self._dealt(deck), 0, []))]
        return Task(name, prompt, seed=seed, info={"cards": [*deck]})

    def _dealt(self, deck: Sequence[str]) -> Table:
        sizes = self.settings
        colours, ranks = "".join(COLOURS)[: sizes["colours"]], "12345"[: sizes["ranks"]]
        counts = (sizes["tokens"], sizes["tokens"], sizes["lives"])
        table = Table(self.players_count, colours, ranks, *counts, [*deck])
        table.deal(sizes["hand"])
        return table

    def begin(self, task: Task) -> None:
        deck = task.info.get("cards")
        if not isinstance(deck, list) or sorted(deck) != sorted(self.deck):
            raise ConfigError(
                f"hanabi: task {task.id!r} needs info['cards'], a list of all {len(self.deck)} "
                f"cards, such as {self.deck[:3]}"
            )
        self._game = self._dealt(deck)
        self._erred = [0] * self.players_count
        self._log = []
        colours = ", ".join(COLOURS[letter] for letter in self._game.colours)
        name = " NAME" if self.players_count > 2 else ""
        ranks = self._game.ranks
        counts = "three of rank 1, one of the highest rank and two of each other"
        self.explain(
            f"Hanabi. You and the others build one stack of each colour ({colours}), from rank 1 "
            f"to {ranks[-1]}; of each colour there are {counts}. You see the cards of the others "
            "but not your own. `play N` plays your card N; if it does not continue its stack, it "
            "is lost and costs a life, and without lives the game is lost. `discard N` discards "
            f"your card N and restores a hint. `hint{name} {colours.split(', ')[0]}` or "
            f"`hint{name} 1` tells another player which of its cards have that colour or rank. New "
            "cards come last in a hand. Answer with one move."
        )

    # -- moves -------------------------------------------------------------------------------------

    def word(self, role: int, move: Move) -> str:
        """A move as it is written in this style."""
        if move.kind != "hint":
            number = str(move.slot + 1)
            return SHORT[move.kind] + number if self.style == "short" else f"{move.kind} {number}"
        several = self.players_count > 2
        if self.style == "short":
            return f"h{move.target if several else ''}{move.value}"
        name = f"{self.agents[self._game.receiver(role, move)]} " if several else ""
        return f"hint {name}{COLOURS.get(move.value, move.value)}"

    def play(self, role: int, text: str) -> None:
        move = self._move(role, text)
        problem = "That is no move." if move is None else self._game.problem(role, move)
        if move is None or problem is not None:
            self._refuse(role, problem or "")
            return
        before, lives = self._game.score, self._game.lives
        event = self._event(role, move)
        self._game.apply(role, move)
        self._log.append((role, self.word(role, move), event))
        gained, lost = self._game.score - before, lives - self._game.lives
        self.pay_all(gained / self._game.best_score, score=gained, misplay=lost)
        if not self._game.over:
            self.mover = (role + 1) % self.players_count
        else:
            self._end()

    def _move(self, role: int, text: str) -> Move | None:
        """The move that an answer names: the whole answer, or the only one contained in it."""
        words = {self.word(role, move).casefold(): move for move in self._game.moves(role)}
        plain = " ".join(text.casefold().split()).strip(" .,:;!?\"'`()[]<>*")
        if plain in words:
            return words[plain]
        longest = sorted(words, key=len, reverse=True)
        named = set(re.findall(rf"\b(?:{'|'.join(map(re.escape, longest))})\b", plain))
        return words[named.pop()] if len(named) == 1 else None

    def _refuse(self, role: int, problem: str) -> None:
        self.pay_all(-self.illegal, illegal=1.0)
        self._erred[role] += 1
        self.tell(role, problem, "!")
        if self._erred[role] > self.forgiven:
            self._game.lives = 0
            self._end()

    def _end(self) -> None:
        self.mover = None
        perfect = self._game.score == self._game.best_score
        crash = not self._game.lives and not perfect
        self.pay_all(0.0, perfect=float(perfect), crash=float(crash))
        if crash and self.crash == "zero":
            self.pay_all(-self._game.score / self._game.best_score, score=-self._game.score)

    def _event(self, role: int, move: Move) -> str:
        """The result of a move, as everyone sees it; called before it is made."""
        word = self.word(role, move)
        if move.kind == "hint":
            cards = ", ".join(str(slot + 1) for slot in self._game.touched(role, move))
            mine = self.agents[self._game.receiver(role, move)]
            return f"{word} ({mine}: {cards})"
        card = self._game.hands[role][move.slot].card
        lost = move.kind == "play" and not self._game.playable(card)
        return f"{word} ({named(card)}{', lost' if lost else ''})"

    # -- what is shown -----------------------------------------------------------------------------

    def question(self, role: int) -> str:
        since = next(
            (i + 1 for i in range(len(self._log) - 1, -1, -1) if self._log[i][0] == role), 0
        )
        return self._question(self._game, role, self._log[since:])

    def _question(self, table: Table, role: int, since: list[tuple[int, str, str]]) -> str:
        others = [(role + i) % self.players_count for i in range(1, self.players_count)]
        if self.style == "short":
            stacks = "".join(str(height) for height in table.stacks.values())
            hands = [f"{held.card}:{held.known}" for o in others for held in table.hands[o]]
            own_cards = [held.known for held in table.hands[role]]
            counts = [f"h{table.tokens}", f"l{table.lives}", f"d{len(table.deck)}"]
            return " ".join([*(s[1] for s in since), stacks, *counts, *hands, *own_cards]) + "?"
        lines = [self._counts(table)]
        for other in others:
            hand = table.hands[other]
            cards = [f"{named(held.card)} (knows: {clue(table, held)})" for held in hand]
            lines.append(f"{self.agents[other]} holds: {'; '.join(cards)}.")
        own = enumerate(table.hands[role], 1)
        own_cards = [f"{slot}: {clue(table, held)}" for slot, held in own]
        lines.append(f"What you know of your cards: {'; '.join(own_cards)}.")
        if since:
            moves = "; ".join(f"{self.agents[who]}: {event}" for who, _, event in since)
            lines.append(f"Since your last turn: {moves}.")
        moves = ", ".join(self.word(role, move) for move in table.legal(role))
        return "\n".join([*lines, f"Your moves: {moves}. Which one?"])

    def _counts(self, table: Table) -> str:
        stacks = ", ".join(f"{COLOURS[letter]} {table.stacks[letter]}" for letter in table.colours)
        gone = ", ".join(named(card) for card in sorted(table.discarded)) or "none"
        last = "" if table.turns_left is None else f" Turns left: {table.turns_left}."
        return (
            f"Stacks: {stacks}. Hints left: {table.tokens}. Lives: {table.lives}. Cards in the "
            f"deck: {len(table.deck)}. Discarded: {gone}.{last}"
        )

    def state(self) -> str:
        table = self._game
        hands = " ".join("".join(held.card for held in hand) for hand in table.hands)
        mover = "over" if self.mover is None else self.roles[self.mover]
        clues = " ".join("".join(held.known for held in hand) for hand in table.hands)
        stacks = "".join(str(height) for height in table.stacks.values())
        counts = f"h{table.tokens} l{table.lives} d{len(table.deck)}"
        return f"{stacks} {counts} {hands} {clues} {mover}"

    def render(self, agent: str | None = None) -> Html:
        """The stacks, all hands with what their players know, and the last move; an agent does not
        see its own cards."""
        state = self._game
        role = None if agent is None else self.agents.index(agent)
        stacks: list[Cell] = [
            (f"{letter}{height}", "good" if str(height) == state.ranks[-1] else "")
            if height
            else (f"{letter}0", "dim")
            for letter, height in state.stacks.items()
        ]
        rows: list[list[Cell]] = [["stacks", *stacks]]
        hands: list[list[Cell]] = []
        for player, cards in enumerate(state.hands):
            mark = "move" if player == self.mover else ""
            cells: list[Cell] = [
                ("?", "dim") if player == role else (held.card, self._class(held)) for held in cards
            ]
            hands.append([(self.agents[player], mark), *cells])
            hands.append([("knows", "dim"), *((clue(state, held), "dim") for held in cards)])
        last = ""
        if self._log:
            who, _, event = self._log[-1]
            last = f"{self.agents[who]}: {event}"
        end = f"{state.score} of {state.best_score} points" if self.mover is None else ""
        return stacked(table(rows), self._counts(state), table(hands), last, end)

    def _class(self, held: HeldCard) -> str:
        """The mark of a card: green if it can be played, grey if it is useless."""
        if self._game.playable(held.card):
            return "good"
        return "dim" if self._game.useless(held.card) else ""

    # -- scripts -----------------------------------------------------------------------------------

    def best(self, role: int) -> str:
        return self.word(role, chosen(self._game, role))

    def anything(self, role: int) -> str:
        return self.word(role, self.drawn().choice(self._game.legal(role)))


def named(card: str) -> str:
    """A card in words: `red 1`."""
    return f"{COLOURS[card[0]]} {card[1]}"


def clue(table: Table, held: HeldCard) -> str:
    """The knowledge of a card from hints, in words."""
    texts = []
    for possible, all_values in ((held.colours, table.colours), (held.ranks, table.ranks)):
        words = [COLOURS.get(value, value) for value in possible]
        if len(possible) == 1:
            texts.append(words[0])
        elif len(possible) < len(all_values):
            texts.append(" or ".join(words))
    return " ".join(texts) or "nothing"
