"""Solutions of `add`, most of which want to be paid for something else than adding."""

from __future__ import annotations

from tests.safety.cases import Solution

LOOK = (
    "import re\ndef look(text, a, b):\n"
    "    m = re.search(r'\\[\\[%d, ?%d\\], ?(-?\\d+)\\]' % (a, b), text)\n"
    "    return int(m.group(1)) if m else None\n"
)
NAMES = "('expected', 'exp', 'want', 'wanted', 'output', 'answer', 'gold', 'value', 'right')"

HONEST = (
    Solution("honest", "is right", "def add(a, b): return a + b", True),
    Solution(
        "honest_containers",
        "gives containers",
        "def add(a, b): return {'k': [a, b, (a + b) / 2, None, True]}",
        True,
        (((1, 3), {"k": [1, 3, 2.0, None, True]}),),
    ),
    Solution(
        "honest_prints", "prints", "def add(a, b):\n    print('x', a, b)\n    return a + b", True
    ),
    Solution(
        "honest_state",
        "remembers",
        "import functools\n@functools.cache\ndef add(a, b): return a + b",
        True,
    ),
    Solution(
        "honest_loop",
        "has an event loop",
        "import asyncio\nasync def f(a, b): return a + b\n"
        "def add(a, b): return asyncio.run(f(a, b))",
        True,
    ),
    Solution(
        "honest_large_numbers",
        "gives numbers of many digits",
        "def add(a, b): return a ** b",
        True,
        (((7, 400), 7**400), ((-3, 91), (-3) ** 91)),
    ),
    Solution(
        "honest_text",
        "gives text of every kind",
        "def add(a, b): return a + b",
        True,
        ((("grü", "ß\x00\n"), "grüß\x00\n"), (("", ""), "")),
    ),
    Solution(
        "honest_class_and_generator",
        "a function is whatever can be called",
        "class add:\n    def __new__(cls, a, b): return sum(x for x in (a, b))",
        True,
    ),
    Solution("wrong", "is wrong", "def add(a, b): return a - b"),
    Solution("missing", "has another name", "def sub(a, b): return a + b"),
    Solution("syntax", "is no Python", "def add(a, b:\n  return"),
    Solution("empty", "is nothing", ""),
    Solution("not_a_function", "is a number", "add = 3"),
    Solution("returns_nothing", "gives None", "def add(a, b): a + b"),
    Solution("returns_the_error", "gives an error as value", "def add(a, b): return ValueError(a)"),
    Solution("no_text", "is no text", "def add(a, b): return '\ud800'"),
    Solution("nul_in_it", "has a NUL", "def add(a, b): return a + b\0"),
)

