"""Writes what pages say of plug-ins, from their own files: sections of algorithms, tables of
environments, workflows and rules; the tables of metrics and of recipes.

    python -m scripts.pages            write docs/algorithms.md, environments.md, workflows.md,
                                       metrics.md, doctor.md and recipes.md
    python -m scripts.pages --check    exit with 1 if they are out of date
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from dataclasses import fields
from pathlib import Path

from benchmarks.learning.families import FAMILIES

from mrlm.cli.recipe import RECIPES, names, scales
from mrlm.core import registry
from mrlm.core.environment import Environment
from mrlm.environments.wrappers.wrapped import Wrapped
from mrlm.tracking import metric_table

DOCS = Path(__file__).parent.parent / "docs"
KINDS = (
    "learning from data",
    "one agent, or independent agents",
    "teams without a critic",
    "teams with critics",
)
"""Kinds of algorithms, in the order of the page; those of other plug-ins follow."""
KIND = re.compile(r"^- \*\*Kind\*\* (.+)\n", re.MULTILINE)


def written(name: str) -> str | None:
    """The body of an algorithm's module docstring; `None` if it says no kind."""
    source = registry.files("algorithms")[name].read_text(encoding="utf-8")
    _, _, body = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")
    return body if KIND.search(body) else None


def section(name: str, body: str) -> str:
    """An algorithm's section of the page: what it says of itself, its file, and where its learning
    curves are."""
    file = f"- **File** `src/mrlm/algorithms/{name}.py`"
    text = f"### {name}\n\n{KIND.sub('', body)}\n{file}\n"
    titles = [f.title for f in FAMILIES if any(t.algorithm == name for t in f.trials)]
    if titles:
        links = (f"[{title}](#{title.lower().replace(' ', '-')})" for title in titles)
        text += f"- **Curves** {', '.join(links)}\n"
    return text


def sections() -> str:
    """All sections, by kind and name."""
    by_kind: dict[str, list[str]] = defaultdict(list, {kind: [] for kind in KINDS})
    for name in registry.names("algorithms"):
        body = written(name)
        found = KIND.search(body) if body else None
        if body and found:
            by_kind[found[1]].append(section(name, body))
    return "\n".join(
        f"## {kind[0].upper()}{kind[1:]}\n\n" + "\n".join(texts) for kind, texts in by_kind.items()
    )


def environments() -> str:
    """The table of environments."""
    rows = ["| environment | description | return of an agent | board |", "|---|---|---|---|"]
    for name in registry.names("environments"):
        plugin = registry.load("environments", name)
        bounds = plugin.reward_range
        fixed = bounds is not None and bounds[0] < bounds[1]
        shown = f"{bounds[0]:g} to {bounds[1]:g}" if fixed else "depends on the arguments"
        about = registry.describe("environments", name)
        rows.append(f"| `{name}` | {about} | {shown} | {_board(plugin)} |")
    return "\n".join(rows) + "\n"


def _board(plugin: type[Environment]) -> str:
    """Whether an environment draws itself."""
    if issubclass(plugin, Wrapped):
        return "that of the wrapped one"
    return "no" if plugin.render is Environment.render else "yes"


def workflows() -> str:
    """The table of workflows."""
    rows = ["| workflow | environments | description |", "|---|---|---|"]
    for name in registry.names("workflows"):
        alone = registry.load("workflows", name).spec.single_agent
        kind = "single-agent" if alone else "any"
        rows.append(f"| `{name}` | {kind} | {registry.describe('workflows', name)} |")
    return "\n".join(rows) + "\n"


def metrics() -> str:
    """The table of metrics, a section for each part."""
    texts = []
    for part in metric_table.sections():
        rows = [
            "| metric | also by | meaning | unit | healthy | otherwise |",
            "|---|---|---|---|---|---|",
        ]
        for row in part.metrics:
            cells = (f"`{row.name}`", row.by, row.meaning, row.unit, row.healthy, row.do)
            rows.append(f"| {' | '.join(cells)} |")
        about = f"{part.about}\n\n" if part.about else ""
        texts.append(f"## {part.title}\n\n{about}" + "\n".join(rows) + "\n")
    return "\n".join(texts)


def rules() -> str:
    """The table of the rules that examine runs."""
    rows = ["| rule | alarm | signal | thresholds | otherwise |", "|---|---|---|---|---|"]
    for name in registry.names("rules"):
        kind = registry.load("rules", name)
        source = registry.files("rules")[name].read_text(encoding="utf-8")
        _, _, signal = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")
        known = ", ".join(f"`{each.name}` {_shown(each.default)}" for each in fields(kind))
        about = registry.describe("rules", name).removesuffix(".")
        do = kind.do[0].upper() + kind.do[1:]
        rows.append(f"| `{name}` | {about} | {' '.join(signal.split())} | {known} | {do} |")
    return "\n".join(rows) + "\n"


def recipes() -> str:
    """The table of recipes: the rows of their results, one for each config that runs on a CPU."""
    head = ["recipe", "scale", "result of the paper", "here, before -> after", "time"]
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name in names():
        text = (RECIPES / name / "README.md").read_text(encoding="utf-8")
        found = {scale: _row(text, scale) for scale in scales(name)}
        for scale in (scale for scale in found if scale.startswith("cpu")):
            paper = found["paper"][1] if scale == "cpu" else "-"
            _, _, ours, _, hours, *_ = found[scale]
            rows.append(f"| `{name}` | `{scale}` | {paper} | {ours} | {hours} |")
    return "\n".join(rows) + "\n"


def _row(text: str, scale: str) -> list[str]:
    """The cells of a scale in the table of a README."""
    line = next(line for line in text.splitlines() if line.startswith(f"| `{scale}` |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else "by name"


PARTS = {
    "algorithms.md": ("sections", sections),
    "environments.md": ("environments", environments),
    "workflows.md": ("workflows", workflows),
    "metrics.md": ("metrics", metrics),
    "doctor.md": ("rules", rules),
    "recipes.md": ("recipes", recipes),
}


def split(page: str, name: str) -> tuple[str, str, str]:
    """A page before its part of this name, that part, and the page after it."""
    begin = f"<!-- {name}: written by `python -m scripts.pages` -->\n"
    before, found, rest = page.partition(begin)
    part, end, after = rest.partition(f"<!-- end of {name} -->")
    if not found or not end:
        raise SystemExit(f"a page lacks the marks of its {name}: {begin}<!-- end of {name} -->")
    return before + begin, part, end + after


def pages() -> dict[Path, str]:
    """File -> what it should hold."""
    made: dict[Path, str] = {}
    for file, (name, make) in PARTS.items():
        path = DOCS / file
        before, _, after = split(path.read_text(encoding="utf-8"), name)
        made[path] = before + make() + after
    return made


def main() -> int:
    """Write the pages, or say which are out of date."""
    check = "--check" in sys.argv[1:]
    old = {path: text for path, text in pages().items() if path.read_text(encoding="utf-8") != text}
    for path, text in old.items():
        print(f"docs/{path.name} is out of date" if check else f"wrote docs/{path.name}")
        if not check:
            path.write_text(text, encoding="utf-8")
    return int(check and bool(old))


if __name__ == "__main__":
    raise SystemExit(main())
