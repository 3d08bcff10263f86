# Functions of recipes that train on labelled text.

. "$(dirname "${BASH_SOURCE[0]}")/study.sh"

# set_task CORPUS: set TASK, METRIC (a logged metric, the higher the better), METRICS (of tables) and
# PREDICTED (those of them that can be computed from answers), by the table of corpora.
set_task() {
  TASK=$(python -m fairseq_ext.prepare.corpora --list | awk -v name="$1" '$1 == name { print $2 }')
  case "$TASK" in
  sentence_classification) METRIC=accuracy METRICS=(accuracy f1 mcc) ;;
  sentence_regression) METRIC=pearson METRICS=(pearson spearman) ;;
  multiple_choice) METRIC=accuracy METRICS=(accuracy) ;;
  sequence_tagging) METRIC=f1 METRICS=(f1 token_f1) ;;
  span_extraction) METRIC=f1 METRICS=(exact_match f1) ;;
  *) die "The corpus is '$1': see 'bash $0 --help' for those that there are." ;;
  esac
  PREDICTED=("${METRICS[@]}")
  case "$TASK" in
  sentence_regression) PREDICTED=(pearson) ;; # ranks are no sums over examples
  span_extraction) PREDICTED=() ;;
  esac
}

# prepare_corpus NAME: set DATA, the folder of a corpus in data-bin, and make it if it is missing.
prepare_corpus() {
  DATA=$PLACE/data-bin/$1
  [ -e "$DATA" ] || bash "$SCRIPTS/prepare_task.sh" "$1" "$DATA"
}

# count_examples FOLDER: print the number of training examples.
count_examples() {
  [ -f "$1/train.jsonl" ] ||
    die "--data is '$1', which has no train.jsonl: give a folder of scripts/prepare_task.sh."
  awk 'END { print NR }' "$1/train.jsonl"
}

# take_examples FOLDER OUT: set data to FOLDER, or with --examples to OUT, which gets some of the
# training examples in FOLDER, at even distances, and all of the rest.
take_examples() {
  data=$1
  [ -n "$examples" ] || return 0
  data=$2
  python -m fairseq_ext.prepare.hold_out "$1" "$2" --take "$examples"
}

# hold_out FOLDER OUT: set data to OUT, which has every tenth training example of FOLDER for
# validation.
hold_out() {
  data=$2
  python -m fairseq_ext.prepare.hold_out "$1" "$2" --every 10
}

# judge_last_epoch: validate nothing while models are trained; let each answer the validation part
# when it is done. Change FLAGS, and set METRICS and TESTS to those of the answers.
judge_last_epoch() {
  [ ${#PREDICTED[@]} -gt 0 ] ||
    die "--last is not for $TASK, whose answers have no score: leave it out."
  FLAGS+=(--disable-validation)
  PREDICT=(valid) TESTS='bootstrap-seeds t'
  METRICS=("${PREDICTED[@]/#/predicted.valid.}")
}

# set_encoder CHECKPOINT: set ENCODER, the flags of a fine-tuning that starts from an encoder, with
# its attention but without adversaries; the last one is the architecture. The path may have $SEED
# in it.
set_encoder() {
  local flags seed
  for ((seed = 2; seed <= ${seeds:-1}; seed++)); do
    [ "${1//\$SEED/$seed}" = "$1" ] || [ -f "${1//\$SEED/$seed}" ] ||
      die "'${1//\$SEED/$seed}' is not there, with which seed $seed would begin: give a checkpoint" \
        "for each of $seeds --seeds."
  done
  flags=$(python -m fairseq_ext.tools.recipes encoder-flags "${1//\$SEED/1}") || exit 1
  mapfile -t ENCODER <<<"$flags"
  ENCODER=(--finetune-from-model "$1" "${ENCODER[@]}")
}

# set_training_flags EXAMPLES EPOCHS LR BATCH [UPDATES]: set UPDATES, those of EPOCHS unless they
# are given, and FLAGS, which lack a learning-rate schedule. Batches are as many as UPDATES counts: by
# default fairseq cuts the last one, of 26 say, into 24 and 2.
set_training_flags() {
  UPDATES=${5:-$((($1 + $4 - 1) / $4 * $2))}
  FLAGS=(--task "$TASK" --criterion "$TASK" --optimizer adam --adam-betas '(0.9,0.999)'
    --adam-eps 1e-8 --weight-decay 0.01 --clip-norm 1 --lr "$3" --max-update "$UPDATES"
    --batch-size "$4" --required-batch-size-multiple 1
    --best-checkpoint-metric "$METRIC" --maximize-best-checkpoint-metric
    --no-epoch-checkpoints --log-interval 50 --distributed-world-size 1 --num-workers 0)
}

# add_linear_schedule WARMUP: add a linear decay to FLAGS, after WARMUP updates of warm-up.
add_linear_schedule() {
  FLAGS+=(--lr-scheduler polynomial_decay --total-num-update "$UPDATES" --warmup-updates "$1")
}
