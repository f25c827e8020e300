"""Built-in abstracts of fictional papers, with a reference background and method."""

from __future__ import annotations

from random import Random

from mrlm.environments.writing.posts import PostPiece, filled

SLOTS: dict[str, tuple[str, ...]] = {
    "model": (
        "graph network",
        "language model",
        "decision tree",
        "kernel machine",
        "mixture model",
    ),
    "task": ("forecasting", "ranking", "translation", "segmentation", "retrieval", "planning"),
    "data": ("river levels", "city traffic", "crop yields", "star spectra", "patient records"),
    "trouble": ("missing values", "rare events", "noisy labels", "slow drift", "short records"),
    "gain": ("eight", "eleven", "fourteen", "seventeen", "twenty"),
    "cost": ("memory", "training time", "energy", "annotation"),
}

PLOTS: tuple[tuple[str, str, str], ...] = (
    (
        "Models for {task} on {data} suffer from {trouble}, and large models need much {cost}. We "
        "propose a {model} with a sparse memory that stores typical errors and corrects later "
        "predictions. Training alternates between fitting the {model} and pruning the memory with "
        "a bound on the error. On four public collections of {data} the method reduces the error "
        "by {gain} percent against strong baselines and needs half the {cost}. An ablation shows "
        "that the sparse memory matters most where {trouble} are frequent.",
        "Reliable {task} on {data} matters wherever decisions follow from predictions. However, "
        "{trouble} are common in such collections, and they harm even large models. Earlier work "
        "answers with more parameters or more annotation; this reduces the error on average, but "
        "it needs much {cost} and leaves the typical errors where they were. A second line of "
        "work corrects predictions after training. Such methods are cheap, although they forget "
        "what they have seen and must be fitted again for each collection. What is missing is a "
        "method that remembers its errors, stays small, and gives a bound on what may still go "
        "wrong. If the same errors return again and again, a sparse memory of them should help "
        "most. This is why the paper joins a {model} with a sparse memory: {trouble} should cost "
        "less without a growing demand for {cost}.",
        "The method joins a {model} with a sparse memory of typical errors. First, the {model} is "
        "fitted to {data} in the usual way, and its predictions are compared with what was "
        "observed. Then the largest errors are stored together with the situation in which they "
        "occurred; for example, a stretch of the collection in which {trouble} were frequent. "
        "Later predictions look up similar situations in the memory, and the stored errors "
        "correct them in proportion to their distance. Because a memory without limits would need "
        "as much {cost} as large models do, training alternates between fitting and pruning: an "
        "entry goes when the bound on the error shows that nothing is lost. Furthermore, the "
        "bound tells a user how wrong the result may still be. In fact, experiments on four "
        "public collections reduce the error by {gain} percent against strong baselines, with half "
        "of the {cost}. Similarly, the ablation finds that without the sparse memory most of this "
        "is lost. Therefore the method suits {task} wherever the same trouble returns. In "
        "conclusion, a small memory of typical errors can be a better answer to {trouble} than "
        "more parameters.",
    ),
)


def abstract(rng: Random) -> PostPiece:
    """An abstract, with a background of about 130 words and a method of about 180."""
    return filled(PLOTS, SLOTS, rng)
