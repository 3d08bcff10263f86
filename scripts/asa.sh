#!/usr/bin/env bash
# Adversarial self-attention (ASA), compared with its baselines and a control.
#
# Paper: Adversarial Self-Attention for Language Understanding (Wu et al. 2023), Tables 1 to 4 and
# Figures 4b and 5.
# Needs: an encoder of scripts/pretrain.sh or `fairseq-ext import-hf`, and the files of the corpus in
# $FAIRSEQ_EXT_CORPORA unless it is in data-bin; for translate Multi30k alone.
#
# Usage: bash scripts/asa.sh EXPERIMENT [OPTION...] [-- FLAG...]
#
#   finetune CORPUS CHECKPOINT  an encoder fine-tuned naively, with two passes that mask nothing (the
#                control), random masks, noise on embeddings, and adversaries (Tables 1 to 4, Figure 5)
#   tau CORPUS CHECKPOINT  adversaries with several values of tau (Figure 4b)
#   choose CORPUS CHECKPOINT  which learning rate suits naive fine-tuning (1, 2, 4 or 8 times --lr) and
#                then, at that one, which tau suits adversaries, by the last epoch on every tenth
#                training example, held out before --examples takes some of the others; OUT/chosen.txt
#                has both, for --chosen of finetune
#   pretrain CHECKPOINT  a masked language model whose training continues with and without adversaries
#                (Table 1, rows 3 and 4); compare both with scripts/finetune.sh, which uses none
#   translate    a translation model with and without adversaries in its encoder, and the control
#                (not in the paper)
#
#   CORPUS       a corpus of scripts/prepare_task.sh, made in data-bin if it is missing
#   CHECKPOINT   an encoder, for pretrain one of scripts/pretrain.sh; $SEED in its path stands for the
#                number of the repetition
#   --seeds      repetitions (default: 3, choose: 1; the paper: 3 for GLUE, 5 elsewhere)
#   --jobs       trainings side by side (default: 1)
#   --data       data to use instead of those in data-bin (CORPUS, for pretrain books, for translate
#                Multi30k)
#   --asa        flags of trainings with adversaries alone, as in --asa '--asa-layers upper'
#   --out        folder of runs and table (default: checkpoints/asa/EXPERIMENT/ and the corpus, or the
#                name of the data with the size)
#   FLAG         flags of fairseq-train for all trainings, e.g. --fp16
# Options of finetune, tau and choose:
#   --vocabulary folder with dict.txt and tokeniser of the encoder (default: that of CHECKPOINT)
#   --epochs     length of each training (default: 3)
#   --lr         default: 1e-5, and 5e-5 for tagging; give small encoders a higher one
#   --examples   how many training examples are taken, at even distances (default: all)
# Options of tau and choose:
#   --taus       the values of tau (default: '.3 .6 1', choose: '.3 1 3 10')
# Options of finetune and tau:
#   --last       let the last epoch decide, where the best one of the validation part does: nothing is
#                validated before, and differences from the first variant are tested by a bootstrap
#                over examples and seeds too
# Options of finetune:
#   --variants   default: 'naive two_pass bernoulli-.05 bernoulli-.1 freelb-2 asa'; also rdrop (weight
#                1), magnitude, freelb-K, smart-K, bernoulli-RATE, asa-TAU, asa-released (the settings
#                of the authors' code), two_pass-released (the control of it, with its divergence), and
#                scheduled, which needs one with adversaries: it has the rates of the last of them
#   --chosen     file of choose: its learning rate is that of all variants, unless --lr is given, and
#                its tau that of the variant asa-chosen
#   --transfer   a corpus with the same labels, on whose validation part models are tested too, as
#                paws-wiki after quora (Table 2), classes by Matthews' correlation
# Options of pretrain and translate:
#   --updates    length of each training (default: 1000 of pretrain, 1800 of translate)
#   --lr         of pretrain (default: 1e-4)
#   --size       size of the models: that of CHECKPOINT, or of a new one (default: _tiny)
#
# A second run of the same command continues where the first was interrupted. Settings are those of
# the authors' code: batches of 32 (16 of multiple choice), warm-up of 6 % (10 % for tagging), 128
# tokens, no clipping; but weight decay is on all parameters, where they leave out biases and LayerNorm,
# and the head is new and has no dropout. Adversaries differ from theirs, but those of asa-released, as
# docs/mechanisms/asa.md says.
#
# Expected: BERT-base gains 1 to 2 points by ASA on the tasks of Table 1 (SST-2 93.2 -> 94.1, DREAM
# 62.9 -> 64.3, WNUT-17 47.8 -> 49.8 F1 of tokens). Ours, MiniLM on the sentences of SST-2: naive
# 87.6, two passes 88.3, FreeLB-2 89.3, ASA 86.7, with tau 1 88.5 (3 seeds, docs/results/).
# Cost: by its operations a training with adversaries takes 2.1 times as long as a naive one. MiniLM on
# sentences of SST-2, bf16, seconds of one core for an update: naive .31, two passes and R-Drop .57, ASA
# .66, SMART-1 .98, and asa-released 3.4, since it pads rows to 128 tokens (MRPC .64, 1.23 and 3.5).

