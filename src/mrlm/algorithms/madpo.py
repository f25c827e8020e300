"""MADPO: multi-agent DPO; each agent prefers its part of the better joint action.

- **Kind** learning from data
- **Paper** DPO (arXiv 2305.18290) for a team; no paper of its own.
- **Formula** `online_dpo` on the team's reward: agents that act simultaneously are paired over the
  same two episodes, each against its own reference.
- **Differs** from CoMLRL's algorithm of this name: a preference for each agent, where that sums the
  agents' log-ratios in one; one pair of a state and not 16 (`preset: madpo` has its numbers).
- **Knobs** plan: `chain(G)`, `tree` or rows; credit: team; group: agent and state; loss:
  preference; pairs: best against worst, or a data set whose sides hold messages of several agents.
- **Use it** for teams with rewards that can be ranked, or with preference data.
"""

from dataclasses import replace

from mrlm.algorithms.online_dpo import OnlineDPO
from mrlm.core.episodes import Group
from mrlm.learn.bases.algorithm import settings
from mrlm.learn.bases.preference import PreferencePair, Rewards, row_pairs
from mrlm.learn.bases.spec import Spec
from mrlm.learn.credit.groups import trained_turns


@settings
class MADPO(OnlineDPO):
    """`DPO` for a team, with one reference per policy: at every state the answer with the highest
    team reward is preferred to the one with the lowest.

    The log-probability of a joint action is the sum over its agents, so a preference over two joint
    actions is one preference for each agent. Agents of a joint step are ranked by the same rewards
    with the same order among ties: their pairs come from the same two episodes. Agents whose
    prompts differ between these are compared where siblings have the same prompt, or at the nodes
    of the workflow `tree`.

    With a data set (`data.dataset`) it trains on rows `prompt`, `chosen` and `rejected`, where each
    side holds messages of several agents (`{"role": "assistant", "agent": ..., "content": ...}`),
    or one agent's (`agent`). Each agent's part is a pair, if it begins with the same prompt on both
    sides and differs.
    """

    rewards: Rewards = "team"

    @property
    def spec(self) -> Spec:
        spec = super().spec
        return replace(spec, sampling=replace(spec.sampling, pairs=True))

    def pairs_of(self, group: Group) -> tuple[int, list[PreferencePair]]:
        turns = [t for e in group for r in e.rollouts.values() for t in trained_turns(r)]
        if turns and all(turn.logprobs is None for turn in turns):  # a data set's rows
            return len(group.agents), row_pairs(group)
        return super().pairs_of(group)


PLUGIN = MADPO
