"""Output heads that share their weights with the embedding: detects them in a folder, and writes
the head under a name of its own for servers that store it separately. Independent of server
software."""

import json
from pathlib import Path

from mrlm.core.errors import EngineError

HEAD = "lm_head.weight"


def is_tied(folder: Path) -> bool:
    """Whether the model of a folder uses its embedding as output head."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return bool(config.get("tie_word_embeddings", False)) and _file_of(folder, HEAD) is None


def write_head(folder: Path) -> None:
    """Add the output head of a tied model to its folder by name, as a further file. Raises
    `EngineError`: the folder has no embedding that could be the head."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    for name in ("model.embed_tokens.weight", "transformer.wte.weight"):
        file = _file_of(folder, name)
        if file is not None:
            break
    else:
        raise EngineError(
            f"{folder} has no weight 'model.embed_tokens.weight' that could be sent to the server "
            "as its output head; train a model with an untied head"
        )
    with safe_open(file, "pt") as weights_file:
        tensor = weights_file.get_tensor(name)
    save_file({HEAD: tensor}, folder / "lm_head.safetensors", metadata={"format": "pt"})
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        content = json.loads(index.read_text(encoding="utf-8"))
        content["weight_map"][HEAD] = "lm_head.safetensors"
        index.write_text(json.dumps(content), encoding="utf-8")


def _file_of(folder: Path, weight: str) -> Path | None:
    from safetensors import safe_open

    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as weights_file:
            if weight in weights_file.keys():  # noqa: SIM118  (not a mapping)
                return file
    return None
