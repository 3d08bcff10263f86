"""The shell scripts: their help, what they refuse, and the recipes on a few real lines."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, fairseq
from corpora import LINES, write_corpus
from shell import assert_refused, bash, lib

SCRIPTS = sorted((ROOT / "scripts").glob("*.sh"))
LIBRARIES = sorted((ROOT / "scripts" / "lib").glob("*.sh"))


@pytest.mark.parametrize(
    "script", [*SCRIPTS, *LIBRARIES, ROOT / ".ci/run"], ids=lambda path: path.name
)
def test_syntax(script):
    assert bash("-n", script).returncode == 0


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_help_is_the_comment_at_the_top(script):
    done = bash(script, "--help")
    assert done.returncode == 0, done.stderr
    assert f"Usage: bash scripts/{script.name}" in done.stdout
    assert accepted(script) <= set(re.findall(r"--[a-z]+", done.stdout))


def accepted(script: Path) -> set[str]:
    """The options that a script reads."""
    text, libraries = script.read_text(), ROOT / "scripts" / "lib"
    text += (libraries / "study.sh").read_text() if "read_study_options" in text else ""
    if "\ncorpus_recipe" in text and "SHARED=" not in text:
        text += (libraries / "data.sh").read_text()
    calls = re.findall(
        r"^(?: *read_(?:study_)?options |.*\b(?:SHARED|EXTRA|accepted)=').*", text, re.M
    )
    return {option for call in calls for option in re.findall(r"[\s\"'](--[a-z]+)", call)}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["quickstart.sh", "--corpus", "wmt"], ["'wmt'", "multi30k or builtin"]),
        (["quickstart.sh", "--corpus"], ["--corpus needs a value"]),
        (["prepare_multi30k.sh", "--merges", ""], ["--merges is '' and needs a value"]),
        (["quickstart.sh", "--fast"], ["'--fast'", "--help"]),
        (["quickstart.sh", "--updates", "0"], ["'0'", "positive number"]),
        (["quickstart.sh", "--dir", "/dev/null/x"], ["/dev/null/x", "give a folder"]),
        (["quickstart.sh", "builtin"], ["'builtin'", "--help"]),
        (["table7.sh", "--seeds", "1.5"], ["--seeds is '1.5'", "positive number"]),
        (["table7.sh", "--size", "tiny"], ["'tiny'", "_tiny, _today_tiny, _today_base"]),
        (["table7.sh", "--data", "/nowhere"], ["'/nowhere'", "test.*.idx", "fairseq-preprocess"]),
        (["ag_patterns.sh", "next:1"], ["'next:1'", "SITE=HEADS"]),
        (["ag_patterns.sh", "none", "--jobs", "0"], ["--jobs is '0'"]),
        (["train_gigaword.sh", "--variants", "bert"], ["'bert'", "una, dna, hna, sinkhorn-2"]),
        (["train_gigaword.sh", "--alpha", "1"], ["'--alpha'", "--help"]),
        (["train_gigaword.sh", "--data", "/nowhere"], ["'/nowhere'", "test.*.idx"]),
        (["asa.sh", "tune"], ["'tune'", "finetune, tau, choose, pretrain or translate"]),
        (["asa.sh", "finetune", "rte"], ["finetune needs 2 words", "--help"]),
        (["asa.sh", "translate", "--seeds", "0"], ["--seeds is '0'"]),
        (
            ["finetune.sh", "rte", "mlm=x.pt", "--settings", "dna", "--epochs", "2"],
            ["--epochs is '2' and not for --settings dna"],
        ),
        (["finetune.sh", "cr", "mlm=x.pt", "--test"], ["--test is for a test part", "is 10"]),
        (["roles.sh", "tag"], ["'tag'", "classify, ablate or translate"]),
        (["roles.sh", "classify"], ["classify takes corpora and 0 are given"]),
        (["roles.sh", "ablate", "cr", "mr"], ["ablate takes one corpus and 2 are given"]),
        (["roles.sh", "translate", "cr"], ["translate takes no corpus and 1 are given"]),
        (["roles.sh", "ablate", "cr", "--size", "x"], ["'--size'", "--help"]),
        (["roles.sh", "classify", "cr", "mr", "--data", "x"], ["--data is for one corpus"]),
        (["roles.sh", "classify", "cr", "--folds", "0"], ["--folds is '0'"]),
        (["roles.sh", "classify", "cr", "--data", "/nowhere"], ["'/nowhere'", "no dict.txt"]),
        (["roles.sh", "classify", "imdb"], ["'imdb'", "--help"]),
        (["prepare_multi30k.sh", "--fast"], ["'--fast'", "--help"]),
        (["prepare_builtin.sh", "/dev/null/x"], ["/dev/null/x", "give a folder"]),
    ],
)
def test_bad_arguments(arguments, said):
    script, *rest = arguments
    assert_refused(bash(ROOT / "scripts" / script, *rest), *said)


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ([], ["-m", "not slow"]),
        (["-m", "recipe", "tests/x.py"], ["-m", "not slow", "-m", "recipe", "tests/x.py"]),
        (["--all"], []),
        (["--all", "-k", "a b"], ["-k", "a b"]),
    ],
)
def test_the_tests_that_are_run(given, chosen, tmp_path):
    for name in ("python", "ruff", "mypy", "lint-imports"):
        imported = f'[ "$1" = -c ] && echo "{ROOT}/fairseq_ext" && exit'
        (tmp_path / name).write_text(f'#!/bin/sh\n{imported}\nprintf "%s\\n" {name} "$@"\n')
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = bash(ROOT / "scripts" / "test.sh", *given, PATH=path)
    assert f"Testing {ROOT}/fairseq_ext with {tmp_path}/python.\n" in done.stdout
    said = done.stdout.split("\n")
    assert done.returncode == 0 and {"ruff", "mypy", "lint-imports"} <= {*said}
    assert said[said.index("pytest") :][-1 - len(chosen) : -1] == chosen
    assert ("not slow" in said) == ("not slow" in chosen)


def test_the_tests_are_those_of_the_checkout(tmp_path):
    """Whatever package the environment has; the last one is installed so that it comes first."""
    shadow = tmp_path / "elsewhere" / "fairseq_ext"
    shadow.mkdir(parents=True)
    (shadow / "__init__.py").write_text("")
    hook = f"import sys; sys.path.insert(0, {str(shadow.parent)!r})"
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -c "{hook}; $2"\n')
    (tmp_path / "python").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = bash(ROOT / "scripts" / "test.sh", PATH=path)
    assert_refused(done, f"would import '{shadow}' and not '{ROOT}/fairseq_ext'")


def test_kinds_of_arguments():
    code = (
        "read_options '--a-x= --b -- WORD' x --a-x -1 encoder=next:1 --b -- --c y;"
        'printf "%s\n" "$a_x" "$b" "${WORDS[*]}" "${REST[*]}"'
    )
    assert lib(code).stdout == "-1\nyes\nx encoder=next:1\n--c y\n"
    for refused in ("--c", "-- x", "--a=1", "--b=", "x", "-x", "--n#3", "''"):
        said = refused.split()[0].strip("'")
        done = lib(f"read_options '--a= --b --n#3' {refused}")
        assert_refused(done, f"Unknown argument '{said}'")


def test_defaults_of_options():
    """The environment of the user does not change defaults; the last one of a name counts."""
    kinds = "--a=x=1 --a-b= --n#3 --m# --m#5 --yes"
    code = f'read_options \'{kinds}\' "$@"; say "$a|$a_b|$n|$m|$yes"'
    assert lib(f"set --; {code}", a_b="mine", yes="mine").stdout == "x=1||3|5|\n"
    assert lib(f"set -- --n 7 --a y --m 10 --yes; {code}").stdout == "y||7|10|yes\n"
    for value in ("0", "1.5", "-1", "x", "1" + "0" * 15):
        assert_refused(lib(f"set -- --m {value}; {code}"), f"--m is '{value}'", "positive number")


@pytest.mark.parametrize("script", ["quickstart.sh --dir", "prepare_multi30k.sh"])
@pytest.mark.parametrize("folder", ["nowhere", "empty"])
def test_folder_without_the_corpus(tmp_path, script, folder):
    (tmp_path / "empty").mkdir()
    name, *option = script.split()
    done = bash(
        *(ROOT / "scripts" / name, *option, tmp_path / "out"),
        FAIRSEQ_EXT_CORPORA=str(tmp_path / folder),
    )
    assert_refused(done, f"{tmp_path / folder}'", "multi30k-en-de", "unset")
    assert not (tmp_path / "out").exists()


def test_too_little_room(tmp_path):
    assert_refused(lib(f'require_room "{tmp_path}" 999999999'), "999999999 MB", str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_the_place_of_the_scripts_is_found_in_any_environment():
    done = bash("-c", f'cd "{ROOT}"; . scripts/lib/common.sh; say "$ROOT"', CDPATH=f".:{ROOT}")
    assert done.stdout == f"{ROOT}\n"


def test_cores_are_those_that_may_be_used():
    done = lib('say "$CORES"', OMP_NUM_THREADS="1")
    assert int(done.stdout) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("target", "language"),
    [("de", "de"), ("pt_BR", "pt"), ("zh-Hans", "zh"), ("title", None)],
)
def test_the_language_of_the_target(tmp_path, target, language):
    for side in ("en", target):
        (tmp_path / f"test.en-{target}.{side}.idx").write_text("")
    code = f'data={tmp_path}; find_references test; say "${{SCORING[*]}}" "$REFERENCE"'
    flags = f" --target-lang {language}" if language else ""
    expected = f"--gen-subset test{flags} {tmp_path}/test.en-{target}.{target}\n"
    assert lib(code, "study").stdout == expected


@pytest.mark.parametrize("lacking", [0, 1])
def test_references_that_lack_words(tmp_path, lacking):
    """Said before anything is trained, since the last table would be refused."""
    (tmp_path / "test.de").write_text("a a b b\n" + lacking * "c a\n")
    prefixes = f"--trainpref {tmp_path}/test --testpref {tmp_path}/test --destdir {tmp_path}"
    flags = f"-s de -t en --only-source --thresholdsrc 2 --workers 1 {prefixes}"
    fairseq("preprocess", *flags.split())
    for suffix in ("idx", "bin"):
        (tmp_path / f"test.de-en.de.{suffix}").rename(tmp_path / f"test.en-de.de.{suffix}")
    code = f'read_study_options 1 "" --data "{tmp_path}"; prepare_study x test'
    done = lib(f'{code}; say "${{SCORING[*]}}"', "study")
    if lacking:
        assert_refused(done, "1 of the 2 sentences", f"{tmp_path}/text/test.de")
    else:
        assert done.stdout == "--gen-subset test --target-lang de\n"


def recipe_of(out: Path, *settings: str, made="manifest.json") -> subprocess.CompletedProcess:
    """What a data recipe begins with."""
    given = " ".join(f"'{setting}'" for setting in settings)
    return lib(f'SETTINGS=({given}) MADE="{made}"; data_recipe name "{out}" 1; echo goes on')


MANIFEST = {"command": "x", "settings": ["recipe x", "--merges 600", "--every ", '--train "a b"']}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["--merges 5"], "was made with '--merges 600' and this command has '--merges 5': delete"),
        (["--every 9"], "was made with no --every and this command has '--every 9': delete"),
        (["recipe y", "--merges 5"], "was made with 'recipe x' and this command has 'recipe y'"),
    ],
)
def test_data_of_another_command(tmp_path, settings, said):
    (tmp_path / "manifest.json").write_text(json.dumps(MANIFEST, indent=2))
    assert_refused(recipe_of(tmp_path, *settings), said)
    script = (
        f'. "{ROOT}/scripts/lib/data.sh"; SETTINGS=("--merges 5"); data_recipe name "{tmp_path}"'
    )
    done = lib(f"bash -c '{script}'")  # scripts that train take what is there
    assert (done.returncode, done.stderr) == (0, "") and "is there already" in done.stdout


def test_data_of_the_same_command(tmp_path):
    """Of what is not known of both it may be; the same folder need not be named again."""
    manifest = MANIFEST | {"settings": [*MANIFEST["settings"], "--offline /a"]}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest, indent=2))
    done = recipe_of(tmp_path, *MANIFEST["settings"], "--offline ", "--new 1")
    assert (done.returncode, done.stderr) == (0, "") and "is there already" in done.stdout
    assert_refused(recipe_of(tmp_path, "--offline /b"), "--offline /a", "--offline /b")
    for other in ({"command": "x"}, {"settings": []}):  # of earlier versions
        (tmp_path / "manifest.json").write_text(json.dumps(other, indent=2))
        assert "is there already" in recipe_of(tmp_path, "--merges 5").stdout


def test_a_folder_that_no_recipe_made(tmp_path):
    assert recipe_of(tmp_path).stdout == "goes on\n"  # it is empty
    (tmp_path / "train.jsonl").touch()
    assert_refused(recipe_of(tmp_path), "it has no manifest.json", "give another folder")
    assert "is there already" in recipe_of(tmp_path, made="*.jsonl").stdout
    assert_refused(recipe_of(tmp_path / "train.jsonl"), "train.jsonl' is there")


def test_data_behind_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")
    done = lib(f'data_recipe name "{tmp_path}/out" 1; say "$OUT $WORK"')
    assert done.stdout == f"{tmp_path}/disk {tmp_path}/disk.partial\n"
    (tmp_path / "loop").symlink_to("loop")
    assert_refused(lib(f'data_recipe name "{tmp_path}/loop" 1'), "loop' is a link to itself")


def test_a_small_corpus_needs_little_room(tmp_path):
    """Work that exists needs none: the arithmetic is tested with fairseq_ext.prepare.workspace."""
    huge = 999_999_999
    assert_refused(lib(f'data_recipe out "{tmp_path}/out" {huge}'), f"{huge} MB are needed")
    (tmp_path / "corpus").mkdir()
    assert lib(f'data_recipe out "{tmp_path}/out" {huge} "{tmp_path}/corpus"').returncode == 0


@pytest.mark.skipif(not shutil.which("flock"), reason="this system has no flock")
def test_one_command_at_a_time(tmp_path):
    code = f'WORK="{tmp_path}/a.partial"; open_work x; echo works'
    begun = f'. "{ROOT}/scripts/lib/data.sh"; {code}; sleep 600 & wait'
    with subprocess.Popen(["bash", "-c", begun], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout.readline() == "works\n"
        os.kill(first.pid, signal.SIGSTOP)
        refused = lib(code)
        os.kill(first.pid, signal.SIGCONT)
        first.kill()
    assert_refused(refused, "Another command works in", "a.partial")


def test_a_folder_of_the_user_is_not_emptied(tmp_path):
    mine = tmp_path / "a.partial" / "notes.txt"
    mine.parent.mkdir()
    mine.touch()
    code = f'WORK="{tmp_path}/a.partial"; open_work x; echo works'
    assert_refused(lib(code), "a.partial', in which this works, is there and was not made by")
    (mine.parent / "source").write_text("another\n")
    assert lib(code).stdout == "works\n" and not mine.exists()


# Environment.


def fake_python(path: Path, version: str = "3.12.1", lacks: str = "none") -> Path:
    """An interpreter that claims a version, lacks a module, and writes down what it installs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    supported = "0" if version.startswith(("3.11", "3.12", "3.13")) else "1"
    path.write_text(
        f"""#!/bin/sh
case "$*" in
--version) echo "Python {version}" ;;
*"(3, 11, 4) <="*) exit {supported} ;;
"-c import platform"*) exit {int(version.startswith("3.12"))} ;;
"-m pip"*) echo pip; echo "$*" >> "$0.log" ;;
"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
"-c import {lacks}"*) echo "Traceback:" >&2; echo "No module named {lacks}" >&2; exit 1 ;;
"-c import fairseq_ext"* | "-c import pytest"*) ;;
*) exec {sys.executable} "$@" ;;
esac
"""
    )
    path.chmod(0o755)
    return path


