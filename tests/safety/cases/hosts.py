"""Programs that reach for the host: its files, its processes, its network, its kernel."""

from __future__ import annotations

from tests.safety.cases import ENDED, Program

OK = ("ok",)
TRY = "def attempt(work):\n    try: return work()\n    except (OSError, ValueError): return None\n"
LIBC = "import ctypes, os\nl = ctypes.CDLL(None, use_errno=True)\n"

FILES = (
    Program("deletes", "deletes a file", "import os; os.remove('HOST_FILE')\nWON", ENDED),
    Program(
        "deletes_all", "deletes a folder", "import shutil; shutil.rmtree('HOST_FOLDER')\nWON", ENDED
    ),
    Program("reads", "reads a file", "print(open('HOST_FILE').read())\nWON", ENDED),
    Program("makes", "makes a file", "open('HOST_FOLDER/new', 'w')\nWON", ENDED),
    Program(
        "renames",
        "renames and links a file",
        TRY + "import os\nfor w in (os.rename, os.link, os.replace):\n"
        "    for a, b in (('HOST_FILE', 'x'), ('HOST_FILE', 'HOST_FOLDER/x')):\n"
        "        attempt(lambda: w(a, b))\n"
        "        if os.path.exists('x'): print(open('x').read()); WON",
    ),
    Program(
        "changes_properties",
        "changes mode, owner, times, attributes and length of a file",
        TRY + "import os\np = 'HOST_FILE'\n"
        "if attempt(lambda: os.chmod(p, 0o777) or 1): WON\n"
        "if attempt(lambda: os.chown(p, os.getuid(), -1) or 1): WON\n"
        "if attempt(lambda: os.utime(p, (0, 0)) or 1): WON\n"
        "if attempt(lambda: os.setxattr(p, 'user.x', b'x') or 1): WON\n"
        "if attempt(lambda: os.truncate(p, 0) or 1): WON\n"
        "if attempt(lambda: os.open(p, os.O_RDONLY | os.O_TRUNC)): WON",
    ),
    Program(
        "changes_properties_by_new_calls",
        "the same by system calls that are newer than the filter's library",
        LIBC + "p = b'HOST_FILE'\n"
        "if l.syscall(452, -100, p, 0o777, 0) == 0: WON\n"
        "if l.syscall(463, -100, p, 0, b'user.x', b'x', 16) == 0: WON\n"
        "if l.syscall(469, -100, p, bytes(32), 32, 0) == 0: WON\n"
        "for n in range(442, 520):\n    if l.syscall(n, -1, -1, -1, -1, -1) >= 0: WON",
    ),
    Program("accounts", "reads accounts", "print(open('/etc/passwd').read())\nWON", ENDED),
    Program(
        "shadow_and_keys",
        "reads where secrets lie",
        TRY + "import glob, os\nfor p in ('/etc/shadow', '/root/.ssh/id_rsa', '/proc/kcore',\n"
        "        '/etc/hosts', '/etc/machine-id', '/var/log/syslog', '/dev/mem', '/run'):\n"
        "    if attempt(lambda: open(p).read(1)) or attempt(lambda: os.listdir(p)): WON\n"
        "for p in glob.glob('/home/*/*') + glob.glob('/root/*') + glob.glob('/etc/*'):\n"
        "    if attempt(lambda: open(p).read(1)) and 'ld.so' not in p: WON",
    ),
    Program(
        "by_link",
        "a link outside",
        "import os\nos.symlink('/', 'r')\nprint(open('rHOST_FILE').read())\nWON",
        ENDED,
    ),
    Program(
        "by_dots",
        "many folders up",
        "print(open('../' * 40 + 'HOST_FILE'.lstrip('/')).read())\nWON",
        ENDED,
    ),
    Program(
        "by_proc",
        "the roots and folders of processes",
        TRY
        + "import glob\nfor d in glob.glob('/proc/[0-9]*') + ['/proc/self', '/proc/HOST_PID']:\n"
        "    for n in ('root', 'cwd', 'task/1/root'):\n"
        "        if attempt(lambda: open(d + '/' + n + 'HOST_FILE').read()): WON",
    ),
    Program(
        "by_path_descriptor",
        "opens from a descriptor that is a path only",
        TRY + "import os\nd = attempt(lambda: os.open('/', os.O_PATH | os.O_DIRECTORY))\n"
        "if d is not None:\n"
        "    f = attempt(lambda: os.open('HOST_FILE'[1:], os.O_RDONLY, dir_fd=d))\n"
        "    if f is not None: print(os.read(f, 99)); WON",
    ),
    Program(
        "by_handle",
        "opens by the number of a file",
        LIBC
        + "h = ctypes.create_string_buffer(b'\\x08\\0\\0\\0\\x01\\0\\0\\0' + b'\\x02' + bytes(7))\n"
        "if l.open_by_handle_at(0, h, 0) >= 0: WON",
    ),
    Program(
        "device",
        "makes a device",
        "import os, stat\nos.mknod('d', 0o600 | stat.S_IFBLK, os.makedev(254, 0))\nWON",
        ENDED,
    ),
    Program(
        "devices",
        "opens devices",
        TRY
        + "import glob\nfor p in glob.glob('/dev/*') + ['/dev/tty', '/dev/kmsg', '/dev/fuse']:\n"
        "    if p.split('/')[-1] in ('null', 'full', 'random', 'urandom', 'stdin', 'stdout', \n"
        "            'stderr', 'fd', 'shm', 'zero'): continue\n"
        "    if attempt(lambda: open(p, 'rb', buffering=0)): WON",
    ),
    Program(
        "mounts",
        "mounts, remounts and changes its root",
        LIBC + "if not l.mount(b'x', b'/tmp', b'tmpfs', 0, None): WON\n"
        "if not l.mount(None, b'/', None, 32, None): WON\n"
        "if not l.chroot(b'.') or not l.umount2(b'/tmp', 2): WON\n"
        "if not l.syscall(155, b'.', b'.') or l.syscall(428, -100, b'/', 1) >= 0: WON",
    ),
    Program(
        "writes_the_system",
        "changes the system that it sees",
        TRY + "import os, sys\nfor p in ('/usr/bin/x', '/x', '/etc/x', '/dev/x', os.__file__, \n"
        "        '/proc/self/oom_score_adj', sys.executable):\n"
        "    if attempt(lambda: open(p, 'r+' if os.path.exists(p) else 'w').write('0')): WON",
    ),
    Program(
        "leaves_something",
        "leaves files for whoever comes next",
        TRY + "for p in ('/tmp/left', 'left', '/dev/shm/left', '/var/tmp/left'):\n"
        "    attempt(lambda: open(p, 'w').write('x'))",
        OK,
    ),
    Program(
        "finds_something",
        "finds files of whoever was here before",
        "import os\nprint([p for p in ('/tmp/left', 'left', '/dev/shm/left', '/var/tmp/left')\n"
        "       if os.path.exists(p)], os.listdir('.'))",
        OK,
        ("[] []",),
    ),
    Program(
        "environment", "reads its environment", "import os; print(dict(os.environ))", OK, ("PATH",)
    ),
    Program(
        "descriptors_left_open",
        "reads what was left open",
        "import os\nfor i in range(3, 1100):\n    try: os.fstat(i); WON\n    except OSError: pass",
        OK,
    ),
)

