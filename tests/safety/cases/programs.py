"""Programs that take too much, and honest ones, which must not be refused."""

from __future__ import annotations

from tests.safety.cases import CUT, ENDED, Program

OK = ("ok",)

HONEST = (
    Program("honest_print", "prints", "print(6 * 7)", OK, ("42",)),
    Program(
        "honest_stdin",
        "reads its input",
        "import sys\nprint(sum(map(int, sys.stdin.read().split())))",
        OK,
        ("10",),
        stdin="1 2 3 4",
    ),
    Program(
        "honest_library",
        "imports what programs import",
        "import bisect, collections, datetime, decimal, fractions, functools, heapq, itertools\n"
        "import json, math, random, re, statistics, string, typing, array, copy, dataclasses\n"
        "import enum, operator, textwrap, types, zlib, hashlib, base64, struct, csv, io, sqlite3\n"
        "print('all', 'there')",
        OK,
        ("all there",),
    ),
    Program(
        "honest_scratch",
        "writes a temporary file and one beside itself",
        "import os, tempfile\n"
        "with tempfile.NamedTemporaryFile('w', delete=False) as f: f.write('x')\n"
        "open('own', 'w').write('yz')\nprint(os.path.getsize(f.name) + os.path.getsize('own'))",
        OK,
        ("3",),
    ),
    Program("honest_error", "raises", "raise ValueError('said ' + 'so')", ("error",), ("said so",)),
    Program("honest_exit", "exits with 3", "import sys; sys.exit(3)", ("error",)),
    Program(
        "honest_unicode", "writes UTF-8", "print('gr\\u00fc\\u00df \\U0001f600')", OK, ("grüß",)
    ),
    Program(
        "honest_threads",
        "has threads",
        "import threading\nout = []\nts = [threading.Thread(target=out.append, args=(i,))"
        " for i in range(8)]\n[t.start() for t in ts]; [t.join() for t in ts]\nprint(len(out))",
        OK,
        ("8",),
    ),
    Program(
        "honest_child",
        "starts another program",
        "import subprocess\nprint(subprocess.run(['/bin/echo', 'hel' 'lo'], capture_output=True)"
        ".stdout)",
        OK,
        ("hello",),
        landlock=("error",),
        says_too=False,
    ),
    Program(
        "honest_asyncio",
        "has an event loop",
        "import asyncio\nasync def f():\n    await asyncio.sleep(0.01); return 5\n"
        "print(asyncio.run(f()))",
        OK,
        ("5",),
    ),
    Program(
        "honest_pool",
        "has a pool of processes",
        "import multiprocessing as m\nif __name__ == '__main__':\n"
        "    with m.get_context('fork').Pool(2) as p: print(sum(p.map(abs, [-1, -2])))",
        OK,
        ("3",),
        landlock=ENDED,
        says_too=False,
    ),
    Program(
        "honest_recursion",
        "recurses as far as allowed",
        "import sys\nsys.setrecursionlimit(20000)\n"
        "f = lambda n: n and 1 + f(n - 1)\nprint(f(15000))",
        OK,
        ("15000",),
    ),
    Program(
        "output_below_the_limit",
        "writes one byte less than it may",
        "import sys\nsys.stdout.write('x' * ((1 << 20) - 1))",
        OK,
    ),
    Program(
        "output_at_the_limit",
        "writes as much as it may: the last byte too many to tell",
        "import sys\nsys.stdout.write('x' * (1 << 20))",
        ("ok", "output_limit"),
    ),
)