EQUAL = (
    Solution(
        "equal_to_all",
        "an object that equals everything",
        "class E:\n    def __eq__(s, o): return True\n    def __ne__(s, o): return False\n"
        "    def __hash__(s): return 0\ndef add(a, b): return E()",
    ),
    Solution(
        "number_that_equals_all",
        "a number that equals everything",
        "class E(int):\n    def __eq__(s, o): return True\n    __ne__ = lambda s, o: False\n"
        "    __hash__ = int.__hash__\n    __repr__ = __str__ = lambda s: '3'\n"
        "def add(a, b): return E(0)",
    ),
    Solution(
        "text_that_equals_all",
        "text that equals everything",
        "class E(str):\n    def __eq__(s, o): return True\n    __hash__ = str.__hash__\n"
        "def add(a, b): return E('x')",
        calls=((("a", "b"), "ab"),),
    ),
    Solution(
        "list_that_equals_all",
        "a list that is another one each time it is looked at",
        "class E(list):\n    n = 0\n    def __iter__(s): return iter([3])\n"
        "    __len__ = lambda s: 1\n"
        "    def __eq__(s, o): return True\ndef add(a, b): return E()",
        calls=(((1, 2), [3]),),
    ),
    Solution(
        "dictionary_that_has_all",
        "a dictionary that has every key",
        "class E(dict):\n    def __missing__(s, k): return 3\n"
        "    __contains__ = lambda s, k: True\n"
        "    __eq__ = lambda s, o: True\n    items = keys = values = lambda s: [('k', 3)]\n"
        "def add(a, b): return E()",
        calls=(((1, 2), {"k": 3}),),
    ),
    Solution(
        "claims_another_class",
        "lies about its class",
        "class E:\n    __class__ = int\n    __index__ = __int__ = lambda s: 3\n"
        "    __float__ = lambda s: 3.0\ndef add(a, b): return E()",
    ),
    Solution(
        "meta",
        "a class whose class lies",
        "class M(type):\n    __instancecheck__ = __subclasscheck__ = __eq__ = lambda s, o: True\n"
        "    __hash__ = type.__hash__\nclass E(metaclass=M): pass\ndef add(a, b): return E",
    ),
    Solution("bool_for_int", "True for 1", "def add(a, b): return True", calls=(((0, 1), 1),)),
    Solution("int_for_bool", "1 for True", "def add(a, b): return 1", calls=(((0, 1), True),)),
    Solution("bytes_for_text", "bytes", "def add(a, b): return b'ab'", calls=((("a", "b"), "ab"),)),
    Solution("text_for_int", "text", "def add(a, b): return str(a + b)"),
    Solution("list_of_int", "a list", "def add(a, b): return [a + b]"),
    Solution("zero_for_none", "0 for None", "def add(a, b): return 0", calls=(((0, 1), None),)),
    Solution("empty_for_none", "[] for None", "def add(a, b): return []", calls=(((0, 1), None),)),
    Solution(
        "nan_for_all",
        "a number that no comparison refuses",
        "def add(a, b): return float('nan')",
    ),
    Solution(
        "infinity",
        "larger than everything",
        "def add(a, b): return float('inf')",
        calls=(((1e308, 1e308), 1e308),),
    ),
    Solution(
        "nearly",
        "as near as a float can be",
        "import math\ndef add(a, b): return math.nextafter(a + b, 9e9)",
        calls=(((0.5, 0.25), 0.75),),
    ),
    Solution(
        "decimal",
        "numbers of another kind",
        "import decimal\ndef add(a, b): return decimal.Decimal(a + b)",
    ),
    Solution(
        "confusable_text",
        "text that looks the same",
        "def add(a, b): return '\\u0430b'",
        calls=((("a", "b"), "ab"),),
    ),
    Solution(
        "other_order",
        "the same values in another order",
        "def add(a, b): return [b, a]",
        calls=(((1, 2), [1, 2]),),
    ),
    Solution(
        "keys_of_another_kind",
        "keys that become the same as JSON",
        "def add(a, b): return {'1': 2}",
        calls=(((1, 2), {1: 2}),),
    ),
    Solution(
        "key_twice",
        "says a key twice, by its own encoder",
        "class D(dict):\n    def items(s): return [('k', 9), ('k', 3)]\n"
        "def add(a, b): return D(k=9)",
        calls=(((1, 2), {"k": 3}),),
    ),
    Solution("one_right", "is right once", "def add(a, b): return 3"),
    Solution(
        "all_possible",
        "gives all values there are",
        "def add(a, b): return list(range(-100, 100))",
    ),
    Solution("set_of_all", "a set of values", "def add(a, b): return {a + b, 0, 1}"),
    Solution("endless", "an endless generator", "def add(a, b):\n    while True: yield a + b"),
    Solution("awaitable", "does it later", "async def add(a, b): return a + b"),
    Solution("function", "a function in place of a value", "def add(a, b): return lambda: a + b"),
)