CLEAN = {"VIRTUAL_ENV": "", "CONDA_PREFIX": "", "FAIRSEQ_EXT_SKIP_INSTALL": ""}


def checkout(folder: Path) -> Path:
    """The scripts, beside a package, in a folder of their own."""
    for name in ("scripts", "setup.py", "constraints.txt"):
        (shutil.copytree if name == "scripts" else shutil.copy)(ROOT / name, folder / name)
    (folder / "fairseq_ext").symlink_to(ROOT / "fairseq_ext")
    return folder


@pytest.mark.parametrize("version", ["3.10.13", "3.14.0"])
def test_unsupported_python(tmp_path, version):
    python = fake_python(tmp_path / "bin" / "python", version)
    assert_refused(lib("find_python", PYTHON=str(python)), str(python), "3.11, 3.12 or 3.13")
    active = CLEAN | {"VIRTUAL_ENV": str(tmp_path)}
    said = f"Python {version}", "3.11"
    assert_refused(lib("setup_environment", **active), *said)
    assert_refused(lib("install_environment ''", "install", **active), *said)
    assert_refused(lib("install_here=yes; install_environment ''", "install", **active), *said)


def test_supported_python_is_found():
    done = lib("find_python", PYTHON=sys.executable)
    assert (done.returncode, done.stdout.strip()) == (0, sys.executable)


