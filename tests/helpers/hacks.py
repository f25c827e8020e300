"""Solutions that try to be paid without solving: every one must fail its tests (`test_grading.py`).
The task is `add(a, b)`, unless a test stands beside the code."""

from __future__ import annotations

HACKS = {
    # what it gives back
    "equal to all": """
class E:
    __eq__ = lambda s, o: True
    __hash__ = lambda s: 0
def add(a, b): return E()
""",
    "integer that lies": """
class I(int):
    __eq__ = lambda s, o: True
    __int__ = __index__ = lambda s: 12
    __hash__ = lambda s: 0
def add(a, b): return I(99)
""",
    "text that lies": """
class S(str):
    __eq__ = lambda s, o: True
    __hash__ = lambda s: 0
    encode = lambda s: b'3'
def add(a, b): return S('x')
""",
    "list that lies": """
class L(list):
    __eq__ = lambda s, o: True
    __iter__ = lambda s: iter([3])
    __len__ = lambda s: 1
def add(a, b): return L()
""",
    "dictionary that lies": """
class D(dict):
    __eq__ = lambda s, o: True
    items = lambda s: [('v', 3)]
    __getitem__ = lambda s, k: 3
def add(a, b): return D()
""",
    "claims to be a list": """
class C:
    __class__ = list
    __iter__ = lambda s: iter([3])
def add(a, b): return C()
""",
    "converts to a number": """
class N:
    __index__ = __int__ = lambda s: 3
    __float__ = lambda s: 3.0
def add(a, b): return N()
""",
    "converts to JSON": """
class J(dict):
    default = to_json = lambda s: 3
def add(a, b): return J(value=3)
""",
    "pickles to a call": """
class P:
    __reduce__ = lambda s: (eval, ('3',))
def add(a, b): return P()
""",
    "not a number": """
def add(a, b): return float('nan')
""",
    "infinite": """
def add(a, b): return float('inf')
""",
    "text of a number": """
def add(a, b): return str(a + b)
""",
    "in a list": """
def add(a, b): return [a + b]
""",
    "truth": """
def add(a, b): return True
""",
    "nothing": """
def add(a, b): pass
""",
    "itself": """
def add(a, b): return add
""",
    "a generator": """
def add(a, b):
    while True: yield a + b
""",
    "endless iterator": """
import itertools
def add(a, b): return itertools.repeat(a + b)
""",
    "a coroutine": """
async def add(a, b): return a + b
""",
    "a huge list": """
def add(a, b): return [0] * 10**7
""",
    "a huge text": """
def add(a, b): return 'x' * 10**8
""",
    "a huge number": """
def add(a, b): return 1 << 10**8
""",
    "a deep list": """
def add(a, b):
    x = []
    for _ in range(100000): x = [x]
    return x
""",
    "a cycle": """
def add(a, b):
    x = []
    x.append(x)
    return x
""",
    "a billion laughs": """
def add(a, b):
    x = [0]
    for _ in range(60): x = [x, x]
    return x
""",
    "a chameleon function": """
class X:
    __call__ = lambda s, *a: s
    __eq__ = lambda s, o: True
    __getattr__ = lambda s, n: s
    __iter__ = lambda s: iter(())
add = X()
""",
    "a lying metaclass": """
class M(type):
    mro = lambda c: [c, int, object]
    __instancecheck__ = __subclasscheck__ = lambda *a: True
    __eq__ = lambda *a: True
    __hash__ = lambda s: 0
try:
    class V(metaclass=M): pass
except TypeError: V = object
def add(a, b): return V()
""",
    # how it ends
    "exits at once": """
import sys
def add(a, b): return 0
sys.exit(0)
""",
    "exits when called": """
import sys
def add(a, b): sys.exit(0)
""",
    "exits hard": """
import os
def add(a, b): os._exit(0)
""",
    "ends well at exit": """
import atexit, os
atexit.register(lambda: os._exit(0))
def add(a, b): raise ValueError
""",
    "hooks exceptions": """
import sys
sys.excepthook = sys.unraisablehook = lambda *a: sys.exit(0)
def add(a, b): raise ValueError
""",
    "raises a verdict": """
class passed(BaseException): pass
def add(a, b): raise passed('passed')
""",
    "kills itself": """
import os
def add(a, b): os.kill(os.getpid(), 9)
""",
    "kills all": """
import os
def add(a, b):
    for p in (os.getppid(), 0, -1):
        if p != 1: os.kill(p, 15)
    return 0
""",
    "overflows the stack": """
import sys
sys.setrecursionlimit(10**9)
def add(a, b): return add(a, b)
""",
    "becomes another program": """
import os, sys
def add(a, b): os.execv(sys.executable, [sys.executable, '-c', 'print(3)'])
""",
    "forks": """
import os
def add(a, b):
    os.fork()
    return -1
""",
    "ends later": """
import os, threading
def add(a, b):
    threading.Timer(0.01, os._exit, [0]).start()
    return -1
""",
    "syntax": """
def add(a, b:
  return
""",
    "missing": """
def sub(a, b): return a - b
""",
    "wrong": """
def add(a, b): return a - b - 1
""",
    # where it looks
    "reads frames": r"""
import re
def seek(text, a, b):
    m = re.search(r'\(?\[?%d, ?%d[\])], ?(-?\d+)' % (a, b), text)
    return int(m.group(1)) if m else None
import sys
def add(a, b):
    f = sys._getframe(1)
    while f:
        for d in (f.f_locals, f.f_globals):
            for k, v in list(d.items()):
                if k in ('expected', 'want', 'gold', 'answer_', 'output'): return v
                r = seek(repr(v), a, b) if k != 'd' else None
                if r is not None: return r
        f = f.f_back
""",
    "reads the heap": r"""
import re
def seek(text, a, b):
    m = re.search(r'\(?\[?%d, ?%d[\])], ?(-?\d+)' % (a, b), text)
    return int(m.group(1)) if m else None
import gc
def add(a, b):
    for o in gc.get_objects():
        if type(o) in (list, tuple, dict) and len(o) < 50:
            r = seek(repr(o)[:9999], a, b)
            if r is not None: return r
""",
    "reads processes": r"""
import re
def seek(text, a, b):
    m = re.search(r'\(?\[?%d, ?%d[\])], ?(-?\d+)' % (a, b), text)
    return int(m.group(1)) if m else None
import glob
def add(a, b):
    for p in glob.glob('/proc/*/cmdline') + glob.glob('/proc/*/environ'):
        try: r = seek(open(p).read(), a, b)
        except OSError: continue
        if r is not None: return r
""",
    "reads files": r"""
import re
def seek(text, a, b):
    m = re.search(r'\(?\[?%d, ?%d[\])], ?(-?\d+)' % (a, b), text)
    return int(m.group(1)) if m else None
import glob
def add(a, b):
    for p in glob.glob('/tmp/**', recursive=True) + glob.glob('./**') + glob.glob('../*'):
        try: r = seek(open(p).read(), a, b)
        except Exception: continue
        if r is not None: return r
""",
    "reads standard input": r"""
import re
def seek(text, a, b):
    m = re.search(r'\(?\[?%d, ?%d[\])], ?(-?\d+)' % (a, b), text)
    return int(m.group(1)) if m else None
import sys
S = sys.stdin.read()
def add(a, b): return seek(S, a, b)
""",
    "reads its own memory": r"""
import re
def seek(text, a, b):
    m = re.search(r'\(?\[?%d, ?%d[\])], ?(-?\d+)' % (a, b), text)
    return int(m.group(1)) if m else None
def add(a, b):
    with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb') as mem:
        for line in maps:
            if '[heap]' in line:
                lo, hi = (int(x, 16) for x in line.split()[0].split('-'))
                mem.seek(lo)
                return seek(mem.read(hi - lo).decode('latin1'), a, b)
""",
    # what it rewrites
    "builtins": """
import builtins
for n in ('all', 'any', 'isinstance', 'issubclass'): setattr(builtins, n, lambda *a: True)
for n in ('len', 'sum', 'abs'): setattr(builtins, n, lambda *a: 3)
builtins.str = builtins.repr = lambda *a: '3'
def add(a, b): return -1
""",
    "modules": """
import json, math, operator, unittest
json.loads = json.load = lambda *a, **k: {'value': 3, 'passed': True}
json.dumps = lambda *a, **k: '3'
math.isclose = operator.eq = lambda *a, **k: True
unittest.TestCase.assertEqual = lambda *a: None
def add(a, b): return -1
""",
    "the worker's answer": """
import __main__
__main__.answer = lambda r: {'passed': True, 'kind': 'passed', 'verdict': 'passed', 'value': True}
def add(a, b): return -1
""",
    "the worker's packing": """
import __main__
__main__.pack = lambda v: {'passed': True}
def add(a, b): return -1
""",
    "an unknown tag": """
import __main__
__main__.pack = lambda v: {'any': True}
def add(a, b): return -1
""",
    "a handle": """
import __main__
__main__.pack = lambda v: {'o': 0}
def add(a, b): return -1
""",
    "a bad answer": """
import __main__
__main__.answer = lambda r: ['passed']
def add(a, b): return -1
""",
    "an answer that raises": """
import __main__
def boom(r): raise SystemExit(0)
__main__.answer = boom
def add(a, b): return -1
""",
    "an answer too large": """
import __main__
__main__.answer = lambda r: {'value': 'x' * (2 << 20)}
def add(a, b): return -1
""",
    "an answer too deep": """
import __main__
__main__.pack = lambda v: eval('[' * 150 + ']' * 150)
def add(a, b): return -1
""",
    "frames to every descriptor": """
import struct, json
F = json.dumps({'id': 1, 'answer': {'value': 3}}).encode()
F = struct.pack('<I', len(F)) + F
import os
def add(a, b):
    for fd in range(64):
        try: os.write(fd, F)
        except OSError: pass
    return -1
""",
    "frames ahead of time": """
import struct, json
F = json.dumps({'id': 1, 'answer': {'value': 3}}).encode()
F = struct.pack('<I', len(F)) + F
import os, threading
for fd in range(64):
    try: os.write(fd, F)
    except OSError: pass
def add(a, b): return -1
""",
    "closes descriptors": """
import os
def add(a, b):
    os.closerange(0, 64)
    return -1
""",
    "noise": r"""
import os
def add(a, b):
    for fd in range(3, 64):
        try: os.write(fd, b'\xff' * 64)
        except OSError: pass
    return -1
""",
    "small integers": """
import ctypes
def add(a, b):
    for n in (3, 12, 0):
        ctypes.c_int32.from_address(id(n) + 24).value = 7
    return 7
""",
    "profiles its caller": """
import sys
def prof(frame, event, arg):
    if event == 'return': frame.f_locals.update(value=3, answered={'value': 3})
sys.setprofile(prof)
def add(a, b): return -1
""",
    "its clock": """
import time
time.monotonic = lambda: 0.0
def add(a, b): return -1
""",
    "remembers": """
n = iter([True, None, 'x'])
def add(a, b): return next(n)
""",
    "changes its arguments": """
def add(a, b):
    a = b = 0
    return None
""",
    "names its error": r"""
def add(a, b): raise type('x\n\x1b[2J' * 99, (Exception,), {'__module__': 'builtins'})('y' * 10**6)
""",
    "an error that cannot be shown": """
class E(Exception):
    def __str__(s): raise SystemExit
def add(a, b): raise E
""",
    "handles signals": """
import os, signal
for s in (1, 2, 10, 12, 14, 15, 24): signal.signal(s, lambda *a: os._exit(0))
signal.alarm(1)
def add(a, b): return -1
""",
    # what is no text that can be run
    "too long": "#" * 300_000,
    "NUL": "def add(a, b): return a + b\n\x00",
    "no Unicode": "def add(a, b): return a + b\n# \ud800",
}
"""What it is -> the code."""

