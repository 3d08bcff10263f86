"""The commands, each with a small case that works, what it reads, writes and prints."""

import fnmatch
import shlex
from pathlib import Path
from typing import NamedTuple

from conftest import PLUGIN, ROOT

from .world import BASE, GENERATE, PREFIXES, TRAININGS, VQA

BOTH = "translation/dict.*.txt translation/train.*.idx translation/train.*.bin"
VALID = "translation/valid.*.idx translation/valid.*.bin"
TEST = "translation/dict.*.txt translation/test.*.idx translation/test.*.bin"
MONO = "mono/dict.txt mono/train.idx mono/train.bin mono/valid.idx mono/valid.bin"
VOCABULARY = "vocabulary/dict.txt vocabulary/tokenizer.json"
ONE = "runs/una/seed-1/checkpoint_last.pt"
ENCODER = "runs/encoder/seed-1/checkpoint_last.pt"
TAGGER = "runs/sequence_tagging/seed-1/checkpoint_last.pt"
CLASSIFIER = "runs/sentence_classification/seed-1/checkpoint_last.pt"
ANSWERER = "runs/vqa/seed-1/checkpoint_last.pt"
ASKED = "questions/dict.txt questions/answers.txt questions/{0}.jsonl questions/{0}.*.npy"
LOGS = "runs/una/seed-1/train.log runs/una/seed-2/train.log"
OUTPUTS = "runs/una/seed-1/generate-test.txt runs/una/seed-2/generate-test.txt"
TASKS = "multiple_choice sequence_tagging span_extraction sentence_classification".split()
TASKS += ["sentence_regression"]


class Command(NamedTuple):
    """A command.

    Attributes:
        name: of its own.
        program: as warm_server.become takes it, or a script.
        arguments: of a case that works; paths are relative to a copy of the world.
        reads: patterns of files without which it cannot work; with ? before them, it can.
        writes: files and folders that it makes; one with a slash at its end is a folder.
        stdin: the file that it reads there.
        prints: whether its result is on stdout.
        works: whether it works as it stands; what does not ends early in any case.
    """

    name: str
    program: str
    arguments: str
    reads: str = ""
    writes: str = ""
    stdin: str = ""
    prints: bool = False
    works: bool = True

    def words(self) -> list[str]:
        return [word.replace("{plugin}", str(PLUGIN)) for word in shlex.split(self.arguments)]

    def needs(self, world: Path) -> set[str]:
        """Return the names in the world that its arguments and its files begin with."""
        given = " ".join((self.arguments, self.reads, self.stdin))
        for mark in "=,?":
            given = given.replace(mark, " ")
        first = {word.partition("/")[0] for word in given.split()}
        return {path.name for path in world.iterdir() if path.name in first}

    def can_do_without(self, name: str) -> bool:
        """Return whether it works without a file that it reads."""
        return any(fnmatch.fnmatch(name, p[1:]) for p in self.reads.split() if p[0] == "?")

    def files(self, world: Path) -> list[str]:
        """Return the files that it reads, relative to the world."""
        names = sorted(str(p.relative_to(world)) for p in world.rglob("*") if p.is_file())
        patterns = [*self.reads.replace("?", "").split(), *filter(None, [self.stdin])]
        found = [fnmatch.filter(names, pattern) for pattern in patterns]
        assert all(found), f"{self.name}: {patterns} are not all there"
        return list(dict.fromkeys(name for part in found for name in part))


def ext(arguments: str, reads: str = "", writes: str = "", **more: object) -> Command:
    """Return a verb of fairseq-ext."""
    verb = arguments.split()[0]
    return Command(f"ext {verb}", "fairseq-ext", arguments, reads, writes, **more)


def step(arguments: str, reads: str = "", writes: str = "", **more: object) -> Command:
    """Return a step of data recipes."""
    name, _, rest = arguments.partition(" ")
    program = f"fairseq_ext.prepare.{name}"
    return Command(f"prepare.{name}", program, rest, reads, writes, **more)


def recipe(arguments: str, reads: str, **more: object) -> Command:
    name = f"recipes {arguments.split()[0]}"
    return Command(name, "fairseq_ext.tools.recipes", arguments, reads, **more)


def script(arguments: str, reads: str = "", writes: str = "", **more: object) -> Command:
    name, _, rest = arguments.partition(" ")
    return Command(name, str(ROOT / "scripts" / name), rest, reads, writes, **more)


