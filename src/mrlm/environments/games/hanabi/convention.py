"""The expert of Hanabi: a convention of rules that uses only what the player sees."""

from collections import Counter

from mrlm.environments.games.hanabi.rules import HeldCard, Move, Table, full_deck


def chosen(table: Table, role: int) -> Move:
    """The move of the convention: "the first card that a hint names can be played now".

    The player, by the first rule that applies: plays a card that it knows to be playable; plays the
    card that the last hint pointed at, if that is possible; points at a playable card of another
    player who has nothing to play; discards a useless card, or the oldest one it knows nothing
    about; gives a hint that makes no one play.
    """
    hand = table.hands[role]
    options = [possible(table, role, held, role) for held in hand]
    for slot, cards in enumerate(options):
        if all(map(table.playable, cards)):
            return Move("play", slot)
    for slot, cards in enumerate(options):
        if hand[slot].pointed and any(map(table.playable, cards)):
            return Move("play", slot)
    hints = [move for move in table.legal(role) if move.kind == "hint"]
    useful = [move for move in hints if _points_well(table, role, move)]
    if useful:
        return min(useful, key=lambda move: (move.target, len(table.touched(role, move))))
    if table.tokens < table.most_tokens:
        for slot, cards in enumerate(options):
            if all(map(table.useless, cards)):
                return Move("discard", slot)
        nothing = HeldCard("", table.colours, table.ranks).known  # before any hint
        unknown = [slot for slot, held in enumerate(hand) if held.known == nothing]
        return Move("discard", unknown[0] if unknown else 0)
    harmless = [move for move in hints if not would_play(table, role, move)]
    return (harmless or hints)[0]


def possible(table: Table, viewer: int, held: HeldCard, owner: int) -> list[str]:
    """Cards that a held one may be, as far as its owner and `viewer` both know.

    Args:
        viewer: a player whose own hand does not count; the owner, or another one.
    """
    seen = Counter(table.discarded)
    for colour, height in table.stacks.items():
        seen.update(f"{colour}{rank}" for rank in range(1, height + 1))
    for player, hand in enumerate(table.hands):
        if player not in (viewer, owner):
            seen.update(other.card for other in hand)
    counts = Counter(full_deck(len(table.colours), len(table.ranks)))
    cards = [colour + rank for colour in held.colours for rank in held.ranks]
    return [card for card in cards if counts[card] > seen[card]]


def would_play(table: Table, role: int, move: Move) -> bool:
    """Whether the receiver of a hint would play the card that it points at."""
    after = table.copy()
    after.apply(role, move)
    player = table.receiver(role, move)
    return any(
        held.pointed and any(map(after.playable, possible(after, role, held, player)))
        for held in after.hands[player]
    )


def _points_well(table: Table, role: int, move: Move) -> bool:
    """Whether a hint makes a player with nothing to play play a playable card, which no one else
    has been pointed at."""
    player = table.receiver(role, move)
    hand = table.hands[player]
    card = hand[table.touched(role, move)[0]].card
    busy = any(
        all(map(table.playable, possible(table, role, held, player)))
        or (held.pointed and table.playable(held.card))
        for held in hand
    )
    pointed_cards = {
        held.card
        for other, cards in enumerate(table.hands)
        for held in cards
        if held.pointed and other != role
    }
    return not busy and table.playable(card) and card not in pointed_cards
