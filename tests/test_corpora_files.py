"""Corpora as they are published: downloads, checksums, archives, forms of text."""

import errno
import gzip
import hashlib
import http.server
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest
from files import write_tar

from fairseq_ext.errors import Unfinished, UsageError
from fairseq_ext.files import read_lines
from fairseq_ext.prepare import extract, fetch
from fairseq_ext.prepare.fetch import SOURCES, Address

CONTENT = bytes(range(256)) * 999
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


# Downloads.


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT at /file; /cut ends early, /missing is not there, /page is another page,
    /whole knows no ranges. Refuses Python's name."""

    def do_GET(self):
        begin = int(self.headers.get("Range", "bytes=0-")[6:-1])
        self.server.asked.append((self.path, begin))
        if self.headers["User-Agent"].startswith("Python"):
            self.send_error(403)
        elif self.path == "/missing":
            self.send_error(404)
        elif self.path == "/page":
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(b"<html>too many have asked for it</html>")
        elif self.path == "/whole":
            self.send(0)
        elif begin >= len(CONTENT):
            self.send_error(416)
        else:
            self.send(begin)

    def send(self, begin: int) -> None:
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(CONTENT) - begin))
        self.end_headers()
        end = len(CONTENT) // 2 if self.path == "/cut" else len(CONTENT)
        self.wfile.write(CONTENT[begin:end])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as running:
        running.asked = []
        threading.Thread(target=running.serve_forever, daemon=True).start()
        running.url = f"http://127.0.0.1:{running.server_port}"
        yield running
        running.shutdown()


def test_the_first_address_that_has_it(server, tmp_path):
    addresses = [Address(f"{server.url}/{path}", DIGEST, "x.bin") for path in ("missing", "file")]
    assert fetch.fetch(addresses, tmp_path / "new").read_bytes() == CONTENT
    asked = len(server.asked)
    fetch.fetch(addresses, tmp_path / "new")
    assert len(server.asked) == asked