. "$(dirname "$0")/lib/finetuning.sh"

# variant_flags NAME: print the flags of a variant of fine-tuning.
variant_flags() {
  local flags baseline="--criterion ${TASK}_asa --asa-baseline"
  case "$1" in
  naive) say "--criterion $TASK" ;;
  asa) say "--criterion ${TASK}_asa --asa-layers all $asa" ;;
  asa-released) say "$(variant_flags asa) --asa-preset released" ;;
  asa-chosen)
    [ -n "$chosen_tau" ] || die "--variants has asa-chosen without --chosen, a file of choose."
    say "$(variant_flags asa) --asa-tau $chosen_tau"
    ;;
  asa-*) say "$(variant_flags asa) --asa-tau ${1#*-}" ;;
  rdrop) say "--criterion ${TASK}_rdrop --rdrop-alpha 1" ;;
  two_pass | magnitude) say "$baseline $1" ;;
  two_pass-released)
    flags="$baseline two_pass --asa-divergence symmetric"
    [ "$TASK" != sequence_tagging ] || flags+=' --asa-tagging tokens'
    [ "$TASK" != sentence_regression ] || flags+=' --asa-regression batch'
    say "$flags"
    ;;
  scheduled)
    [ ${#adversarial[@]} -gt 0 ] ||
      die "--variants has scheduled without asa or another with adversaries, whose rates it takes."
    say "$baseline scheduled --asa-log ${out@Q}/${adversarial[-1]}/seed-\$SEED"
    ;;
  bernoulli-*) say "$baseline bernoulli --asa-rate ${1#*-}" ;;
  freelb-* | smart-*) say "$baseline ${1%-*} --asa-steps ${1#*-}" ;;
  *) die "--variants has '$1': see 'bash scripts/asa.sh --help' for those that there are." ;;
  esac
}

# read_chosen: set chosen_tau, and lr unless it is given, to those of $chosen.
read_chosen() {
  [ -f "$chosen" ] || die "--chosen is '$chosen', which is not there: make it with choose."
  chosen_tau=$(sed -n 's/^tau //p' "$chosen") lr=${lr:-$(sed -n 's/^lr //p' "$chosen")}
  [ -n "$chosen_tau" ] && [ -n "$lr" ] ||
    die "--chosen is '$chosen', which has no 'lr' or no 'tau': give a file of choose."
}

# set_finetuning_flags: set FLAGS, as in the authors' code.
set_finetuning_flags() {
  local rate=1e-5 batch=32 warm=6 decay=.01
  case "$TASK" in
  sequence_tagging)
    rate=5e-5 warm=10 decay=0
    METRICS=(token_f1 f1) PREDICTED=(token_f1 f1) # the paper's first
    ;;
  multiple_choice) batch=16 decay=0 ;;
  esac
  set_training_flags "$count" "$epochs" "${lr:-$rate}" "$batch"
  add_linear_schedule $((UPDATES * warm / 100))
  FLAGS+=(--clip-norm 0 --weight-decay "$decay" --tokens-per-sample 128
    --log-interval $((UPDATES / 30 + 1))) # rates for scheduled
  [ -z "$last" ] || judge_last_epoch
  [ -z "$transfer" ] || test_transfer
}

