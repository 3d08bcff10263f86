"""The runner of variants x seeds: on a stand-in for fairseq's commands, and once on fairseq."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from hangs import communicate, wait_until

from fairseq_ext import cli
from fairseq_ext.errors import UsageError
from fairseq_ext.evaluation.translation import read_output
from fairseq_ext.files import write_lines
from fairseq_ext.tools import jobs
from fairseq_ext.tools import sweep as sweep_module
from fairseq_ext.tools.command_lines import parse_flags
from fairseq_ext.tools.sweep import choose_devices, plan_jobs
from fairseq_ext.training_logs import read_log

# fairseq_cli.train and .generate of a run: they write down how they were called, log, save, and do
# what --do says; -first is for a run that has no checkpoint yet.
STAND_IN = """
import json, os, sys, time
from pathlib import Path

flags = dict(zip(sys.argv, sys.argv[1:]))
program, todo = Path(__file__).stem, flags.get("--do", "")
run = Path(flags["--save-dir"] if program == "train" else flags["--path"].rpartition("/")[0])
call = {"program": program, "argv": sys.argv[1:], "pid": os.getpid(), "env": dict(os.environ)}
with (run / "calls").open("a") as calls:
    calls.write(json.dumps(call) + "\\n")
first = not (run / "checkpoint_last.pt").exists()
if program == "generate":
    print("H-0\\t-1.0\\tein hund", flush=True)
else:
    print("2026-01-01 | INFO | train_inner | epoch 001: loss=4.5, num_updates=2, lr=1", flush=True)
    if todo != "fail-early":
        (run / "checkpoint_last.pt").touch()
if todo == "meet":
    while len(list(run.parents[1].glob("*/*/calls"))) < 2:
        time.sleep(0.01)
if todo == "hang" or todo == "hang-first" and first:
    time.sleep(60)
if todo in ("fail", "fail-early") or todo == "fail-first" and first:
    sys.exit("Traceback (most recent call last):\\nValueError: no paper\\nand a line after it")
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    fake = tmp_path / "stand-in" / "fairseq_cli"
    fake.mkdir(parents=True)
    (fake / "__init__.py").touch()  # else the real package comes first
    for program in ("train", "generate"):
        (fake / f"{program}.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", f"{fake.parent}:{ROOT}")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(jobs, "POLL", 0.01)
    monkeypatch.setattr(sweep_module, "check_generation", lambda flags: None)


@pytest.fixture
def out(stand_in, tmp_path) -> Path:
    return tmp_path / "out"


def arguments(out: Path, *variants: str, options: str = "", flags: str = "") -> list[str]:
    given = [part for variant in variants for part in ("--variant", variant)]
    return ["sweep", "--out", str(out), *given, *shlex.split(options), "--", "DATA", *flags.split()]


def sweep(out: Path, *variants: str, **rest: str) -> None:
    cli.main(arguments(out, *variants, **rest))


