#!/usr/bin/env bash
# Task-specific attention on a pre-trained encoder, after Jia 2024, Tables 1 to 3: sentiment (SST-5),
# paraphrase (Quora) and similarity (STS), one model for each.
#
# Usage: bash scripts/task_attention.sh CHECKPOINT [OPTION...] [-- FLAG...]
#
#   CHECKPOINT    an encoder of scripts/pretrain.sh or `fairseq-ext import-hf`; fairseq's own too
#   --vocabulary  folder with its dict.txt and tokeniser (default: that of CHECKPOINT)
#   --corpora     some of 'sst-5 quora sts' (default: all), made in data-bin if they are not there
#   --modes       frozen (lr 1e-3, the encoder as it is), full (lr 1e-5), or both (default)
#   --variants    some of (default: all that the corpus has)
#                   first      the first token, of sentences apart
#                   mean       the mean over tokens: the paper's baseline
#                   attention  n blocks of attention, 2 for sst-5, 1 for quora, 3 for sts
#                   uniform    the same, every weight from U(0.9, 1): the paper's 'initialised'
#                   joint      both sentences in one row, first token: not in the paper
#                   mse        mean, with squared error instead of negative correlation (sts)
#   --epochs      10 in the paper (default)
#   --batch       examples (default: 32; the paper gives none)
#   --lr          instead of that of the mode
#   --data        folder with the corpora, instead of data-bin
#   --seeds, --jobs  repetitions (default: 1), trainings side by side (default: 1)
#   --out         where runs go (default: checkpoints/task_attention)
#   FLAG          of fairseq-train, e.g. --fp16
#
# A second run of the same command goes on where the first was interrupted.
#
# Expected with BERT-base, development sets (sentiment accuracy, paraphrase accuracy, correlation):
#   frozen  first .389 .401 .298  mean .460 .386 .643  attention .253 .469 .251  uniform .262 .429 .148
#   full    first .504 .595 .587  mean .515 .561 .854  attention .509 .843 .822  uniform .539 .838 .386
# and 1.07 to 1.16 of the training time of mean. Ours: docs/results.md.
# Cost: with BERT-base on one GPU some 20 hours in all (the paper's, on a T4).

. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/finetuning.sh"

# flags_of VARIANT CORPUS: prints the flags of a variant; nothing if the corpus does not have it.
flags_of() {
  local apart='--pairs apart' pearson='--regression-loss pearson'
  [ "$2" != sst-5 ] || apart=''
  [ "$2" = sts ] || pearson=''
  [ -n "$apart" ] || apart='--output linear'
  case "$1" in
  first | mean) say "$apart $pearson --pooling $1" ;;
  attention) say "$apart $pearson --pooling attention" ;;
  uniform) say "$apart $pearson --pooling attention --task-init uniform:0.9,1" ;;
  joint) [ "$2" = sst-5 ] || say "$pearson --pooling first" ;;
  mse) [ "$2" != sts ] || say "$apart --pooling mean" ;;
  *) die "--variants has '$1' and must be some of first mean attention uniform joint mse." ;;
  esac
}

# mode_flags MODE: sets FLAGS.
mode_flags() {
  case "$1" in
  frozen) training_flags "$count" "$epochs" "${lr:-1e-3}" "$batch" ;;
  full) training_flags "$count" "$epochs" "${lr:-1e-5}" "$batch" ;;
  *) die "--modes has '$1' and must be some of frozen full." ;;
  esac
  FLAGS+=(--lr-scheduler fixed)
  [ "$1" = full ] || FLAGS+=(--freeze-encoder)
}

# study CORPUS MODE: trains those of the variants that the corpus has; adds to RUNS.
study() {
  local variant flags given=()
  for variant in $variants; do
    flags=$(flags_of "$variant" "$1") || exit 1
    [ -n "$flags" ] || continue
    given+=(--variant "$variant=$flags")
    RUNS+=("${numbers[@]/#/$out/$1/$2/$variant/seed-}")
  done
  [ ${#given[@]} -gt 0 ] || return 0
  mode_flags "$2"
  foreground python -m fairseq_ext.cli sweep --out "$out/$1/$2" --seeds "${numbers[@]}" \
    --jobs "$jobs" "${given[@]}" -- "$data/$1" --vocabulary "$vocabulary" "${ENCODER[@]}" \
    "${FLAGS[@]}" "${REST[@]}"
}

# times RUN...: the training time of each variant over the corpora, and its ratio to that of mean.
times() {
  python - "$@" <<'PY'
import sys
from pathlib import Path

from fairseq_ext.evaluation.runs import read_facts

modes: dict[str, dict[str, dict[str, float]]] = {}
for run in map(Path, sys.argv[1:]):
    corpus, mode, variant, _ = run.parts[-4:]
    seconds = modes.setdefault(mode, {}).setdefault(variant, {})
    seconds[corpus] = seconds.get(corpus, 0) + read_facts(run / "checkpoint_last.pt").seconds
for mode, spent in modes.items():
    corpora = list(dict.fromkeys(corpus for each in spent.values() for corpus in each))
    whole = {name: sum(each.values()) for name, each in spent.items() if len(each) == len(corpora)}
    for name, seconds in whole.items():
        ratio = f", {seconds / whole['mean']:.3f} of mean" if "mean" in whole else ""
        print(f"{mode} {name}: {seconds:,.0f} s of training over {', '.join(corpora)}{ratio}")
PY
}

vocabulary='' corpora='sst-5 quora sts' modes='frozen full' epochs=10 batch=32 lr='' data=''
variants='first mean attention uniform joint mse' seeds=1 jobs=1 out=''
options "WORD --vocabulary= --corpora= --modes= --variants= --epochs= --batch= --lr= --data= \
  --seeds= --jobs= --out= --" "$@"
[ ${#WORDS[@]} = 1 ] || die "${#WORDS[@]} checkpoints are given, which is to be one: see --help."
read -ra corpora <<<"$corpora"
for number in epochs batch seeds jobs; do positive "--$number" "${!number}"; done
for corpus in "${corpora[@]}"; do
  [[ "$corpus" =~ ^(sst-5|quora|sts)$ ]] || die "--corpora has '$corpus', not of sst-5 quora sts."
done
for variant in $variants; do flags_of "$variant" sts >/dev/null; done
for mode in $modes; do [[ "$mode" =~ ^(frozen|full)$ ]] || mode_flags "$mode"; done
setup_environment
vocabulary=${vocabulary:-$(dirname "${WORDS[0]}")} out=${out:-$ROOT/checkpoints/task_attention}
encoder_flags "${WORDS[0]}"
require_room "$out" 2000
mapfile -t numbers < <(seq "$seeds")
for corpus in "${corpora[@]}"; do [ -n "$data" ] || corpus_data "$corpus"; done
data=${data:-$ROOT/data-bin} repetitions=$seeds ALL=()

for corpus in "${corpora[@]}"; do
  corpus_task "$corpus"
  count=$(examples "$data/$corpus")
  for mode in $modes; do
    RUNS=()
    study "$corpus" "$mode"
    [ ${#RUNS[@]} -gt 0 ] || continue
    ALL+=("${RUNS[@]}")
    say
    say "$corpus, $mode:"
    compare "$out/$corpus/$mode" "${METRICS[@]}"
  done
done
say
times "${ALL[@]}"
