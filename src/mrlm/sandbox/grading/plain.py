"""Conversion of Python values to plain JSON and back, with the types that JSON lacks. The text of
this file also runs inside sandboxes, before a worker's: it uses only the standard library.

`None`, booleans, text, lists, finite floats and integers below 2**53 are represented by themselves.
Every other value is an object with one key, its tag: `i` (integer, hexadecimal), `f` (a float that
is not finite), `c` (complex), `u` (text that is not Unicode), `b` (bytes), `t` (tuple), `s` (set),
`z` (frozenset), `d` (dictionary, as pairs), `r` (range), `x` (the class of a value of the standard
library, and the arguments that make it), `o` (the number of an object that is kept in its process),
`a` (a list, set or dictionary again, by its number: arguments of a call only)."""

import importlib
from collections.abc import Callable
from typing import Any

DEPTH = 60
"""Most levels of nested containers."""
ITEMS = 200_000
"""Most values in one value."""
TEXT = 500_000
"""Most characters and bytes in one value, all together."""
BITS = 64_000
"""Most bits of an integer: about 19,000 digits. Only hexadecimal ones take linear time."""

LIBRARY: dict[str, Callable[[Any], list[Any]]] = {
    "decimal.Decimal": lambda value: [str(value)],
    "fractions.Fraction": lambda value: [value.numerator, value.denominator],
    "datetime.date": lambda value: [value.year, value.month, value.day],
    "datetime.time": lambda value: [value.hour, value.minute, value.second, value.microsecond],
    "datetime.datetime": lambda value: [*value.timetuple()[:6], value.microsecond],
    "datetime.timedelta": lambda value: [value.days, value.seconds, value.microseconds],
    "collections.deque": lambda value: [list(value), value.maxlen],
    "builtins.dict_keys": lambda value: [list(value)],
    "builtins.dict_values": lambda value: [list(value)],
    "builtins.dict_items": lambda value: [list(value)],
}
"""Classes of the standard library whose values are data -> the arguments that make one."""


class NotPlain(ValueError):
    """A value that is not plain data: an object, a generator, too deep, too large, a cycle."""


