"""Built-in posts, long and short, with reference summaries. All of them are generated from a few
plots with varying people, things and places."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class PostPiece:
    """A text to write about.

    Args:
        key: identifies the plot and its words; equal for equal texts.
        document: the text.
        texts: reference texts of the two writers of a preset.
    """

    key: str
    document: str
    texts: tuple[str, str]


SLOTS: dict[str, tuple[str, ...]] = {
    "who": ("sister", "brother", "friend", "neighbour", "cousin", "aunt", "uncle", "flatmate"),
    "thing": ("bike", "tent", "camera", "coat", "ladder", "guitar", "drill", "lamp"),
    "place": ("station", "park", "school", "market", "library", "beach", "museum", "harbour"),
    "plant": ("roses", "beans", "tomatoes", "tulips", "carrots", "herbs", "berries", "peas"),
    "animal": ("dog", "goat", "cat", "pony", "rabbit", "hen"),
    "vehicle": ("car", "van", "bus", "truck"),
    "job": ("bakery", "bookshop", "garage", "hotel", "nursery", "studio"),
    "pay": ("forty", "fifty", "sixty", "eighty", "ninety"),
}

SHORT: tuple[tuple[str, str, str], ...] = (
    (
        "My {who} lent me a {thing} last week. I left it near the {place} and somebody took it. "
        "My {who} wants it back, and I do not know what to say.",
        "I lost the {thing} that belongs to my {who}.",
        "First I borrowed a {thing}, then it was stolen at the {place}. Now my {who} asks for it "
        "and I am afraid to answer.",
    ),
    (
        "Every evening I water the {plant} behind our house. This morning the {animal} of my {who} "
        "dug them all up. Should I ask for money or build a fence?",
        "A {animal} that my {who} keeps ruined our {plant}.",
        "I cared for the {plant} each evening, but an animal came and dug everything up. So I may "
        "build a fence, or ask my {who} to pay.",
    ),
    (
        "We wanted to drive to the {place} with my {who} on Sunday. The {vehicle} broke down after "
        "an hour and we waited in the rain. Everybody blames me.",
        "Our trip to the {place} failed when a {vehicle} broke.",
        "On Sunday we set out with my {who}, but the {vehicle} stopped after an hour. Then we "
        "stood in the rain, and the others say that I am to blame.",
    ),
)

LONG: tuple[tuple[str, str, str], ...] = (
    (
        "SUBREDDIT: r/relationships\n\nTITLE: My {who} [28] wants money for a {thing} that was "
        "stolen from me [25]\n\nPOST: Three weeks ago my {who} lent me a {thing} for a weekend "
        "trip. On the way home I stopped near the {place} to buy some food, and I left the {thing} "
        "outside for perhaps five minutes. When I came back it was gone. I asked in every shop and "
        "told the police, who wrote everything down and have not called since. My {who} was calm "
        "at first, but last night I got a message that asks for {pay} dollars a month for a year. "
        "That is more than it cost, and it was old. I work part time in a {job} and cannot pay so "
        "much. Our parents say that family should forgive, while my friends think I must pay "
        "everything. I feel guilty and do not want to lose my {who} over this.\n\nTL;DR:",
        "I borrowed a {thing} from my {who} and somebody stole it close to the {place}. The police "
        "found nothing. I am now asked to pay {pay} dollars monthly, which my small wage does not "
        "allow, and people disagree about what is fair. I want to keep the peace but cannot afford "
        "such a sum for an old thing.",
        "First, my {who} let me use a {thing} for one weekend, and it disappeared outside a shop "
        "by the {place} although I was away for minutes only. I searched everywhere; in "
        "addition, I spoke with the police, but they never called again. Meanwhile the mood at "
        "home has changed. For example, a message arrived last night which demands {pay} dollars "
        "each month over a whole year. That would clearly be too much because the old {thing} was "
        "worth far less, and a part time job at the {job} leaves little to spare. My parents "
        "believe in forgiving. Similarly, I hope for some kindness, whereas several friends insist "
        "on the full price. If we cannot agree on a lower sum, our bond may suffer; therefore I "
        "am looking for an honest way to offer something smaller. Overall, guilt weighs on me, and "
        "losing such a close person over one mistake would hurt most.",
    ),
    (
        "SUBREDDIT: r/advice\n\nTITLE: The {animal} of my {who} destroys my garden and nobody "
        "cares\n\nPOST: I moved into a small house beside the {place} two years ago and started to "
        "grow {plant} in the garden behind it. They won a prize last summer and I sell some of "
        "them to a {job} in town. My {who} lives next door and keeps a {animal} that gets through "
        "the hedge almost every night. This spring it dug up all the young {plant} twice. I "
        "offered to share the cost of a fence, which would be {pay} dollars for each of us, but my "
        "{who} laughed and said that animals need freedom. I wrote to the town and they answered "
        "that it is a private matter. My partner wants to sue. I would rather stay on good terms, "
        "yet another lost harvest means that the {job} will buy elsewhere.\n\nTL;DR:",
        "The {animal} next door ruins the {plant} that I grow and sell. My {who} refuses to share "
        "a fence for {pay} dollars, and the town will not help. I need to save the harvest without "
        "a fight in the family or a case in court, but talking to my {who} has led nowhere so far.",
        "Two years ago I settled near the {place}, and since then my {plant} have done well "
        "enough for a prize. Moreover, a {job} in town buys part of the crop. However, at night a "
        "{animal} owned by my {who} comes through the hedge; for instance, it dug out every young "
        "plant twice this spring. First I suggested a fence with costs divided between us, namely "
        "{pay} dollars each. Even so, the only reply was laughter and a speech about freedom. "
        "Later the office of the town, likewise, called it private. So my partner talks of "
        "lawyers, which indeed worries me, for we meet at every birthday. If another season "
        "fails, the buyers will look elsewhere and I lose an income that took long to build. In "
        "short, I am searching for firm but friendly words, or for some cheap barrier that keeps "
        "the animal away from my beds.",
    ),
)


def short_post(rng: Random) -> PostPiece:
    """A post of three sentences, with summaries of about 9 and about 24 words."""
    return filled(SHORT, SLOTS, rng)


def long_post(rng: Random) -> PostPiece:
    """A post in the style of the TL;DR data set, with a concise and a detailed summary."""
    return filled(LONG, SLOTS, rng)


def filled(
    plots: tuple[tuple[str, str, str], ...], slots: dict[str, tuple[str, ...]], rng: Random
) -> PostPiece:
    """A plot with its slots filled."""
    number = rng.randrange(len(plots))
    chosen = {name: rng.choice(words) for name, words in slots.items()}
    document, *texts = (part.format(**chosen) for part in plots[number])
    return PostPiece(document, document, (texts[0], texts[1]))
