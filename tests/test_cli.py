"""`fairseq-ext`: the help of every verb, its example, and how a refusal looks."""

import logging
import re
import shlex
import subprocess
import sys
from importlib import import_module, metadata
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from fairseq_ext import __version__, cli, commands
from fairseq_ext.cli import OWN_USER_DIR, QUICK, VERBS, build_parser, describe_versions, main
from fairseq_ext.commands.process_wide import hide_details
from fairseq_ext.errors import UsageError

COMMANDS = Path(__file__).parent.parent / "docs" / "commands.md"


@pytest.mark.parametrize("verb", VERBS)
def test_help_ends_with_an_example_that_is_accepted(verb, capsys):
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    said = capsys.readouterr().out
    example = import_module(VERBS[verb]).__doc__.partition("\nExample:\n")[2].rstrip()
    assert ended.value.code == 0 and said.rstrip().endswith(example)
    for line in re.sub(r"\\\n", "", example).split("\n"):
        program, *arguments = shlex.split(line.replace("{8,9,10}", "8"))
        assert program == "fairseq-ext" and arguments[0] == verb
        build_parser().parse_args(arguments)
        if verb not in OWN_USER_DIR:
            given = [verb, "--user-dir", "mine", *arguments[1:]]
            assert build_parser([verb]).parse_args(given).user_dir == "mine"


@pytest.mark.parametrize("verb", ["--help", *QUICK, "map"])
def test_what_a_verb_imports_before_it_starts(verb):
    command = [sys.executable, "-v", "-m", "fairseq_ext.cli", verb, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = set(re.findall(r"^import '(\S+)'", done.stderr, re.M))
    slow = {"torch", "fairseq", "fairseq_ext.registry"}
    assert slow & imported == (slow if verb == "map" else set())


def test_the_page_of_commands_names_every_verb():
    named = set(re.findall(r"^\| `fairseq-ext ([\w-]+)", COMMANDS.read_text(), re.M))
    assert named == set(VERBS)


@pytest.mark.parametrize("program", [["-m", "fairseq_ext.cli"], ["fairseq-ext"]])
def test_a_refusal_is_one_sentence_and_an_exit_code(program, tmp_path):
    command = [sys.executable, *program]
    if program == ["fairseq-ext"]:
        command = [Path(sys.executable).parent / "fairseq-ext"]
    done = subprocess.run(
        [*command, "curves", tmp_path, "--out", tmp_path / "x.png"], capture_output=True, text=True
    )
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.startswith(f"error: {tmp_path} has no train.log")
    assert done.stderr.count("\n") == 1 and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "scor a",
            r"^there is no verb 'scor' of fairseq-ext; did you mean score, record, doctor\?$",
        ),
        ("zzz", "^there is no verb 'zzz' of fairseq-ext; 'fairseq-ext --help' lists them$"),
        ("recipe quikstart", r"^there is no recipe 'quikstart'; did you mean quickstart\?$"),
        (
            "score a --metrik bleu",
            "^--metrik is no flag of fairseq-ext score; did you mean --metric",
        ),
        ("score a --zzz", "^--zzz is no flag of fairseq-ext score; leave it out$"),
    ],
)
def test_unknown_names_are_told_the_nearest(words, said):
    with pytest.raises(UsageError, match=said):
        main(words.split())


def test_the_name_of_this_package_is_known_in_every_folder(tmp_path, monkeypatch, capsys):
    """And `doctor --path` prints its folder, for commands of fairseq."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.log").write_text("| INFO | train_inner | loss=4.5, num_updates=2\n")
    for name in ("fairseq_ext", str(tmp_path)):
        main(["curves", ".", "--user-dir", name, "--out", "x.png"])
    with pytest.raises(UsageError, match="^--user-dir is mine, and there is no such folder"):
        main(["curves", ".", "--user-dir", "mine", "--out", "x.png"])
    capsys.readouterr()
    main(["doctor", "--path"])
    assert Path(capsys.readouterr().out.strip()) / "cli.py" == Path(cli.__file__)


def test_no_verb_is_no_traceback(capsys):
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2 and "VERB" in capsys.readouterr().err


def test_versions_are_told_without_importing_them():
    command = [sys.executable, "-v", "-m", "fairseq_ext.cli", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    installed = ", ".join(f"{name} {version(name)}" for name in ("fairseq-fixed", "torch"))
    assert done.stdout == f"fairseq_ext {__version__} ({installed})\n"
    imported = set(re.findall(r"^import '(\S+)'", done.stderr, re.M))
    assert not {"torch", "fairseq"} & imported


def test_a_package_that_is_missing_has_no_version(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert describe_versions() == f"fairseq_ext {__version__} (no fairseq-fixed, no torch)"


@pytest.mark.parametrize(("asked", "shown"), [("", False), ("debug", True)])
def test_other_packages_do_not_log_details(monkeypatch, asked, shown):
    """A module of fairseq sets the level of all loggers to DEBUG when it is imported."""
    monkeypatch.setattr(logging.root, "level", logging.DEBUG)
    monkeypatch.setenv("LOGLEVEL", asked)
    hide_details()
    assert (logging.root.level == logging.DEBUG) == shown
    assert hide_details in commands.CHANGES
