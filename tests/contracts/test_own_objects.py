"""What an object of this library can do is a typed field of its base class. `getattr` with a
default and `hasattr` are for objects of others, which are listed here."""

import ast
from pathlib import Path

import mrlm

ROOT = Path(mrlm.__file__).parent

FOREIGN: dict[str, set[str]] = {
    # models, their configs and tokenizers
    "build/policies.py": {"live"},
    "build/precision.py": {"model"},
    "build/team_config.py": {"live", "formatter", "inside"},
    "core/template_work.py": {"time", "tokenizer"},
    "core/thoughts.py": {"tokenizer"},
    "core/control_tokens.py": {"self.tokenizer", "backend"},
    "distributed/sharded.py": {"model"},
    "engines/hf.py": {"model"},
    "engines/lean/engine.py": {"model"},
    "engines/reward_model.py": {"model.config", "model.config.get_text_config()"},
    "engines/world_model.py": {"model"},
    "learn/fast/llama_modules.py": {
        "attention",
        "block",
        "config",
        "inner.model.embed_tokens",
        "model",
        "module",
        "part",
    },
    "learn/policy/gguf.py": {"owner"},
    "learn/policy/modes.py": {"module"},
    "learn/policy/incoming.py": {"config.peft_type", "model", "usual"},
    "learn/policy/loading.py": {"model", "model.config"},
    "learn/policy/lora.py": {"layer"},
    "learn/policy/own_forward.py": {"model"},
    "learn/policy/policy.py": {"bare", "config", "policy.model"},
    "learn/policy/quantized.py": {"_state_of(layer.weight)", "config", "model", "weight"},
    "learn/policy/reference.py": {"model"},
    "learn/policy/saved_model.py": {"model"},
    "learn/policy/storage.py": {"tensor"},
    "learn/policy/weights.py": {"config", "self.model"},
    "learn/policy/wrapped_modules.py": {"inner", "model", "output"},
    "build/arguments.py": {"peft_config", "usual"},
    # libraries, and what they answer
    "distributed/on_ray/actor_calls.py": {"error"},
    "engines/openai.py": {"answer"},
    "environments/connectors/gymnasium.py": {"entry", "self._env.unwrapped"},
    "environments/connectors/pettingzoo.py": {"error", "module", "self._env"},
    "environments/connectors/spaces.py": {"self.space"},
    "environments/connectors/textarena.py": {"self._env", "self._env.state", "state"},
    "environments/tools/mcp.py": {"block.resource", "error"},
    "environments/connectors/verifiers.py": {"tasks[0].data"},
    "learn/fast/cpu_backends.py": {"library"},
    "serving/protocol/channels.py": {"error"},
    "teams/hub.py": {"link"},
    # functions, modules and values of a user's
    "core/operating_system.py": {"os"},
    "build/compatible.py": {"rows"},
    "build/recorded.py": {
        "env",
        "live",
        "source",
        "sys.modules.get(name.partition(':')[0])",
        "target",
        "target_found",
        "tokenizer",
    },
    "config/aliases.py": {"value"},
    "core/registry.py": {"target"},
    "core/user_errors.py": {"error"},
    "data/sources.py": {"source"},
    "data/tasks.py": {"value"},
    "environments/programs/code/formats.py": {"builtins", "value"},
    "environments/wrappers/rescored.py": {"self.reward_fn"},
    "environments/shared/reward_functions.py": {"answer", "function", "setting"},
    "environments/tools/registry.py": {"state"},
    "environments/tools/tool.py": {"function"},
    "play/proof.py": {"env"},
    "play/workflow.py": {"made"},
    "sandbox/_harness_program.py": {"modules[0]"},
    "sandbox/grading/plain.py": {"kind", "value"},
    "sandbox/grading/solution_worker.py": {"type(owner)"},
    "sandbox/grading/tests_worker.py": {"builtins", "node.func"},
}
"""File -> expressions in it whose attributes nobody here declares."""


def guesses(source: str) -> set[str]:
    """Objects that are asked whether they have an attribute."""
    return {
        ast.unparse(node.args[0])
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and (node.func.id == "hasattr" or (node.func.id == "getattr" and len(node.args) == 3))
    }


def test_a_guess_is_seen() -> None:
    source = "getattr(a, 'x'); getattr(b.c, 'x', None); hasattr(d(), 'y')"
    assert guesses(source) == {"b.c", "d()"}


def test_our_own_objects_say_what_they_can_do() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): guesses(path.read_text(encoding="utf-8"))
        for path in sorted(ROOT.rglob("*.py"))
    }
    assert {file: names for file, names in found.items() if names} == FOREIGN
