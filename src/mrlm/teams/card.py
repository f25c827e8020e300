"""The cards of a team and of its policies: `README.md` with the front matter of the Hub."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from mrlm.config import yaml
from mrlm.core import registry
from mrlm.core.progress import counted
from mrlm.core.tiny_model import HUB_ID, NAME, portable_name
from mrlm.teams.policies import PolicyFolder

CARD = "README.md"
LOADED = {
    "nf4": 'load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, '
    "bnb_4bit_compute_dtype=torch.{dtype}",
    "int8": "load_in_8bit=True",
}
"""Arguments of `BitsAndBytesConfig` for each `model.quantization`."""
TRAIN = "train.yaml"
"""The config of the run that trained the team, without secrets and paths of its machine."""


@dataclass(frozen=True, slots=True)
class Card:
    """The content of the cards.

    Args:
        team: the content of `team.yaml`.
        facts: those of the training; empty where they are unknown.
        policies: the policies with weights in the team's folder, by name.
        title: name of the repository, or of the experiment.
        source: the argument of `Team.from_pretrained` in the examples.
        reproducible: whether `train.yaml` is beside the card.
        page: name of the exported run beside the card, if any.
    """

    team: Mapping[str, Any]
    facts: Mapping[str, Any]
    policies: Mapping[str, PolicyFolder]
    title: str
    source: str
    reproducible: bool
    page: str | None = None


def write_cards(folder: Path, card: Card) -> None:
    """Writes the card of a team, and one for each policy that has a folder of its own."""
    (folder / CARD).write_text(team_card(card), encoding="utf-8")
    for name, policy in card.policies.items():
        if policy.folder != ".":
            (folder / policy.folder / CARD).write_text(policy_card(card, name), encoding="utf-8")


def team_card(card: Card) -> str:
    """The card of a team."""
    agents = card.team["agents"]
    count = "one agent" if len(agents) == 1 else f"{len(agents)} agents"
    parts = [
        f"# {card.title}",
        f"A team of {count} ({', '.join(agents)}) for [MRLM](https://pypi.org/project/mrlm), "
        "multi-agent reinforcement learning of language models.",
        "## Use\n\n" + _use(card),
        *_load(card),
        "## Agents\n\n" + _agents(card, list(agents)),
        "## Policies\n\n"
        + "\n".join(f"- `{n}`: {_policy(card, n)}" for n in card.team["policies"]),
        *_training(card),
        *_results(card.facts),
        "## Serve\n\n" + _serve(card, list(card.policies)),
        *_reproduce(card),
        *_citation(card.facts),
    ]
    return _front_matter(card, list(card.policies)) + "\n\n".join(parts) + "\n"


def policy_card(card: Card, name: str) -> str:
    """The card of one policy of a team."""
    agents = [agent for agent, section in card.team["agents"].items() if section["policy"] == name]
    parts = [
        f"# {name}",
        f"The policy `{name}` of the team {card.title}, whose card is in the folder above: "
        + _policy(card, name, linked=False),
        "## Agents\n\n" + _agents(card, agents),
        *_training(card),
        "## Serve\n\nIn the folder above:\n\n" + _serve(card, [name]),
        *_citation(card.facts),
    ]
    return _front_matter(card, [name]) + "\n\n".join(parts) + "\n"


def _front_matter(card: Card, names: Sequence[str]) -> str:
    facts, members = card.facts, [card.policies[name] for name in names]
    origins = [_origin(card, name) for name in names]
    bases = [base for base in dict.fromkeys(origins) if HUB_ID.fullmatch(base) and base != NAME]
    algorithm = facts.get("algorithm", {}).get("name")
    adapters = any(policy.adapter for policy in members)
    tags = ["mrlm", "multi-agent", "reinforcement-learning", algorithm, "lora" if adapters else ""]
    metadata: dict[str, Any] = {"library_name": "mrlm", "pipeline_tag": "text-generation"}
    if bases:
        metadata["base_model"] = bases
        metadata["base_model_relation"] = "adapter" if adapters else "finetune"
    dataset = facts.get("dataset")
    if dataset and HUB_ID.fullmatch(dataset):
        metadata["datasets"] = [dataset]
    metadata["tags"] = [tag for tag in tags if tag]
    rows = [row for row in facts.get("evaluation", {}).get("rows", ()) if row["agent"] is None]
    if rows:
        metadata["model-index"] = [{"name": card.title, "results": list(map(_result, rows))}]
    return f"---\n{yaml.write(metadata)}---\n\n"


def _result(row: Mapping[str, Any]) -> dict[str, Any]:
    name = row["environment"]
    return {
        "task": {"type": "reinforcement-learning", "name": "multi-agent reinforcement learning"},
        "dataset": {"type": name, "name": f"{name} (held-out tasks)"},
        "metrics": [{"type": "mean_reward", "value": row["value"], "name": "mean reward"}],
    }


def _use(card: Card) -> str:
    seed = "team.play(seed=1)" if card.team.get("environments") else 'team.play("What is 2+3?")'
    return (
        f"```python\nfrom mrlm import Team\n\nteam = Team.from_pretrained({card.source!r})\n"
        f"episode = {seed}\nfor name, rollout in episode.rollouts.items():\n"
        "    print(name, rollout.messages[-1].content)\n```"
    )


def _load(card: Card) -> list[str]:
    """The lines that load an adapter with transformers and PEFT on the base it was trained on, if
    that was quantised."""
    section = card.team.get("model", {})
    kind, dtype = section.get("quantization"), section.get("torch_dtype", "float32")
    entry = next((policy for policy in card.policies.values() if policy.adapter), None)
    if kind is None or entry is None:
        return []
    settings = LOADED[kind].format(dtype="float32" if dtype == "auto" else dtype)
    dtype = '"auto"' if dtype == "auto" else f"torch.{dtype}"
    return [
        f"## Load\n\nThe adapters were trained on their base in {kind}. Its layers may compute in "
        "16 bits; `base.dequantize()` computes with the numbers of the training.\n\n"
        "```python\nimport torch\nfrom peft import PeftModel\n"
        "from transformers import AutoModelForCausalLM, BitsAndBytesConfig\n\n"
        f"base = AutoModelForCausalLM.from_pretrained(\n    {entry.base!r},\n"
        f"    dtype={dtype},\n    quantization_config=BitsAndBytesConfig({settings}),\n)\n"
        f"model = PeftModel.from_pretrained(base, {entry.folder!r})\n```"
    ]


def _agents(card: Card, agents: Sequence[str]) -> str:
    workflow = dict(card.team.get("workflow") or {"name": "turns"})
    name = workflow.pop("name", "turns")
    about = registry.describe("workflows", name) if name in registry.names("workflows") else ""
    parts = []
    for agent in agents:
        section = card.team["agents"][agent]
        policy = section["policy"]
        frozen = "" if policy in card.facts.get("trained", ()) else " (frozen)"
        text = f"- **{agent}** uses the policy `{policy}`{frozen}"
        prompt = section.get("system_prompt")
        parts.append(text + (f"; its system prompt:\n\n{_fenced(prompt)}" if prompt else "."))
        if section.get("formatter"):
            parts.append(f"\n  It reads a text as:\n\n{_fenced(section['formatter'])}")
        if function := section.get("formatter_function"):
            parts.append(
                f"\n  What it read was written by the Python function `{function}`, **which is "
                "missing here**: give it to `Team.from_pretrained(..., formatters=...)`."
            )
    settings = "".join(f", `{key}: {value}`" for key, value in workflow.items())
    parts.append(f"\nWorkflow: `{name}`{settings}. {about}".rstrip())
    if places := _environments(card):
        parts.append(f"\nEnvironments: {places}.")
    return "\n".join(parts)


def _environments(card: Card) -> str:
    return ", ".join(f"`{section['env_type']}`" for section in card.team.get("environments") or ())


def _fenced(text: str) -> str:
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}\n"


def _policy(card: Card, name: str, linked: bool = True) -> str:
    """A description of a policy, with a link to its folder."""
    section, entry = card.team["policies"][name], card.policies.get(name)
    kind = "trained" if name in card.facts.get("trained", ()) else "frozen"
    endpoint = section.get("endpoint")
    if endpoint:
        return f"frozen; the model {endpoint['model']} behind an API."
    if entry is None:
        return f"{kind}; the model {section['model']}."
    base = _origin(card, name)
    apart = linked and entry.folder != "."
    location = f" in [`{entry.folder}`]({entry.folder})" if apart else ""
    if entry.adapter:
        rank = f"rank {entry.adapter['r']}, alpha {entry.adapter['lora_alpha']:g}"
        bits = card.team.get("model", {}).get("quantization")
        base = f"{base} in {bits}" if bits else base
        return f"{kind}; a LoRA adapter ({rank}) on {base}{location}."
    return f"{kind}; a whole model that began as {base}{location}."


def _origin(card: Card, name: str) -> str:
    """The base of an adapter; of a whole model, the one that its training began with."""
    entry = card.policies[name]
    if entry.adapter:
        return portable_name(entry.base)
    return str(card.facts.get("origins", {}).get(name) or "a model of its own")


def _training(card: Card) -> list[str]:
    facts = card.facts
    if not facts:
        return []
    algorithm = facts["algorithm"]
    paper = f" Paper: {algorithm['paper'].rstrip('.')}." if algorithm["paper"] else ""
    places = _environments(card)
    data = f"the data set `{facts['dataset']}`" if facts["dataset"] else ""
    data = data or (f"the environments {places}" if places else "data of the program")
    return [
        f"## Training\n\nAlgorithm: `{algorithm['name']}`. {algorithm['about']}{paper}\n\n"
        f"It was trained with {data} for {counted(facts['steps'], 'iteration')} "
        f"({counted(facts['tokens'], 'sampled token')}), with "
        f"{counted(facts['batch_size'], 'task')} each, {counted(facts['group_size'], 'episode')} "
        f"of every task, learning rate {facts['learning_rate']:g} and seed {facts['seed']}."
    ]


def _results(facts: Mapping[str, Any]) -> list[str]:
    if not facts:
        return []
    last, parts = facts["evaluation"], []
    if last:
        failed = f" {counted(last['failed'], 'episode')} failed." if last["failed"] else ""
        rows = [
            "| environment | reward of | mean | 95 % interval | tasks |",
            "|---|---|---|---|---|",
        ]
        for row in last["rows"]:
            of = row["agent"] or "the team"
            cells = (row["environment"], of, _number(row["value"]), _interval(row), row["tasks"])
            rows.append(f"| {' | '.join(map(str, cells))} |")
        steps = counted(last["step"], "iteration")
        about = f"Held-out tasks after {steps}; intervals are over tasks.{failed}"
        parts.append(f"## Evaluation\n\n{about}\n\n" + "\n".join(rows))
    else:
        parts.append("## Evaluation\n\nThe run has no recorded evaluation.")
    if facts["ratings"]:
        rows = ["| player | rating | 95 % interval |", "|---|---|---|"]
        for item in facts["ratings"]:
            rows.append(f"| {item['name']} | {item['rating']:.0f} | {_interval(item, 0)} |")
        parts.append("## Ratings\n\nPlayers are policies after an iteration.\n\n" + "\n".join(rows))
    if facts["doctor"] == "off":
        parts.append("## Alarms\n\nThe run was not examined (`training.doctor: off`).")
    elif facts["alarms"]:
        rows = [
            f"- `{item['rule']}`{_about(item)} at step {item['step']}: {item['because']}."
            for item in facts["alarms"]
        ]
        parts.append("## Alarms\n\nThe examination of the run found:\n\n" + "\n".join(rows))
    else:
        parts.append("## Alarms\n\nThe examination of the run raised no alarm.")
    if facts["doctor"] != "off":
        ready, total = facts.get("rules", ("An unknown number", "its"))
        parts[-1] += f"\n\n{ready} of {total} rules had enough to look at."
    return parts


def _about(alarm: Mapping[str, Any]) -> str:
    return f" ({alarm['about']})" if alarm["about"] else ""


def _number(value: float | None, digits: int = 3) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _interval(row: Mapping[str, Any], digits: int = 3) -> str:
    if row["low"] is None or row["low"] == row["high"]:  # equal rewards have no width
        return "-"
    return f"{_number(row['low'], digits)} to {_number(row['high'], digits)}"


def _serve(card: Card, names: Sequence[str]) -> str:
    """The command lines of vLLM for some policies: one for the adapters of a base."""
    lines: list[str] = []
    adapters: dict[str, list[str]] = {}
    for name in names:
        entry = card.policies[name]
        if entry.adapter and entry.plain:
            adapters.setdefault(entry.base, []).append(name)
        elif entry.adapter:  # vLLM has no such adapters
            location = "merged" if entry.folder == "." else f"merged/{entry.folder}"
            export = "mrlm export . --format hf --merge --output merged"
            lines += [] if export in lines else [export]
            lines.append(f"vllm serve {location} --served-model-name {name}")
        else:
            lines.append(f"vllm serve {entry.folder} --served-model-name {name}")
    for base, group in adapters.items():
        tiny = portable_name(base) == NAME
        model = "$(python -c 'import mrlm; print(mrlm.default_model())')" if tiny else base
        largest = max(card.policies[name].rank for name in group)
        rank = next(size for size in (8, 16, 32, 64, 128, 256, 512, largest) if size >= largest)
        nf4 = card.team.get("model", {}).get("quantization") == "nf4"  # vLLM has no int8 of it
        bits = " --quantization bitsandbytes" if nf4 else ""
        modules = " ".join(f"{name}={card.policies[name].folder}" for name in group)
        lines.append(
            f"vllm serve {model}{bits} --enable-lora --max-lora-rank {rank} "
            f"--lora-modules {modules}"
        )
    if not lines:
        return "No policy has weights here."
    return "```bash\n" + "\n".join(lines) + "\n```"


def _reproduce(card: Card) -> list[str]:
    parts = []
    needs = card.facts.get("needs", ())
    if card.reproducible and needs:
        parts.append(
            f"## Config\n\n`{TRAIN}` is the config of the run, without secrets. It does not repeat "
            f"the run by itself, which had more than is here: {', '.join(needs)}."
        )
    elif card.reproducible:
        parts.append(
            f"## Reproduce\n\n```bash\nmrlm train --config {TRAIN}\n```\n\n"
            "The config is that of the run, without secrets."
        )
    if card.page:
        parts.append(f"The exported run, with its episodes: [{card.page}]({card.page}).")
    return parts


def paper_titles() -> dict[str, str]:
    """Number on arXiv -> title, of the papers of the algorithms."""
    return json.loads(files("mrlm.teams").joinpath("papers.json").read_text(encoding="utf-8"))


def _citation(facts: Mapping[str, Any]) -> list[str]:
    papers = facts.get("algorithm", {}).get("arxiv", ())
    if not papers:
        return []
    name = facts["algorithm"]["name"].rsplit(":", 1)[-1]
    titles = paper_titles()
    entries = []
    for number in papers:
        fields = {"title": f"{{{titles[number]}}}"} if number in titles else {}
        fields |= {"year": f"20{number[:2]}", "note": f"An algorithm of this team: {name}"}
        fields |= {"eprint": number, "archivePrefix": "arXiv"}
        fields |= {"url": f"https://arxiv.org/abs/{number}"}
        lines = [f"  {field:<13} = {{{value}}}" for field, value in fields.items()]
        entries.append(f"@misc{{{name}_{number.replace('.', '_')},\n" + ",\n".join(lines) + "\n}")
    return ["## Citation\n\n```bibtex\n" + "\n\n".join(entries) + "\n```"]