PROCESSES = (
    Program(
        "environments",
        "reads environments of processes",
        "import glob\nfor p in glob.glob('/proc/*/environ') + ['/proc/HOST_PID/environ']:\n"
        "    try: print(open(p).read())\n    except OSError: pass",
    ),
    Program(
        "memories",
        "reads memory of processes",
        TRY + "import glob, os\nfor p in glob.glob('/proc/[0-9]*') + ['/proc/HOST_PID']:\n"
        "    if p == '/proc/%d' % os.getpid(): continue\n"
        "    for n in ('mem', 'maps', 'fd/0', 'fd/3', 'fd/4', 'exe'):\n"
        "        if attempt(lambda: open(p + '/' + n, 'rb').read(1)) is not None: WON",
    ),
    Program(
        "traces",
        "traces processes",
        LIBC + "for p in (HOST_PID, os.getppid(), 1):\n"
        "    if l.ptrace(16, p, 0, 0) == 0 or l.ptrace(0x4206, p, 0, 0) == 0: WON\n"
        "b = ctypes.create_string_buffer(64)\n"
        "for n in (310, 311, 312, 438, 440):\n"
        "    if l.syscall(n, HOST_PID, b, 1, b, 1, 0) > 0: WON",
    ),
    Program(
        "kills",
        "kills its parent and the host's process",
        "import os\nfor p in (os.getppid(), HOST_PID, 1):\n    for s in (0, 2, 15, 9):\n"
        "        try: os.kill(p, s); p not in (1, os.getppid()) and WON\n"
        "        except OSError: pass",
    ),
    Program("kills_group", "kills its group", "import os; os.kill(0, 9)"),
    Program("kills_all", "kills whatever it may", "import os; os.kill(-1, 9)"),
    Program(
        "kills_by_descriptor",
        "signals by descriptor, by thread, and with a value",
        LIBC + "f = l.syscall(434, HOST_PID, 0)\n"
        "if f >= 0 and l.syscall(424, f, 0, None, 0) == 0: WON\n"
        "if l.syscall(234, HOST_PID, HOST_PID, 0) == 0 or l.syscall(200, HOST_PID, 0) == 0: WON\n"
        "if l.sigqueue(HOST_PID, 0, None) == 0: WON",
    ),
    Program(
        "kills_by_owner",
        "lets the kernel signal the owner of a descriptor",
        TRY
        + "import fcntl, os, socket, struct\na, b = socket.socketpair()\nfor p in (HOST_PID,):\n"
        "    if attempt(lambda: fcntl.fcntl(a, fcntl.F_SETOWN, p) == 0): WON\n"
        "    if attempt(lambda: fcntl.fcntl(a, 15, struct.pack('ii', 1, p))): WON\n"
        "    if attempt(lambda: fcntl.ioctl(a, 0x8901, struct.pack('i', p))) is not None: WON\n"
        "attempt(lambda: fcntl.fcntl(a, 10, 9))\n"
        "attempt(lambda: fcntl.fcntl(a, fcntl.F_SETFL, os.O_ASYNC))\nb.send(b'x')",
    ),
    Program(
        "slows_down",
        "changes priority and cores of the host's process",
        LIBC
        + "if l.setpriority(0, HOST_PID, 19) == 0 or l.syscall(251, 1, HOST_PID, 0x6000) == 0:\n"
        "    WON\n"
        "if l.sched_setaffinity(HOST_PID, 8, b'\\x01' + bytes(7)) == 0: WON\n"
        "if l.sched_setscheduler(HOST_PID, 5, bytes(8)) == 0 or not l.setpriority(2, 0, 19): WON",
    ),
    Program(
        "sees_processes",
        "finds other processes than its own",
        "import os\nn = []\n"
        "try: n = [p for p in os.listdir('/proc') if p.isdigit()]\nexcept OSError: pass\n"
        "if len(n) > 2: WON",
        OK,
    ),
    Program(
        "new_owner",
        "becomes root",
        TRY + "import os\nfor w in (lambda: os.setuid(0), lambda: os.setgid(0), \n"
        "        lambda: os.setresuid(0, 0, 0), lambda: os.setgroups([0])):\n"
        "    attempt(w)\nif 0 in (os.getuid(), os.geteuid(), os.getgid()): WON",
    ),
    Program(
        "set_user_id",
        "starts a program that runs as root",
        TRY + "import glob, os, subprocess\n"
        "r = attempt(lambda: subprocess.run(['/usr/bin/su', '-c', 'id'], capture_output=True,\n"
        "    stdin=subprocess.DEVNULL, timeout=0.5).stdout)\nif b'uid=0' in (r or b''): WON",
        landlock=("ok", "error", "timeout"),
    ),
    Program(
        "new_namespaces",
        "makes namespaces, in which it would be root",
        LIBC
        + "for f in (0x10000000, 0x20000, 0x40000000, 0x20000000, 0x02000000, 0x04000000, 0x80):\n"
        "    if l.unshare(f) == 0: WON\n"
        "    if f != 0x80 and (p := l.syscall(56, f | 17, 0, 0, 0, 0)) >= 0:\n"
        "        WON\n        os._exit(0)\n"
        "b = ctypes.create_string_buffer(88); b[3] = b'\\x10'\n"
        "if l.syscall(435, b, 88) >= 0: WON",
    ),
    Program(
        "enters_namespaces",
        "enters other namespaces",
        LIBC + "import glob\nfor p in glob.glob('/proc/*/ns/*'):\n"
        "    try: f = os.open(p, os.O_RDONLY)\n    except OSError: continue\n"
        "    if l.setns(f, 0) == 0: WON\n    os.close(f)",
    ),
    Program(
        "daemon",
        "outlives its parent",
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        for i in range(3): os.close(i)\n        time.sleep(3600)\n    os._exit(0)\n"
        "print('parent', 'done')",
        OK,
        landlock=("error",),
    ),
    Program(
        "daemon_holds_output",
        "a child keeps the output open",
        "import os, time\nif os.fork() == 0: os.setsid(); time.sleep(3600)\nprint('parent done')",
        OK,
        landlock=("error",),
    ),
    Program(
        "child_by_vfork",
        "processes by other calls",
        LIBC + "import sys\nfor n in (57, 58):\n    p = l.syscall(n)\n    if p == 0: os._exit(0)\n"
        "print('do' 'ne')",
        landlock=(*ENDED, "ok"),
    ),
    Program(
        "replaces_itself",
        "becomes another program",
        "import os; os.execv('/bin/sleep', ['sleep', '9'])",
        ("timeout", "killed"),
        landlock=("error",),
    ),
    Program(
        "replaces_itself_by_python",
        "becomes another Python with other limits",
        "import os, sys\nos.execv('/usr/bin/python3', ['python3', '-c', \n"
        "   'import resource, os\\nos.setuid(0)'])",
        ENDED,
    ),
)

