"""A mutant in the running process: the code of the functions that it changes is exchanged, so that
nothing is imported or collected again."""

import ast
import gc
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

from tests.mutants.mutations import Mutant, mutated_tree


class Functions:
    """The functions that live in this process, by the file they come from."""

    def __init__(self, below: Path) -> None:
        gc.unfreeze()
        self.below = below
        self.of: dict[str, list[FunctionType]] = defaultdict(list)
        for each in gc.get_objects():
            if type(each) is FunctionType and each.__code__.co_filename.startswith(str(below)):
                self.of[each.__code__.co_filename].append(each)
        gc.freeze()

    def swap(self, mutant: Mutant) -> bool:
        """Put a mutant in; whether that can be done: not where code is run at import."""
        path = self.below / mutant.file
        source = path.read_text(encoding="utf-8")
        old = list(_codes(compile(source, str(path), "exec")))
        new = list(_codes(compile(mutated_tree(source, mutant), str(path), "exec")))
        same = [code.co_qualname for code in old] == [code.co_qualname for code in new]
        if not same or _outside(source, mutant):
            return False
        changed = {code: other for code, other in zip(old, new, strict=True) if code != other}
        found = False
        for function in self.of[str(path)]:
            other = changed.get(function.__code__)
            if other is not None:
                if other.co_freevars != function.__code__.co_freevars:
                    return False
                function.__code__ = other
                found = True
        return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Every code object below that of a module."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes(each)


def _outside(source: str, mutant: Mutant) -> bool:
    """Whether a mutant stands in no body of a function: in a default, a decorator, a class."""
    tree = ast.parse(source)
    wanted = next(node for index, node in enumerate(ast.walk(tree)) if index == mutant.place[0])
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body: list[ast.AST] = list(node.body)
        elif isinstance(node, ast.Lambda):
            body = [node.body]
        else:
            continue
        if any(wanted is inner for part in body for inner in ast.walk(part)):
            return False
    return True