# check_transfer: refuse --transfer to a corpus of another task, or whose answers have no score.
check_transfer() {
  local task
  task=$(set_task "$transfer" && say "$TASK") || exit 1
  [ "$task" = "$TASK" ] ||
    die "--transfer is '$transfer', a corpus for $task: give one for $TASK."
  [ ${#PREDICTED[@]} -gt 0 ] || die "--transfer is not for $TASK, whose answers have no score."
}

# check_labels: make $transfer if it is missing, and refuse it if it has labels that $data has not.
check_labels() {
  prepare_corpus "$transfer"
  [ "$TASK" = sentence_regression ] ||
    python -m fairseq_ext.tools.recipes check-labels "$TASK" "$data/train.jsonl" \
      "$DATA/valid.jsonl"
}

# test_transfer: let models answer the validation part of $transfer too, and add it to METRICS and BY.
test_transfer() {
  BY=${METRICS[0]}
  PREDICT+=("$transfer=$PLACE/data-bin/$transfer/valid.jsonl")
  METRICS+=("${PREDICTED[@]/#/predicted.$transfer.}")
  BY+=" predicted.$transfer.${PREDICTED[-1]}"
}

# train NAME=FLAGS...: fine-tune variants of the encoder.
train() { study "$@" -- --vocabulary "$vocabulary" "${ENCODER[@]}" "${FLAGS[@]}"; }

# compare_with CONTROL METRIC...: print the table once more, since ASA has to gain something over two
# passes that mask nothing.
compare_with() { [ "$seeds" = 1 ] || BASELINE=$1 compare "${@:2}"; }

# draw_masking NAME...: draw the shares of units that adversaries mask, in RUNS of these variants.
draw_masking() {
  keep_variants "$@"
  say
  python -m fairseq_ext.cli masking --out "$out/masked.png" "${RUNS[@]}"
  say "Picture of the masked units: $out/masked.png"
}

finetune() {
  local name flags now=() late=() adversarial=()
  for name in $variants; do [[ "$name" != asa* ]] || adversarial+=("$name"); done
  for name in $variants; do
    flags=$(variant_flags "$name") || exit 1
    if [ "$name" = scheduled ]; then late=("$name=$flags"); else now+=("$name=$flags"); fi
  done
  train "${now[@]}"
  [ ${#late[@]} = 0 ] || train "${late[@]}"
  compare "${METRICS[@]}"
  for name in two_pass two_pass-released; do
    # shellcheck disable=SC2086 # words
    [[ " $variants " != *" $name "* ]] || compare_with "$name" ${BY:-${METRICS[0]}}
  done
  [ ${#adversarial[@]} = 0 ] || draw_masking "${adversarial[@]}"
}

# choose_variant FOLDER NAME=FLAGS...: train variants in a folder of OUT, and set BEST to the name of the
# best one.
choose_variant() {
  local out=$out/$1
  RUNS=()
  train "${@:2}"
  compare "${METRICS[@]}"
  BEST=$(print_best "${METRICS[0]}" highest "${RUNS[@]}") || exit
}

choose() {
  local base times value rate variants=()
  base=$(printf '%s\n' "${FLAGS[@]}" | sed -n '/^--lr$/{n;p;}')
  for times in 1 2 4 8; do
    rate=$(awk -v base="$base" -v times="$times" 'BEGIN { printf "%g", base * times }')
    variants+=("naive-$rate=$(variant_flags naive) --lr $rate")
  done
  choose_variant lr "${variants[@]}"
  rate=${BEST#naive-} variants=()
  for value in $taus; do variants+=("asa-$value=$(variant_flags "asa-$value") --lr $rate"); done
  choose_variant tau "${variants[@]}"
  printf '%s\n' "lr $rate" "tau ${BEST#asa-}" >"$out/chosen.txt"
  say "Chosen: $(paste -sd, "$out/chosen.txt"), in $out/chosen.txt"
}

tau() {
  local value variants=()
  for value in $taus; do variants+=("tau-$value=$(variant_flags asa) --asa-tau $value"); done
  train "${variants[@]}"
  compare "${METRICS[@]}"
  draw_masking "${variants[@]%%=*}"
}

pretrain() {
  FLAGS=(--task masked_lm --optimizer adam --adam-betas '(0.9,0.98)' --adam-eps 1e-6
    --weight-decay 0.01 --lr "${lr:-1e-4}" --lr-scheduler polynomial_decay --warmup-updates 0
    --total-num-update "$updates" --max-update "$updates" --batch-size 16 --tokens-per-sample 128
    --skip-invalid-size-inputs-valid-test --validate-interval-updates $((updates / 5 + 1))
    --save-interval-updates $((updates / 5 + 1)) --keep-interval-updates 1 --no-epoch-checkpoints
    --log-interval $((updates / 30 + 1)) --distributed-world-size 1 --num-workers 0)
  study "plain=--criterion masked_lm" "asa=--criterion masked_lm_asa --asa-layers all $asa" -- \
    "${ENCODER[@]}" "${FLAGS[@]}"
  BY=loss compare train.loss loss
  draw_masking asa
}

translate() {
  local criterion='--criterion label_smoothed_cross_entropy_asa'
  set_translation_flags "$updates" test
  study "base=--arch transformer_una$size" "asa=--arch transformer_asa$size $criterion $asa" \
    "two_pass=--arch transformer_una$size $criterion --asa-baseline two_pass" -- \
    "${FLAGS[@]}"
  compare bleu valid.nll_loss train.nll_avg "${SCORING[@]}"
  compare_with two_pass bleu "${SCORING[@]}"
  draw_masking asa
}

last='' chosen='' chosen_tau='' transfer='' usual_taus='.3 .6 1'
labelled='--vocabulary= --epochs#3 --lr= --examples#'
case "${1:-}" in
finetune) accepted="$labelled --variants= --last --chosen= --transfer=" words=3 ;;
tau) accepted="$labelled --taus= --last" words=3 ;;
choose) accepted="$labelled --taus= --seeds#1" words=3 last=yes usual_taus='.3 1 3 10' ;;
pretrain) accepted='--updates#1000 --lr= --size=_tiny' words=2 ;;
translate) accepted='--updates#1800 --size=_tiny' words=1 ;;
-h | --help) usage ;;
*) die "The experiment is '${1:-}' and must be finetune, tau, choose, pretrain or" \
  "translate." ;;