def start(out: Path, *variants: str, **rest: str) -> subprocess.Popen:
    command = ["python", "-m", "fairseq_ext.cli", *arguments(out, *variants, **rest)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # whoever starts the tests in the background lets them ignore it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def replace_train(code: str) -> None:
    Path(os.environ["PYTHONPATH"].split(":")[0], "fairseq_cli/train.py").write_text(code)


def planned(out: Path, *variants: str, **rest: str) -> list[jobs.Job]:
    return plan_jobs(cli.build_parser().parse_args(arguments(out, *variants, **rest)))


def calls(run: Path, program: str = "train") -> list[dict]:
    file = run / "calls"
    entries = map(json.loads, file.read_text().split("\n")[:-1]) if file.exists() else []
    return [entry for entry in entries if entry["program"] == program]


def is_alive(pid: int) -> bool:
    """Running, and not a zombie of which nobody has taken notice."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_each_run_gets_its_flags_and_its_folder(out):
    variants = {"una": ["--arch", "una", "--lr", "1"], "hna": ["--arch", "hna"]}
    given = [f"{name}={shlex.join(flags)}" for name, flags in variants.items()]
    sweep(out, *given, options="--seeds 3 11", flags="--lr 2")
    for variant, own in variants.items():
        for seed in ("3", "11"):
            run = out / variant / f"seed-{seed}"
            (call,) = calls(run)
            added = ["--seed", seed, "--save-dir", str(run)]
            added += ["--user-dir", str(ROOT / "fairseq_ext"), "--log-format", "simple"]
            assert call["argv"] == ["DATA", "--lr", "2", *own, *added]
            assert read_log(run)[0].values["loss"] == 4.5


def test_labelled_text_is_answered_after_training(out):
    """They are of the data, or of another file, and stand beside the log."""
    (job,) = planned(
        out, "a=", options="--predict valid --predict paws=p/valid.jsonl", flags="--cpu"
    )
    _, *steps = job.steps
    run = out / "a" / "seed-1"
    for step, name, text in zip(steps, ("valid", "paws"), ("DATA", "p"), strict=True):
        assert step.file("txt") == run / f"predict-{name}.txt" and step.keeps
        expected = f"fairseq-ext predict {run}/checkpoint_last.pt --examples --json --right "
        assert step.command() == f"{expected}--input {text}/valid.jsonl --cpu"
    (job,) = planned(out, "a=", options="--predict valid", flags="--user-dir=mine")
    assert job.steps[1].command().endswith("DATA/valid.jsonl --user-dir mine")
    with pytest.raises(UsageError, match="--predict names test more than once"):
        planned(out, "a=", options="--predict test --predict test=other.jsonl")
    with pytest.raises(UsageError, match="--checkpoint checkpoint_best.pt is for --generate"):
        planned(out, "a=", options="--predict test --checkpoint checkpoint_best.pt")
    with pytest.raises(UsageError, match="--predict is '../x' and must be a name"):
        planned(out, "a=", options="--predict ../x")
    for job in planned(out, "a=", options="--seeds 1 2 --predict 'x=x_$SEED.jsonl'"):
        assert job.steps[1].reads == Path(f"x_{job.name[-1]}.jsonl")
    (job,) = planned(out, "a=", options="--predict 'x=$RUN/mine.jsonl'")
    assert job.steps[1].reads is None and f"--input {run}/mine.jsonl" in job.steps[1].command()


def test_generation_gets_the_task_and_its_flags(out):
    """Not those of training alone, nor those that --generate has itself."""
    own = "--task translation_roles -s en --target-lang=de --truncate-source --eval-bleu --arch x"
    (first, second) = planned(
        out, f"roles={own}", "una=", options="--generate '--beam 2 -t fr'", flags="--cpu --lr 1"
    )
    place = ["DATA", "--path", "$RUN/checkpoint_last.pt", "--user-dir", "$PLUGIN"]
    taken = "--cpu --task translation_roles -s en --target-lang=de --truncate-source"
    assert first.steps[1].flags == [*place, *taken.split(), "--beam", "2", "-t", "fr"]
    assert second.steps[1].flags == [*place, "--cpu", "--beam", "2", "-t", "fr"]
    (job,) = planned(out, f"a={own}", options="--generate '--task translation -s fr'")
    assert job.steps[1].flags[5:-4] == ["--target-lang=de", "--truncate-source"]
    with pytest.raises(UsageError, match="^--task is 'translaton', which nothing has registered"):
        planned(out, "a=--task translaton", options="--generate ''")


TASK = """
from fairseq.tasks import register_task
from fairseq.tasks.translation import TranslationTask
import fairseq_ext.registry

@register_task("translation_backwards")
class Backwards(TranslationTask):
    @classmethod
    def add_args(cls, parser):
        parser.add_argument("--how-far", type=int)
"""


def test_a_package_of_ones_own_is_used_everywhere(out, tmp_path, monkeypatch):
    """In flags or of the sweep; its task has flags, and it is not imported into this process."""
    package = tmp_path / "backwards"
    package.mkdir()
    (package / "__init__.py").write_text(TASK)
    own, also = f"--user-dir {package}", "--generate '' --predict test"
    task = "--task translation_backwards --how-far 3"
    for options, flags in ((own, ""), ("", own)):
        (job,) = planned(out, f"a={task}", options=f"{options} {also}", flags=flags)
        for step in job.steps:
            assert step.flags.count("--user-dir") == 1 and str(package) in step.flags
        assert job.steps[1].flags[5:] == ["--task", "translation_backwards", "--how-far", "3"]
    assert "backwards" not in sys.modules
    monkeypatch.chdir(tmp_path)
    for flags in ("--user-dir fairseq_ext", "--user-dir=fairseq_ext"):
        (job,) = planned(out, "a=", options=also, flags=flags)
        assert job.steps[0].arguments()[-4:-2] == ["--user-dir", str(ROOT / "fairseq_ext")]
        assert "$PLUGIN" in job.steps[1].flags


@pytest.mark.parametrize(
    ("variant", "generate", "said"),
    [
        ("", "--gen-subset dev", "there is no subset dev of"),
        ("", "--beem 2", "--beem is no flag of"),
        ("--task translation_roles", "--gen-subset valid", "annotations; make it with"),
        ("", "--gen-subset valid --bpe sentencepiece --sentencepiece-model none", "none"),
        ("", "--gen-subset valid", None),
    ],
)
def test_what_generation_lacks_is_said_before_training(tmp_path, data_bin, variant, generate, said):
    out = tmp_path / "out"
    line = ["--variant", f"a={variant}", "--generate", generate, "--", str(data_bin)]
    args = cli.build_parser(["sweep"]).parse_args(["sweep", "--out", str(out), *line])
    if said is None:
        sweep_module._check_generation(plan_jobs(args))
        return
    with pytest.raises(UsageError) as refused:
        args.run(args)
    told = str(refused.value)
    assert told.startswith(f"fairseq-generate would refuse {out}/a/seed-1 after its training: ")
    assert said in told and not out.exists()


def test_answers_to_examples_that_changed_are_given_again(out, tmp_path):
    text = tmp_path / "test.jsonl"
    text.touch()
    (job,) = planned(out, "a=", options=f"--predict test={text}")
    job.folder.mkdir(parents=True)
    for step in job.steps:
        write_lines(step.file("done"), [step.stamp()])
    answers = job.steps[1].file("txt")
    answers.touch()
    later = text.stat().st_mtime + 100
    os.utime(answers, (later, later))
    assert not job.missing()
    os.utime(text, (later + 1, later + 1))
    assert [step.name for step in job.missing()] == ["predict-test"]


def test_given_flags_are_kept_and_the_run_can_be_named_in_them(out):
    flags = "--log-format=json --user-dir mine --tensorboard-logdir $RUN/board"
    sweep(out, "a=", flags=flags)
    (call,) = calls(out / "a/seed-1")
    board = ["--tensorboard-logdir", f"{out}/a/seed-1/board"]
    assert call["argv"][1:6] == ["--log-format=json", "--user-dir", "mine", *board]
    assert "simple" not in call["argv"] and call["argv"].count("--user-dir") == 1


def test_what_is_done_is_not_repeated_even_if_it_was_moved(out, capsys):
    sweep(out, "a=", options="--generate ''")
    moved = out.with_name("moved")
    out.rename(moved)
    sweep(moved, "a=", "b=", options="--generate ''")
    assert [len(calls(moved / v / "seed-1", p)) for v in "ab" for p in ("train", "generate")] == [
        1
    ] * 4
    assert "1 of 2 runs" in capsys.readouterr().out


def test_a_failure_stops_no_other_run_and_is_made_good_later(out, capsys):
    variants = ["a=--do fail-first", "b=", "c=--do fail"]
    with pytest.raises(UsageError) as refusal:
        sweep(out, *variants)
    said = str(refusal.value)
    assert "2 of 3 runs" in said and "\n" not in said
    for name in "ac":
        assert (
            f"{name}/seed-1: fairseq-train failed (ValueError: no paper), see {out}/{name}" in said
        )
    with pytest.raises(UsageError, match=r"1 of 3 runs.*\(c/seed-1"):
        sweep(out, *variants)
    assert [len(calls(out / name / "seed-1")) for name in "abc"] == [2, 1, 2]
    log = (out / "a/seed-1/train.log").read_text()
    assert log.count("num_updates=2") == 2 and log.count("no paper") == 1


def test_a_run_without_a_folder_stops_no_other(out):
    (out / "a").mkdir(parents=True)
    (out / "a/seed-1").write_text("")
    with pytest.raises(UsageError, match=r"1 of 2 runs are not done \(a/seed-1: .*File exists"):
        sweep(out, "a=", "b=")
    assert calls(out / "b/seed-1")


def test_an_error_is_not_taken_from_an_earlier_attempt(out):
    with pytest.raises(UsageError, match="no paper"):
        sweep(out, "a=--do fail-first")
    replace_train("raise SystemExit(3)")
    with pytest.raises(UsageError, match=r"\(no output\)"):
        sweep(out, "a=--do fail-first")


def test_other_flags_are_refused_before_anything_is_done(out):
    sweep(out, "a=", flags="--lr 1 --max-update 5")
    with pytest.raises(UsageError, match="with --lr 1 and without --lr 2 --clip 3;"):
        sweep(out, "new=", "a=", flags="--lr 2 --clip 3 --max-update 5")
    with pytest.raises(UsageError, match="trained with the same flags in another order;"):
        sweep(out, "a=", flags="--max-update 5 --lr 1")
    (out / "a/seed-1/train.done").unlink()
    with pytest.raises(UsageError, match="was trained by another command"):
        sweep(out, "new=", "a=", flags="--lr 1 --max-update 5")
    assert not (out / "new").exists()


@pytest.mark.parametrize("subset", ["../../../x", "a/b", "/x", ".x", "test,valid", "a b"])
def test_a_subset_is_the_name_of_a_file(out, subset):
    with pytest.raises(UsageError, match=f"^--gen-subset is '{subset}' and must be a name"):
        sweep(out, "a=", options=f"--dry-run --generate \"--gen-subset '{subset}'\"")
    assert not out.exists()


def test_an_interrupted_run_is_not_mixed_with_other_flags(out):
    with pytest.raises(UsageError, match="no paper"):
        sweep(out, "a=--do fail")
    with pytest.raises(UsageError, match="with --do fail"):
        sweep(out, "a=")
    assert len(calls(out / "a/seed-1")) == 1


def test_flags_that_trained_nothing_can_be_corrected(out):
    with pytest.raises(UsageError, match="no paper"):
        sweep(out, "a=--do fail-early")
    sweep(out, "a=")
    log = (out / "a/seed-1/train.log").read_text()
    assert log.count("num_updates=2") == 1 and "no paper" not in log


def test_flags_are_checked_again_when_a_run_begins(out):
    """Another sweep may have finished it in the meantime."""
    (one,), (other,) = (planned(out, "a=", flags=flags) for flags in ("--lr 1", "--lr 2"))
    one.check(), other.check()
    list(one.execute(dict(os.environ)))
    with pytest.raises(UsageError, match="with --lr 1"):
        list(other.execute(dict(os.environ)))


def test_what_an_older_training_generated_does_not_count(out):
    """Trained again, and stopped just before the translation."""
    sweep(out, "a=", options="--generate ''")
    (out / "a/seed-1/checkpoint_last.pt").unlink()
    (out / "a/seed-1/train.done").unlink()
    (run,) = planned(out, "a=", options="--generate ''")
    work = run.execute(dict(os.environ))
    while not (out / "a/seed-1/train.done").exists():
        next(work)
    work.close()
    assert [step.name for step in run.missing()] == ["generate-test"]


def test_output_of_generation(out):
    run = out / "a/seed-1"
    options = "--checkpoint checkpoint_best.pt --generate"
    with pytest.raises(UsageError, match=rf"fairseq-generate failed .* {run}/generate-valid.log"):
        sweep(out, "a=", options=f"{options} '--gen-subset valid --do fail'")
    assert not (run / "generate-valid.txt").exists()
    sweep(out, "a=", options=f"{options} '--gen-subset valid'")
    call = calls(run, "generate")[-1]["argv"]
    assert call[:3] == ["DATA", "--path", f"{run}/checkpoint_best.pt"] and "--user-dir" in call
    assert read_output(run / "generate-valid.txt").words == ["ein hund"]
    assert "H-0" not in (run / "generate-valid.log").read_text()
    (run / "generate-valid.txt").unlink()
    sweep(out, "a=", options=f"{options} '--gen-subset valid'")
    assert (run / "generate-valid.txt").exists()


def test_another_way_to_generate_replaces_the_output_alone(out):
    for beam, times in ((4, 1), (5, 2), (5, 2)):
        sweep(out, "a=", options=f"--generate '--beam {beam}'")
        assert len(calls(out / "a/seed-1", "generate")) == times
    assert len(calls(out / "a/seed-1")) == 1
    with pytest.raises(UsageError, match="fairseq-generate failed"):
        sweep(out, "a=", options="--generate '--beam 6 --do fail'")
    assert not (out / "a/seed-1/generate-test.txt").exists()  # which would pass for beam 6


def test_side_by_side(out, capsys, monkeypatch):
    """Each waits for the other to have begun; progress comes from their logs."""
    monkeypatch.setattr(jobs, "REPORT", 0.0)
    sweep(out, "a=--do meet", "b=--do meet", options="--jobs 2")
    share = str(max(1, len(os.sched_getaffinity(0)) // 2))
    for name in "ab":
        assert calls(out / name / "seed-1")[0]["env"]["OMP_NUM_THREADS"] == share
    assert "a/seed-1: update 2, loss 4.5\n" in capsys.readouterr().out


def test_environment_of_a_job(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    devices = [jobs.make_environment(slot, 3)["CUDA_VISIBLE_DEVICES"] for slot in range(3)]
    assert devices == ["3", "5", "3"]
    assert jobs.make_environment(0, 1)["CUDA_VISIBLE_DEVICES"] == "3,5"
    assert jobs.make_environment(0, 3)["OMP_NUM_THREADS"] == "7"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert jobs.make_environment(1, 2)["CUDA_VISIBLE_DEVICES"] == "1"


def test_a_job_takes_each_mig_instance_in_turn(monkeypatch):
    """torch counts one of them, whatever their number."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b")
    devices = [jobs.make_environment(slot, 2)["CUDA_VISIBLE_DEVICES"] for slot in range(3)]
    assert devices == ["MIG-a", "MIG-b", "MIG-a"]


