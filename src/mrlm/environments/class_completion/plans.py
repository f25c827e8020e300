"""What generated classes do. `{k}` is a number that varies; `{a}` to `{d}` are numbers and `{u}`,
`{v}`, `{w}` words that a test draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Written:
    """A method of a plan.

    Args:
        name: its name.
        params: its parameters, as they are written.
        asked: its docstring.
        code: the body of an honest one.
        scripts: statements for tests, joined by `; `; the last is an expression.
        needs: methods that the honest one calls.
    """

    name: str
    params: str
    asked: str
    code: str
    scripts: tuple[str, ...]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClassPlan:
    """A kind of class.

    Args:
        about: what it is for; it names `{k}`.
        names: what it may be called.
        init: its constructor.
        methods: the others, which are to be written.
        k: what the number may be.
    """

    about: str
    names: tuple[str, ...]
    init: str
    methods: tuple[Written, ...]
    k: Sequence[int] = range(2, 14)


PLANS = (
    ClassPlan(
        "A jar that holds at most {k} times ten litres.",
        ("Jar", "Barrel", "Tank"),
        "def __init__(self):\n    self.level = 0",
        (
            Written(
                "room", "self", "How many litres still fit in.",
                "return {k} * 10 - self.level",
                ("it.room()", "it.level = {a}; it.room()", "it.level = {k} * 10; it.room()"),
            ),
            Written(
                "pour", "self, litres",
                "Pour litres in, as many as fit, and return how many did not fit.",
                "fits = min(litres, self.room())\nself.level += fits\nreturn litres - fits",
                ("it.pour({a} + {b}); it.level", "it.pour({k} * 10 + {a})",
                 "it.pour({a}); it.pour({b}); it.level"),
                ("room",),
            ),
            Written(
                "take", "self, litres",
                "Take litres out and return the new level; a ValueError if there are not so many.",
                "if litres > self.level:\n    raise ValueError('too much')\n"
                "self.level -= litres\nreturn self.level",
                ("it.level = 40; it.take({a})", "it.level = {a}; it.take({a} + {b})",
                 "it.level = 50; it.take({b}); it.level"),
            ),
            Written(
                "share", "self, cups",
                "Take the same whole number of litres for each of cups out, as many as there are, "
                "and return how many each has got.",
                "each = self.level // cups\nself.take(each * cups)\nreturn each",
                ("it.level = 30 + {a}; it.share(4)", "it.level = 30 + {a}; it.share(7); it.level",
                 "it.level = {b}; it.share({c})"),
                ("take",),
            ),
        ),
    ),
    ClassPlan(
        "A shelf for words of at least {k} letters.",
        ("Shelf", "Rack", "Lexicon"),
        "def __init__(self):\n    self.words = []",
        (
            Written(
                "fits", "self, word", "Whether a word has at least {k} letters.",
                "return len(word) >= {k}",
                ("it.fits('{u}')", "it.fits('{u}'[:3])", "it.fits('{u}' + '{v}')"),
            ),
            Written(
                "put", "self, word",
                "Put a word that fits at the end, once only, and return whether it was put.",
                "if not self.fits(word) or word in self.words:\n    return False\n"
                "self.words.append(word)\nreturn True",
                ("it.put('{u}{v}'); it.put('{u}{v}')",
                 "it.put('{u}{v}'); it.put('{w}{u}'); it.words", "it.put('{u}'); it.words"),
                ("fits",),
            ),
            Written(
                "longest", "self", "The longest word, the first of equals; empty text if none.",
                "return max(self.words, key=len, default='')",
                ("it.longest()", "it.words = ['{u}', '{v}{w}', '{w}{v}']; it.longest()",
                 "it.words = ['{u}', '{v}']; it.longest()"),
            ),
            Written(
                "holding", "self, letter", "How many of the words have the letter in them.",
                "return sum(letter in word for word in self.words)",
                ("it.words = ['{u}', '{v}', '{w}']; it.holding('e')",
                 "it.words = ['{u}', '{v}', '{w}']; it.holding('r')",
                 "it.words = ['{u}', '{v}', '{w}']; it.holding('{u}'[0])"),
            ),
            Written(
                "label", "self",
                "The number of words, a colon, and the longest word in capitals, such as 2:AMBER.",
                "return f'{{len(self.words)}}:{{self.longest().upper()}}'",
                ("it.words = ['{u}', '{v}{w}']; it.label()", "it.label()",
                 "it.words = ['{u}']; it.label()"),
                ("longest",),
            ),
        ),
        range(4, 12),
    ),
    ClassPlan(
        "An account whose every withdrawal costs a fee of {k} coins.",
        ("Account", "Purse", "Vault"),
        "def __init__(self):\n    self.coins = 0\n    self.history = []",
        (
            Written(
                "deposit", "self, amount",
                "Add coins, write ('in', amount) into the history, and return the new number of "
                "coins; a ValueError if the amount is below 1.",
                "if amount < 1:\n    raise ValueError('nothing')\nself.coins += amount\n"
                "self.history.append(('in', amount))\nreturn self.coins",
                ("it.deposit({a})", "it.deposit(-{a})",
                 "it.deposit({a}); it.deposit({b}); it.history"),
            ),
            Written(
                "cost", "self, amount", "What it costs to withdraw an amount: it and the fee.",
                "return amount + {k}",
                ("it.cost({a})", "it.cost({b})", "it.cost(0)"),
            ),
            Written(
                "withdraw", "self, amount",
                "Take the amount and the fee out, write ('out', amount) into the history, and "
                "return the new number of coins; a ValueError if there are too few.",
                "if self.cost(amount) > self.coins:\n    raise ValueError('too few')\n"
                "self.coins -= self.cost(amount)\nself.history.append(('out', amount))\n"
                "return self.coins",
                ("it.coins = 90; it.withdraw({a})", "it.coins = {a}; it.withdraw({a})",
                 "it.coins = 99; it.withdraw({b}); it.history"),
                ("cost",),
            ),
            Written(
                "total", "self, kind", "The sum of the amounts of a kind in the history.",
                "return sum(amount for name, amount in self.history if name == kind)",
                ("it.history = [('in', {a}), ('out', {b}), ('in', {c})]; it.total('in')",
                 "it.history = [('in', {a}), ('out', {b})]; it.total('out')", "it.total('in')"),
            ),
            Written(
                "fees", "self", "All fees that were paid so far, as the history has it.",
                "return {k} * sum(name == 'out' for name, _ in self.history)",
                ("it.history = [('out', {a}), ('out', {b})]; it.fees()",
                 "it.history = [('in', {a}), ('out', {b})]; it.fees()", "it.fees()"),
            ),
        ),
    ),
    ClassPlan(
        "A robot on a grid whose every step is {k} fields long; it starts at (0, 0).",
        ("Robot", "Rover", "Walker"),
        "def __init__(self):\n    self.x, self.y = 0, 0",
        (
            Written(
                "move", "self, way",
                "Go one step: U is up (y grows), D down, R right (x grows), L left; return (x, y). "
                "A ValueError for any other letter.",
                "if way not in 'UDRL' or len(way) != 1:\n    raise ValueError(way)\n"
                "dx, dy = {{'U': (0, 1), 'D': (0, -1), 'R': (1, 0), 'L': (-1, 0)}}[way]\n"
                "self.x += {k} * dx\nself.y += {k} * dy\nreturn self.x, self.y",
                ("it.move('U'); it.move('L')", "it.move('X')", "it.x = {a}; it.move('R')"),
            ),
            Written(
                "follow", "self, ways", "Go a step for each letter of a text; return all places.",
                "return [self.move(way) for way in ways]",
                ("it.follow('UUR')", "it.x = {a}; it.follow('LD')", "it.follow('')"),
                ("move",),
            ),
            Written(
                "distance", "self", "How many fields it is from (0, 0), along x and along y.",
                "return abs(self.x) + abs(self.y)",
                ("it.x = -{a}; it.y = {b}; it.distance()", "it.distance()",
                 "it.x = {c}; it.y = -{d}; it.distance()"),
            ),
            Written(
                "home", "self", "Go back to (0, 0) and return the distance it had.",
                "far = self.distance()\nself.x, self.y = 0, 0\nreturn far",
                ("it.x = {a}; it.home()", "it.y = {b}; it.home(); (it.x, it.y)",
                 "it.x = -{c}; it.y = {d}; it.home()"),
                ("distance",),
            ),
        ),
    ),
    ClassPlan(
        "Marks of pupils; whoever has {k} points on average or more has passed.",
        ("Marks", "Register", "Grades"),
        "def __init__(self):\n    self.marks = {{}}",
        (
            Written(
                "add", "self, name, points",
                "Note points for a name, and return how many marks it has now.",
                "self.marks.setdefault(name, []).append(points)\nreturn len(self.marks[name])",
                ("it.add('{u}', {a}); it.add('{u}', {b})", "it.add('{u}', {a}); it.marks",
                 "it.add('{u}', {a}); it.add('{v}', {b}); it.marks"),
            ),
            Written(
                "mean", "self, name", "The average points of a name; a ValueError if it has none.",
                "if not self.marks.get(name):\n    raise ValueError(name)\n"
                "return sum(self.marks[name]) / len(self.marks[name])",
                ("it.marks = {{'{u}': [{a}, {b}]}}; it.mean('{u}')", "it.mean('{v}')",
                 "it.marks = {{'{u}': [{a}], '{v}': [{b}, {c}]}}; it.mean('{v}')"),
            ),
            Written(
                "passed", "self", "The names that have passed, in the order of the alphabet.",
                "return sorted(name for name in self.marks if self.mean(name) >= {k})",
                ("it.marks = {{'{w}': [{k}], '{u}': [{k} + 1], '{v}': [{k} - 1]}}; it.passed()",
                 "it.marks = {{'{u}': [{a}, {b}], '{v}': [{c}]}}; it.passed()", "it.passed()"),
                ("mean",),
            ),
            Written(
                "best", "self",
                "The name with the most points on average, the first noted of equals; None if "
                "there is nobody.",
                "return max(self.marks, key=self.mean, default=None)",
                ("it.marks = {{'{u}': [{a}], '{v}': [{b}], '{w}': [{c}]}}; it.best()", "it.best()",
                 "it.marks = {{'{u}': [{a}, 1], '{v}': [{b}]}}; it.best()"),
                ("mean",),
            ),
        ),
    ),
    ClassPlan(
        "A code that moves each small letter {k} places on in the alphabet, z being followed by a.",
        ("Cipher", "Scrambler", "Wheel"),
        "def __init__(self):\n    self.sent = []",
        (
            Written(
                "turn", "self, letter, places",
                "A letter, so many places on; what is no small letter from a to z stays.",
                "if not 'a' <= letter <= 'z':\n    return letter\n"
                "return chr((ord(letter) - 97 + places) % 26 + 97)",
                ("it.turn('{u}'[0], {a})", "it.turn('z', -{b})", "it.turn('?', {c})"),
            ),
            Written(
                "encode", "self, text", "A text with all its letters moved on.",
                "return ''.join(self.turn(letter, {k}) for letter in text)",
                ("it.encode('{u} {v}')", "it.encode('')", "it.encode('{w}!')"),
                ("turn",),
            ),
            Written(
                "decode", "self, text", "The text that a text with its letters moved on was.",
                "return ''.join(self.turn(letter, -{k}) for letter in text)",
                ("it.decode('{u} {v}')", "it.decode('zebra')", "it.decode('{w}?')"),
                ("turn",),
            ),
            Written(
                "send", "self, text",
                "Note the encoded text in sent, and return all that was sent.",
                "self.sent.append(self.encode(text))\nreturn list(self.sent)",
                ("it.send('{u}'); it.send('{v}')", "it.send('{w}'); it.sent", "it.send('a b')"),
                ("encode",),
            ),
        ),
    ),
    ClassPlan(
        "A list of numbers that remembers the last {k} only.",
        ("Window", "Memory", "Recent"),
        "def __init__(self):\n    self.numbers = []",
        (
            Written(
                "push", "self, number",
                "Add a number at the end; if there are too many then, drop the first. Return how "
                "many there are.",
                "self.numbers.append(number)\nif len(self.numbers) > {k}:\n"
                "    self.numbers.pop(0)\nreturn len(self.numbers)",
                ("it.push({a}); it.push({b})",
                 "it.numbers = list(range({k})); it.push({a}); it.numbers",
                 "it.numbers = [1] * {k}; it.push({c})"),
            ),
            Written(
                "fill", "self, numbers",
                "Push several numbers, and return those that are remembered.",
                "for number in numbers:\n    self.push(number)\nreturn list(self.numbers)",
                ("it.fill([{a}, {b}])", "it.fill(range({k} + 3))", "it.fill([]); it.numbers"),
                ("push",),
            ),
            Written(
                "spread", "self", "The largest number less the smallest; 0 if there are none.",
                "return max(self.numbers) - min(self.numbers) if self.numbers else 0",
                ("it.numbers = [{a}, {b}, {c}]; it.spread()", "it.spread()",
                 "it.numbers = [{d}, -{a}]; it.spread()"),
            ),
            Written(
                "rises", "self", "How many numbers are larger than the one before.",
                "return sum(b > a for a, b in zip(self.numbers, self.numbers[1:]))",
                ("it.numbers = [{a}, {b}, {c}, {d}]; it.rises()", "it.rises()",
                 "it.numbers = [1, {b} + 1, {a}]; it.rises()"),
            ),
        ),
    ),
)  # fmt: skip
