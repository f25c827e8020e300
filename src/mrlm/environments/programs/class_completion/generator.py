"""Unlimited generated classes to complete, as rows in the form of ClassEval, from the templates in
`plans.json`. There `{k}` is a number that varies; `{a}` to `{d}` are numbers and `{u}`, `{v}` and
`{w}` words sampled for each test. Expected values of tests are those of the reference class."""

import random
import textwrap
from typing import Any

from mrlm.core.content import content
from mrlm.core.environment import Split
from mrlm.environments.shared.generators import first_of

WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "harbor", "inlet", "lemon")
NUM_CASES = 3
"""Test cases per method."""


PLANS = content(__file__, "plans.json")
"""Kinds of classes: their purpose (`about`), possible `names`, constructor (`init`), `methods`, and
the range of the number (`k`). Of each method: its `name`, the source of its parameters (`params`),
its docstring (`asked`), the body of the reference implementation (`code`), which calls the methods
it `needs`, and statements for tests, joined by `; `, of which the last is an expression
(`scripts`)."""


def row(seed: str, split: Split) -> dict[str, Any]:
    """A row. Held-out rows never occur in training, for any seed."""
    rng = random.Random(f"class_completion/{split}/{seed}")
    plan, k = first_of(
        split, lambda: _numbered(rng), lambda sample: f"{sample[0]['about']} {sample[1]}"
    )
    return _row(plan, k, rng)


def _numbered(rng: random.Random) -> tuple[dict[str, Any], int]:
    plan = rng.choice(PLANS)
    return plan, rng.choice(range(*plan.get("k", (2, 14))))


def _row(plan: dict[str, Any], k: int, rng: random.Random) -> dict[str, Any]:
    name = rng.choice(plan["names"])
    about = plan["about"].format(k=k)
    doc = f'    """\n    {about}\n    """\n'
    init = textwrap.indent(plan["init"].format(k=k), "    ")
    stubs, honest, infos, tests = [], [], [], []
    for method in plan["methods"]:
        head = f"def {method['name']}({method['params']}):\n"
        text = f'{head}    """{method["asked"].format(k=k)}"""'
        code = head + textwrap.indent(method["code"].format(k=k), "    ")
        stubs.append(textwrap.indent(text, "    "))
        honest.append(textwrap.indent(code, "    "))
        infos.append({
            "method_name": method["name"],
            "method_description": text,
            "test_class": f"{name}Test{method['name'].title().replace('_', '')}",
            "solution_code": code,
            "dependencies": {
                "Standalone": not method.get("needs"),
                "lib_dependencies": [],
                "field_dependencies": [],
                "method_dependencies": list(method.get("needs", ())),
            },
        })  # fmt: skip
    solution = f"class {name}:\n{init}\n\n" + "\n\n".join(honest) + "\n"
    space: dict[str, Any] = {}
    exec(compile(solution, "<class>", "exec", dont_inherit=True), space)
    for method, info in zip(plan["methods"], infos, strict=True):
        cases = [_case(name, method, number, space, rng, k) for number in range(NUM_CASES)]
        info["test_code"] = f"class {info['test_class']}(unittest.TestCase):\n" + "\n".join(cases)
        tests.append(info["test_code"])
    return {
        "task_id": f"{name}_{k}",
        "skeleton": f"class {name}:\n{doc}\n{init}\n\n" + "\n\n".join(stubs) + "\n",
        "test": "import unittest\n\n" + "\n\n".join(tests) + "\n",
        "solution_code": solution,
        "import_statement": [],
        "class_description": doc,
        "methods_info": infos,
        "class_name": name,
        "test_classes": [info["test_class"] for info in infos],
        "class_constructor": f"class {name}:\n{doc}{init}\n",
        "fields": [],
        "sure": True,
    }


def _case(
    name: str, method: Any, number: int, space: dict[str, Any], rng: random.Random, k: int
) -> str:
    """One test: statements, and an expression with a known value."""
    drawn: dict[str, Any] = {letter: rng.randint(1, 20) for letter in "abcd"}
    drawn |= dict(zip("uvw", rng.sample(WORDS, 3), strict=True))
    scripts = method["scripts"]
    script = scripts[number % len(scripts)].format(**drawn, k=k, C=name)
    *lines, last = [f"it = {name}()", *script.split("; ")]
    namespace = dict(space)
    exec(compile("\n".join(lines), "<test>", "exec", dont_inherit=True), namespace)
    try:
        value = eval(compile(last, "<test>", "eval", dont_inherit=True), namespace)
    except ValueError:
        closing = [f"with self.assertRaises(ValueError):\n    {last}"]
    else:
        closing = [f"self.assertEqual({last}, {value!r})"]
    body = textwrap.indent("\n".join([*lines, *closing]), "        ")
    return f"    def test_{method['name']}_{number + 1}(self):\n{body}\n"