TIME = (
    Program(
        "swallows_everything",
        "catches whatever is raised to stop it",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        CUT,
    ),
    Program("sleeps", "uses no CPU time", "import time; time.sleep(10 ** 6)", CUT),
    Program(
        "ignores_signals",
        "ignores every signal that can be ignored",
        "import signal\nfor n in range(1, 64):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
        CUT,
    ),
    Program(
        "blocks_signals",
        "blocks every signal that can be blocked",
        "import signal\nsignal.pthread_sigmask(signal.SIG_SETMASK, range(1, 64))\nwhile True: pass",
        CUT,
    ),
    Program(
        "cancels_timers",
        "switches off timers of its process",
        "import signal\nsignal.alarm(0); signal.setitimer(signal.ITIMER_REAL, 0)\nwhile True: pass",
        CUT,
    ),
    Program(
        "stops_itself",
        "a stopped process does not end",
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
        (*CUT, "error"),
    ),
    Program(
        "stdin_never_ends",
        "waits for input that does not come",
        "import os\nr, w = os.pipe(); os.dup2(r, 0); print(input())",
        CUT,
    ),
    Program(
        "regex",
        "backtracks",
        "import re; re.match('(a+)+$', 'a' * 60 + 'b')",
        CUT,
    ),
    Program(
        "huge_power",
        "computes inside one instruction",
        "import sys\nsys.set_int_max_str_digits(0); print(len(str(7 ** 10 ** 8)))",
        ENDED,
    ),
    Program(
        "atexit_hangs",
        "hangs when it is over",
        "import atexit\natexit.register(lambda: [None for _ in iter(int, 1)])",
        CUT,
    ),
    Program(
        "thread_hangs",
        "leaves a thread that never ends",
        "import threading, time\nthreading.Thread(target=lambda: time.sleep(9 ** 9)).start()",
        CUT,
    ),
    Program(
        "finaliser_hangs",
        "hangs in a finaliser",
        "class A:\n    def __del__(self):\n        while True: pass\na = A(); del a",
        CUT,
    ),
    Program(
        "repr_hangs",
        "hangs while its error is shown",
        "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E",
        CUT,
    ),
    Program(
        "futex_waits",
        "waits for a lock that nobody frees",
        "import threading\na = threading.Lock(); a.acquire(); a.acquire()",
        CUT,
    ),
    Program(
        "least_priority",
        "is last in the queue, so that killing it takes long",
        "import os, threading\n"
        "for work in (lambda: os.nice(19), lambda: os.setpriority(2, os.getuid(), 19),\n"
        "        lambda: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))):\n"
        "    try: work(); WON\n    except OSError: pass\n"
        "for _ in range(20): threading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start()",
        ENDED,
    ),
    Program(
        "clock",
        "sets the clock",
        "import time\ntime.clock_settime(time.CLOCK_REALTIME, 0)\nWON",
        ("error",),
    ),
    Program(
        "fake_clock",
        "believes another clock",
        "import time\ntime.monotonic = time.time = lambda: 0\n"
        "while time.monotonic() < 1: time.sleep(0.01)",
        CUT,
    ),
    Program(
        "closes_its_output_and_stays",
        "nobody may wait for the end of its output, or stop waiting there",
        "import os, time\nos.close(1); os.close(2); time.sleep(10 ** 6)",
        CUT,
    ),
)

MEMORY = (
    Program("memory", "takes memory", "x = []\nwhile True: x.append(bytearray(50 << 20))", ENDED),
    Program("memory_at_once", "one absurd allocation", "x = bytearray(1 << 45)", ENDED),
    Program(
        "memory_of_children",
        "each of its processes takes less than it may, together more",
        "import os, time\nfor _ in range(8): os.fork()\nx = bytearray(300 << 20); time.sleep(9)",
        ENDED,
    ),
    Program(
        "memory_without_a_name",
        "an unnamed file is memory that is no process's",
        "import os\nf = os.memfd_create('x')\nWON",
        ("error",),
    ),
    Program(
        "memory_shared_of_no_file",
        "gives back all but one page of shared memory, which stays all the same",
        "import mmap\nkept = []\nwhile True:\n    m = mmap.mmap(-1, 256 << 20)\n"
        "    m.write(bytes(256 << 20)); m.resize(4096); kept.append(m)\n    WON",
        ("error",),
    ),
    Program(
        "memory_of_dev_zero",
        "the same by /dev/zero",
        "import mmap, os\nm = mmap.mmap(os.open('/dev/zero', os.O_RDWR), 64 << 20)\n"
        "m.write(bytes(64 << 20))\nWON",
        ("error",),
    ),
    Program(
        "memory_of_huge_pages",
        "takes pages of another store",
        "import ctypes\nl = ctypes.CDLL(None); l.mmap.restype = ctypes.c_long\n"
        "if l.mmap(None, 2 << 20, 3, 0x40022, -1, 0) != -1: WON",
    ),
    Program(
        "memory_secret",
        "memfd_secret, and other ways to unnamed memory",
        "import ctypes\nl = ctypes.CDLL(None)\n"
        "for n in (447, 319, 29):\n    if l.syscall(n, 0, 1 << 20, 0o1666) >= 0: WON",
    ),
    Program(
        "shared_memory_files",
        "fills shared memory with small files",
        "i = 0\nwhile True:\n    open('/dev/shm/x%d' % i, 'wb').write(bytes(8 << 20)); i += 1",
        ENDED,
    ),
    Program(
        "system_v",
        "memory, queues and semaphores that outlive their maker",
        "import ctypes\nl = ctypes.CDLL(None)\n"
        "if l.shmget(0x4D524C4D, 1 << 20, 0o1666) >= 0 or l.msgget(0x4D524C4D, 0o1666) >= 0 \\\n"
        "        or l.semget(0x4D524C4D, 1, 0o1666) >= 0: WON\n"
        "for n in range(64):\n    if not l.semctl(n, 0, 0) or not l.msgctl(n, 0, None): WON",
    ),
    Program(
        "recursion_without_end",
        "overflows the stack",
        "import sys\nsys.setrecursionlimit(10 ** 9)\nf = lambda: f()\nf()",
        ENDED,
    ),
    Program(
        "recursion_in_repr",
        "overflows the stack in C",
        "import sys\nsys.setrecursionlimit(10 ** 9)\nx = []\nfor _ in range(10 ** 6): x = [x]\n"
        "repr(x)",
        ENDED,
    ),
    Program("long_expression", "a deep tree", "eval('+'.join(['1'] * 10 ** 6))", ("ok", *ENDED)),
    Program("deep_brackets", "a deep tree", "eval('(' * 10 ** 5 + ')' * 10 ** 5)", ENDED),
    Program(
        "locked_memory",
        "keeps pages from being moved out",
        "import ctypes\nl = ctypes.CDLL(None)\nif not l.mlockall(3): \n    x = bytearray(1 << 26)\n"
        "    WON",
    ),
    Program(
        "many_mappings",
        "as many small mappings as there may be",
        "import mmap\nx = []\nwhile True:\n"
        "    x.append(mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,\n"
        "        prot=1 + len(x) % 2))",
        ENDED,
    ),
)