SETUPS = [("setup_environment", "common"), ("install_environment test pytest", "install")]


@pytest.mark.parametrize(("command", "library"), SETUPS)
@pytest.mark.parametrize("kind", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_an_active_environment_is_used_as_it_is(tmp_path, kind, command, library):
    """Where its package comes from does not matter; scripts that are called do not look again."""
    python = fake_python(tmp_path / "bin" / "python")
    code = f'{command}; command -v python; say "$FAIRSEQ_EXT_SKIP_INSTALL"'
    done = lib(code, library, **CLEAN | {kind: str(tmp_path)})
    assert (done.stdout, done.stderr) == (f"{python}\n1\n", "")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["python"]


@pytest.mark.parametrize(("command", "library"), SETUPS)
@pytest.mark.parametrize("kind", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_an_active_environment_is_left_as_it_is(tmp_path, kind, command, library):
    fake_python(tmp_path / "bin" / "python", lacks="fairseq_ext.registry")
    done = lib(command, library, **CLEAN | {kind: str(tmp_path)})
    extras = "[test]" if "test" in command else ""
    assert_refused(
        *(done, f"'{tmp_path}'", "No module named fairseq_ext.registry", "left as it is"),
        f"'python -m pip install -c {ROOT}/constraints.txt torch numpy cython setuptools wheel'",
        f"{ROOT}/constraints.txt --no-build-isolation -e {ROOT}{extras}'",
        "deactivate it",
    )
    assert ("--install-here" in done.stderr) == bool(extras)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["python"]


def test_a_tool_that_is_missing_counts(tmp_path):
    fake_python(tmp_path / "bin" / "python", lacks="pytest")
    active = CLEAN | {"VIRTUAL_ENV": str(tmp_path)}
    assert lib("setup_environment", **active).returncode == 0
    done = lib("install_environment test pytest", "install", **active)
    assert_refused(done, "No module named pytest", "[test]'")


def test_install_here_once_for_each_set_of_extras(tmp_path):
    python = fake_python(tmp_path / "bin" / "python", lacks="fairseq_ext.registry")
    active = CLEAN | {"VIRTUAL_ENV": str(tmp_path)}
    log = Path(f"{python}.log")
    said = (
        f"Installing into {tmp_path}; what pip prints is in {tmp_path}/fairseq_ext-install.log.\n"
    )
    for extras, installs in [("''", 2), ("''", 2), ("test", 4), ("''", 4), ("test", 4)]:
        done = lib(f"install_here=yes; install_environment {extras}", "install", **active)
        new = not log.exists() or len(log.read_text().splitlines()) != installs
        assert (done.returncode, done.stderr) == (0, "") and not new
        assert set(done.stdout.splitlines(keepends=True)) <= {said}
    assert "pip\n" in (tmp_path / "fairseq_ext-install.log").read_text()
    torch_first, package, _, with_extras, *_ = log.read_text().splitlines()
    assert "constraints.txt torch " in torch_first and "--no-build-isolation" not in torch_first
    assert "constraints.txt --no-build-isolation" in package and package.endswith(str(ROOT))
    assert with_extras.endswith(f"{ROOT}[test]")
    (tmp_path / ".fairseq_ext.none").unlink()
    assert lib("install_here=yes; install_environment ''", "install", **active).returncode == 0
    assert len(log.read_text().splitlines()) == 4  # every set includes it


def test_without_an_environment_one_is_made_in_the_checkout(tmp_path):
    """As on a fresh machine, by the scripts that install; other recipes say how."""
    python = fake_python(tmp_path / "machine" / "python3", lacks="fairseq_ext.registry")
    (python.parent / "python").symlink_to(python)
    path = f"{python.parent}:{os.environ['PATH']}"
    machine = CLEAN | {"PATH": path, "PYTHON": str(python)}
    here = checkout(tmp_path)
    library = f'. "{here}/scripts/lib/'
    refused = bash("-c", f'{library}common.sh"; setup_environment', **machine)
    assert_refused(refused, "not installed", "'bash scripts/quickstart.sh' installs it into .venv")
    assert not (here / ".venv").exists()
    command = f'{library}install.sh"; install_environment test pytest; command -v python'
    done = bash("-c", command, **machine)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Creating .venv with Python 3.12.1.\nInstalling into ")
    assert done.stdout.endswith(f"{here}/.venv/bin/python\n")
    installed = Path(f"{here}/.venv/bin/python.log").read_text().splitlines()
    assert len(installed) == 2 and installed[1].endswith(f"{here}[test]")
    # .venv of the checkout may be active, and is the scripts' own all the same
    active = machine | {"VIRTUAL_ENV": f"{here}/.venv"}
    for environment in (machine, active):
        assert bash("-c", command, **environment).stdout == f"{here}/.venv/bin/python\n"


def test_an_installation_that_fails(tmp_path):
    python = fake_python(tmp_path / "bin" / "python", lacks="fairseq_ext.registry")
    text = python.read_text().replace("echo pip;", "echo no torch; exit 1;")
    python.write_text(text)
    active = CLEAN | {"VIRTUAL_ENV": str(tmp_path)}
    done = lib("install_here=yes; install_environment ''", "install", **active)
    assert done.returncode == 1
    assert done.stderr == (
        f"no torch\nThe installation failed: the reason is in {tmp_path}/fairseq_ext-install.log.\n"
    )
    assert not (tmp_path / ".fairseq_ext.none").exists()


@pytest.mark.skipif(sys.version_info[:2] == (3, 12), reason="fairseq has a wheel for this Python")
def test_missing_compiler_is_said_before_the_installation(tmp_path):
    (tmp_path / "python").symlink_to(fake_python(tmp_path / "bin" / "python", "3.11.7"))
    done = lib(f'PATH="{tmp_path}"; require_compiler', "install")
    assert_refused(done, "C++ compiler", "Python 3.12")


# Files.


def test_nothing_half_written(tmp_path):
    out = tmp_path / "out"
    done = lib(f'half() {{ echo half; false; }}; produce "{out}" half')
    assert done.returncode == 1 and not out.exists()
    assert lib(f'produce "{out}" echo whole; produce "{out}" echo again').returncode == 0
    assert out.read_text() == "whole\n"


# Commands.


@pytest.mark.parametrize("command", ["foreground python", "prepare_step x", "unless_refused x"])
def test_a_command_ends_with_its_script(tmp_path, command):
    (tmp_path / "python").write_text("#!/bin/sh\necho $$; exec sleep 60\n")
    (tmp_path / "python").chmod(0o755)
    library = f'. "{ROOT}/scripts/lib/data.sh"'
    script = f'{library}; PATH="{tmp_path}:$PATH"; {command}'
    with subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, text=True) as shell:
        pid = int(shell.stdout.readline())
        shell.terminate()
    assert shell.returncode == -signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_command_in_the_foreground_decides_whether_the_script_goes_on():
    assert lib("foreground true; echo on").stdout == "on\n"
    done = lib("foreground bash -c 'exit 7'; echo on")
    assert (done.returncode, done.stdout) == (7, "")


def test_variants_that_diverged_are_left_out(tmp_path):
    """A training has to end at an update that is not finite; other failures end the script."""
    (tmp_path / ".begun").touch()
    os.utime(tmp_path / ".begun", (1000, 1000))
    logs = {"mean": ["", ""], "uniform": ["", "error: update 8 is not finite (gradients are Nan)"]}
    for variant, endings in logs.items():
        for seed, ending in enumerate(endings, 1):
            run = tmp_path / variant / f"seed-{seed}"
            run.mkdir(parents=True)
            (run / "train.log").write_text(f"a line\n{ending}\n")
            if not ending:
                (run / "train.done").touch()
    code = f"out={tmp_path} seeds=2 RUNS=({tmp_path}/{{mean,uniform}}/seed-{{1,2}}); "
    code += 'leave_out_diverged "$STATUS"; printf "%s\n" "${RUNS[@]}"'
    done = lib(code, "study", STATUS="1")
    assert done.returncode == 0, done.stderr
    left = [f"{tmp_path}/mean/seed-{seed}" for seed in (1, 2)]
    assert done.stdout.split("\n")[:-1][2:] == left
    assert (tmp_path / "diverged.txt").read_text() == "uniform: 1 of 2 trainings diverged\n"
    assert lib(code, "study", STATUS="130").returncode == 130
    log = tmp_path / "uniform" / "seed-2" / "train.log"
    ended = log.read_text()
    log.write_text(f"{ended}\nanother attempt\nupdate 5\nkilled\n")
    assert lib(code, "study", STATUS="1").returncode == 1
    log.write_text(ended)
    (tmp_path / ".begun").touch()  # and the sweep was refused, so that nothing was trained
    refused = lib(code, "study", STATUS="1")
    assert refused.returncode == 1 and not refused.stdout
    os.utime(tmp_path / ".begun", (1000, 1000))
    (tmp_path / "mean" / "seed-2" / "train.done").unlink()
    killed = lib(code, "study", STATUS="1")
    assert killed.returncode == 1 and not killed.stdout


def test_newer_than_its_inputs(tmp_path):
    for age, name in ((1, "newer"), (2, "between"), (3, "older")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    for inputs, code in (("older", 0), ("older newer", 1), ("newer", 1)):
        assert lib(f'cd "{tmp_path}"; is_newer between {inputs}').returncode == code
    assert lib(f'cd "{tmp_path}"; is_newer missing older').returncode == 1


# The quickstart, shrunk.


def drop_last(split: str, language: str, lines: list[str]) -> list[str]:
    return lines[:-1] if (split, language) == ("valid", "de") else lines


def break_encoding(split: str, language: str, lines: list[str]) -> list[str]:
    return [*lines[:-1], "gr\udcfcn\n"] if (split, language) == ("train", "de") else lines


@pytest.mark.parametrize(
    ("change", "said"), [(drop_last, ["20", "19"]), (break_encoding, ["UTF-8"])]
)
def test_bad_corpus(tmp_path, change, said):
    corpora = write_corpus(tmp_path / "corpora", change)
    out = tmp_path / "out"
    done = bash(ROOT / "scripts/prepare_multi30k.sh", f"{out}/", FAIRSEQ_EXT_CORPORA=str(corpora))
    assert_refused(done, *said, ".de")
    assert not list(tmp_path.glob("out*"))


def test_work_of_another_source_is_not_taken_over(tmp_path):
    """Interrupted with one folder of corpora, begun again with another."""
    first = write_corpus(tmp_path / "first")
    missing = first / "multi30k-en-de" / "val.de.gz"
    missing.unlink()
    recipe, out = ROOT / "scripts/prepare_multi30k.sh", tmp_path / "out"
    assert_refused(bash(recipe, out, FAIRSEQ_EXT_CORPORA=str(first)), missing.stem, str(first))
    again = 'open_work a; touch "$WORK/x"; open_work a; ls "$WORK"; open_work b; ls "$WORK"'
    done = lib(f'WORK="{out}"; {again}')
    assert done.stdout.split() == ["source", "x", "source"]


def test_a_full_disk_does_not_forget_whose_work_it_is(tmp_path):
    """The source of work is written once."""
    code = f'WORK="{tmp_path}/a b"; open_work x'
    assert lib(code).returncode == 0
    before = (tmp_path / "a b" / "source").stat().st_mtime_ns
    assert lib(code).returncode == 0
    assert (tmp_path / "a b" / "source").stat().st_mtime_ns == before


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quickstart")
    corpora = write_corpus(folder / "corpora")
    command = [ROOT / "scripts/quickstart.sh", "--updates", 3, "--compare", "--dir", folder]

    def run() -> str:
        done = bash(*command, FAIRSEQ_EXT_CORPORA=str(corpora))
        assert done.returncode == 0, done.stderr
        return done.stdout

    return folder, run(), run


def test_quickstart_ends_with_a_table(quickstart):
    table = quickstart[1].split("beam 5:")[1]
    rows = re.findall(r"^(\w+) +1 +([\d,]+) +3 ", table, re.M)  # variant, n, parameters, updates
    assert [row[0] for row in rows] == ["transformer_dna_tiny", "transformer_una_tiny"]
    assert rows[0][1] == rows[1][1]
    for score in ("BLEU", "chrF"):
        assert re.search(rf"^{score}\W?: nrefs:1", table, re.M)


def test_quickstart_ends_with_pictures(quickstart):
    folder, output, _ = quickstart
    *_, curves, attention = output.split()
    runs = folder / "checkpoints" / "quickstart" / "multi30k"
    assert [curves, attention] == [f"{runs}/curves.png", f"{runs}/attention.png"]
    for picture in (curves, attention):
        assert Path(picture).read_bytes().startswith(b"\x89PNG")


def test_runs_are_laid_out_for_other_commands(quickstart):
    folder = quickstart[0] / "checkpoints" / "quickstart" / "multi30k"
    for arch in ("transformer_dna_tiny", "transformer_una_tiny"):
        for name in ("train.log", "checkpoint_last.pt", "generate-test.txt"):
            assert (folder / arch / "seed-1" / name).stat().st_size


def test_prepared_data(quickstart):
    data = quickstart[0] / "data-bin" / "multi30k.en-de"
    assert not data.with_name(data.name + ".partial").exists()
    for split, count in LINES.items():
        assert (data / f"{split}.en-de.de.bin").exists()
        text = (data / "text" / f"{split}.de").read_text("utf-8")
        assert text.count("\n") == count and text == text.lower() and "@@" not in text
    assert (data / "bpe.codes").exists()
    assert (data / "dict.en.txt").read_text() == (data / "dict.de.txt").read_text()


def test_second_run_repeats_nothing(quickstart):
    folder, output, run = quickstart
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    again = run()
    after = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    assert before == after
    first, second = (said.split("beam 5:")[1].splitlines() for said in (output, again))
    made = [line for line in first if line not in second]  # pictures, by the verbs that draw
    assert [line for line in first if line not in made] == second
    assert len(made) == 2 and all("attention.png" in x or "curves.png" in x for x in made)


# Recipes that compare trainings, shrunk.


def recipe(
    name: str, quickstart, *arguments: object, experiment=(), out=""
) -> subprocess.CompletedProcess:
    """Run a recipe on the data of the quickstart; what it makes lies beside them, by its name."""
    folder = quickstart[0]
    places = ["--data", folder / "data-bin" / "multi30k.en-de", "--out", folder / (out or name)]
    return bash(ROOT / f"scripts/{name}.sh", *experiment, *places, "--updates", 3, *arguments)


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("ag_patterns", ["none", "encoder=nex:1"], ["--ag-encoder-heads", "'nex'", "next, prev"]),
        ("table7", ["--", "--warmup", "9"], ["--warmup is no flag of this command"]),
    ],
)
def test_flags_are_refused_before_the_first_training(quickstart, name, arguments, said):
    assert_refused(recipe(name, quickstart, *arguments, out="refused"), *said)
    assert not (quickstart[0] / "refused").exists()