def train(name: str, reads: str) -> Command:
    given = f"{TRAININGS[name]} --save-dir out"
    return Command(f"train {name}", "fairseq-train", given, reads, "out/checkpoint_last.pt")


# fairseq-score has no --user-dir, and so no plugin
FAIRSEQ = [
    *(train(name, f"{BOTH} {VALID}") for name in ("una", "hna", "asa", "roles")),
    *(train(name, MONO) for name in ("lm", "encoder", "sop", "detect")),
    train("vqa", f"{ASKED.format('train')} {ASKED.format('valid')} questions/views.txt"),
    *(train(task, f"labelled/{task}/*.jsonl {VOCABULARY}") for task in TASKS),
    Command(
        "train restored",
        "fairseq-train",
        f"{TRAININGS['una']} --save-dir out --restore-file one.pt --reset-optimizer "
        "--reset-lr-scheduler --reset-dataloader --reset-meters",
        f"{BOTH} {VALID} one.pt",
        "out/checkpoint_last.pt",
    ),
    Command(
        "train finetuned",
        "fairseq-train",
        f"{TRAININGS['sentence_classification']} --save-dir out --finetune-from-model {ENCODER}",
        f"labelled/sentence_classification/*.jsonl {VOCABULARY} {ENCODER}",
        "out/checkpoint_last.pt",
    ),
    Command(
        "train parsed",
        "fairseq-train",
        TRAININGS["roles"].replace("translation", "parsed", 1)
        + " --save-dir out --encoder-roles dependency --task translation_roles",
        "parsed/train.de-en.de.annotations/*",
        "out/checkpoint_last.pt",
    ),
    Command(
        "train with vectors",
        "fairseq-train",
        f"{TRAININGS['sentence_classification']} --save-dir out --word-vectors vectors.txt",
        "vectors.txt",
        "out/checkpoint_last.pt",
    ),
    Command(
        "hydra-train",
        "fairseq-hydra-train",
        "--config-dir configs --config-name mine hydra.run.dir=hydra",
        f"{BOTH} {VALID} configs/mine.yaml",
        "out/checkpoint_last.pt",
    ),
    Command(
        "generate",
        "fairseq-generate",
        GENERATE.format(run="una/seed-1"),
        f"{TEST} {ONE}",
        prints=True,
    ),
    Command(
        "generate into files",
        "fairseq-generate",
        f"{GENERATE.format(run='una/seed-1')} --results-path made/results",
        ONE,
        "made/results/generate-test.txt",
    ),
    Command(
        "interactive",
        "fairseq-interactive",
        f"translation {BASE} --path {ONE} --task translation -s de -t en --beam 2 --max-len-b 8",
        f"translation/dict.*.txt {ONE}",
        stdin="text/test.de",
        prints=True,
    ),
    Command(
        "interactive on a file",
        "fairseq-interactive",
        f"translation {BASE} --path {ONE} --task translation -s de -t en --beam 2 --max-len-b 8 "
        "--input text/test.de --buffer-size 4 --batch-size 2",
        f"translation/dict.*.txt text/test.de {ONE}",
        prints=True,
    ),
    Command(
        "validate",
        "fairseq-validate",
        f"translation {BASE} --path {ONE} --task translation -s de -t en --batch-size 4",
        f"translation/dict.*.txt {VALID} {ONE}",
    ),
    Command(
        "validate masked",
        "fairseq-validate",
        f"mono {BASE} --path {ENCODER} --task masked_lm --batch-size 4",
        f"mono/dict.txt mono/valid.* {ENCODER}",
    ),
    Command(
        "eval-lm",
        "fairseq-eval-lm",
        f"mono {BASE} --path runs/lm/seed-1/checkpoint_last.pt --gen-subset valid --batch-size 2",
        "mono/dict.txt mono/valid.* runs/lm/seed-1/checkpoint_last.pt",
    ),
    Command(
        "preprocess",
        "fairseq-preprocess",
        "--user-dir {plugin} -s de -t en --joined-dictionary --destdir made/bin " + PREFIXES,
        "text/train.* text/valid.* text/test.*",
        "made/bin/dict.de.txt made/bin/train.de-en.de.idx made/bin/train.de-en.de.bin",
    ),
    Command(
        "preprocess one side",
        "fairseq-preprocess",
        "--user-dir {plugin} --only-source --srcdict vocabulary/dict.txt --destdir made "
        "--trainpref vocabulary/train",
        "vocabulary/dict.txt vocabulary/train",
        "made/dict.txt made/train.idx made/train.bin",
    ),
]
VERBS = [
    ext("doctor", prints=True),
    ext("recipe table7 --data nowhere", works=False),
    ext("launch --dry-run --cpu-processes 2 -- fairseq-train x --arch y", prints=True),
    ext(
        "sweep --out made --seeds 1 --variant una='--arch transformer_una_tiny' -- "
        + TRAININGS["una"].replace(" --seed 1", ""),
        f"{BOTH} {VALID}",
        "made/una/seed-1/checkpoint_last.pt",
    ),
    ext("average --output out.pt one.pt two.pt", "one.pt two.pt", "out.pt"),
    ext("prune one.pt out.pt", "one.pt", "out.pt", works=False),
    ext(f"predict {TAGGER} --input new.txt --cpu", f"{TAGGER} new.txt", prints=True),
    ext(
        f"predict {CLASSIFIER} --cpu --json --examples --output out.jsonl "
        "--input labelled/sentence_classification/valid.jsonl",
        f"{CLASSIFIER} labelled/sentence_classification/valid.jsonl",
        "out.jsonl",
    )._replace(name="ext predict examples"),
    ext(
        f"predict {ANSWERER} --cpu --split test --output out.json --data questions",
        f"{ANSWERER} {ASKED.format('test')}",
        "out.json",
    )._replace(name="ext predict questions"),
    ext(
        "annotate translation --split train --lang de --conllu train.conllu --threshold 0.1",
        "translation/dict.de.txt translation/train.de-en.de.idx translation/train.de-en.de.bin "
        "train.conllu",
        "translation/train.de-en.de.annotations/",
    ),
    ext(
        "import-hf hf made/imported",
        "hf/config.json hf/model.safetensors hf/tokenizer.json",
        "made/imported/",
    ),
    ext(f"export-hf {ENCODER} made/exported --vocabulary mono", ENCODER, "made/exported/"),
    ext(f"export-fairseq {ENCODER} made/stock.pt", ENCODER, "made/stock.pt"),
    ext(
        f"export-vectors {ENCODER} --vocabulary mono --words mono/dict.txt --width 2 "
        "--out vectors.txt",
        f"{ENCODER} mono/dict.txt",
        "vectors.txt",
    ),
    ext(
        "score runs/una/seed-1/generate-test.txt --reference text/test.en --metrics bleu chrf",
        "runs/una/seed-1/generate-test.txt text/test.en",
        prints=True,
    ),
    ext(
        "table runs/una/seed-1 runs/una/seed-2 --metric loss --output made/table.md "
        "--bars made/bars.png",
        LOGS,
        "made/table.md made/bars.png made/bars.csv",
    ),
    ext(
        "table runs/una/seed-1 runs/una/seed-2 --reference text/test.en",
        f"{LOGS} {OUTPUTS} text/test.en",
        prints=True,
    )._replace(name="ext table of scores"),
    ext(
        "curves runs/una/seed-1 runs/una/seed-2 --out made/curves.png",
        LOGS,
        "made/curves.png made/curves.csv",
    ),
    ext(
        "masking runs/asa/seed-1 --out made/masked.svg",
        "runs/asa/seed-1/train.log",
        "made/masked.svg made/masked.csv",
    ),
    ext(
        f"map {ONE} --data translation --out made/map.png --split test",
        f"{TEST} {ONE}",
        "made/map.png",
    ),
    ext(
        f"analyse {ONE} --data translation --out made --limit 2 --split test",
        f"{TEST} {ONE}",
        "made/",
    ),
    ext(
        "report runs/una/seed-1 runs/una/seed-2 --data translation --out made/report.html "
        "--metric loss",
        f"{LOGS} {ONE}",
        "made/report.html",
    ),
    ext(f"columns {ONE} --data translation --split test --out made", f"{TEST} {ONE}", "made/"),
    ext(f"heads {ONE} --data translation --split test --out made", f"{TEST} {ONE}", "made/"),
    ext(
        "weights runs/hna/seed-1 --data translation --out made",
        "runs/hna/seed-1/train.log",
        "made/",
    ),
    ext(
        f"align {ONE} --data translation --source text/test.de --target text/test.en "
        "--gold gold.talp --out made",
        f"{ONE} text/test.de text/test.en gold.talp translation/dict.*.txt",
        "made/",
    ),
    ext(
        f"probe {ENCODER} --data mono --coreference refl.0 gap-test.tsv two_conll --out made "
        "--random 1",
        f"{ENCODER} mono/dict.txt refl.0 gap-test.tsv two_conll",
        "made/",
    ),
    ext("collapse --out made", writes="made/"),
]
STEPS = [
    step("bitext text=made --languages de en --longest 9", "text/train.de text/train.en", "made/"),
    step(
        "byte_bpe plain made/model made/encoded --size 300",
        "plain/train ?plain/valid",
        "made/model/",
    ),
    step("check text/train.de text/train.en", "text/train.de text/train.en", prints=True),
    step(
        "corpora sst-2 corpora made/out",
        "corpora/SST-2/train.tsv corpora/SST-2/dev.tsv",
        "made/out/",
    ),
    step("documents made/out --source named file books", "?books/*", "made/out/"),
    step(
        "extract own made/out --languages de en --parts train=train.@",
        "own/train.de own/train.en",
        "made/out/",
    ),
    step("fetch own iwslt14 --check"),
    step("gigaword extract gigaword made/out --valid 2", "gigaword/*", "made/out/"),
    step("manifest translation text --about x", writes="translation/manifest.json"),
    Command(
        "vqa.world.generate",
        "fairseq_ext.vqa.world.generate",
        "made/out --pictures 3",
        writes="made/out/",
    ),
    step("subwords text made/codes made/out --merges 20", "?text/train.*", "made/codes made/out/"),
    step("tokenise text made/out --lowercase", "?text/*", "made/out/"),
    step(
        "word_vocabulary labelled/sentence_classification --words 3",
        "labelled/sentence_classification/train.jsonl",
        "labelled/sentence_classification/dict.txt",
    ),
    step("wordpiece learn --size 60 made/pieces.txt text/train.de", "text/train.de"),
    step("workspace room made 1"),
    recipe(
        f"dry-run translation una='--arch transformer_una_tiny' -- "
        f"{TRAININGS['una'].partition(' ')[2]}",
        "translation/dict.*.txt",
    ),
    recipe(
        "check-references translation/valid.de-en.en",
        "translation/dict.en.txt translation/valid.de-en.en.*",
        works=False,
    ),
    recipe(f"encoder-flags {ENCODER}", ENCODER, prints=True),
    recipe("period-ids hf/tokenizer.json", "hf/tokenizer.json", works=False),
    recipe("training-times runs/una/seed-1", "", works=False),
]
SCRIPTS = [
    script(
        "prepare_parallel.sh de en made/out --offline own --merges 20 --lowercase",
        "own/*",
        "made/out/",
    ),
    script(
        "prepare_parallel.sh de en made/out --offline own --bpe sentencepiece --vocab-size 60 "
        "--every 3 --test-last 2",
        "own/train.*",
        "made/out/",
    ),
    script(
        "prepare_task.sh sst-2 made/out --words 5",
        "corpora/SST-2/dev.tsv ?corpora/SST-2/test.tsv corpora/SST-2/train.tsv",
        "made/out/",
    ),
    script("prepare_mlm.sh ./books made/out --vocabulary 265", "?books/*", "made/out/"),
    *(
        script(f"{name} made/out --offline nowhere", works=False)
        for name in "prepare_iwslt14.sh prepare_iwslt15.sh prepare_iwslt16.sh prepare_wmt14.sh "
        "prepare_wmt16.sh prepare_gigaword.sh prepare_multi30k.sh".split()
    ),
    *(
        script(f"{line} --data nowhere", works=False)
        for line in (
            "ag_patterns.sh",
            "table7.sh",
            "combinations.sh",
            "alternatives.sh",
            "train_multi30k.sh",
            "train_gigaword.sh",
            "asa.sh finetune sst-2 nowhere.pt",
            "asa.sh translate",
            "roles.sh classify trec",
            "roles.sh translate",
            "pretrain.sh convergence",
            "finetune.sh sst-2 a=nowhere.pt",
        )
    ),
    script("task_attention.sh nowhere.pt --corpora nothing", works=False),
    script("probe.sh nowhere.pt --runs nowhere", works=False),
    script("low_resource.sh yoruba --variants nothing", works=False),
    script("prepare_builtin.sh /dev/null/x", works=False),
    script("prepare_vqa.sh made/out --offline own --features a=nowhere", works=False),
    script("vqa_world.sh --variants nothing", works=False),
    script("quickstart.sh --corpus nothing", works=False),
]
COMMANDS = [
    command
    for command in (*FAIRSEQ, *VERBS, *STEPS, *SCRIPTS)
    if VQA or "vqa" not in command.name + command.arguments
]
