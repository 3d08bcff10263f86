"""Room and settings of folders, as scripts ask for them before there is an environment."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT
from files import write_text

from fairseq_ext.errors import UsageError
from fairseq_ext.files import MB
from fairseq_ext.prepare.manifest import hash_files
from fairseq_ext.prepare.workspace import (
    MANIFEST,
    check_room,
    check_same_settings,
    disk_usage,
    main,
    needed_space,
    read_settings,
    sum_file,
)

SETTINGS = ["recipe x", "--merges 600", "--every ", '--train "a b"', "--offline /a"]


@pytest.fixture
def data(tmp_path):
    (tmp_path / "manifest.json").write_text(json.dumps({"command": "x", "settings": SETTINGS}))
    return tmp_path


def free(monkeypatch, megabytes):
    usage = shutil.disk_usage("/")._replace(free=megabytes * MB)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)


def test_settings_of_a_manifest(data, capsys):
    assert read_settings(data) == {
        "recipe": "x",
        "--merges": "600",
        "--every": "",
        "--train": '"a b"',
        "--offline": "/a",
    }
    main(["setting", str(data), "--merges"])
    main(["setting", str(data), "--positions"])
    assert capsys.readouterr().out == "600\n\n"


@pytest.mark.parametrize("manifest", [None, {"command": "x"}, {"settings": []}])
def test_data_that_do_not_say_how_they_were_made(tmp_path, manifest):
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    assert read_settings(tmp_path) == {}
    check_same_settings(tmp_path, SETTINGS)


def test_the_same_settings(data):
    check_same_settings(data, SETTINGS)
    check_same_settings(data, ["--offline ", "--new 1"])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("--merges 5", "was made with '--merges 600' and this command has '--merges 5': delete"),
        ("--every 9", "was made with no --every and this command has '--every 9': delete"),
        ("recipe y", "was made with 'recipe x' and this command has 'recipe y'"),
        ("--offline /b", "'--offline /a' and this command has '--offline /b'"),
    ],
)
def test_other_settings(data, setting, message):
    with pytest.raises(UsageError, match=message):
        main(["same", str(data), SETTINGS[2], setting])


def test_a_corpus_that_has_changed(tmp_path, monkeypatch, capsys):
    """By the sums of its files; one of which nothing is left may have been deleted on purpose."""
    data, (whole, named) = tmp_path / "data", (tmp_path / "a.txt", tmp_path / "corpora" / "b.txt")
    for path in (data / MANIFEST, whole, named):
        write_text(path, "a\n")
    sums = hash_files([whole, named], lambda path: str(path) if path == whole else path.name)
    assert {*sums.values()} == {sum_file(whole)}
    write_text(data / MANIFEST, json.dumps({"inputs": sums}))
    main(["record", str(data), *SETTINGS])
    monkeypatch.setenv("FAIRSEQ_EXT_CORPORA", str(named.parent))
    main(["same", str(data), *SETTINGS])
    write_text(named, "b\n")
    with pytest.raises(UsageError, match=f"^'{data}' was made from {named}, which has changed si"):
        main(["same", str(data), *SETTINGS])
    named.unlink()
    with pytest.raises(UsageError, match=f"{named}, which is gone since: delete '{data}' to prep"):
        main(["same", str(data), *SETTINGS])
    whole.unlink()
    main(["same", str(data), *SETTINGS])


def test_space_that_a_corpus_needs(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "text").write_bytes(bytes(4 * MB))
    assert disk_usage(tmp_path) == 4 and disk_usage(tmp_path / "missing") == 0
    assert needed_space(500, None) == 500
    assert needed_space(500, tmp_path) == 140
    assert needed_space(120, tmp_path) == 120


def test_interrupted_work_needs_no_further_room(tmp_path, monkeypatch):
    work = tmp_path / "out.partial"
    work.mkdir()
    (work / "text").write_bytes(bytes(4 * MB))
    free(monkeypatch, 2)
    check_room(tmp_path / "out", 6, work)
    with pytest.raises(UsageError, match="2 MB are free and 3 MB are needed"):
        main(["room", str(tmp_path / "out"), "7", "--work", str(work)])
    with pytest.raises(UsageError, match="6 MB are needed"):
        main(["room", str(tmp_path / "out"), "6", "--work", str(tmp_path / "missing")])


def test_no_package_is_needed():
    """Scripts ask before anything is installed."""
    code = "from fairseq_ext.prepare import workspace; workspace.main(['room', '.', '1'])"
    flags = ["-S", "-c", code]  # without site-packages
    done = subprocess.run([sys.executable, *flags], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_files_that_vanish_take_no_room(tmp_path, monkeypatch):
    (tmp_path / "there").write_bytes(b"x" * 3_000_000)
    monkeypatch.setattr(os, "walk", lambda path: [(str(path), [], ["gone", "there"])])
    assert disk_usage(tmp_path) in (2, 3)