esac
read_options "WORD --seeds#3 --jobs#1 --data= --asa= --out= -- $accepted" "$@"
experiment=$1 checkpoint=${WORDS[-1]} taus=${taus:-$usual_taus}
variants=${variants:-naive two_pass bernoulli-.05 bernoulli-.1 freelb-2 asa}
[ ${#WORDS[@]} = $words ] ||
  die "$experiment needs $((words - 1)) words after it: see 'bash scripts/asa.sh --help'."

case "$experiment" in
translate)
  prepare_study asa/translate test
  ;;
pretrain)
  setup_environment
  set_encoder "$checkpoint"
  ENCODER[-1]+=$size
  [ -n "$data" ] || bash "$SCRIPTS/prepare_mlm.sh" books "$PLACE/data-bin/books"
  data=${data:-$PLACE/data-bin/books}
  [ -e "$data/train.idx" ] ||
    die "--data is '$data', which has no train.idx: give a folder of scripts/prepare_mlm.sh."
  out=${out:-$PLACE/checkpoints/asa/pretrain/$(basename "$data")$size}
  ;;
*)
  setup_environment
  set_task "${WORDS[1]}"
  [ -z "$transfer" ] || check_transfer
  set_encoder "$checkpoint"
  [ -n "$data" ] || { prepare_corpus "${WORDS[1]}" && data=$DATA; }
  [ -z "$transfer" ] || check_labels
  [ -z "$chosen" ] || read_chosen
  out=${out:-$PLACE/checkpoints/asa/$experiment/${WORDS[1]}}
  vocabulary=${vocabulary:-$(dirname "$checkpoint")}
  [ "$experiment" != choose ] || hold_out "$data" "$out/held-out"
  take_examples "$data" "$out/examples-$examples"
  count=$(count_examples "$data")
  set_finetuning_flags
  ;;
esac
require_room "$out" 500
"$experiment"