@pytest.mark.parametrize("count", [1, 2])
def test_a_run_takes_one_gpu_whatever_runs_beside_it(count, monkeypatch):
    """Else --jobs would change the size of its batches."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    assert choose_devices(count, {}) == {"--distributed-world-size": "1"}
    asked = {"--distributed-world-size": "8"}
    if count == 1:
        assert choose_devices(1, asked)  # which the run's own flag overrides
        return
    with pytest.raises(UsageError, match="is 8, and with --jobs 2 each run has one GPU"):
        choose_devices(2, asked)


def test_a_sweep_goes_on_where_there_are_more_gpus(out, monkeypatch):
    """The flag of one device, added there, says the same as none where there is one."""
    sweep(out, "a=")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    sweep(out, "a=")
    (job,) = planned(out, "a=")
    assert "--distributed-world-size 1" in job.steps[0].command() and not job.missing()
    with pytest.raises(UsageError, match="without --distributed-world-size 16;"):
        sweep(out, "a=", flags="--distributed-world-size 16")


def test_no_flag_is_added_where_there_is_at_most_one_gpu(monkeypatch):
    for count in (0, 1):
        monkeypatch.setattr("torch.cuda.device_count", lambda count=count: count)
        assert choose_devices(2, {}) == {}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_training_which_goes_on_later(out, number):
    run = out / "a/seed-1"
    runner = start(out, "a=--do hang-first", "b=")
    wait_until((run / "checkpoint_last.pt").exists)
    with pytest.raises(UsageError, match="a/seed-1: another process"):
        sweep(out, "a=--do hang-first", options="--generate ''")
    runner.send_signal(number)
    _, err = communicate(runner)
    assert runner.returncode == 128 + number and err.startswith("interrupted") and "\n" in err
    assert len(calls(run)) == 1 and not is_alive(calls(run)[0]["pid"])
    assert not (out / "b").exists()
    sweep(out, "a=--do hang-first", "b=", options="--generate ''")
    assert len(calls(run)) == 2 and len(calls(run, "generate")) == 1


def test_a_training_whose_runner_was_killed_is_not_begun_twice(out):
    run = out / "a/seed-1"
    runner = start(out, "a=--do hang-first")
    wait_until((run / "checkpoint_last.pt").exists)
    runner.kill()
    runner.communicate()
    (call,) = calls(run)
    with pytest.raises(UsageError, match="another process"):
        sweep(out, "a=--do hang-first")
    os.kill(call["pid"], signal.SIGKILL)
    wait_until(lambda: not is_alive(call["pid"]))
    sweep(out, "a=--do hang-first")
    assert len(calls(run)) == 2


def test_a_killed_training_is_named_by_its_signal(out):
    replace_train("import os; os.kill(os.getpid(), 9)")
    with pytest.raises(UsageError, match=r"fairseq-train failed \(SIGKILL\)"):
        sweep(out, "a=")


def test_dry_run(out, capsys):
    sweep(out, "a=--arch una", options="--dry-run --generate '--beam 2'", flags="--lr 1")
    train, generate = capsys.readouterr().out.split("\n")[:-1]
    assert train.startswith("fairseq-train DATA --lr 1 --arch una --seed 1 --save-dir " + str(out))
    assert generate.startswith(f"fairseq-generate DATA --path {out}/a/seed-1/checkpoint_last.pt")
    assert not out.exists()


def test_an_average_generates(out, capsys):
    sweep(out, "a=", options="--dry-run --average 5 --generate '--beam 2'")
    run = out / "a/seed-1"
    _, average, generate = capsys.readouterr().out.split("\n")[:-1]
    average_is = f"fairseq-ext average {run} --last 5 --at-most --output {run}/averaged.pt --force"
    assert average == average_is
    assert generate.startswith(f"fairseq-generate DATA --path {run}/averaged.pt")


def test_an_average_is_of_epochs_where_there_are_both(out, capsys):
    options, flags = "--dry-run --average 5 --generate ''", "--save-interval-updates 9"
    sweep(out, "a=", "b=--no-epoch-checkpoints", options=options, flags=flags)
    of_epochs = [
        " --by epoch" in line for line in capsys.readouterr().out.split("\n") if "--last" in line
    ]
    assert of_epochs == [True, False]


@pytest.mark.parametrize(
    ("variants", "options", "flags", "said"),
    [
        (["--arch una"], "", "", "--variant is '--arch una' and must be a name"),
        (["../a=--arch una"], "", "", "must be a name"),
        (["a=", "a=--lr 1"], "", "", "same name"),
        (["a=--arch 'una"], "", "", "No closing quotation"),
        (["a=--save-dir x"], "", "", "--save-dir stands in --variant a"),
        (["a="], "", "--seed 3", "--seed stands after --"),
        (["a="], "--generate '--path x'", "", "--path stands in --generate"),
        (["a="], "--jobs 0", "", "--jobs is 0"),
        (["a="], "--folds 1", "", "--folds is 1 and must be at least 2"),
        (["a="], "--folds 9999999999999999999999", "", "and at most 1000"),
        (["a="], "--average 3", "", "--average is 3"),
        (["a="], "--average 0 --generate ''", "", "--average is 0"),
        (["a="], "--average 2 --generate '' --checkpoint x.pt", "", "--checkpoint is x.pt and"),
        (["a="], "--average 3 --generate ''", "--no-epoch-checkpoints", "leaves none to average"),
        (["a="], "--predict tset", "", "--predict asks for answers to DATA/tset.jsonl"),
    ],
)
def test_bad_arguments(out, variants, options, flags, said):
    with pytest.raises(UsageError, match="(?s).*") as refusal:
        sweep(out, *variants, options=options, flags=flags)
    assert said in str(refusal.value) and not out.exists()


def test_data_come_first(out):
    with pytest.raises(UsageError, match="'--arch' stands where the data"):
        cli.main(["sweep", "--out", str(out), "--variant", "a=", "--", "--arch", "una"])


def test_an_unwritable_folder(out):
    out.write_text("a file")
    with pytest.raises(UsageError, match="file"):
        sweep(out, "a=")


def test_on_fairseq(data_bin, tmp_path, capsys, forked):
    flags = "-s de -t en --cpu --num-workers 0 --max-tokens 600 --max-update 2 --optimizer adam"
    flags += " --share-all-embeddings --disable-validation --log-interval 1 --no-epoch-checkpoints"
    generate = "-s de -t en --cpu --num-workers 0 --max-len-b 3 --max-len-a 0 --beam 1"
    command = ["sweep", "--out", str(tmp_path), "--jobs", "2", "--generate", generate]
    for arch in ("una", "hna"):
        command += ["--variant", f"{arch}=--arch transformer_{arch}_tiny"]
    command += ["--", str(data_bin), *flags.split()]
    cli.main(command)
    for arch in ("una", "hna"):
        run = tmp_path / arch / "seed-1"
        assert [record.update for record in read_log(run) if record.kind == "train_inner"] == [1, 2]
        assert len(read_output(run / "generate-test.txt").words) == 200
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    cli.main(command)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert "2 of 2 runs" in capsys.readouterr().out


def test_a_flag_without_a_value_does_not_take_the_flag_behind_it():
    command = "--gen-subset --beam 5 --lr=-1 --offset -2 --cpu".split()
    expected = {"--gen-subset": "", "--beam": "5", "--lr": "-1", "--offset": "-2", "--cpu": ""}
    assert parse_flags(command) == expected