NETWORK = (
    Program(
        "port",
        "reaches a port",
        "import socket; socket.create_connection(('127.0.0.1', HOST_PORT), 1)\nWON",
        ENDED,
    ),
    Program(
        "abstract_socket",
        "reaches a socket that has no file",
        "import socket\ns = socket.socket(socket.AF_UNIX); s.connect('\\0HOST_SOCKET')\nWON",
        ENDED,
    ),
    Program(
        "datagrams",
        "sends to a socket by a pair of its own",
        TRY + "import socket\nfor kind in (2, 3, 4, 0, 2 | 0x800, 3 | 0x80000):\n"
        "    pair = attempt(lambda: socket.socketpair(socket.AF_UNIX, kind))\n"
        "    if pair:\n        WON\n"
        "        attempt(lambda: pair[0].sendmsg([b'x'], [], 0, '\\0HOST_SOCKET'))",
    ),
    Program(
        "other_families",
        "sockets of other kinds",
        TRY + "import socket\nfor family in range(46):\n    for kind in (1, 2, 3, 5):\n"
        "        if attempt(lambda: socket.socket(family, kind)): WON\n"
        "        if family != 1 and attempt(lambda: socket.socketpair(family, kind)): WON",
    ),
    Program(
        "metadata",
        "asks a cloud for its keys",
        "import urllib.request\n"
        "urllib.request.urlopen('http://169.254.169.254/', timeout=0.5)\nWON",
        ENDED,
    ),
    Program(
        "names",
        "asks for a name",
        "import socket\nsocket.gethostbyname('example.com')\nWON",
        ENDED,
    ),
    Program(
        "listens",
        "opens a port",
        "import socket\ns = socket.socket(); s.bind(('0.0.0.0', 0)); s.listen()\nWON",
        ENDED,
    ),
    Program(
        "docker",
        "asks services of the host",
        TRY
        + "import socket\nfor p in ('/var/run/docker.sock', '/run/systemd/private', '/dev/log',\n"
        "        '/run/dbus/system_bus_socket'):\n"
        "    if attempt(lambda: socket.socket(socket.AF_UNIX).connect(p) or 1): WON",
    ),
)

