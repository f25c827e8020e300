"""Built-in posts and abstracts with reference texts, generated from a few plots with varying
people, things and places."""

from random import Random

from mrlm.core.content import content

KINDS = content(__file__)
"""`short_post`: posts of three sentences, with summaries of about 9 and about 24 words.
`long_post`: posts in the style of the TL;DR data set, with a concise and a detailed summary.
`abstract`: abstracts of fictional papers, with a background of about 130 words and a method of
about 180."""


def sampled(kind: str, rng: Random) -> list[str]:
    """A plot of a kind with its slots filled: a text, and reference texts of two writers."""
    plots = KINDS[kind]["plots"]
    plot = plots[rng.randrange(len(plots))]
    chosen = {name: rng.choice(words) for name, words in KINDS[kind]["slots"].items()}
    return [part.format(**chosen) for part in plot.values()]
