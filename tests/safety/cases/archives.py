"""Archives that want to write elsewhere, too much, or something else than files."""

from __future__ import annotations

from tests.safety.cases import Archive

ZIP = "import sys, zipfile\nz = zipfile.ZipFile(sys.argv[1], 'w', zipfile.ZIP_DEFLATED)\n"
TAR = (
    "import io, sys, tarfile\nt = tarfile.open(sys.argv[1], 'w')\n"
    "def add(name, kind=tarfile.REGTYPE, link='', data=b'x'):\n"
    "    i = tarfile.TarInfo(name); i.type = kind; i.linkname = link\n"
    "    i.size = len(data) if kind == tarfile.REGTYPE else 0\n"
    "    t.addfile(i, io.BytesIO(data) if i.size else None)\n"
)

CASES = (
    Archive("honest_zip", ZIP + "z.writestr('a/b.txt', 'x'); z.close()", True),
    Archive("honest_tar", TAR + "add('a/b.txt'); t.close()", True),
    Archive("bomb", ZIP + "for i in range(6): z.writestr('f%d' % i, bytes(16 << 20))\nz.close()"),
    Archive("many", ZIP + "for i in range(10100): z.writestr('f%d' % i, b'')\nz.close()"),
    Archive("upwards", ZIP + "z.writestr('../../evil', 'x'); z.close()"),
    Archive("absolute", ZIP + "z.writestr('/HOST_FOLDER/evil', 'x'); z.close()"),
    Archive("windows", ZIP + "z.writestr('a\\\\..\\\\..\\\\evil', 'x'); z.close()"),
    Archive("drive", ZIP + "z.writestr('C:/evil', 'x'); z.close()"),
    Archive("good_then_bad", ZIP + "z.writestr('ok', 'x'); z.writestr('../e', 'x'); z.close()"),
    Archive("twice", ZIP + "z.writestr('a', 'x'); z.writestr('a', 'y'); z.close()"),
    Archive("file_and_folder", ZIP + "z.writestr('a', 'x'); z.writestr('a/b', 'y'); z.close()"),
    Archive(
        "encrypted",
        ZIP + "z.writestr('a', 'x'); z.filelist[0].flag_bits |= 1; z.close()\n"
        "d = bytearray(open(sys.argv[1], 'rb').read()); d[6] |= 1\n"
        "open(sys.argv[1], 'wb').write(d)",
    ),
    Archive(
        "link_in_zip",
        ZIP + "i = zipfile.ZipInfo('l'); i.create_system = 3\n"
        "i.external_attr = 0o120777 << 16; z.writestr(i, 'HOST_FOLDER'); z.close()",
    ),
    Archive(
        "cut",
        ZIP + "z.writestr('a', 'x' * 9999); z.close()\n"
        "d = open(sys.argv[1], 'rb').read(); open(sys.argv[1], 'wb').write(d[:-30])",
    ),
    Archive(
        "lies_about_size",
        ZIP + "z.writestr('a', 'x' * 99999); z.close()\n"
        "d = open(sys.argv[1], 'rb').read().replace((99999).to_bytes(4, 'little'), "
        "b'\\x01\\0\\0\\0')\n"
        "open(sys.argv[1], 'wb').write(d)",
    ),
    Archive(
        "link_then_through",
        TAR + "add('l', tarfile.SYMTYPE, 'HOST_FOLDER')\nadd('l/evil'); t.close()",
    ),
    Archive("hard_link", TAR + "add('l', tarfile.LNKTYPE, 'HOST_FILE'); t.close()"),
    Archive("pipe", TAR + "add('p', tarfile.FIFOTYPE); t.close()"),
    Archive("device", TAR + "add('d', tarfile.CHRTYPE); t.close()"),
    Archive("tar_upwards", TAR + "add('../evil'); t.close()"),
    Archive("tar_absolute", TAR + "add('/HOST_FOLDER/evil'); t.close()"),
    Archive("nothing", "import sys; open(sys.argv[1], 'w').close()"),
    Archive("text", "import sys; open(sys.argv[1], 'w').write('no archive' * 99)"),
    Archive("a_pipe", "import os, sys; os.mkfifo(sys.argv[1])"),
    Archive("a_link", "import os, sys; os.symlink('/dev/zero', sys.argv[1])"),
    Archive("a_folder", "import os, sys; os.mkdir(sys.argv[1])"),
    Archive(
        "gzip_bomb",
        "import gzip, sys\nwith gzip.open(sys.argv[1], 'wb', 1) as f:\n"
        "    for _ in range(6): f.write(bytes(16 << 20))",
    ),
)
