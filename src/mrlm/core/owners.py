"""Names of numbers that are logged by policy and by agent."""

from collections.abc import Mapping


def role_of(agent: str) -> str:
    """The agent that an instance is of: `coder` of `coder#1`. The instances of an agent are
    compared with one another, and their numbers are logged together."""
    return agent.partition("#")[0]


def agent_label(agent: str, policy: str, agents: Mapping[str, set[str]]) -> str | None:
    """The last part of the name of an agent's number, where those of policies have the policy's
    name: the agent; `<policy>/<agent>` if one of several policies has its name; `None` if that
    policy is its own alone, since the policy's number is the agent's.

    Args:
        agents: policy -> its agents, for every policy.
    """
    if len(agents) < 2 or agent not in agents:
        return agent
    return None if policy == agent and agents[agent] == {agent} else f"{policy}/{agent}"


def owners_of(policies: Mapping[str, str]) -> dict[str, set[str]]:
    """Suffix of a number's name -> the agents whose values it covers: `/<policy>` with several
    policies, `/<agent>` with several agents.

    Args:
        policies: agent -> its policy.

    Examples:
        >>> owners_of({"a": "one", "b": "one"}) == {"/a": {"a"}, "/b": {"b"}}
        True
    """
    agents: dict[str, set[str]] = {}
    for agent, policy in policies.items():
        agents.setdefault(policy, set()).add(agent)
    owners: dict[str, set[str]] = {}
    if len(agents) > 1:
        owners = {f"/{policy}": set(members) for policy, members in agents.items()}
    for agent, policy in policies.items() if len(policies) > 1 else ():
        label = agent_label(agent, policy, agents)
        if label is not None:
            owners[f"/{label}"] = {agent}
    return owners
