"""`benchmarks/gpu.sh`: the whole of it dry, and how it records what fails, hangs or goes on."""

import json
import os
import subprocess
import sys
import time
from importlib import import_module

import pytest
from conftest import ROOT

sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "benchmarks" / "gpu")]
import fast  # noqa: E402
import run  # noqa: E402
import wheels  # noqa: E402
from items import Item, Options, Skipped, Unfinished  # noqa: E402

SCRIPT = ROOT / "benchmarks" / "gpu.sh"


def gpu(*arguments, **env):
    command = ["bash", str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, env=os.environ | env, capture_output=True, text=True)


# Items, picklable for the worker's process.


def double(options, number):
    return {"twice": 2 * number}


def die(options):
    os._exit(7)


def hang(options):
    time.sleep(60)


def doze(options):
    time.sleep(1)
    return {}


def refuse(options):
    raise ValueError("not | right")


def break_cuda(options):
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def process_id(options):
    return {"process": os.getpid()}


def skip(options):
    raise Skipped("no second GPU")


def go_on(options):
    raise Unfinished("the time was up")


class Stage:
    WORKERS = 1

    def __init__(self, *items):
        self.items = [Item("things", name, *rest) for name, *rest in items]

    def plan(self, options):
        return self.items


@pytest.fixture
def options(tmp_path):
    return Options(tmp_path, tmp_path, tmp_path, dry=True, deadline=time.time() + 100)


def proceed(stage, options):
    record = run.Record("stage", options.out)
    run.run(stage, record, options)
    return {key.removeprefix("things: "): result for key, result in record.items.items()}


@pytest.mark.slow
def test_items_are_recorded_one_by_one(options, capfd):
    stage = Stage(
        ("two", double, (2,)),
        ("wrong", refuse),
        ("dead", die),
        ("first", process_id),
        ("poisoned", break_cuda),
        ("second", process_id),
        ("skipped", skip),
        ("on", go_on),
    )
    results = proceed(stage, options)
    statuses = {name: result["status"] for name, result in results.items()}
    expected = "ok failed crashed ok failed ok skipped unfinished"
    assert " ".join(statuses.values()) == expected
    assert results["two"]["twice"] == 4
    assert results["dead"]["why"] == "exit code 7"
    assert results["first"]["process"] != results["second"]["process"]
    page = (options.out / "stage.md").read_text()
    assert "| wrong | failed |" in page and "not \\| right" in page
    assert "things: dead: crashed, exit code 7" in capfd.readouterr().out


@pytest.mark.slow
def test_a_second_run_does_what_is_left(options):
    assert proceed(Stage(("two", double, (2,)), ("on", go_on)), options)["on"]["status"] != "ok"
    again = proceed(Stage(("two", die), ("on", double, (3,))), options)
    assert again["two"]["twice"] == 4 and again["on"]["twice"] == 6


@pytest.mark.slow
def test_a_process_that_hangs_is_killed(options, monkeypatch):
    monkeypatch.setattr(run, "HANGS", 2)
    monkeypatch.setattr(run, "MARGIN", -100)
    results = proceed(Stage(("hangs", hang), ("two", double, (2,))), options)
    assert results["hangs"]["why"] == "no answer in 2 s"
    assert results["two"]["status"] == "ok"


@pytest.mark.slow
def test_an_item_may_take_all_the_time_there_is(options, monkeypatch):
    monkeypatch.setattr(run, "HANGS", 0.1)
    assert proceed(Stage(("slow", doze)), options)["slow"]["status"] == "ok"


def test_nothing_is_begun_after_the_deadline(options, tmp_path):
    late = Options(tmp_path, tmp_path, tmp_path, dry=True, deadline=time.time() - 1)
    assert proceed(Stage(("two", double, (2,))), late) == {}


@pytest.mark.parametrize("name", [*fast.RUNS])
def test_benchmarks_take_their_flags(name, monkeypatch):
    script, *flags = fast.RUNS[name].split()
    monkeypatch.setattr(sys, "argv", [script, *flags, "--device", "cuda", "--threads", "1"])
    assert import_module(script).parse().device == "cuda"


def test_requirements_are_followed_to_the_end():
    names = {requirement.name.lower() for requirement in wheels.needed(["fairseq_ext"])}
    assert {"fairseq-fixed", "hydra-core", "antlr4-python3-runtime", "torch"} <= names
    assert not {"pytest", "sympy"} & names  # of extras, and of torch


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "--out is missing"),
        (["--out", "x", "--stages", "left"], "--stages is 'left'"),
        (["--out", "x", "--minutes", "0"], "--minutes is '0'"),
        (["--out", "OUT", "--wheels", "/nowhere"], "--wheels is '/nowhere'"),
        (["--out", "OUT"], "torch finds no GPU"),
    ],
)
def test_refusals(arguments, said, tmp_path):
    arguments = [str(tmp_path / "out") if word == "OUT" else word for word in arguments]
    done = gpu(*arguments, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    assert said in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("stages", "status"), [("right fast", 1), ("fast right", 1), ("real fast", 75), ("real", 0)]
)
def test_what_is_wrong_decides_over_time_that_is_up(stages, status, tmp_path):
    for made in ("builtin.en-de", "running-text"):
        (tmp_path / "runs" / made).mkdir(parents=True)
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\ncase "$2" in right) exit 1 ;; fast) exit 75 ;; esac\n')
    python.chmod(0o755)
    path = f"{python.parent}:{os.environ['PATH']}"
    assert gpu("--dry", "--out", tmp_path, "--stages", stages, PATH=path).returncode == status


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("gpu") / "out"


@pytest.mark.slow
@pytest.mark.parametrize("stage", run.STAGES)
def test_it_runs_dry(stage, out):
    done = gpu("--dry", "--out", out, "--stages", stage, "--minutes", 60)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads((out / f"{stage}.json").read_text())
    results = content["items"].values()
    assert results and {result["status"] for result in results} <= {"ok", "skipped"}
    assert (out / f"{stage}.md").read_text().startswith(f"# {stage}\n")
    assert {"CPU", "versions", "commit", "command"} <= content["facts"].keys()
    assert "0 wrong, 0 left" in done.stdout
