"""Peaks of processors: from datasheets, a measurement of this machine, or a user's file."""

import functools
import time
import timeit
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from mrlm.config.errors import did_you_mean
from mrlm.core.content import content
from mrlm.core.errors import ConfigError

GB, TERA = 1e9, 1e12


@dataclass(frozen=True, slots=True)
class Device:
    """A processor and its connections to others.

    Args:
        bf16, fp32: operations per second of dense matrix products in either precision.
        bandwidth: memory bandwidth in bytes per second.
        memory: bytes.
        link: bytes per second to another device of the same node, one way.
        network: bytes per second out of a node, one way, all its devices together.
        per_node: devices of a node, unless `--nodes` is given.
        launch: least seconds of one operation.
        shared: whether the devices of a node are one processor, whose cores and memory they share.
        source: source of the numbers.
    """

    name: str
    bf16: float
    fp32: float
    bandwidth: float
    memory: float
    link: float
    network: float
    per_node: int = 8
    launch: float = 5e-6
    shared: bool = False
    source: str = "a file"

    def peak(self, computed: int) -> float:
        """Operations per second in a type of so many bytes."""
        return self.fp32 if computed == 4 else self.bf16

    def among(self, count: int) -> "Device":
        """The part of it that each of `count` processes of a node has."""
        if not self.shared or count == 1:
            return self
        divided = ("bf16", "fp32", "bandwidth", "memory")
        return replace(self, **{name: getattr(self, name) / count for name in divided})


def _datasheets() -> dict[str, Device]:
    source = "datasheet: dense; network of a node as in the maker's own systems"
    devices = {}
    for name, row in content(__file__).items():
        units = {key: TERA if key in ("bf16", "fp32") else GB for key in row}
        numbers = {key: number * units[key] for key, number in row.items()}
        devices[name] = Device(name, **numbers, source=source)
    return devices


DEVICES: dict[str, Device] = _datasheets()

LOOPBACK = 0.5 * GB
"""Bytes per second that gloo reduces between processes of one machine; an estimate."""
TRIES = 4
"""Number of measurements, of which the best counts; the first warms up."""
ENOUGH = 1.0
"""Seconds after which a product is not measured again: some processors emulate short types."""


def find_device(name: str) -> Device:
    """A device of `devices.yaml`, `cpu` (this machine, measured in a second or two), `auto` (its
    GPU, or else `cpu`), or a YAML file with fields of `Device`, with `like: NAME` for missing ones.
    Raises `ConfigError`: the device is unknown, or the file is invalid."""
    if name.lower() == "auto":
        name = device_here()
    if name.lower() in DEVICES:
        return DEVICES[name.lower()]
    if name.lower() == "cpu":
        return this_machine()
    path = Path(name)
    if path.suffix in (".yaml", ".yml", ".json") or path.is_file():
        return _from_file(path)
    raise ConfigError(
        f"--device {name}: unknown device{did_you_mean(name.lower(), [*DEVICES, 'cpu'])}"
        " A YAML file with its values works, too"
    )


def device_here() -> str:
    """The name of this machine's GPU in the table of devices, or `cpu`. Raises `ConfigError`: the
    table does not have this GPU."""
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    here = torch.cuda.get_device_name(0)
    if fitting := [name for name in DEVICES if name in here.lower()]:
        return fitting[0]
    raise ConfigError(
        f"the table of devices does not have this machine's {here}; give --device a name "
        f"({', '.join(DEVICES)}) or a YAML file with its values, with like: NAME for missing ones"
    )


def _from_file(path: Path) -> Device:
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"--device {path}: it cannot be read ({error})") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"--device {path}: it is not a mapping of fields to numbers")
    base: dict[str, Any] = {"name": path.stem, "source": str(path)}
    if like := settings.pop("like", None):
        base_device = find_device(str(like))
        base = {field.name: getattr(base_device, field.name) for field in fields(Device)} | base
    names = {field.name: field for field in fields(Device)}
    for key, value in settings.items():
        if key not in names:
            raise ConfigError(f"--device {path}: unknown field {key!r}{did_you_mean(key, names)}")
        if key in ("name", "source"):
            base[key] = str(value)
        elif key == "shared":
            base[key] = bool(value)
        else:
            base[key] = _number(path, key, value)
    needed = ("bf16", "fp32", "bandwidth", "memory", "link", "network")
    if missing := [key for key in needed if key not in base]:
        raise ConfigError(f"--device {path}: {missing[0]} is missing (or set like: h100)")
    return Device(**base)


def _number(path: Path, key: str, value: Any) -> float:
    try:
        number = float(value)  # YAML reads 989e12 as a text
    except (TypeError, ValueError):
        number = 0.0
    if not number > 0:
        raise ConfigError(f"--device {path}: {key}={value!r} must be a number above 0")
    return int(number) if key == "per_node" else number


# -- this machine ----------------------------------------------------------------------------------


@functools.cache
def this_machine(clock: Callable[[], float] = time.perf_counter) -> Device:
    """This machine's processor, with torch's number of threads: matrix products and reads are
    measured once, which takes a second or two; memory is what is installed.

    Args:
        clock: returns seconds; `time.process_time` excludes other processes on a shared machine,
            with one thread.
    """
    import psutil
    import torch

    def shortest(work: Callable[[], object]) -> float:
        took: list[float] = []
        while len(took) < TRIES and sum(took) < ENOUGH:
            took.append(timeit.timeit(work, timer=clock, number=1))
        return min(took)

    size = 1024
    rates: dict[str, float] = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        left, right = torch.ones(size, size, dtype=dtype), torch.ones(size, size, dtype=dtype)
        rates[name] = 2 * size**3 / shortest(lambda a=left, b=right: a @ b)
    large = torch.ones(1 << 24)  # 64 MiB
    speed = large.nbytes / shortest(large.sum)
    small = torch.ones(16)
    launch = shortest(lambda: [small + small for _ in range(1000)]) / 1000
    return Device(
        "cpu",
        bf16=rates["bf16"],
        fp32=rates["fp32"],
        bandwidth=speed,
        memory=float(psutil.virtual_memory().total),
        link=LOOPBACK,
        network=LOOPBACK,
        per_node=1 << 20,
        launch=launch,
        shared=True,
        source=f"measured here, {torch.get_num_threads()} thread(s)",
    )