def test_an_interrupted_download_goes_on(server, tmp_path):
    cut = [Address(f"{server.url}/cut", DIGEST, "x.bin")]
    with pytest.raises(fetch.Unavailable, match="bytes have arrived, and"):
        fetch.fetch(cut, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["x.bin.part"]
    fetch.fetch([Address(f"{server.url}/file", DIGEST, "x.bin")], tmp_path)
    assert (tmp_path / "x.bin").read_bytes() == CONTENT
    assert server.asked[-1] == ("/file", len(CONTENT) // 2)


def test_what_is_complete_but_has_no_name_yet(server, tmp_path):
    (tmp_path / "x.bin.part").write_bytes(CONTENT)
    fetch.fetch([Address(f"{server.url}/file", DIGEST, "x.bin")], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["x.bin"]


def test_what_is_complete_is_not_asked_for(server, tmp_path):
    (tmp_path / "x.bin.part").write_bytes(CONTENT)
    fetch.fetch([Address(f"{server.url}/file", DIGEST, "x.bin")], tmp_path)
    assert not server.asked


@pytest.mark.parametrize("digest", [DIGEST, ""])
def test_a_web_page_is_no_file(server, tmp_path, digest):
    """What is there already is kept, and another address is asked."""
    (tmp_path / "x.bin.part").write_bytes(CONTENT[:99])
    page, file = (Address(f"{server.url}/{path}", digest, "x.bin") for path in ("page", "file"))
    with pytest.raises(fetch.Unavailable, match="/page: .*it sends a web page instead"):
        fetch.fetch([page], tmp_path)
    assert fetch.fetch([page, file], tmp_path).read_bytes() == CONTENT
    assert server.asked[-1] == ("/file", 99)


@pytest.mark.parametrize(
    ("path", "begun", "asked"),
    [("file", CONTENT, [len(CONTENT), 0]), ("whole", b"other", [5])],
    ids=["all of it is there", "the server knows no ranges"],
)
def test_what_cannot_go_on_begins_again(server, tmp_path, path, begun, asked):
    (tmp_path / "x.bin.part").write_bytes(begun)
    address = Address(f"{server.url}/{path}", "", "x.bin")
    assert fetch.fetch([address], tmp_path).read_bytes() == CONTENT
    assert server.asked == [(f"/{path}", begin) for begin in asked]


def test_a_checksum_that_differs(server, tmp_path):
    """Another address may have the right file."""
    wrong = Address(f"{server.url}/file", "md5:0", "x.bin")
    with pytest.raises(fetch.Mismatch, match="/file: it does not have the expected checksum md5:0"):
        fetch.fetch([wrong], tmp_path)
    assert not list(tmp_path.iterdir())
    right = Address(f"{server.url}/file", DIGEST, "x.bin")
    assert fetch.fetch([wrong, right], tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("raised", "error", "said"),
    [
        (ConnectionResetError("reset"), fetch.Unavailable, "/file: reset"),
        (OSError(errno.ENOSPC, "No space left"), Unfinished, r"x.bin cannot be written \(No space"),
    ],
)
def test_a_broken_connection_is_not_the_disk(monkeypatch, server, tmp_path, raised, error, said):
    def fail(*_):
        raise raised

    address = Address(f"{server.url}/file", DIGEST, "x.bin")
    monkeypatch.setattr(fetch, "_save", fail)
    with pytest.raises(error, match=said):
        fetch.fetch([address], tmp_path)


def test_what_is_there_is_checked(monkeypatch, tmp_path):
    monkeypatch.setitem(SOURCES, "iwslt14", [Address("http://127.0.0.1:9/x", DIGEST, "x.tgz")])
    check = [str(tmp_path), "iwslt14", "multi30k-train.en.gz", "--check"]
    (tmp_path / "train.en.gz").write_bytes(b"a part of it")  # which is no archive
    fetch.main(check)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "x.tgz").write_bytes(CONTENT)
    fetch.main(check)
    (tmp_path / "deep" / "x.tgz").write_bytes(CONTENT[1:])
    with pytest.raises(fetch.Mismatch, match="deep/x.tgz does not have the expected checksum"):
        fetch.main(check)


def test_what_is_given_is_found_below(monkeypatch, tmp_path, capsys):
    """Nothing is downloaded, nor put into the folder."""
    for name in ("a", "b"):
        monkeypatch.setitem(SOURCES, name, [Address("http://127.0.0.1:9/", DIGEST, f"{name}.bin")])
    put(tmp_path, deep__a_bin=CONTENT, a_bin=CONTENT)
    command = [str(tmp_path), "a", "b", "--given"]
    with pytest.raises(UsageError, match=r"has no b\.bin"):
        fetch.main(command)
    put(tmp_path, deep__b_bin=CONTENT)
    fetch.main(command)
    assert capsys.readouterr().out == f"{tmp_path / 'deep'}\n"
    put(tmp_path, deep__b_bin=CONTENT[1:])
    with pytest.raises(fetch.Mismatch, match=r"deep/b\.bin does not have the expected checksum"):
        fetch.main(command)
    assert len(list(tmp_path.rglob("*.bin"))) == 3


def test_nothing_can_be_reached(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(SOURCES, "iwslt14", [Address("http://127.0.0.1:9/x", DIGEST, "x.bin")])
    with pytest.raises(SystemExit) as ended:
        fetch.main([str(tmp_path), "iwslt14"])
    assert ended.value.code == 69
    assert "x.bin could not be downloaded" in capsys.readouterr().err


def test_every_archive_has_a_checksum_and_a_mirror():
    for name, addresses in SOURCES.items():
        assert len({address.url for address in addresses}) > 1, name
        for _, digest, file in addresses:
            if name.startswith(("gpt2-dict.txt", "vqa-v2-")):  # of which nobody publishes one
                continue
            kind, _, value = digest.partition(":")
            assert len(bytes.fromhex(value)) == {"sha256": 32, "md5": 16}[kind], name
            assert Path(file).name == file


# Archives.


def lines(tmp_path: Path, part: str) -> list[str]:
    return list(read_lines(tmp_path / "work" / "raw" / part))


def taken(tmp_path: Path, **parts: str) -> None:
    folder = tmp_path / "corpus"
    extract.extract(folder, tmp_path / "work" / "raw", ["en", "de"], parts, inner="inner.tgz")


def test_files_archives_and_archives_in_archives(tmp_path):
    folder = tmp_path / "corpus"
    inner = write_tar(tmp_path / "x.tgz", **{"y/in.en": b"inner\n", "y/in.de": b"innen\n"})
    write_tar(
        folder / "a.tgz",
        **{"d/inner.tgz": inner.read_bytes(), "d/t.en": b"one\n", "d/t.de": b"eins\n"},
    )
    with zipfile.ZipFile(folder / "b.zip", "w") as archive:
        archive.writestr("deep/u.en", "two\n")
        archive.writestr("deep/u.de", "zwei\n")
    (folder / "sub").mkdir()
    for language in ("en", "de"):
        (folder / "sub" / f"v.{language}.gz").write_bytes(gzip.compress(b"three\n"))
    taken(tmp_path, train="t.@+u.@+v.@", test="nowhere.@|in.@")
    assert lines(tmp_path, "train.de") == ["eins", "zwei", "three"]
    assert lines(tmp_path, "test.en") == ["inner"]
    used = [Path(line).name for line in read_lines(tmp_path / "work" / "inputs")]
    assert used == ["a.tgz", "b.zip", "v.en.gz", "v.de.gz"]


def put(folder: Path, **files: bytes) -> Path:
    """Files whose names have _ for a dot and __ for a slash."""
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return folder


def test_an_archive_cannot_write_elsewhere(tmp_path):
    evil = {"../../t.en": b"one\n", str(tmp_path / "t.de"): b"eins\n"}
    write_tar(tmp_path / "corpus" / "a.tgz", **evil)
    with tarfile.open(tmp_path / "corpus" / "b.tar", "w") as archive:
        link = tarfile.TarInfo("u.en")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    taken(tmp_path, train="t.@")
    assert lines(tmp_path, "train.en") == ["one"]
    assert not list(tmp_path.glob("*.de")) and not list(tmp_path.parent.glob("t.en"))
    with pytest.raises(UsageError, match="has no u.en"):
        taken(tmp_path, test="u.@")


def test_a_truncated_archive(tmp_path):
    path = write_tar(tmp_path / "corpus" / "a.tgz", **{"t.en": CONTENT * 9, "t.de": CONTENT * 9})
    path.write_bytes(path.read_bytes()[:-999])
    with pytest.raises(UsageError, match=r"a\.tgz cannot be unpacked .*get it again"):
        taken(tmp_path, train="t.@")
    assert not list((tmp_path / "work").rglob("t.de")) and not (tmp_path / "work/raw").exists()


def test_archives_are_read_only_if_they_are_needed(tmp_path):
    folder = tmp_path / "corpus"
    (folder / "old.zip").mkdir(parents=True)
    (folder / "b.tgz").write_bytes(b"no archive")
    for language in ("en", "de"):
        (folder / f"t.{language}").write_text("plain\n")
    taken(tmp_path, train="t.@")
    assert lines(tmp_path, "train.en") == ["plain"]
    assert [Path(x).name for x in read_lines(tmp_path / "work" / "inputs")] == ["t.en", "t.de"]


@pytest.mark.parametrize(
    ("names", "place"),
    [
        (["t_en", "a__t_en", "a__t_de", "b_partial__t_en", "b_partial__t_de"], "a"),
        (["t_en_gz", "t_de_gz", "a__t_en", "a__t_de"], ""),
        (["t_en", "t_en_gz", "t_de_gz", "a__b__t_en", "a__b__t_de"], ""),
        (["b__t_en", "a__t_de", "a__b__t_en_gz", "a__b__t_de"], "a/b"),
    ],
)
def test_the_nearest_folder_with_all_languages(tmp_path, names, place):
    """Plain or .gz, and nothing of a recipe's work."""
    put(tmp_path / "corpus", **{name: name.encode() for name in names})
    taken(tmp_path, train="t.@")
    used = [Path(line) for line in read_lines(tmp_path / "work" / "inputs")]
    assert [path.parent for path in used] == [tmp_path / "corpus" / place] * 2
    assert {path.name.split(".")[1] for path in used} == {"en", "de"}


def test_languages_in_different_folders(tmp_path):
    put(tmp_path / "corpus", a__t_en=b"one\n", b__t_de=b"eins\n", b__c__t_de=b"zwei\n")
    with pytest.raises(
        UsageError, match=r"a/t\.en and .*b/t\.de are in different folders or .*; put"
    ):
        taken(tmp_path, train="t.@")


def test_files_of_a_part_are_compared_one_by_one(tmp_path):
    """Together they have equally many lines."""
    put(tmp_path / "corpus", a_en=b"1\n2\n3\n", a_de=b"1\n2\n", b_en=b"1\n2\n", b_de=b"1\n2\n3\n")
    for _ in range(2):
        with pytest.raises(UsageError, match=r"corpus/a\.en has 3 lines and .*corpus/a\.de has 2"):
            taken(tmp_path, train="a.@+b.@")
    assert not list((tmp_path / "work" / "raw").iterdir())


def test_carriage_returns_within_lines(tmp_path, caplog):
    """As in News Commentary: no lines of their own, and no reason to refuse it."""
    put(tmp_path / "corpus", t_en=b"one\rtwo\r\nthree\n\rfour\n", t_de=b"eins\r\nzwei\ndrei\n")
    taken(tmp_path, train="t.@")
    assert lines(tmp_path, "train.en") == ["one two", "three", " four"]
    [said] = caplog.messages
    assert "corpus/t.en: 2 lines hold carriage returns" in said


def test_a_disk_that_is_full_is_no_damaged_archive(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    write_tar(tmp_path / "corpus" / "a.tgz", **{"t.en": b"one\n", "t.de": b"eins\n"})
    monkeypatch.setattr(extract, "_copy", full)
    with pytest.raises(Unfinished, match=r"a\.tgz cannot be unpacked .No space left.*run the same"):
        taken(tmp_path, train="t.@")


def test_archives_of_one_name(tmp_path):
    write_tar(tmp_path / "corpus" / "one" / "x.tgz", **{"t.en": b"one\n"})
    write_tar(tmp_path / "corpus" / "two" / "x.tgz", **{"t.de": b"eins\n"})
    taken(tmp_path, train="t.@")
    assert lines(tmp_path, "train.de") == ["eins"]


@pytest.mark.parametrize("pattern", ["/abs/t.@", "", "t.@|", "a/t.@"])
def test_patterns_that_are_no_names(tmp_path, pattern):
    (tmp_path / "corpus").mkdir()
    with pytest.raises(UsageError, match="is no name of a file"):
        taken(tmp_path, train=pattern)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("t.en", "'t.en' of train would be read as en and as de; put @ in"),
        ("t.@+u.de", "'u.de' of train would be read as en and as de; put @ in"),
        ("t.@|u.de", "'u.de' of train would be read as en and as de; put @ in"),
        ("link.@", "corpus/link.en and .*corpus/link.de are one file; give one for each"),
    ],
)
def test_one_file_for_two_languages(tmp_path, pattern, said):
    put(tmp_path / "corpus", t_en=b"one\n", t_de=b"eins\n", u_de=b"zwei\n", link_en=b"two\n")
    (tmp_path / "corpus" / "link.de").symlink_to("link.en")
    with pytest.raises(UsageError, match=said):
        taken(tmp_path, train=pattern)
    assert not (tmp_path / "work").exists()


def test_one_language_twice(tmp_path):
    with pytest.raises(UsageError, match="the languages are en and en; give different ones"):
        extract.extract(tmp_path, tmp_path / "raw", ["en", "en"], {"train": "t.@"})


def test_one_language_may_be_named_without_its_place(tmp_path):
    put(tmp_path, t_en=b"one\n")
    extract.extract(tmp_path, tmp_path / "w" / "raw", ["en"], {"train": "t.en"})
    assert list(read_lines(tmp_path / "w" / "raw" / "train.en")) == ["one"]


def test_a_file_that_is_missing(tmp_path):
    (tmp_path / "corpus").mkdir()
    with pytest.raises(UsageError, match=r"corpus has no a\.en and no b\.en .plain, .gz or in"):
        taken(tmp_path, train="a.@|b.@")


def test_what_is_there_is_kept(tmp_path):
    write_tar(tmp_path / "corpus" / "a.tgz", **{"t.en": b"one\n", "t.de": b"eins\n"})
    taken(tmp_path, train="t.@")
    (tmp_path / "corpus" / "a.tgz").unlink()
    taken(tmp_path, train="t.@")
    assert lines(tmp_path, "train.en") == ["one"]


# Forms.


def test_talks(tmp_path):
    path = tmp_path / "train.tags.de-en.de"
    path.write_text(
        "<url>http://x</url>\n<keywords>talks, x</keywords>\n<speaker>A B</speaker>\n"
        "<talkid>1</talkid>\n<title>A B: Titel</title>\n<description>Worum es geht.</description>\n"
        " Das ist <em> ein\u0085Satz. \n\n<reviewer href='x'>C</reviewer>\n"
    )
    assert list(extract.sentences(path)) == [
        *("A B: Titel", "Worum es geht.", "Das ist <em> ein\u0085Satz.", "")
    ]


@pytest.mark.parametrize("name", ["a.xml", "b.sgm"])
def test_segments(tmp_path, name):
    path = tmp_path / name
    path.write_text(
        '<srcset>\n<doc docid="1"><title>No</title>\n<seg id="1"> It’s R&amp;D. </seg>\n'
        '<hl><seg id="2">a</seg></hl> <seg id="3"></seg>\n</doc>\n'
    )
    assert list(extract.sentences(path)) == ["It's R&D.", "a", ""]


def test_a_folder_that_is_not_there(tmp_path):
    options = "--languages de en --parts train=train.@".split()
    with pytest.raises(UsageError, match="there is no folder .*nowhere; give the one that has"):
        extract.main([str(tmp_path / "nowhere"), str(tmp_path / "out"), *options])
