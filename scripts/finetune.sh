#!/usr/bin/env bash
# Pre-trained encoders compared by fine-tuning them on a labelled corpus.
#
# Papers: attention guidance (Deshpande & Narasimhan 2020), Table 4; doubly-normalised attention (Ding
# et al. 2020), Tables 2, 5 and 6; the fine-tuning that adversarial self-attention (Wu et al. 2023,
# Table 1) starts from.
# Needs: encoders of scripts/pretrain.sh or `fairseq-ext import-hf`, and the files of the corpus in
# $FAIRSEQ_EXT_CORPORA unless data-bin/CORPUS exists.
#
# Usage: bash scripts/finetune.sh CORPUS NAME=CHECKPOINT... [OPTION...] [-- FLAG...]
#
#   CORPUS        a corpus of scripts/prepare_task.sh, which makes data-bin/CORPUS if it is missing
#   NAME=CHECKPOINT  a name and an encoder; $SEED in its path stands for the number of the repetition,
#                 as in mlm/seed-$SEED/checkpoint_last.pt
#   --vocabulary  folder with dict.txt and tokeniser of the encoders (default: that of the first)
#   --settings    learning rate, batch, length and dropout:
#                   small  5e-4, 32, 3 epochs, 10 % warm-up (default; for the _tiny size)
#                   bert   2e-5, 32, 3 epochs, 10 % warm-up (ASA: its paper gives none)
#                   ag     5e-5, 8, 3 epochs, no warm-up, 128 tokens (its paper gives none; these are
#                          of the script that its authors used)
#                   dna    DNA's Table 5, by corpus (-- --tokens-per-sample N for encoders with fewer
#                          positions)
#   --epochs, --lr  replace those of the settings (dna takes --lr alone)
#   --seeds       repetitions (default: 3)
#   --folds       folds of cross-validation (default: 10 for cr, mpqa, mr and subj, else none)
#   --test        also score test.jsonl, at the epoch that is best on valid.jsonl
#   --jobs        trainings side by side (default: 1)
#   --data        replaces data-bin/CORPUS
#   --out         folder of runs and table (default: checkpoints/finetune/CORPUS)
#   FLAG          flags of fairseq-train, e.g. --fp16, --freeze-encoder, --pooling mean
#
# A second run of the same command continues where the first was interrupted. The epoch that is best
# on valid.jsonl counts, as in development scores of DNA's paper; in cross-validation only the last epoch
# is validated.
#
# Expected: AG's Table 4 and DNA's Table 6, at their sizes. Our scores with encoders trained on six
# books: docs/results/.
# Cost: 1 to 5 minutes on one core for each training, with the _tiny size.

. "$(dirname "$0")/lib/finetuning.sh"

# Table 5 of Ding et al. 2020: learning rate, batch, dropout of the encoder, steps, warm-up, length;
# sts is another split of sts-b.
TABLE5="\
squad-1.1 5e-5 48 0 3649 365 384
squad-2.0 3e-5 48 0 8144 814 512
race 1e-5 32 0 12000 1000 512
cola 1e-5 16 0 5336 320 512
sts-b 2e-5 16 0 3598 214 512
sts 2e-5 16 0 3598 214 512
sst-2 1e-5 32 0 20935 1256 512
mnli 3e-5 128 0 10000 1000 512
qnli 1e-5 32 0 33112 1986 512
qqp 5e-5 128 .1 14000 1000 512
rte 3e-5 32 .1 800 200 512
mrpc 2e-5 32 0 800 200 512
wnli 2e-5 16 .1 2000 250 512"

# set_flags SETTINGS CORPUS: set FLAGS.
set_flags() {
  local row rate size drop steps warm length
  case "$1" in
  small | bert)
    rate=2e-5
    [ "$1" = bert ] || rate=5e-4
    set_training_flags "$count" "${epochs:-3}" "${lr:-$rate}" 32
    add_linear_schedule $((UPDATES / 10))
    ;;
  ag)
    set_training_flags "$count" "${epochs:-3}" "${lr:-5e-5}" 8
    add_linear_schedule 0
    FLAGS+=(--tokens-per-sample 128)
    ;;
  dna)
    row=$(grep "^$2 " <<<"$TABLE5") || die "--settings dna has none for '$2': give others."
    read -r _ rate size drop steps warm length <<<"$row"
    set_training_flags "$count" 1 "${lr:-$rate}" "$size" "$steps"
    add_linear_schedule "$warm"
    FLAGS+=(--tokens-per-sample "$length" --dropout "$drop" --attention-dropout "$drop"
      --pooler-dropout .1)
    ;;
  *) die "--settings is '$1' and must be small, bert, ag or dna." ;;
  esac
}

# score_test: add the test part to what is validated, and its METRIC to METRICS as the first one.
score_test() {
  [ -e "$data/test.jsonl" ] || die "--test is given, and '$data' has no test.jsonl: leave it out."
  FLAGS+=(--valid-subset valid,test) BY="test.$METRIC $METRIC"
  METRICS=("test.$METRIC" "${METRICS[@]}")
}

read_options "WORD --vocabulary= --settings=small --epochs# --lr= --seeds#3 --folds# --test --jobs#1 --data= \
  --out= --" "$@"
corpus=${WORDS[0]:-} encoders=("${WORDS[@]:1}")
[ ${#encoders[@]} -gt 0 ] || die "No encoder is given: see 'bash $0 --help'."
for encoder in "${encoders[@]}"; do
  [[ "$encoder" == *?=?* ]] || die "'$encoder' is no encoder: give NAME=CHECKPOINT."
done
case "$corpus" in cr | mpqa | mr | subj) folds=${folds:-10} ;; esac
[ "$settings" != dna ] || [ -z "$epochs" ] ||
  die "--epochs is '$epochs' and not for --settings dna, whose length is in updates: leave it out."
[ -z "$test" ] || [ -z "$folds" ] ||
  die "--test is for a test part, and --folds is $folds: leave one of them out."
setup_environment
set_task "$corpus"
[ -n "$data" ] || prepare_corpus "$corpus"
data=${data:-$DATA} out=${out:-$PLACE/checkpoints/finetune/$corpus}
count=$(count_examples "$data")
[ -z "$folds" ] || count=$((count - count / folds))
first=${encoders[0]#*=}
vocabulary=${vocabulary:-$(dirname "$first")}
require_room "$out" 500

set_flags "$settings" "$corpus"
[ -z "$folds" ] || FLAGS+=(--validate-interval 1000)
[ -z "$test" ] || score_test
VARIANTS=()
for encoder in "${encoders[@]}"; do
  set_encoder "${encoder#*=}"
  VARIANTS+=("${encoder%%=*}=${ENCODER[*]@Q}")
done
study "${VARIANTS[@]}" -- --vocabulary "$vocabulary" "${FLAGS[@]}"
compare "${METRICS[@]}"
