"""The families of the learning curves: which algorithm is trained where, and what separates it from
the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.teams.settings import Words

RATES = (1e-3, 3e-3, 1e-2)


@dataclass(frozen=True, slots=True)
class Trial:
    """An algorithm in an environment.

    Args:
        algorithm: its name.
        where: name of the environment.
        settings: of the algorithm, laid over those of the table.
        config: further keys of the experiment.
        cost: sampled tokens of an episode, as a multiple of the episode's own.
        rates: learning rates that are tried.
    """

    algorithm: str
    where: str
    settings: Words = field(default_factory=dict)
    config: Words = field(default_factory=dict)
    cost: float = 1.0
    rates: tuple[float, ...] = RATES

    @property
    def name(self) -> str:
        """Its name in files and tables."""
        return f"{self.algorithm} on {self.where}"


@dataclass(frozen=True, slots=True)
class Family:
    """Algorithms that share an idea.

    Args:
        name: of the file of its figure.
        title: its heading.
        shares: what the members have in common, in a sentence.
        separates: what separates them, and where it shows.
        trials: its rows; the first algorithm of an environment is the one that the others are
            compared with.
    """

    name: str
    title: str
    shares: str
    separates: str
    trials: tuple[Trial, ...]


def many(names: str, where: str, **fields: object) -> tuple[Trial, ...]:
    """A trial of several algorithms in one environment."""
    return tuple(Trial(name, where, **fields) for name in names.split())  # type: ignore[arg-type]


IDENTICAL: Mapping[str, Mapping[str, Words]] = {
    "grpo": {name: {} for name in ("marshal", "matpo", "rema", "dr_mas", "m_grpo")},
    "ppo": {"ippo": {"value_normalization": False}},
    "online_dpo": {"madpo": {}},
}
"""Algorithm -> those that do the same, bit for bit, in games of one step with one reward for all,
with the settings that this needs."""

ALIKE: Mapping[str, tuple[str, ...]] = {"magrpo": ("rloo", "marloo")}
"""Algorithm -> those that do the same there but for rounding: their advantages differ by a constant
factor, which Adam removes."""

SLOW = (3e-4, 1e-3, 3e-3)
"""Rates where a step changes much."""
FAST = (3e-3, 1e-2, 3e-2)
"""Rates where the data are an optimum."""
TREE: Words = {"workflow": {"name": "tree", "select": "best", "branches": 8}}
SPLIT: Words = {"workflow": {"name": "tree", "branches": 2}}
CRITIC: Words = {"training.critic_learning_rate": 3e-3}
HELD = (1e-9,)
"""The rate of policies that are not trained."""
PATIENT: Words = {"critic_epochs": 128, "update_epochs": 1}
"""Where the critic alone learns: the steps that it needs, from as many episodes."""
BONUS: Words = {"entropy_coef": 0.1}

FAMILIES = (
    Family(
        "baselines",
        "Baselines without a critic",
        (
            "The return of the team, less a baseline from other episodes; nothing is learned but "
            "the policy."
        ),
        (
            "The baseline: none (`mareinforce`), the mean of the siblings (`magrpo`; `grpo` also "
            "divides by their deviation), the best of them (`maremax`), the mean of the other "
            "ones (`rloo`), a greedy answer (`remax`), all of the batch (`reinforce`, "
            "`reinforce_pp`). A batch mixes tasks, which shows where stakes differ (`contexts`); "
            "the division shows where good outcomes are rare (`climbing`)."
        ),
        (
            *many("magrpo mareinforce maremax rloo grpo remax reinforce reinforce_pp", "contexts"),
            *many("magrpo maremax grpo", "climbing"),
        ),
    ),
    Family(
        "turns",
        "Rewards by turn and agent",
        ("Sibling episodes are compared, as in `grpo`."),
        (
            "The return that a turn is credited with: the agent's own over the whole episode "
            "(`grpo`, `rloo`), from the turn on (`marshal`), of its own step only (`at_grpo`, in "
            "a tree that continues from the best answer), the team's (`rema`, `marloo`), the "
            "planner's for all (`matpo`), compared among all turns of the agent (`dr_mas`). It "
            "shows only in games with several turns and a reward for each agent; elsewhere "
            "several of them are identical."
        ),
        (
            *many("grpo marshal rema matpo rloo marloo dr_mas m_grpo", "turns"),
            Trial("at_grpo", "turns", config=TREE),
        ),
    ),
    Family(
        "critics",
        "Learned critics",
        ("A network predicts the return, and the advantage is what exceeds it."),
        (
            "What the critic reads and whose reward it predicts: the joint state and the team's "
            "(`mappo`; `happo` updates the agents one after the other), the agent's context and "
            "its own (`ppo`, `ippo`, `a2c` without a clipped ratio, `router_r1` with other "
            "defaults), later rounds with a small weight (`maporl`), an entropy target (`sac`), "
            "two copies that exchange roles (`cory`). Critics can explain something only where "
            "states differ: the column `critic` is the variance of returns that they explain in "
            "the second half of a run."
        ),
        (
            Trial("magrpo", "contexts"),
            *many("mappo ppo a2c happo maporl router_r1 sac cory", "contexts"),
            *many("grpo ippo", "turns"),
            *many("mappo maporl", "debate"),
        ),
    ),
    Family(
        "mixing",
        "Value decomposition",
        (
            "A critic for each agent, mixed into the value of the team; the advantage is "
            "counterfactual."
        ),
        (
            "The mixture: a sum (`vdn`) or a monotone network (`qmix`). It shows in the fit where "
            "the joint value is no sum: the column `critic` is the explained variance in the "
            "second half of a run, and in `held` the policies are not trained, so that returns "
            "continue to vary."
        ),
        (
            *many("vdn qmix", "and", config=CRITIC, rates=SLOW),
            *many(
                "vdn qmix",
                "held",
                settings=PATIENT,
                config={"training.critic_learning_rate": 1e-3},
                rates=HELD,
            ),
        ),
    ),
    Family(
        "replays",
        "Counterfactual replays",
        (
            "Episodes are played again with a decision changed. Tokens are those that are sampled, "
            "in episodes and replays. Turns that are fed back cost none, so that silence is free "
            "in a game of one step; joint steps are 5 (`c3`, `ccpo`) and 16 (`sharp`) for each "
            "episode."
        ),
        (
            "The change: another answer (`c3`), silence of one agent (`ccpo`) or of every set "
            "of agents (`sharp`). It shows in the agents whose actions never matter: the "
            "column `idle` is their entropy at the end (0.69 nats at first), which a shared "
            "return lowers by chance."
        ),
        (
            *many("magrpo", "idle", rates=SLOW),
            *many("c3", "idle", cost=2.0, rates=SLOW),
            *many("ccpo sharp", "idle", rates=SLOW),
        ),
    ),
    Family(
        "sequence",
        "Agents in sequence",
        ("One agent acts on the message of the one before, and both are rewarded at the end."),
        (
            "The credit for the first message: the team's return (`magrpo`), values along the "
            "chain of agents (`marft`), the mean of the leaves below it in a tree, imitated and "
            "preferred (`malt`)."
        ),
        (
            *many("magrpo marft", "signals"),
            *many("malt", "signals", config=SPLIT),
        ),
    ),
    Family(
        "pairs",
        "Preference pairs",
        (
            "The best of an agent's own answers is preferred to the worst; the scale of rewards "
            "does not matter."
        ),
        (
            "The reward by which answers are ranked: the agent's own (`online_dpo`) or the team's "
            "(`madpo`), which differ where agents have rewards of their own (`turns`)."
        ),
        (
            *many("grpo online_dpo", "climbing"),
            *many("magrpo online_dpo", "signals"),
            *many("grpo online_dpo madpo", "turns"),
        ),
    ),
    Family(
        "self_play",
        "Self-play in poker",
        (
            "One policy plays both roles of a zero-sum game and is trained on both; each has an "
            "entropy bonus of 0.1."
        ),
        (
            "The baseline of a role: its moving average (`spiral`), the other episodes with the "
            "same deal (`marshal`), the mean of the batch (`reinforce_pp`). The mean reward of "
            "self-play is 0 whatever is learned; the reward against the best possible opponent is "
            "not."
        ),
        (*many("reinforce_pp spiral marshal", "poker", settings=BONUS, rates=SLOW),),
    ),
    Family(
        "data",
        "Data with the optimum",
        (
            "The best joint action is given as rows; only `sft` and `spin` know no worse answers. "
            "These rows are no comparison with algorithms that have to find it."
        ),
        (
            "`sft` imitates; `dpo` and `reward_model` are given pairs of the best action with "
            "each other one, `spin` makes such pairs from its own answers. The curve of "
            "`reward_model` is the share of pairs that it ranks rightly, that of the others the "
            "reward; instead of tokens it counts rows (`sft`: tokens of the expert)."
        ),
        (*many("sft dpo spin reward_model", "optimum", rates=FAST),),
    ),
)
"""The page, in its order."""

TRIALS: Mapping[str, Trial] = {trial.name: trial for family in FAMILIES for trial in family.trials}
"""Name -> trial; one that is in several families is run once."""