class Handle:
    """A reference to an object of the solution: it can only be passed back."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number: int = number


def pack(value: Any) -> Any:
    """Convert a value to JSON. A subclass counts as its built-in base type, with its raw content.
    Raises `NotPlain`: it has parts that are not plain data, or is too large."""
    return PlainPacker().value(value, DEPTH)


def unpack(packed: Any, objects: list[Any] | None = None) -> Any:
    """Convert JSON back to a value of exact built-in types.

    Args:
        packed: a result of `pack`, possibly forged.
        objects: the objects of handles; without it they stay handles.

    Raises:
        NotPlain: it is not a result of `pack`.
    """
    return PlainUnpacker(objects).value(packed, DEPTH)


class PlainPacker:
    """Packs values, up to `ITEMS` values and `TEXT` characters in them. With `aliases`, the same
    list, set or dictionary is the same one where it is unpacked."""

    def __init__(self, aliases: bool = False) -> None:
        self.items: int = ITEMS
        self.text: int = TEXT
        self.numbers: dict[int, int] | None = {} if aliases else None

    def value(self, value: Any, depth: int) -> Any:
        """Pack one value; containers call it for their items."""
        self.items -= 1
        if depth < 0 or self.items < 0:
            raise NotPlain("too deep" if depth < 0 else "too many values")
        kind = type(value)
        if value is None or kind is bool:
            return value
        if self.numbers is not None and issubclass(kind, (list, set, dict)):
            if id(value) in self.numbers:
                return {"a": self.numbers[id(value)]}
            self.numbers[id(value)] = len(self.numbers)
        for base, how in self.HOW:
            if issubclass(kind, base):
                return how(self, value, depth - 1)
        raise NotPlain(f"{kind.__name__} is not plain data")

    def of_library(self, value: Any, depth: int) -> Any:
        """Pack a named tuple, or a value of one of `LIBRARY`; `None` for any other."""
        kind = type(value)
        name = f"{kind.__module__}.{kind.__qualname__}"
        if isinstance(value, tuple) and isinstance(getattr(kind, "_fields", None), tuple):
            parts = [kind.__name__, list(kind._fields), list(tuple.__iter__(value))]
            return {"x": ["collections.namedtuple", self.value(parts, depth - 1)]}
        if name not in LIBRARY or getattr(value, "tzinfo", None) is not None:
            return None
        return {"x": [name, self.value(LIBRARY[name](value), depth - 1)]}

    def integer(self, value: int, _: int) -> Any:
        value = int.__int__(value)
        if value.bit_length() > BITS:
            raise NotPlain("an integer with too many digits")
        return value if -(1 << 53) < value < 1 << 53 else {"i": f"{value:x}"}

    def real(self, value: float, _: int) -> Any:
        value = float.__float__(value)
        return value if value - value == 0 else {"f": repr(value)}

    def imaginary(self, value: complex, depth: int) -> Any:
        return {"c": [self.real(value.real, depth), self.real(value.imag, depth)]}

    def letters(self, value: str, _: int) -> Any:
        value = str.__str__(value)
        self.room(len(value))
        try:
            value.encode()
        except UnicodeEncodeError:
            return {"u": value.encode("utf-8", "surrogatepass").hex()}
        return value

    def octets(self, value: Any, _: int) -> Any:
        self.room(2 * len(value))
        return {"b": bytes(value).hex()}

    def room(self, size: int) -> None:
        self.text -= size
        if self.text < 0:
            raise NotPlain("too much text")

    def many(self, kind: Any, values: Any, depth: int) -> list[Any]:
        if kind.__len__(values) > self.items:
            raise NotPlain("too many values")
        return [self.value(item, depth) for item in kind.__iter__(values)]

    def table(self, value: dict[Any, Any], depth: int) -> Any:
        if dict.__len__(value) > self.items:
            raise NotPlain("too many values")
        pairs = dict.items(value)
        return {"d": [[self.value(key, depth), self.value(item, depth)] for key, item in pairs]}

    def steps(self, value: range, depth: int) -> Any:
        return {"r": [self.integer(n, depth) for n in (value.start, value.stop, value.step)]}

    HOW: tuple[tuple[Any, Callable[[Any, Any, int], Any]], ...] = (
        (int, integer),
        (float, real),
        (str, letters),
        (list, lambda self, value, depth: self.many(list, value, depth)),
        (tuple, lambda self, value, depth: {"t": self.many(tuple, value, depth)}),
        (dict, table),
        (set, lambda self, value, depth: {"s": self.many(set, value, depth)}),
        (frozenset, lambda self, value, depth: {"z": self.many(frozenset, value, depth)}),
        (complex, imaginary),
        ((bytes, bytearray), octets),
        (range, steps),
        (Handle, lambda self, value, _: {"o": value.number}),
    )


class PlainUnpacker:
    """Unpacks values; `objects` are those that its handles are numbers of. `aliases`: those of a
    packer with aliases."""

    def __init__(self, objects: list[Any] | None, aliases: bool = False) -> None:
        self.objects = objects
        self.aliases: list[Any] | None = [] if aliases else None

    def value(self, packed: Any, depth: int) -> Any:
        if depth < 0:
            raise NotPlain("too deep")
        if packed is None or type(packed) in (bool, int, float, str):
            return packed
        try:
            if type(packed) is list:
                row = self.known([])
                row.extend(self.value(item, depth - 1) for item in packed)
                return row
            ((tag, content),) = packed.items()
            return self.tagged(tag, content, depth - 1)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise NotPlain(f"not a packed value: {error}") from None

    def known(self, made: Any) -> Any:
        """A new container, under the next number."""
        if self.aliases is not None:
            self.aliases.append(made)
        return made

    def tagged(self, tag: str, content: Any, depth: int) -> Any:
        if tag == "d":
            table = self.known({})
            table.update((self.value(key, depth), self.value(item, depth)) for key, item in content)
            return table
        if tag == "s":
            heap = self.known(set())
            heap.update(self.value(item, depth) for item in content)
            return heap
        if tag == "a" and self.aliases is not None:
            return self.aliases[content]
        if tag in ("t", "z"):
            kind = {"t": tuple, "z": frozenset}[tag]
            return kind(self.value(item, depth) for item in content)
        if tag == "i":
            return integer(content)
        if tag == "f":
            return {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}[content]
        if tag == "c":
            real, imaginary = content
            return complex(self.value(real, depth), self.value(imaginary, depth))
        if tag == "u":
            return bytes.fromhex(content).decode("utf-8", "surrogatepass")
        if tag == "b":
            return bytes.fromhex(content)
        if tag == "r":
            return range(*(self.value(item, depth) for item in content))
        if tag == "x":
            name, parts = content
            return made(name, self.value(parts, depth))
        if tag == "o":
            return Handle(content) if self.objects is None else self.objects[content]
        raise NotPlain(f"unknown tag {tag!r:.40}")


def made(name: Any, parts: Any) -> Any:
    """A value of the standard library from its class and arguments, as packed by `of_library`."""
    if name == "collections.namedtuple":
        title, fields, values = parts
        return importlib.import_module("collections").namedtuple(title, fields)(*values)
    if name not in LIBRARY:
        raise NotPlain("a class that is not data")
    module, _, kind = name.rpartition(".")
    if kind == "dict_keys":
        return dict.fromkeys(*parts).keys()
    if kind == "dict_items":
        return dict(*parts).items()
    if kind == "dict_values":
        return dict(enumerate(*parts)).values()
    return getattr(importlib.import_module(module), kind)(*parts)


def integer(digits: Any) -> int:
    """Parse the hexadecimal digits of an integer. Raises `NotPlain`: the text is not hexadecimal,
    or too long."""
    if type(digits) is not str or len(digits) > BITS // 4 + 1:
        raise NotPlain("not hexadecimal digits, or too many")
    try:
        return int(digits, 16)
    except ValueError:
        raise NotPlain("not hexadecimal digits") from None