SPACE = (
    Program(
        "disk",
        "fills its disk with one file",
        "f = open('big', 'wb')\nwhile True: f.write(bytes(1 << 22)); f.flush()",
        ENDED,
    ),
    Program(
        "disk_in_parts",
        "fills its disk with many files",
        "import time\nfor i in range(64): open('f%d' % i, 'wb').write(bytes(4 << 20))\n"
        "time.sleep(0.3)\nWON",
        ENDED,
    ),
    Program(
        "disk_out_of_sight",
        "fills a folder that cannot be listed",
        "import os, time\nos.mkdir('d', 0o300)\nfor i in range(12):\n"
        "    os.posix_fallocate(os.open('d/%d' % i, os.O_CREAT | os.O_RDWR), 0, 8 << 20)\n"
        "time.sleep(0.3)\nWON",
        ENDED,
    ),
    Program(
        "disk_without_names",
        "fills files that no folder names",
        "import os, time\nfor i in range(12):\n    f = os.open('f', os.O_CREAT | os.O_RDWR)\n"
        "    os.unlink('f'); os.posix_fallocate(f, 0, 8 << 20)\ntime.sleep(0.3)\nWON",
        ENDED,
    ),
    Program(
        "disk_by_fallocate",
        "takes space without writing",
        "import os\nfor i in range(64):\n"
        "    os.posix_fallocate(os.open('f%d' % i, os.O_CREAT | os.O_RDWR), 0, 8 << 20)\n"
        "import time; time.sleep(0.3)\nWON",
        ENDED,
    ),
    Program(
        "many_files",
        "makes as many files as it can",
        "import time\nfor i in range(20000): open('f%d' % i, 'w').close()\ntime.sleep(0.3)\nWON",
        ENDED,
    ),
    Program(
        "many_links",
        "makes links that are as long as links may be",
        "import os, time\nfor i in range(20000): os.symlink('x' * 4000, 'l%d' % i)\n"
        "time.sleep(0.3)\nWON",
        ENDED,
    ),
    Program(
        "deep_folders",
        "folders in folders: whoever cleans up must cope",
        "import os\nwhile True:\n    os.mkdir('d'); os.chdir('d')",
        ENDED,
    ),
    Program(
        "folders_named_like_ours",
        "names that whoever cleans up might use itself",
        "import os\nfor i in range(40):\n    os.makedirs('%d.lifted/x/y' % i)\n"
        "    os.makedirs('.mrlm-removed-%d/x/y' % i)\nos.makedirs('a/b/c')",
    ),
    Program(
        "closed_folders",
        "folders without permissions in each other",
        "import os\nos.makedirs('a/b/c')\nfor p in ('a/b/c', 'a/b', 'a'):\n"
        "    try: os.chmod(p, 0)\n    except OSError: pass\n"
        "os.mkdir('e', 0o300); os.mkdir('e/f', 0o300); os.mkdir('e/f/g', 0)",
    ),
    Program(
        "sparse",
        "a file of 4 TiB with nothing in it",
        "f = open('s', 'wb'); f.seek(1 << 42); f.write(b'x'); f.close()\nWON",
        ENDED,
    ),
    Program(
        "sparse_mapped",
        "maps more of a file than there is room for",
        "import mmap, os\nf = os.open('s', os.O_CREAT | os.O_RDWR); os.ftruncate(f, 16 << 20)\n"
        "for i in range(8):\n    g = os.open('s%d' % i, os.O_CREAT | os.O_RDWR)\n"
        "    os.ftruncate(g, 16 << 20); m = mmap.mmap(g, 16 << 20); m.write(bytes(16 << 20))\n"
        "import time; time.sleep(0.3)\nWON",
        ENDED,
    ),
    Program(
        "attributes",
        "keeps data in attributes of files",
        "import os\nfor i in range(3000):\n    open('f%d' % i, 'w').close()\n"
        "    try: os.setxattr('f%d' % i, 'user.x', bytes(60000))\n    except OSError: pass",
    ),
    Program(
        "names_that_are_no_text",
        "names that cannot be decoded, or look like options",
        "import os\nfor n in (b'\\xff\\xfe', b'-rf', b' ', b'\\n', b'..a', b'~', b'x' * 255):\n"
        "    open(n, 'w').close()\nos.mkdir(b'\\xff\\xfd'); os.mkdir(b'\\xff\\xfd/\\n')\n"
        "print(len(os.listdir('.')))",
        OK,
        ("8",),
    ),
    Program(
        "pipes_and_links_left",
        "leaves pipes, links to itself and links outside",
        "import os\nos.symlink('l', 'l'); os.symlink('/', 'r'); os.symlink('HOST_FOLDER', 'h')\n"
        "try: os.mkfifo('p')\nexcept OSError: pass\nos.mkdir('d'); os.link('l', 'd/m', \n"
        "    follow_symlinks=False)",
    ),
)