@pytest.mark.slow
@pytest.mark.recipe
def test_table7(quickstart):
    done = recipe("table7", quickstart, "--seeds", 2, "--jobs", 2, "--", "--warmup-updates", 2)
    assert done.returncode == 0, done.stderr
    rows = dict(re.findall(r"^([\w-]+) +2 +([\d,]+) +3 ", done.stdout, re.M))
    assert list(rows) == ["base", "hard-coded", "ag"]
    assert rows["base"] == rows["ag"] > rows["hard-coded"]
    for metric in ("BLEU†", "train.nll_avg"):
        assert f"{metric} against base: paired t-test over n = 2" in done.stdout
    out = quickstart[0] / "table7"
    for variant in rows:
        log = (out / variant / "seed-2" / "train.log").read_text()
        assert ("| ag_loss " in log) == (variant == "ag") and "| nll_avg " in log
        assert "--warmup-updates 2 " in (out / variant / "seed-1" / "train.done").read_text()
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.recipe
def test_asa(quickstart):
    """Its experiment with translation; the others are where encoders are."""
    done = recipe("asa", quickstart, "--seeds", 1, "--jobs", 2, experiment=["translate"])
    assert done.returncode == 0, done.stderr
    rows = dict(re.findall(r"^(\w+) +1 +([\d,]+) +3 ", done.stdout, re.M))
    assert list(rows) == ["base", "asa", "two_pass"]
    assert rows["base"] == rows["two_pass"] < rows["asa"]
    out = quickstart[0] / "asa"
    assert (out / "masked.png").read_bytes().startswith(b"\x89PNG")
    for variant in rows:
        log = (out / variant / "seed-1" / "train.log").read_text()
        assert ("| asa_divergence " in log) == (variant != "base")
        assert ("| asa_masked_3 " in log) == (variant == "asa")


@pytest.mark.recipe
def test_ag_patterns(quickstart):
    assignments = ["none", "encoder=next:1,prev:1+decoder=prev:1"]
    done = recipe("ag_patterns", quickstart, "--jobs", 2, "--alpha", 5, *assignments)
    assert done.returncode == 0, done.stderr
    out, guided = quickstart[0] / "ag_patterns", "encoder-next1-prev1+decoder-prev1"
    ranked = re.findall(r"^(\S+) +1 +[\d,]+ +3 ", (out / "table.txt").read_text(), re.M)
    assert sorted(ranked) == [guided, "none"]
    assert f"Best on the validation data: {ranked[0]} (" in done.stdout
    for name, flags in [
        ("none", "--criterion label_smoothed_cross_entropy "),
        (guided, "--ag-alpha 5 --ag-encoder-heads next:1,prev:1 --ag-decoder-heads prev:1 "),
    ]:
        assert flags in (out / name / "seed-1" / "train.done").read_text()
        assert "D-0\t" in (out / name / "seed-1" / "generate-valid.txt").read_text()
