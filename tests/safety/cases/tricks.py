"""Programs that turn against whoever runs them: the harness, its pipes, its process 1, Python."""

from __future__ import annotations

from tests.safety.cases import CUT, ENDED, Program

OK = ("ok",)

PIPES = (
    Program(
        "reads_its_own_output",
        "takes from its output what others have seen there: whoever reads must not wait for it",
        "import os, time\n"
        "try: r = os.open('/proc/self/fd/1', os.O_RDONLY)\nexcept OSError: raise SystemExit\n"
        "for n in range(4):\n    if not os.fork():\n        while True:\n"
        "            if n: os.read(r, 1)\n            else: os.write(1, b'x')\n"
        "time.sleep(0.5)\nfor p in [*range(2, 9), os.getpid()]:\n"
        "    try: os.kill(p, 19)\n    except OSError: pass",
        (*CUT, "output_limit", "ok"),
        landlock=("error", "ok"),
    ),
    Program(
        "input_written",
        "writes to its input",
        "import os\nfor p in (0, '/proc/self/fd/0', '/dev/stdin'):\n"
        "    try:\n        f = p if p == 0 else os.open(p, os.O_RDWR)\n"
        "        os.pwrite(f, b'x' * 99, 0)\n    except OSError: pass\n"
        "try:\n    while True: os.write(0, bytes(1 << 20))\nexcept OSError: pass\n",
    ),
    Program(
        "output_replaced",
        "puts other things in place of its descriptors",
        "import os\nr, w = os.pipe()\nfor i in range(3): os.dup2(w, i)\nos.closerange(3, 64)\n"
        "print('x' * 10)",
    ),
    Program(
        "output_closed",
        "ends with no output to flush",
        "import os, sys\nos.close(1); os.close(2)\nsys.stdout.write('x')",
    ),
    Program(
        "report_guessed",
        "writes reports to every descriptor there may be",
        "import os\nfor f in range(3, 1024):\n    for s in (b'{\"code\": 0}\\n', b'{}'):\n"
        "        try: os.write(f, s); WON\n        except OSError: pass\nos._exit(7)",
        ("error",),
    ),
    Program(
        "report_of_process_1",
        "opens what process 1 holds",
        "import glob, os\n"
        "for p in glob.glob('/proc/1/fd/*') + ['/proc/1/fd/%d' % i for i in range(64)]:\n"
        "    for how in (os.O_RDONLY, os.O_WRONLY, os.O_PATH):\n"
        "        try: f = os.open(p, how)\n        except OSError: continue\n"
        "        try: os.write(f, b'{\"code\": 0}\\n')\n        except OSError: pass\n"
        "        how == os.O_PATH or WON\n"
        "os._exit(7)",
        ("error",),
    ),
    Program(
        "packets",
        "writes packets in place of a stream",
        "import fcntl, os\nfcntl.fcntl(1, fcntl.F_SETFL, os.O_DIRECT)\n"
        "for _ in range(50): os.write(1, b'x')",
    ),
    Program(
        "descriptors_sent",
        "sends descriptors to whoever listens",
        "import array, os, socket\nfor f in (0, 1, 2):\n"
        "    try: socket.socket(fileno=os.dup(f)).sendmsg([b'x'], [(1, 1, array.array('i', [0] * "
        "9))])\n"
        "    except OSError: pass",
    ),
)

FIRST = (
    Program(
        "signals_process_1",
        "stops, kills and interrupts the process above it",
        "import os, time\nfor s in (1, 2, 3, 6, 9, 10, 11, 15, 17, 19, 20, 24, 31, 34):\n"
        "    try: os.kill(1, s)\n    except OSError: pass\ntime.sleep(0.05)\nos._exit(7)",
        ("error",),
    ),
    Program(
        "starves_process_1",
        "takes all memory, descriptors and processes there are before it ends",
        "import os, resource\n"
        "for n in ('AS', 'NOFILE', 'CPU', 'DATA', 'STACK', 'FSIZE'):\n"
        "    for p in (1, os.getppid()):\n"
        "        try: resource.prlimit(p, getattr(resource, 'RLIMIT_' + n), (0, 0)); WON\n"
        "        except OSError: pass\nos._exit(7)",
        ("error",),
    ),
    Program(
        "floods_process_1",
        "hands it many orphans",
        "import os\nfor _ in range(60):\n    try:\n"
        "        if not os.fork():\n            if not os.fork(): os._exit(3)\n"
        "            os._exit(5)\n"
        "        os.wait()\n    except OSError: pass\nos._exit(7)",
        ("error",),
    ),
    Program(
        "takes_its_orphans",
        "its children outlive it, and its number comes again",
        "import os, time\nif not os.fork():\n    time.sleep(0.05)\n    os._exit(0)\nos._exit(7)",
        ("error",),
    ),
    Program(
        "exit_by_signal_of_a_child",
        "a child kills it",
        "import os, time\np = os.getpid()\nif not os.fork():\n    os.kill(p, 11); os._exit(0)\n"
        "time.sleep(5)",
        ("killed",),
        landlock=("error",),
    ),
    Program(
        "lies_about_its_end",
        "the code of its end is a large number, or text, or evil",
        "class C(int):\n    def __and__(self, other): return 'x'\n"
        "    def __rand__(self, other): return []\n"
        "raise SystemExit(C(1 << 70))",
    ),
)