NUMBERS = (
    Program(
        "forks",
        "forks without end",
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        ENDED,
    ),
    Program(
        "threads",
        "starts threads without end",
        "import threading, time\nwhile True:\n"
        "    threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
        ENDED,
    ),
    Program(
        "forks_at_exit",
        "goes on in a child whenever it ends",
        "import atexit, os\ndef again():\n"
        "    for _ in range(3):\n        if not os.fork(): again()\natexit.register(again)",
    ),
    Program(
        "descriptors",
        "opens as much as it can",
        "import os\nx = []\nwhile True: x += os.pipe()",
        ("error",),
        ("Too many open files",),
    ),
    Program(
        "descriptors_in_flight",
        "keeps descriptors in sockets that it cannot count",
        "import array, os, socket\na, b = socket.socketpair(); a.setblocking(False)\n"
        "f = os.open('/dev/null', os.O_RDONLY)\nwhile True:\n"
        "    a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [f] * "
        "50))])",
        ENDED,
    ),
    Program(
        "raises_its_limits",
        "lifts its own limits, as root may",
        "import resource\nfor n in ('AS', 'CPU', 'NPROC', 'FSIZE', 'NOFILE', 'CORE', 'MEMLOCK'):\n"
        "    try: resource.setrlimit(getattr(resource, 'RLIMIT_' + n), (-1, -1)); WON\n"
        "    except (OSError, ValueError): pass\nprint('do' 'ne')",
        OK,
        ("done",),
    ),
    Program(
        "limits_of_others",
        "sets limits of its parent and of the host's process: one second of CPU time",
        "import os, resource\nfor p in (1, os.getppid(), HOST_PID):\n"
        "    try: resource.prlimit(p, resource.RLIMIT_CPU, (1, 1)); WON\n"
        "    except OSError: pass",
        OK,
    ),
    Program(
        "floods_output",
        "writes without end",
        "import sys\nwhile True: sys.stdout.write('x' * 65536)",
        ("output_limit",),
    ),
    Program(
        "floods_errors",
        "writes errors without end",
        "import os\nwhile True: os.write(2, b'x' * 65536)",
        ("output_limit",),
    ),
    Program(
        "floods_both",
        "writes to both in turn, a byte at a time",
        "import os\nwhile True: os.write(1, b'x'); os.write(2, b'y')",
        (*CUT, "output_limit"),
    ),
    Program(
        "floods_from_children",
        "many write at once",
        "import os\nfor _ in range(4):\n    try: os.fork()\n    except OSError: pass\n"
        "while True: os.write(1, b'x' * 65536)",
        ("output_limit", "error", "killed"),
    ),
    Program(
        "pipe_of_another_size",
        "makes its pipe as large as it may be, and does not block",
        "import fcntl, os\ntry: fcntl.fcntl(1, 1031, 1 << 20)\nexcept OSError: pass\n"
        "os.set_blocking(1, False)\ntry:\n    while True: os.write(1, b'x' * 65536)\n"
        "except BlockingIOError: pass",
    ),
    Program(
        "pending_signals",
        "queues signals to itself without end",
        "import os, signal, ctypes\nsignal.pthread_sigmask(signal.SIG_SETMASK, range(1, 64))\n"
        "l = ctypes.CDLL(None)\nfor _ in range(300000): l.sigqueue(os.getpid(), 34, None)",
    ),
    Program(
        "file_locks",
        "takes locks without end",
        "import fcntl\nf = open('x', 'w')\nfor i in range(0, 1 << 40, 2):\n"
        "    fcntl.lockf(f, fcntl.LOCK_EX, 1, i)",
        ENDED,
    ),
)