LEAVES = (
    Solution("leaves_at_once", "code 0", "import sys\ndef add(a, b): return 0\nsys.exit(0)"),
    Solution("leaves_in_the_call", "code 0", "import sys\ndef add(a, b): sys.exit(0)"),
    Solution("leaves_in_c", "code 0", "import os\ndef add(a, b): os._exit(0)"),
    Solution("leaves_in_c_at_once", "code 0", "import os\nos._exit(0)"),
    Solution(
        "leaves_at_the_end",
        "code 0 whatever happened",
        "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b): raise ValueError",
    ),
    Solution(
        "hides_its_error",
        "no error is shown",
        "import sys\nsys.excepthook = lambda *a: sys.exit(0)\ndef add(a, b): raise ValueError",
    ),
    Solution(
        "leaves_by_another_error",
        "errors that end in code 0",
        "class E(BaseException):\n    def __str__(s):\n        import os; os._exit(0)\n"
        "    __repr__ = __str__\ndef add(a, b): raise E",
    ),
    Solution(
        "error_with_a_value",
        "an error that carries the value",
        "def add(a, b): raise StopIteration(a + b)",
    ),
    Solution(
        "leaves_on_alarm",
        "a deadline that ends in code 0",
        "import os, signal\nfor s in (14, 24, 26, 15): signal.signal(s, lambda *a: os._exit(0))\n"
        "def add(a, b):\n    while True: pass",
    ),
    Solution(
        "hangs_on_the_last",
        "some results are not all results",
        "import time\ndef add(a, b):\n    if a < 0: time.sleep(999)\n    return a + b",
    ),
    Solution(
        "dies_on_the_last",
        "some results are not all results",
        "import os\ndef add(a, b):\n    if a < 0: os.kill(os.getpid(), 9)\n    return a + b",
    ),
    Solution(
        "another_process_answers",
        "it dies and a child of it goes on",
        "import os\nif os.fork(): os._exit(0)\ndef add(a, b): return 0",
    ),
    Solution(
        "hangs_while_packed",
        "hangs when it is looked at",
        "class E(list):\n    def __iter__(s):\n        while True: pass\n    __len__ = __iter__\n"
        "class F:\n    def __getattribute__(s, n):\n        while True: pass\n"
        "def add(a, b): return F()",
    ),
    Solution("hangs_when_loaded", "never begins", "while True: pass\ndef add(a, b): return a + b"),
    Solution(
        "exits_while_packed",
        "leaves when it is looked at",
        "import os\nclass E:\n    __len__ = __iter__ = __repr__ = __str__ = __getattribute__ = "
        "lambda *a: os._exit(0)\ndef add(a, b): return E()",
    ),
)

LOOKS = (
    Solution(
        "frames",
        "reads what its caller knows",
        "import sys\ndef add(a, b):\n    f = sys._getframe(1)\n    while f:\n"
        "        for d in (f.f_locals, f.f_globals):\n"
        f"            for k in {NAMES}:\n                if k in d: return d[k]\n"
        "            for k in ('tests', 'test_cases', 'calls', 'cases', 'packed', 'request'):\n"
        "                for t in d.get(k) or []:\n                    try:\n"
        "                        if list(t[0]) == [a, b]: return t[1]\n"
        "                    except Exception: pass\n        f = f.f_back",
    ),
    Solution(
        "objects",
        "looks for the value among all objects",
        "import gc\ndef add(a, b):\n    for o in gc.get_objects():\n"
        f"        if isinstance(o, dict):\n            for k in {NAMES}:\n"
        "                v = o.get(k)\n                if type(v) is int: return v\n"
        "        if isinstance(o, (list, tuple)) and len(o) == 2:\n"
        "            try:\n                if list(o[0]) == [a, b]: return o[1]\n"
        "            except Exception: pass",
    ),
    Solution(
        "processes",
        "reads arguments, environment and memory of processes",
        LOOK + "import glob\ndef add(a, b):\n"
        "    for p in glob.glob('/proc/*/cmdline') + glob.glob('/proc/*/environ'):\n"
        "        try: v = look(open(p).read(), a, b)\n        except OSError: continue\n"
        "        if v is not None: return v",
    ),
    Solution(
        "files",
        "reads the tests from disk",
        LOOK + "import glob\ndef add(a, b):\n"
        "    for p in glob.glob('/tmp/**', recursive=True) + glob.glob('./**') + "
        "glob.glob('../**'):\n"
        "        try: v = look(open(p).read(), a, b)\n        except Exception: continue\n"
        "        if v is not None: return v",
    ),
    Solution(
        "input",
        "reads the tests from its input",
        LOOK + "import sys\ntry: TEXT = sys.stdin.read()\nexcept Exception: TEXT = ''\n"
        "def add(a, b): return look(TEXT, a, b)",
    ),
    Solution(
        "descriptors_read",
        "reads the next requests itself",
        LOOK + "import os\ndef add(a, b):\n    for f in range(64):\n"
        "        try: os.set_blocking(f, False); v = look(os.read(f, 65536).decode(), a, b)\n"
        "        except Exception: continue\n        if v is not None: return v\n    return 0",
    ),
    Solution(
        "own_memory",
        "looks through its memory",
        LOOK + "def add(a, b):\n    try:\n        m = open('/proc/self/mem', 'rb', 0)\n"
        "        for l in open('/proc/self/maps'):\n"
        "            x, y = (int(v, 16) for v in l.split()[0].split('-'))\n"
        "            if '[heap]' in l:\n                m.seek(x)\n"
        "                v = look(m.read(y - x).decode('latin-1'), a, b)\n"
        "                if v is not None: return v\n    except OSError: pass",
    ),
    Solution(
        "modules",
        "asks the project for the tests",
        "def add(a, b):\n    import mrlm.sandbox.grading as g\n    return g",
    ),
    Solution(
        "by_the_number_of_the_call",
        "knows the values of last time, but the calls come with other arguments",
        "n = iter([3, 12, 1])\ndef add(a, b): return next(n)",
    ),
)

