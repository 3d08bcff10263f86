#!/usr/bin/env bash
# Task-specific attention on a pre-trained encoder: sentiment (SST-5), paraphrase (Quora) and
# similarity (STS), one model for each.
#
# Paper: Jia 2024, Tables 1 to 3.
# Needs: an encoder of scripts/pretrain.sh or `fairseq-ext import-hf` (fairseq's own work too), and the
# files of the corpora in $FAIRSEQ_EXT_CORPORA unless they are in data-bin.
#
# Usage: bash scripts/task_attention.sh CHECKPOINT [OPTION...] [-- FLAG...]
#
#   CHECKPOINT    the encoder
#   --vocabulary  folder with its dict.txt and tokeniser (default: that of CHECKPOINT)
#   --corpora     some of 'sst-5 quora sts' (default: all), made in data-bin if they are missing
#   --modes       frozen (lr 1e-3, the encoder stays as it is), full (lr 1e-5), or both (default)
#   --variants    some of (default: first mean attention uniform joint mse, as far as the corpus has
#                 them)
#                   first      the first token of each sentence alone
#                   mean       the mean over tokens: the paper's baseline
#                   attention  n blocks of attention, 2 for sst-5, 1 for quora, 3 for sts
#                   uniform    the same, every weight from U(0.9, 1): the paper's 'initialised'
#                   residual, norm, bias  attention whose blocks add their input, are normalised, or
#                              whose maps have biases: not named in the paper
#                   all, uniform-all  attention, uniform with all three
#                   joint      both sentences in one row, first token: not in the paper
#                   mse        mean, with squared error instead of negative correlation (sts)
#   --epochs      length of each training (default: 10, as in the paper)
#   --batch       examples of a batch (default: 32; the paper gives none)
#   --lr          replaces that of the mode
#   --data        folder with the corpora, in place of data-bin
#   --examples    how many training examples are taken, at even distances (default: all)
#   --last        let the last epoch decide, where the best one of the validation part does: nothing is
#                 validated before, and differences from the first variant are tested by a bootstrap
#                 over examples and seeds too
#   --seeds, --jobs  repetitions (default: 1), trainings side by side (default: 1)
#   --out         folder of runs and tables (default: checkpoints/task_attention)
#   FLAG          flags of fairseq-train, e.g. --fp16
#
# A second run of the same command continues where the first was interrupted. Variants of which a
# training ends with numbers that are not finite, as uniform's do, are left out of the table; OUT has
# how many in diverged.txt.
#
# Expected with BERT-base, development sets (sentiment accuracy, paraphrase accuracy, correlation):
#   frozen  first .389 .401 .298  mean .460 .386 .643  attention .253 .469 .251  uniform .262 .429 .148
#   full    first .504 .595 .587  mean .515 .561 .854  attention .509 .843 .822  uniform .539 .838 .386
# and 1.08 to 1.16 of the training time of mean. Our scores: docs/results/.
# Cost: with BERT-base on one GPU some 60 hours for the paper's four (its own, on a T4); with MiniLM on
# one core, in bf16 where it has instructions for it, 10 s (frozen) or 18 to 28 s (full) for an epoch of
# 2,000 examples; in float32 without them 30 to 50 s (frozen).

. "$(dirname "$0")/lib/finetuning.sh"

# variant_flags VARIANT CORPUS: print the flags of a variant, nothing if the corpus does not have it.
variant_flags() {
  local apart='--pairs apart' pearson='--regression-loss pearson' base
  [ "$2" != sst-5 ] || apart=''
  [ "$2" = sts ] || pearson=''
  [ -n "$apart" ] || apart='--output linear'
  case "$1" in
  first | mean) say "$apart $pearson --pooling $1" ;;
  attention) say "$apart $pearson --pooling attention" ;;
  uniform) say "$apart $pearson --pooling attention --task-init uniform:0.9,1" ;;
  residual | norm | bias) say "$(variant_flags attention "$2") --task-attention-$1" ;;
  all | uniform-all)
    if [ "$1" = all ]; then base=attention; else base=uniform; fi
    say "$(variant_flags "$base" "$2")" --task-attention-{residual,norm,bias}
    ;;
  joint) [ "$2" = sst-5 ] || say "$pearson --pooling first" ;;
  mse) [ "$2" != sts ] || say "$apart --pooling mean" ;;
  *) die "--variants has '$1' and must be some of first mean attention uniform residual norm bias" \
    "all uniform-all joint mse." ;;
  esac
}

# set_mode_flags MODE: set FLAGS.
set_mode_flags() {
  case "$1" in
  frozen) set_training_flags "$count" "$epochs" "${lr:-1e-3}" "$batch" ;;
  full) set_training_flags "$count" "$epochs" "${lr:-1e-5}" "$batch" ;;
  *) die "--modes has '$1' and must be some of frozen full." ;;
  esac
  FLAGS+=(--lr-scheduler fixed)
  [ "$1" = full ] || FLAGS+=(--freeze-encoder)
}

# train CORPUS MODE: train those of the variants that the corpus has, and print their table.
train() {
  local variant flags out=$out/$1/$2 selected=()
  for variant in $variants; do
    flags=$(variant_flags "$variant" "$1") || exit 1
    [ -z "$flags" ] || selected+=("$variant=$flags")
  done
  [ ${#selected[@]} -gt 0 ] || return 0
  RUNS=()
  set_mode_flags "$2"
  METRICS=("${LOGGED[@]}")
  [ -z "$last" ] || judge_last_epoch
  study "${selected[@]}" -- --vocabulary "$vocabulary" "${ENCODER[@]}" "${FLAGS[@]}" ||
    leave_out_diverged $?
  [ ${#RUNS[@]} -gt 0 ] || return 0
  ALL_RUNS+=("${RUNS[@]}")
  say
  say "$1, $2:"
  compare "${METRICS[@]}"
}

read_options "WORD --vocabulary= --corpora= --modes= --variants= --epochs#10 --batch#32 --lr= --data= \
  --examples# --last --seeds#1 --jobs#1 --out= --" "$@"
modes=${modes:-frozen full} variants=${variants:-first mean attention uniform joint mse}
[ ${#WORDS[@]} = 1 ] || die "${#WORDS[@]} checkpoints are given, which is to be one: see --help."
read -ra corpora <<<"${corpora:-sst-5 quora sts}"
for corpus in "${corpora[@]}"; do
  [[ "$corpus" =~ ^(sst-5|quora|sts)$ ]] || die "--corpora has '$corpus', not of sst-5 quora sts."
done
for variant in $variants; do variant_flags "$variant" sts >/dev/null; done
for mode in $modes; do [[ "$mode" =~ ^(frozen|full)$ ]] || set_mode_flags "$mode"; done
setup_environment
vocabulary=${vocabulary:-$(dirname "${WORDS[0]}")} out=${out:-$PLACE/checkpoints/task_attention}
set_encoder "${WORDS[0]}"
require_room "$out" 2000
for corpus in "${corpora[@]}"; do [ -n "$data" ] || prepare_corpus "$corpus"; done
corpora_folder=${data:-$PLACE/data-bin} ALL_RUNS=()

for corpus in "${corpora[@]}"; do
  set_task "$corpus"
  LOGGED=("${METRICS[@]}")
  take_examples "$corpora_folder/$corpus" "$out/$corpus/examples-$examples"
  count=$(count_examples "$data")
  for mode in $modes; do train "$corpus" "$mode"; done
done
say
python -m fairseq_ext.tools.recipes training-times "${ALL_RUNS[@]}"
