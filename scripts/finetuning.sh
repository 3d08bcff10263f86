# What recipes of fine-tuning share: source this after lib.sh.

# corpus_task NAME: sets TASK, METRIC (of the log, the higher the better) and METRICS, by the table
# of corpora.
corpus_task() {
  TASK=$(python -m fairseq_ext.prepare.corpora --list | awk -v name="$1" '$1 == name { print $2 }')
  case "$TASK" in
  sentence_classification) METRIC=accuracy METRICS=(accuracy f1 mcc) ;;
  sentence_regression) METRIC=pearson METRICS=(pearson spearman) ;;
  multiple_choice) METRIC=accuracy METRICS=(accuracy) ;;
  sequence_tagging) METRIC=f1 METRICS=(f1 token_f1) ;;
  span_extraction) METRIC=f1 METRICS=(exact_match f1) ;;
  *) die "The corpus is '$1': see 'bash $0 --help' for those that there are." ;;
  esac
}

# corpus_data NAME: its folder in data-bin, made if it is not there; sets DATA.
corpus_data() {
  DATA=$ROOT/data-bin/$1
  [ -e "$DATA" ] || bash "$ROOT/scripts/prepare_task.sh" "$1" "$DATA"
}

# repeated FOLDER SEEDS [FOLDS]: adds the repetitions of a variant to RUNS, as sweep names them.
repeated() {
  local seed fold several=''
  for seed in $(seq "$2"); do
    [ "$2" = 1 ] || several=seed-$seed-
    if [ -z "${3:-}" ]; then
      RUNS+=("$1/seed-$seed")
    else
      for fold in $(seq "$3"); do RUNS+=("$1/${several}fold-$fold"); done
    fi
  done
}

# examples FOLDER: how many there are to train on.
examples() { awk 'END { print NR }' "$1/train.jsonl"; }

# encoder_flags CHECKPOINT: sets ENCODER, the flags of a fine-tuning that starts from it, which may
# have $SEED in its path: its attention, but no adversaries; the last one is the architecture.
encoder_flags() {
  local found
  found=$(
    python - "${1//\$SEED/1}" <<'PY'
import logging, sys

logging.disable()
from fairseq_ext.errors import UsageError
from fairseq_ext.models.architectures import MECHANISMS
from fairseq_ext.models.options import DEFAULTS
from fairseq_ext.models.pretrained import read_model_options

options = read_model_options(sys.argv[1])
if not options:
    raise UsageError(f"there is no checkpoint {sys.argv[1]}; give the path of an encoder")
arch = (options.get("_name") or options.get("arch") or "").split("_")
mechanism = arch[1] if arch[0] == "roberta" and arch[1:2] in (["dna"], ["hna"]) else "una"
KEPT = ("encoder_normaliser", "sinkhorn_sweeps", "encoder_gaussian_heads")
KEPT += ("encoder_gaussian_offsets", "gaussian_sigma", "encoder_roles", "role_definitions")
preset = DEFAULTS | MECHANISMS[mechanism]
for name in (*KEPT, "head_gate"):
    value, flag = options.get(name, preset[name]), "--" + name.replace("_", "-")
    if str(value) != str(preset[name]):
        print(flag if value is True else f"{flag}={value}")
print(f"--arch\nroberta_{mechanism}")
PY
  ) || exit 1
  mapfile -t ENCODER <<<"$found"
  ENCODER=(--finetune-from-model "$1" "${ENCODER[@]}")
}

# training_flags EXAMPLES EPOCHS LR BATCH [UPDATES]: sets FLAGS, for so many epochs or updates, and
# UPDATES; a schedule is to be added.
training_flags() {
  UPDATES=${5:-$((($1 + $4 - 1) / $4 * $2))}
  FLAGS=(--task "$TASK" --criterion "$TASK" --optimizer adam --adam-betas '(0.9,0.999)'
    --adam-eps 1e-8 --weight-decay 0.01 --clip-norm 1 --lr "$3" --max-update "$UPDATES"
    --batch-size "$4" --best-checkpoint-metric "$METRIC" --maximize-best-checkpoint-metric
    --no-epoch-checkpoints --log-interval 50 --distributed-world-size 1 --num-workers 0)
}

# linear_schedule WARMUP: adds that to FLAGS, with so many updates of warm-up.
linear_schedule() {
  FLAGS+=(--lr-scheduler polynomial_decay --total-num-update "$UPDATES" --warmup-updates "$1")
}

# compare OUT METRIC...: the table of RUNS, with a t-test against the first variant, or BASELINE, if
# there are others, and repetitions.
compare() {
  local out=$1 tests=() variants
  shift
  variants=$(printf '%s\n' "${RUNS[@]%/*}" | sort -u | wc -l)
  [ "$repetitions" = 1 ] || [ "$variants" = 1 ] ||
    tests=(--test t ${BASELINE:+--baseline "$BASELINE"})
  python -m fairseq_ext.cli table "${tests[@]}" --output "$out/table${BASELINE:+-$BASELINE}.txt" --metric "$@" \
    -- "${RUNS[@]}"
  say
  cat "$out/table${BASELINE:+-$BASELINE}.txt"
}