ENDS = (
    Program("nul", "a NUL character in the source", "x = 1\0\nprint(x)", ("error", "refused")),
    Program("no_utf8", "output that is no UTF-8", "import os; os.write(1, b'\\xff\\xfe\\x80')", OK),
    Program("terminal", "control codes", "print('\\x1b]0;x\\x07\\x1b[2J\\x9b')", OK),
    Program("segfault", "crashes", "import ctypes; ctypes.string_at(0)", ("killed", "error")),
    Program("exits_silently", "leaves in C", "import os; os._exit(0)", ("ok", "error")),
    Program("kills_itself", "SIGKILL", "import os; os.kill(os.getpid(), 9)", ("killed", "error")),
    Program(
        "core",
        "leaves a core file, or hands one to the host",
        "import os, resource\nfor n in (-1, 0):\n"
        "    try: resource.setrlimit(resource.RLIMIT_CORE, (n, n)); WON\n"
        "    except (OSError, ValueError): pass\nos.abort()",
        ("killed", "error"),
    ),
    Program(
        "long_line",
        "one line of a megabyte in a traceback",
        "x = '" + "a" * 900_000 + "'; 1 / 0",
        ENDED,
    ),
    Program(
        "coding_cookie",
        "claims another encoding, in which a comment is code",
        "# coding: utf-7\n# +AAo-WON",
        OK,
    ),
    Program("byte_order_mark", "begins with a mark", "\ufeffprint(1 + 1)", ("ok", "error")),
    Program(
        "unicode_names",
        "letters that Python takes for others",
        "\U0001d429\U0001d42b\U0001d422\U0001d427\U0001d42d(40 + 2)",
        OK,
        ("42",),
    ),
    Program(
        "hidden_direction",
        "shows another order than it has",
        "x = 'a\u202e\u2066b'\nprint(len(x))",
        OK,
        ("4",),
    ),
    Program(
        "carriage_returns", "other ends of lines", "print(1)\rprint(2)\r\nprint(3)", OK, ("3",)
    ),
    Program(
        "files_in_each_other",
        "a file and a folder of one name",
        "print(1)",
        ("refused",),
        files=(("a", b"x"), ("a/b", b"y")),
    ),
    Program(
        "name_too_long",
        "a name that no disk takes",
        "print(1)",
        ("refused",),
        files=(("ü" * 190, b"x"),),
    ),
    Program(
        "name_no_text",
        "a name that is no text",
        "print(1)",
        ("refused",),
        files=(("\udcff\ud800", b"x"),),
    ),
    Program(
        "files_shadow_the_library",
        "files given with it replace modules, for it alone",
        "import json, os\nprint(getattr(json, 'dumps', None) is not None, os.listdir('.'))",
        files=(("json.py", b"x = 1"), ("os.py", b"1/0"), ("sitecustomize.py", b"1/0")),
    ),
)

CASES = (*HONEST, *TIME, *MEMORY, *SPACE, *NUMBERS, *ENDS)
