"""Archives from anywhere are unpacked whole into their folder, or refused without a trace."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import struct
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mrlm.core.errors import ConfigError, DataError
from mrlm.sandbox.archives import ArchiveLimits, ArchiveRefused, unpack

MIB = 1 << 20
FILES = {"a.txt": b"alpha", "sub/b.bin": bytes(range(256)) * 40, "sub/deep/c": b""}


def zipped(*members: tuple[str | zipfile.ZipInfo, bytes], method: int = 8) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return out.getvalue()


def tarred(
    *members: tuple[str | tarfile.TarInfo, bytes],
    form: int = tarfile.PAX_FORMAT,
    **words: dict[str, str],
) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form, **words) as archive:  # type: ignore
        for name, content in members:
            info = tarfile.TarInfo(name) if isinstance(name, str) else name
            if info.isreg():
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content) if info.isreg() else None)
    return out.getvalue()


def kind(name: str, type_: bytes, link: str = "", **attributes: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = type_, link
    for key, value in attributes.items():
        setattr(info, key, value)
    return info


def mode(name: str, bits: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr = 3, bits << 16
    return info


def header(name: bytes, size: int, type_: bytes) -> bytes:
    """One tar header that says whatever it likes, with the right checksum."""
    block = bytearray(struct.pack("100s8s8s8s", name, b"0000644\0", b"0000000\0", b"0000000\0"))
    block += b"%011o\0" % size + b"%011o\0" % 0 + b" " * 8 + type_ + bytes(100)
    block += b"ustar\x0000" + bytes(512 - 265)
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def pax(body: bytes, follows: bytes = b"", type_: bytes = b"x", size: int | None = None) -> bytes:
    padding = bytes(-len(body) % 512)
    begin = header(b"pax", len(body) if size is None else size, type_)
    return begin + body + padding + (follows or header(b"f", 1, b"0") + b"x" * 512) + bytes(1024)


def record(key: bytes, value: bytes) -> bytes:
    body = b" " + key + b"=" + value + b"\n"
    length = len(body)
    while len(b"%d" % length) + len(body) != length:
        length = len(b"%d" % length) + len(body)
    return b"%d" % length + body


def overlapping(num: int) -> bytes:
    """A bomb without nesting: every entry of the directory points at one local header."""
    data = zlib.compressobj(9, zlib.DEFLATED, -15)
    content = bytes(1 << 16)
    packed = data.compress(content) + data.flush()
    crc = zlib.crc32(content)
    sizes = struct.pack("<III", crc, len(packed), len(content))
    local = b"PK\3\4" + struct.pack("<5H", 20, 0, 8, 0, 0) + sizes + struct.pack("<HH", 1, 0) + b"f"
    entry = (
        b"PK\1\2" + struct.pack("<6H", 20, 20, 0, 8, 0, 0) + sizes
        + struct.pack("<5HII", 1, 0, 0, 0, 0, 0, 0) + b"f"
    )  # fmt: skip
    start = len(local) + len(packed)
    end = b"PK\5\6" + struct.pack(
        "<4H2IH", 0, 0, num & 0xFFFF, num & 0xFFFF, len(entry) * num, start, 0
    )
    return local + packed + entry * num + end


def patched(data: bytes, old: bytes, new: bytes, count: int = -1) -> bytes:
    assert old in data and len(old) == len(new)
    return data.replace(old, new, count)


def encrypted() -> bytes:
    data = zipped(("f", b"x"), method=0)
    data = patched(data, b"PK\1\2\x14\x03\x14\0\0", b"PK\1\2\x14\x03\x14\0\1")
    return patched(data, b"PK\3\4\x14\0\0", b"PK\3\4\x14\0\1")


def lying(declared: int, content: bytes = bytes(100_000), local: bool = True) -> bytes:
    """A zip whose only member has another size than it says."""
    data = zipped(("f", content))
    return patched(
        data, struct.pack("<I", len(content)), struct.pack("<I", declared), -1 if local else 1
    )


def many_streams() -> bytes:
    return gzip.compress(b"") * 20_000


def gz(data: bytes) -> bytes:
    return gzip.compress(data, 1)


def zeros(make: Callable[[], object], num_mib: int = 300) -> bytes:
    one = make()
    pieces = [one.compress(bytes(MIB)) for _ in range(num_mib)]  # type: ignore[attr-defined]
    return b"".join(pieces) + one.flush()  # type: ignore[attr-defined]


LONG_PAX = header(b"pax", 1 << 32, b"x")
SPARSE_1 = record(b"GNU.sparse.major", b"1") + record(b"GNU.sparse.realsize", b"99999999999")
S_IFLNK, S_IFIFO, S_IFBLK = 0o120777, 0o010644, 0o060644

ATTACKS: dict[str, Callable[[], bytes]] = {
    # names that lead elsewhere
    "zip: parent": lambda: zipped(("../evil", b"x")),
    "zip: parent inside": lambda: zipped(("a/b/../../../evil", b"x")),
    "zip: absolute": lambda: zipped(("/tmp/evil", b"x")),
    "zip: drive": lambda: zipped(("C:/evil", b"x")),
    "zip: drive, relative": lambda: zipped(("c:evil", b"x")),
    "zip: UNC": lambda: zipped(("\\\\host\\share\\evil", b"x")),
    "zip: backslash": lambda: zipped(("..\\evil", b"x")),
    "zip: slashes only": lambda: zipped(("//", b"")),
    "zip: NUL": lambda: patched(zipped(("evilX.txt", b"x")), b"evilX", b"evil\0"),
    "tar: parent": lambda: tarred(("../evil", b"x")),
    "tar: absolute": lambda: tarred(("/etc/cron.d/evil", b"x")),
    "tar: parent in pax": lambda: pax(record(b"path", b"../evil")),
    "tar: NUL in pax": lambda: pax(record(b"path", b"good\0/../evil")),
    "tar: parent in GNU name": lambda: pax(b"../evil\0", type_=b"L"),
    "tar: escape codes": lambda: tarred(("\x1b]0;owned\x07", b"x")),
    "tar: right to left": lambda: tarred(("invoice\u202etxt.py", b"x")),
    "tar: wide dots": lambda: tarred(("\uff0e\uff0e/evil", b"x")),
    "tar: wide slash": lambda: tarred(("..\uff0fevil", b"x")),
    "tar: two dots in one": lambda: tarred(("\u2025/evil", b"x")),
    "tar: dots and space": lambda: tarred((".. /evil", b"x")),
    "tar: not UTF-8": lambda: pax(record(b"path", b"\xff\xfe")),
    "tar: long part": lambda: tarred(("x" * 256, b"")),
    "tar: long name": lambda: tarred(("/".join(["x" * 200] * 6), b"")),
    "tar: deep": lambda: tarred(("d/" * 40 + "f", b"")),
    # what is neither a file nor a folder
    "zip: symlink": lambda: zipped((mode("l", S_IFLNK), b"/etc/passwd")),
    "zip: symlink, then through it": lambda: zipped((mode("l", S_IFLNK), b"/"), ("l/evil", b"x")),
    "zip: pipe": lambda: zipped((mode("p", S_IFIFO), b"")),
    "zip: device": lambda: zipped((mode("d", S_IFBLK), b"")),
    "zip: folder by mode": lambda: zipped((mode("d", stat.S_IFDIR | 0o755), b"x")),
    "zip: folder with content": lambda: zipped(("d/", b"content")),
    "tar: symlink": lambda: tarred((kind("l", tarfile.SYMTYPE, "/etc/passwd"), b"")),
    "tar: symlink, then through it": lambda: tarred(
        (kind("l", tarfile.SYMTYPE, "/"), b""), ("l/evil", b"x")
    ),
    "tar: hard link": lambda: tarred((kind("h", tarfile.LNKTYPE, "/etc/passwd"), b"")),
    "tar: hard link inside": lambda: tarred(("f", b"x"), (kind("h", tarfile.LNKTYPE, "f"), b"")),
    "tar: block device": lambda: tarred((kind("d", tarfile.BLKTYPE, devmajor=8), b"")),
    "tar: character device": lambda: tarred((kind("d", tarfile.CHRTYPE, devmajor=1), b"")),
    "tar: pipe": lambda: tarred((kind("p", tarfile.FIFOTYPE), b"")),
    "tar: unknown kind": lambda: header(b"v", 0, b"V") + bytes(1024),
    "tar: sparse, old": lambda: header(b"s", 0, b"S") + bytes(1024),
    "tar: sparse, pax": lambda: pax(SPARSE_1),
    # bombs
    "zip: bomb": lambda: zipped(*((f"f{i}", bytes(20 * MIB)) for i in range(5))),
    "zip: overlap": lambda: overlapping(5_000),
    "zip: too many": lambda: overlapping(200_000),
    "zip: larger than it says": lambda: lying(10),
    "zip: larger, says the directory": lambda: lying(10, local=False),
    "zip: smaller than it says": lambda: lying(200_000),
    "zip: says petabytes": lambda: lying(0xFFFFFFF0),
    "zip: nothing said": lambda: lying(0),
    "gzip: bomb": lambda: zeros(lambda: zlib.compressobj(9, zlib.DEFLATED, 31)),
    "bzip2: bomb": lambda: zeros(bz2.BZ2Compressor, 100),
    "xz: bomb": lambda: zeros(lambda: lzma.LZMACompressor(preset=0), 100),
    "gzip: many streams": many_streams,
    "tar: bomb": lambda: gz(header(b"f", 1 << 30, b"0") + bytes(80 * MIB)),
    "tar: claims much": lambda: header(b"f", 1 << 32, b"0") + bytes(1024),
    "tar: pax in memory": lambda: gz(LONG_PAX + bytes(80 * MIB)),
    "tar: pax claims much": lambda: LONG_PAX + bytes(1024),
    "tar: size in pax": lambda: pax(record(b"size", b"9" * 15)),
    "tar: size in letters": lambda: pax(record(b"size", "²".encode())),
    "tar: negative size": lambda: pax(record(b"size", b"-512")),
    "tar: negative, base 256": lambda: _base_256(-512),
    "tar: huge, base 256": lambda: _base_256(1 << 80),
    "tar: size of all": lambda: pax(record(b"size", b"1"), type_=b"g"),
    "tar: pax length": lambda: pax(b"99999 path=x\n"),
    "tar: pax length nought": lambda: pax(b"0 path=x\n" * 2000),
    "tar: pax backtracks": lambda: pax(b"1" * 60_000),
    "tar: two names": lambda: pax(
        record(b"path", b"a"), follows=pax(b"b\0", type_=b"L")
    ),
    "tar: extensions only": lambda: pax(record(b"comment", b"x")) [:1024] * 12_000 + bytes(1024),
    "tar: too many": lambda: header(b"d/", 0, b"5") * 12_000 + bytes(1024),
    "tar: folder with content": lambda: header(b"d/", 512, b"5") + bytes(2048),
    # clashes and damage
    "zip: twice": lambda: patched(zipped(("f", b"1"), ("g", b"2")), b"g", b"f"),
    "tar: twice": lambda: tarred(("f", b"1"), ("./f", b"2")),
    "tar: twice, composed": lambda: tarred(("\u00e9", b"1"), ("e\u0301", b"2")),
    "tar: file, then folder": lambda: tarred(("f", b"1"), ("f/g", b"2")),
    "tar: folder, then file": lambda: tarred(("f/g", b"1"), ("f", b"2")),
    "zip: file, then folder": lambda: zipped(("f", b"1"), ("f/", b"")),
    "zip: encrypted": encrypted,
    "zip: other name behind": lambda: patched(zipped(("good", b"x")), b"good", b"evil", 1),
    "zip: changed": lambda: patched(zipped(("f", b"honest"), method=0), b"honest", b"hacked"),
    "zip: bzip2 inside": lambda: zipped(("f", b"x"), method=zipfile.ZIP_BZIP2),
    "zip: xz inside": lambda: zipped(("f", b"x"), method=zipfile.ZIP_LZMA),
    "zip: cut": lambda: zipped(("f", os.urandom(1000)))[:-30],
    "zip: more behind": lambda: zipped(("f", b"x")) + b"tail",
    "zip: two in one": lambda: zipped(("f", b"x")) + zipped(("g", b"y")),
    "tar: cut in a file": lambda: tarred(("f", bytes(5000)))[:2000],
    "tar: cut behind a file": lambda: tarred(("f", b"x"))[:1024],
    "tar: cut in a header": lambda: tarred(("f", b"x"), ("g", b"x"))[:1100],
    "tar: more behind": lambda: tarred(("f", b"x")) + tarred(("g", b"y")),
    "tar: checksum": lambda: patched(tarred(("f", b"x"), ("g", b"x")), b"g\0\0", b"h\0\0"),
    "tar.gz: cut": lambda: gz(tarred(("f", os.urandom(5000))))[:-700],
    "tar.gz: checksum cut": lambda: gz(tarred(("f", b"x")))[:-4],
    "gzip: cut": lambda: gz(os.urandom(5000))[:2500],
    "gzip: checksum": lambda: gz(b"x")[:-8] + bytes(8),
    "gzip: rubbish behind": lambda: gz(b"x") + b"rubbish",
    "bzip2: cut": lambda: bz2.compress(os.urandom(5000))[:-10],
    "xz: cut": lambda: lzma.compress(os.urandom(5000))[:-10],
    "xz: wants memory": lambda: lzma.compress(
        b"x", filters=[{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 512 * MIB}]
    ),
    "no archive": lambda: b"#!/bin/sh\necho evil\n",
    "empty": lambda: b"",
}  # fmt: skip


def _base_256(size: int) -> bytes:
    block = bytearray(header(b"f", 0, b"0"))
    block[124:136] = (b"\xff" if size < 0 else b"\x80") + size.to_bytes(11, "big", signed=True)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + bytes(1024)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_quickly_and_leaves_nothing(name: str, place: Path) -> None:
    made = ATTACKS[name]()
    path = place.parent / "archive"
    path.write_bytes(made)
    begin = time.process_time()
    with pytest.raises(ArchiveRefused, match=r"is refused: \S") as refused:
        unpack(path, place / "out")
    assert time.process_time() - begin < 1
    assert str(refused.value).isprintable()
    assert list(place.iterdir()) == []
    assert sorted(p.name for p in place.parent.iterdir()) == ["archive", "place"]


def honest() -> dict[str, bytes]:
    members = list(FILES.items())
    tar = tarred((kind("sub/", tarfile.DIRTYPE), b""), *members)
    long = tarred(*members, (f"{'x' * 120}/{'y' * 120}", b"z"), form=tarfile.GNU_FORMAT)
    return {
        "deflated zip": zipped(*members),
        "stored zip": zipped(*members, method=0),
        "zip with folders": zipped(("sub/", b""), *members),
        "zip with a comment": zipped(*members)[:-2] + b"\x05\0hello",
        "tar": tar,
        "tar in old form": tarred(*members, form=tarfile.USTAR_FORMAT),
        "tar.gz": gz(tar),
        "tar.bz2": bz2.compress(tar),
        "tar.xz": lzma.compress(tar),
        "tar.gz in blocks": b"".join(gz(tar[i : i + 1000]) for i in range(0, len(tar), 1000)),
        "tar with zeros behind": gz(tar) + bytes(5000),
        "tar of ./": tarred(*(("./" + name, content) for name, content in members)),
        "tar with a comment for all": tarred(*members, pax_headers={"comment": "abc"}),
        "tar with pax times": tarred((kind("sub", tarfile.DIRTYPE, mtime=1.5), b""), *members),  # type: ignore[arg-type]
        "tar with long names": long,
    }


@pytest.mark.parametrize("name", honest())
def test_an_honest_archive_is_unpacked(name: str, place: Path) -> None:
    path = place.parent / "archive"
    path.write_bytes(honest()[name])
    found = unpack(path, place / "out")
    assert {f: (place / "out" / f).read_bytes() for f in FILES} == FILES
    assert set(FILES) <= set(found)
    assert [p.name for p in place.iterdir()] == ["out"]


def test_a_streamed_zip_is_unpacked(place: Path) -> None:
    class Unseekable(io.RawIOBase):
        def __init__(self) -> None:
            self.data = bytearray()

        def writable(self) -> bool:
            return True

        def write(self, data: bytes) -> int:  # type: ignore[override]
            self.data += data
            return len(data)

    out = Unseekable()  # sizes stand behind the members
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:  # type: ignore[arg-type]
        for name, content in FILES.items():
            archive.writestr(name, content)
    (place.parent / "archive").write_bytes(out.data)
    assert unpack(place.parent / "archive", place / "out") == list(FILES)


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz"])
def test_a_single_compressed_file_keeps_the_name_of_the_archive(ending: str, place: Path) -> None:
    content = os.urandom(10) * 100_000
    pack = {".gz": gz, ".bz2": bz2.compress, ".xz": lzma.compress}[ending]
    path = place.parent / f"rows.jsonl{ending}"
    path.write_bytes(pack(content))
    assert unpack(path, place / "out") == ["rows.jsonl"]
    assert (place / "out" / "rows.jsonl").read_bytes() == content


def test_a_name_inside_gzip_is_not_used(place: Path) -> None:
    path = place.parent / "rows.gz"
    with gzip.GzipFile("../../evil", "wb", fileobj=path.open("wb")) as file:
        file.write(b"x")
    assert unpack(path, place / "out") == ["rows"]


def test_modes_are_not_taken_over(place: Path) -> None:
    program, folder = (
        kind("f", tarfile.REGTYPE, mode=0o6777),
        kind("d", tarfile.DIRTYPE, mode=0o7000),
    )
    for data in (
        tarred((program, b"x"), (folder, b""), ("d/g", b"y")),
        zipped((mode("f", stat.S_IFREG | 0o6777), b"x"), ("d/g", b"y")),
    ):
        (place.parent / "archive").write_bytes(data)
        out = place / f"out{len(data)}"
        unpack(place.parent / "archive", out)
        modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in out.rglob("*")}
        assert not modes["f"] & 0o7111
        assert modes["d"] & 0o7700 == 0o700


def test_names_that_differ_in_case_are_two(place: Path) -> None:
    (place.parent / "archive").write_bytes(tarred(("Readme", b"1"), ("README", b"2")))
    assert unpack(place.parent / "archive", place / "out") == ["Readme", "README"]


def test_sizes_are_counted_not_believed(place: Path) -> None:
    path, limits = place.parent / "archive", ArchiveLimits(total=50_000)
    content = os.urandom(100) * 600
    for data in (zipped(("f", content)), gz(content), gz(tarred(("f", content)))):
        path.write_bytes(data)
        with pytest.raises(ArchiveRefused, match="more than 50000 bytes"):
            unpack(path, place / "out", limits)
    path.write_bytes(lying(10, content))
    with pytest.raises(ArchiveRefused, match="not what it says"):
        unpack(path, place / "out")


def test_nothing_is_written_over(place: Path) -> None:
    path = place.parent / "archive"
    path.write_bytes(zipped(("f", b"new")))
    (place / "full").mkdir()
    (place / "full" / "f").write_text("old")
    (place / "file").write_text("old")
    (place / "link").symlink_to(place.parent)
    for target in ("full", "file", "link"):
        with pytest.raises(ConfigError, match=r"not empty|not a folder"):
            unpack(path, place / target)
    with pytest.raises(ConfigError, match="make it first"):
        unpack(path, place / "none" / "out")
    (place / "empty").mkdir()
    assert unpack(path, place / "empty") == ["f"]
    assert (place / "full" / "f").read_text() == (place / "file").read_text() == "old"


def test_an_archive_that_cannot_be_read_is_said(place: Path) -> None:
    os.mkfifo(place / "pipe")
    for path in (place / "pipe", place / "none", place):
        with pytest.raises(DataError, match=r"not a file|cannot be read"):
            unpack(path, place / "out")
    (place / "large").write_bytes(bytes(2000))
    with pytest.raises(ArchiveRefused, match="more than 1000 bytes"):
        unpack(place / "large", place / "out", ArchiveLimits(archive=1000))
    with pytest.raises(ConfigError, match="'total' must be positive"):
        ArchiveLimits(total=0)


def test_a_full_disk_is_no_verdict_and_leaves_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place.parent / "archive"
    path.write_bytes(zipped(("a", b"1"), ("b", b"2")))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(OSError, match="No space"):
        unpack(path, place / "out")
    assert list(place.iterdir()) == []


SEEDS = [data for name, data in honest().items() if name != "tar with long names"]


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_damaged_archive_is_refused_or_stays_in_its_folder(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = bytearray(data.draw(st.sampled_from(SEEDS)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(made) - 1))
        made[at] = data.draw(st.integers(0, 255))
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "archive").write_bytes(made)
    (folder / "place").mkdir()
    try:
        unpack(folder / "archive", folder / "place" / "out")
    except ArchiveRefused:
        assert list((folder / "place").iterdir()) == []
    assert sorted(p.name for p in folder.iterdir()) == ["archive", "place"]
    for path in (folder / "place").rglob("*"):
        assert not path.is_symlink() and (path.is_file() or path.is_dir())