PYTHON = (
    Program(
        "no_exit",
        "makes the ways out do nothing: what follows in the harness is run by it",
        "import os, sys, atexit\nos._exit = lambda *a: None\nsys.exit = lambda *a: None\n"
        "os.waitstatus_to_exitcode = os.wait = lambda *a: (0, 0)\nprint(1)",
    ),
    Program(
        "no_exit_and_raises",
        "the same, and nothing is left that works",
        "import os, sys, json, contextlib\nos._exit = lambda *a: None\nos.write = print\n"
        "json.dumps = lambda *a, **k: WON_\nsys.excepthook = lambda *a: 1 / 0\nraise ValueError",
    ),
    Program(
        "frames_of_the_harness",
        "finds what its caller holds",
        "import sys\nf = sys._getframe()\nfound = []\nwhile f:\n"
        "    found += [f.f_locals, f.f_globals]\n"
        "    f = f.f_back\n"
        "for d in found:\n    for v in list(d.values()):\n"
        "        if type(v).__name__ == 'socket': v.send(b'{\"code\": 0}'); WON\n"
        "    for n in ('report', 'control'):\n        if isinstance(d.get(n), int):\n"
        "            import os; os.write(d[n], b'{\"code\": 0}\\n'); WON\n",
    ),
    Program(
        "objects_of_the_harness",
        "finds open sockets and the words of its caller among all objects",
        "import gc, socket\nfor o in gc.get_objects():\n"
        "    if isinstance(o, socket.socket):\n        o.send(b'{}'); WON\n"
        "    if isinstance(o, dict) and 'ATTACK' in o: WON",
    ),
    Program(
        "functions_of_the_harness",
        "calls functions of its caller again",
        "import sys\ng = sys._getframe(1).f_globals\n"
        "for name in ('fresh_mounts', 'no_capabilities', 'serve', 'main', 'Run', 'receive'):\n"
        "    for a in ((), (1,), (1 << 20,), (None, {})):\n"
        "        try: name in g and g[name](*a); \n        except BaseException: pass\n"
        "try: g['called']('mount', b'tmpfs', b'/tmp', b'tmpfs', 0, None); WON\n"
        "except (OSError, KeyError): pass\nimport os; os._exit(7)",
    ),
    Program(
        "hooks",
        "hooks into everything that is called later",
        "import sys, builtins, threading, io\n"
        "def bad(*a, **k): raise RuntimeError('x')\n"
        "sys.excepthook = sys.unraisablehook = threading.excepthook = bad\n"
        "sys.settrace(bad); sys.setprofile(bad); builtins.print = builtins.len = bad\n"
        "threading._shutdown = bad\nsys.stdout = sys.stderr = None",
    ),
    Program(
        "audit",
        "an audit hook that raises whatever happens",
        "import sys\ndef hook(*a): raise SystemError('no')\nsys.addaudithook(hook)\nopen('x')",
        ENDED,
    ),
    Program(
        "other_main",
        "puts itself in place of modules",
        "import sys, types\nm = types.ModuleType('__main__')\nsys.modules['__main__'] = m\n"
        "sys.modules['os'] = sys.modules['json'] = sys.modules['socket'] = None\n"
        "sys.modules.clear()",
    ),
    Program(
        "no_builtins",
        "takes the functions away that everything needs",
        "import builtins\nfor n in list(vars(builtins)):\n"
        "    if n not in ('list', 'vars', 'delattr'):\n"
        "        try: delattr(builtins, n)\n        except Exception: pass",
    ),
    Program(
        "import_hook",
        "is asked for every module",
        "import sys\nclass F:\n    def find_spec(self, name, *a):\n"
        "        while True: pass\nsys.meta_path.insert(0, F())\nimport something_else",
        CUT,
    ),
    Program(
        "error_without_end",
        "an error that is the cause of itself, in a thousand layers, with notes",
        "e = None\nfor i in range(100000):\n    n = ValueError(i); n.__cause__ = e; e = n\n"
        "e.add_note('x' * 1000000)\nraise e",
        ENDED,
    ),
    Program(
        "error_with_evil_parts",
        "an error whose parts are no text",
        "class M(type):\n    __name__ = property(lambda s: 1 / 0)\n"
        "    def __instancecheck__(s, o): raise SystemExit(0)\n"
        "class E(BaseException, metaclass=M):\n    def __str__(self): raise self\n"
        "    __repr__ = __str__\n    def with_traceback(self, t): return self\n"
        "    __traceback__ = property(lambda s: 1)\nraise E",
        ENDED,
    ),
    Program(
        "exit_with_an_evil_word",
        "an exit code that cannot be shown",
        "class C:\n    def __str__(self):\n        import os; os._exit(0)\nraise SystemExit(C())",
    ),
    Program(
        "error_groups",
        "groups of errors in each other",
        "e = ValueError(1)\nfor _ in range(3000): e = ExceptionGroup('x', [e, e][:1])\nraise e",
        ENDED,
    ),
    Program(
        "interpreter_inside",
        "another interpreter in its process",
        "import _xxsubinterpreters as s\ni = s.create()\n"
        "s.run_string(i, 'import os\\nos.write(1, b\"inside\")')\ns.destroy(i)",
    ),
    Program(
        "crash_handler",
        "a handler that writes when it crashes",
        "import faulthandler, os\nfaulthandler.enable(); faulthandler.dump_traceback_later(0.05)\n"
        "os.kill(os.getpid(), 11)",
        ("killed", "error"),
    ),
    Program(
        "loop_left",
        "leaves an event loop with work in it",
        "import asyncio\nasync def f():\n    while True: await asyncio.sleep(0)\n"
        "l = asyncio.new_event_loop(); t = l.create_task(f()); l.call_later(0.05, l.stop)\n"
        "l.run_forever()",
    ),
    Program(
        "generators_left",
        "leaves a generator that does not end when it is closed",
        "def g():\n    while True:\n        try: yield\n        except GeneratorExit: pass\n"
        "a = g(); next(a); del a",
    ),
    Program(
        "weak_ends",
        "finalisers that make new objects with finalisers",
        "import gc\nclass A:\n    def __del__(self): A().me = self\n"
        "for _ in range(10): x = A(); x.me = x; del x\ngc.collect()",
        ("ok", *ENDED),
    ),
    Program(
        "code_by_hand",
        "instructions that no compiler makes",
        "f = lambda: 0\nf.__code__ = f.__code__.replace(co_code=bytes([100, 255] * 50),\n"
        "    co_stacksize=0)\nf()",
        ENDED,
    ),
    Program(
        "memory_by_hand",
        "writes into Python itself",
        "import ctypes\nctypes.memset(id(int), 0, 400)\nprint(int('3') + 4)",
        ENDED,
    ),
    Program(
        "marshalled",
        "loads data that is code",
        "import marshal, pickle\ntry: marshal.loads(b'\\xe3' * 99)\nexcept Exception: pass\n"
        "exec(marshal.loads(marshal.dumps(compile('print(3 + 4)', 'x', 'exec'))))",
        OK,
        ("7",),
    ),
    Program(
        "deep_syntax",
        "a tree that overflows the compiler",
        "-" * 100_000 + "1",
        ENDED,
    ),
    Program(
        "many_names",
        "many nested functions",
        "\n".join(" " * i + f"def f{i}():" for i in range(120)) + "\n" + " " * 121 + "pass",
        ENDED,
    ),
    Program(
        "many_arguments",
        "more arguments for another program than there may be",
        "import os\ntry: os.execv('/bin/true', ['true'] + ['x' * 100000] * 200)\n"
        "except OSError: print('refu' 'sed')",
        ("ok",),
        ("refused",),
    ),
    Program(
        "environment_of_children",
        "loads a library of its own into other programs",
        "import os, subprocess\nopen('x.so', 'wb').write(b'x')\n"
        "os.environ['LD_PRELOAD'] = os.path.abspath('x.so')\n"
        "try: subprocess.run(['/bin/true'], capture_output=True)\nexcept OSError: pass",
        landlock=("ok", "error"),
    ),
)

CASES = (*PIPES, *FIRST, *PYTHON)