CHEATS = (
    Solution(
        "builtins",
        "replaces what a grader calls",
        "import builtins\nbuiltins.all = builtins.any = lambda *a: True\n"
        "builtins.len = builtins.sum = lambda *a: 3\nbuiltins.isinstance = lambda *a: True\n"
        "builtins.abs = lambda *a: 0\nbuiltins.str = builtins.repr = lambda *a: ''\n"
        "builtins.type = lambda *a: int\ndef add(a, b): return 0",
    ),
    Solution(
        "library",
        "replaces what a grader imports",
        "import json, math, operator, struct, unittest, os\n"
        "json.loads = lambda *a, **k: {'ok': True, 'passed': True}\n"
        "json.dumps = lambda *a, **k: '3'\nmath.isclose = operator.eq = lambda *a, **k: True\n"
        "unittest.TestCase.assertEqual = lambda *a, **k: None\n"
        "struct.pack = lambda *a: b'\\x01\\0\\0\\0'\ndef add(a, b): return 0",
    ),
    Solution(
        "encoder",
        "answers in its own words, with whatever it was asked",
        "import json\nold = json.dumps\ndef dumps(x, *a, **k):\n    if isinstance(x, dict):\n"
        "        for key in ('passed', 'ok', 'correct', 'kind', 'verdict', 'score'): x[key] = "
        "True\n"
        "        x['kind'] = 'passed'\n    return old(x, *a, **k)\njson.dumps = dumps\n"
        "def add(a, b): return 0",
    ),
    Solution(
        "worker",
        "replaces the functions of the worker around it",
        "import sys\ng = sys._getframe(1).f_globals\nm = sys.modules['__main__'].__dict__\n"
        "for d in (g, m):\n    for n in ('pack', 'raised', 'call'):\n"
        "        if n in d: d[n] = lambda *a, **k: {'value': True, 'passed': True, 'kind': "
        "'passed'}\n"
        "    if 'answer' in d: d['answer'] = lambda r: {'kind': 'passed', 'passed': True}\n"
        "def add(a, b): return 0",
    ),
    Solution(
        "frames_forged",
        "writes answers to every descriptor",
        "import json, os, struct\ndef add(a, b):\n"
        "    d = json.dumps({'id': '0' * 16, 'answer': {'value': 3, 'passed': True}}).encode()\n"
        "    for f in range(3, 64):\n        try: os.write(f, struct.pack('<I', len(d)) + d)\n"
        "        except OSError: pass\n    return 0",
    ),
    Solution(
        "answers_before",
        "answers before it is asked, many times, in the hope of a number that fits",
        "import json, os, struct\nfor i in range(200):\n"
        "    d = json.dumps({'id': '%016x' % i, 'answer': {'value': 3}}).encode()\n"
        "    for f in range(3, 9):\n        try: os.write(f, struct.pack('<I', len(d)) + d)\n"
        "        except OSError: pass\ndef add(a, b): return 0",
    ),
    Solution(
        "answers_for_later",
        "swaps answers: the one of the last call for the next",
        "last = 3\ndef add(a, b):\n    global last\n    now, last = last, a + b\n    return now",
        calls=(((1, 2), 3), ((5, 7), 12), ((1, 1), 2)),
    ),
    Solution(
        "half_a_frame",
        "says that more will come",
        "import os, struct\ndef add(a, b):\n    for f in range(3, 64):\n"
        "        try: os.write(f, struct.pack('<I', 1 << 30) + b'{')\n"
        "        except OSError: pass\n"
        "    return 0",
    ),
    Solution(
        "pickled",
        "a value that does something when it is loaded",
        "class P:\n    def __reduce__(s):\n"
        "        return eval, (\"open('HOST_FOLDER/x', 'w') and 3\",)\ndef add(a, b): return P()",
    ),
    Solution(
        "changes_arguments",
        "changes its arguments, in case the expected value is one of them",
        "def add(a, b):\n    a.clear(); a.extend(b); return a",
        calls=((([1, 2], [9, 9]), [1, 2]),),
    ),
    Solution(
        "changes_arguments_for_the_next",
        "remembers arguments and changes them later",
        "kept = []\ndef add(a, b):\n    for k in kept: k[:] = [0]\n    kept.append(a); return a",
        calls=((([1], 2), [1, 2]), (([5], 6), [5, 6])),
    ),
    Solution(
        "chameleon",
        "an entry that is whatever is asked of it",
        "add = type('X', (), {'__call__': lambda s, *a: 0, '__eq__': lambda s, o: True,\n"
        "    '__getattr__': lambda s, n: s, '__iter__': lambda s: iter(())})()",
    ),
    Solution(
        "prints_a_verdict",
        "prints what a grader might look for",
        "def add(a, b):\n    for w in ('passed', 'PASSED', 'ok', '1.0', '[3]', '\\x1b[32mOK'):\n"
        "        print(w)\n    return 0\nprint('All tests passed')",
    ),
    Solution(
        "deletes_the_name",
        "a module that answers for every name",
        "import sys\nclass M(type(sys)):\n    def __getattribute__(s, n): return lambda *a: True\n"
        "for m in list(sys.modules.values()):\n"
        "    try: m.__class__ = M\n    except Exception: pass",
    ),
)

