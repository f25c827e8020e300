"""Environments that agents play in. One file or folder each, in folders by family; none imports
torch."""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from mrlm.core.registry import module_of


class _UntilFamilies(MetaPathFinder, Loader):
    """Finds `mrlm.environments.leduc`, its name until 0.2, as `mrlm.environments.poker.leduc`."""

    def __init__(self, module: str = "") -> None:
        self._module = module

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        name, _, inner = fullname.removeprefix(f"{__name__}.").partition(".")
        if not fullname.startswith(f"{__name__}.") or not (
            module := module_of("environments", name)
        ):
            return None
        module = f"{module}.{inner}".rstrip(".")
        return None if module == fullname else ModuleSpec(fullname, _UntilFamilies(module))

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._module)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


sys.meta_path.insert(0, _UntilFamilies())  # else a package under its old name has second modules