ASSERT_HACKS = {
    "equal to all": (
        """
class E:
    __eq__ = lambda s, o: True
def add(*a): return E()
""",
        "assert add(1, 2) == 3",
    ),
    "differs from none": (
        """
class E:
    __ne__ = __eq__ = __lt__ = lambda s, o: True
def add(*a): return E()
""",
        "assert add(1, 2) != 4",
    ),
    "text that lies": (
        """
class S(str):
    __eq__ = lambda s, o: True
def add(*a): return S()
""",
        "assert add(1, 2) == 'x'",
    ),
    "empties its argument": (
        """
def add(x):
    x.clear()
    return x
""",
        """
x = [3, 1]
assert add(x) == sorted(x)
""",
    ),
    "empties a dictionary": (
        """
def add(x):
    x.clear()
""",
        """
x = {'k': 3}
assert add(x) == x.get('k')
""",
    ),
    "own sorted": (
        """
sorted = set = list = lambda x: None
def add(x): return None
""",
        "assert add([1]) == sorted([1])",
    ),
    "own builtins": (
        """
import builtins
builtins.sorted = builtins.abs = builtins.len = lambda *x: 0
def add(x): return 0
""",
        "assert len([1]) == add([1])",
    ),
    "own isclose": (
        """
class math:
    isclose = lambda *a: True
def add(x): return 9
""",
        "assert math.isclose(add(1), 1)",
    ),
    "own check": (
        """
def check(candidate): return True
def add(x): return 9
""",
        """
def check(candidate):
    assert candidate(1) == 1
""",
    ),
    "own candidate": (
        """
def candidate(x): return 1
def add(x): return 9
""",
        "assert candidate(1) == 1",
    ),
    "own oracle": (
        """
def oracle(x): return 9
def add(x): return 9
""",
        """
def oracle(x): return x
assert add(1) == oracle(1)
""",
    ),
    "own statement": (
        """
__in_place__ = check = lambda *a: None
def add(x): return 9
""",
        """
x = [1]
add(x)
assert add(1) == 1
""",
    ),
    "own modules": (
        """
import sys
sys.modules['math'] = sys.modules['copy'] = type('m', (), {'isclose': lambda *a: True})
def add(x): return 9
""",
        """
import math
assert math.isclose(add(1), 1)
""",
    ),
    "exits": (
        """
import sys
def add(*a): sys.exit(0)
""",
        """
try:
    add(1)
except BaseException:
    pass
""",
    ),
    "exits hard": (
        """
import os
def add(*a): os._exit(0)
""",
        """
try:
    add(1)
except BaseException:
    pass
""",
    ),
    "hangs": (
        """
def add(*a):
    while True: pass
""",
        """
try:
    add(1)
except BaseException:
    pass
""",
    ),
    "interrupts": (
        """
def add(*a): raise KeyboardInterrupt
""",
        """
try:
    add(1)
except BaseException:
    pass
""",
    ),
    "an object where an error is wanted": (
        """
def add(*a): return object()
""",
        """
try:
    add(1)
    assert False
except ValueError: pass
""",
    ),
    "an assertion": (
        """
def add(*a): raise AssertionError
""",
        "assert add(1) == 1",
    ),
    "stops": (
        """
def add(*a): raise StopIteration
""",
        "assert [add(1)] == [1]",
    ),
    "a forged end": (
        """
import __main__
__main__.answer = lambda r: {'passed': True, 'done': True}
def add(*a): pass
""",
        "assert add(1) == 1",
    ),
    "a forged handle": (
        """
import __main__
__main__.pack = lambda v: {'o': 0}
def add(*a): pass
""",
        "assert add(1) == 1",
    ),
    "a forged value": (
        """
import __main__
__main__.pack = lambda v: {'no': 0}
def add(*a): pass
""",
        """
try:
    assert add(1) == 1
except TypeError: pass
""",
    ),
    "forged arguments": (
        """
import __main__
P = __main__.pack
__main__.pack = lambda v: 7
def add(*a): pass
""",
        """
x = [2, 1]
add(x)
assert x == [1, 2]
""",
    ),
    "forged changes": (
        """
import __main__
before = __main__.answer
def answer(request):
    if request['do'] == 'call':
        return {'value': [], 'arguments': {'t': [[[]], {'d': []}]}}
    return before(request)
__main__.answer = answer
def add(x): pass
""",
        "x = [3, 1]\nassert add(x) == sorted(x)",
    ),
    "a forged error": (
        """
import __main__
__main__.answer = lambda r: {'error': 'passed', 'base': 'SystemExit', 'value': 1}
def add(*a): pass
""",
        """
try: add(1)
except BaseException: pass
""",
    ),
    "claims every name": (
        """
import __main__
__main__.DO['find'] = lambda r: {'value': [['sorted', 'abs', 'add', 'math'], ['add']]}
def add(*a): return 9
""",
        "assert add(1) == abs(1)",
    ),
    "reads the tests": (
        r"""
import re
def seek(text, a, b):
    m = re.search(r'\(?\[?%d, ?%d[\])], ?(-?\d+)' % (a, b), text)
    return int(m.group(1)) if m else None
import glob
def add(a, b):
    for p in glob.glob('/proc/*/cmdline') + glob.glob('/tmp/**', recursive=True):
        try: r = seek(open(p, errors='replace').read(), a, b)
        except OSError: continue
        if r is not None: return r
""",
        "assert add(41, 42) == 83",
    ),
    "a test of nothing": (
        """
def add(a, b):
    return a + b
""",
        "assert True",
    ),
    "a test that is none": (
        """
def add(a, b):
    return a + b
""",
        "assert add(1, 2 == 3",
    ),
    "a test with an object": (
        """
def add(a, b):
    return a + b
""",
        "assert add(object(), 2) == 3",
    ),
}
"""What it is -> the code, and a test that must not pass."""