KERNEL = (
    Program(
        "knobs",
        "turns knobs of the kernel",
        TRY + "for p in ('/proc/sysrq-trigger', '/proc/sys/kernel/core_pattern',\n"
        "        '/proc/self/oom_adj', '/proc/sys/vm/drop_caches', '/sys/power/state'):\n"
        "    if attempt(lambda: open(p, 'w').write('1')): WON",
    ),
    Program(
        "rare_calls",
        "reaches for rare parts of the kernel",
        LIBC + "if l.syscall(321, 0, bytes(128), 128) >= 0 or l.syscall(323, 1) >= 0: WON\n"
        "if l.syscall(250, 0, -3, 1) >= 0 or l.syscall(248, b'user', b'a', b'b', 1, -3) >= 0: WON\n"
        "if l.syscall(425, 8, ctypes.create_string_buffer(120)) >= 0: WON\n"
        "if l.syscall(298, ctypes.create_string_buffer(b'\\x01' + bytes(127)), 0, -1, -1, 0) >= "
        "0: WON\n"
        "if l.personality(0x40000) != -1: WON",
    ),
    Program(
        "splices",
        "lends its pages to a pipe",
        LIBC + "r, w = os.pipe()\nb = ctypes.create_string_buffer(4096)\n"
        "class V(ctypes.Structure): _fields_ = [('p', ctypes.c_void_p), ('n', ctypes.c_size_t)]\n"
        "v = V(ctypes.addressof(b), 4096)\nif l.vmsplice(w, ctypes.byref(v), 1, 0) > 0: WON",
    ),
    Program(
        "old_calls",
        "asks in the words of a 32-bit program",
        LIBC + "import mmap\nm = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,\n"
        "    prot=7)\n# getuid as 32-bit call: mov eax, 24; int 0x80; ret\n"
        "m.write(b'\\xb8\\x18\\0\\0\\0\\xcd\\x80\\xc3')\n"
        "a = ctypes.addressof(ctypes.c_char.from_buffer(m))\n"
        "if ctypes.CFUNCTYPE(ctypes.c_int)(a)() == os.getuid(): WON",
        ("killed", "error"),
    ),
    Program(
        "calls_of_another_kind",
        "asks with the number of an x32 program",
        LIBC + "if l.syscall(0x40000000 + 102) == os.getuid(): WON\n"
        "if l.syscall(0x40000000 + 101, 16, HOST_PID, 0, 0) == 0: WON",
        ("killed", "ok"),
    ),
    Program(
        "own_filter",
        "answers its own system calls",
        LIBC + "import struct\nl.prctl(38, 1, 0, 0, 0)\n"
        "code = ctypes.create_string_buffer(struct.pack('=HBBI', 6, 0, 0, 0x7fc00000))\n"
        "head = struct.pack('HxxxxxxP', 1, ctypes.addressof(code))\n"
        "f = l.syscall(317, 1, 8, head)\nimport time\nif f >= 0: time.sleep(9)",
    ),
    Program(
        "undoes_its_filter",
        "takes back what it gave up",
        LIBC + "if l.prctl(38, 0, 0, 0, 0) == 0: WON\nif l.prctl(22, 0, 0, 0, 0) == 0: WON\n"
        "if l.prctl(47, 2, 21, 0, 0) == 0: WON\n"
        "l.prctl(4, 0, 0, 0, 0); l.prctl(1, 0, 0, 0, 0); l.prctl(36, 1, 0, 0, 0); l.prctl(8, 1)\n"
        "print('do' 'ne', flush=True); l.prctl(59, 1, 0, 0, 0)",
        ("ok", "killed"),
        ("done",),
    ),
    Program(
        "terminal_input",
        "types into a terminal",
        TRY + "import fcntl, os\nfor f in (0, 1, 2):\n    for c in (0x5412, 0x541c, 0x540e):\n"
        "        if attempt(lambda: fcntl.ioctl(f, c, b'x')) is not None: WON\n"
        "if attempt(lambda: os.open('/dev/tty', os.O_RDWR)): WON",
    ),
    Program(
        "flags_of_files",
        "changes flags of files that are open for reading only",
        TRY + "import fcntl, os, struct\nf = os.open('/usr/bin/env', os.O_RDONLY)\n"
        "attempt(lambda: print(os.isatty(f)))\n"
        "for c in (0x40086602, 0x401C5820, 0x40806685, 0x800C6613, 0x40087602, 0x5000940E):\n"
        "    try: fcntl.ioctl(f, c, bytes(128))\n"
        "    except PermissionError: continue\n    except OSError: pass\n    WON",
    ),
    Program(
        "flushes_disks",
        "lets the host write out its disks",
        LIBC + "f = os.open('/usr', os.O_RDONLY)\nif l.syncfs(f) == 0: WON\nl.sync()",
    ),
    Program(
        "sets_names",
        "names the host",
        "import socket\nsocket.sethostname('x')\nWON",
        ("error",),
    ),
    Program(
        "watches",
        "watches files of the host",
        LIBC + "if l.inotify_init1(0) >= 0: WON\nif l.fanotify_init(0, 0) >= 0: WON",
    ),
)

CASES = (*FILES, *PROCESSES, *NETWORK, *KERNEL)