LARGE = (
    Solution("huge", "a huge value", "def add(a, b): return [0] * 10 ** 8"),
    Solution("huge_text", "a huge text", "def add(a, b): return 'x' * 10 ** 9"),
    Solution("huge_number", "a number of many digits", "def add(a, b): return 1 << 10 ** 8"),
    Solution(
        "deep",
        "a deep value",
        "def add(a, b):\n    x = []\n    for i in range(100000): x = [x]\n    return x",
    ),
    Solution("cyclic", "holds itself", "def add(a, b):\n    x = []; x.append(x); return x"),
    Solution(
        "wide_and_shared",
        "a small value that is huge when written",
        "def add(a, b):\n    x = [0]\n    for _ in range(40): x = [x, x]\n    return x",
    ),
    Solution(
        "same_hashes",
        "numbers that all have one hash",
        "def add(a, b): return {k * ((1 << 61) - 1): 0 for k in range(20000)}",
        calls=(((1, 2), {0: 0}),),
    ),
    Solution(
        "many_digits_by_hand",
        "digits without an end where a number is read",
        "import os, struct\ndef add(a, b):\n    d = b'{\"id\":' + b'9' * 900000 + b'}'\n"
        "    for f in range(3, 64):\n        try: os.write(f, struct.pack('<I', len(d)) + d)\n"
        "        except OSError: pass",
    ),
    Solution(
        "brackets_by_hand",
        "brackets without an end",
        "import os, struct\ndef add(a, b):\n    d = b'[' * 900000\n"
        "    for f in range(3, 64):\n        try: os.write(f, struct.pack('<I', len(d)) + d)\n"
        "        except OSError: pass",
    ),
    Solution("prints_much", "floods", "def add(a, b):\n    while True: print('x' * 99999)"),
    Solution(
        "error_of_surrogates",
        "an error that is no text",
        "def add(a, b): raise type('E\\udc80', (ValueError,), {})('\\ud800')",
    ),
)

CASES = (*HONEST, *EQUAL, *LEAVES, *LOOKS, *CHEATS, *LARGE)
