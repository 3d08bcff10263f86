# Functions of recipes that train variants and compare them.

. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

RUNS=() # folders of all trainings so far
unset BASELINE BY TESTS GENERATE AVERAGE folds # which a user may have exported
PREDICT=()

# read_study_options SEEDS NAMES ARGUMENT...: read the options that translation studies share, and
# those in NAMES, as `read_options` does. Set data, size, updates, seeds (default: SEEDS), jobs and
# out.
read_study_options() {
  read_options "--data= --size=_tiny --updates#1800 --seeds#$1 --jobs#1 --out= -- $2" "${@:3}"
  case "$size" in
  '' | _tiny | _today_tiny | _today_base | _iwslt_de_en | _wmt_en_de | _wmt_en_de_big | _gigaword) ;;
  *) die "--size is '$size' and must be _tiny, _today_tiny, _today_base, _iwslt_de_en, _wmt_en_de, _wmt_en_de_big," \
    "_gigaword or ''." ;;
  esac
}

# prepare_study NAME SPLIT [CORPUS]: set the environment and the data up, those of CORPUS (default:
# multi30k.en-de) unless --data is given. Set data, SCORING and, if it was not given, out.
prepare_study() {
  local corpus=${3:-multi30k.en-de}
  [ -z "$data" ] || find_references "$2"
  setup_environment
  [ -n "$data" ] || bash "$SCRIPTS/prepare_${corpus%%.*}.sh" "$PLACE/data-bin/$corpus"
  data=${data:-$PLACE/data-bin/$corpus}
  find_references "$2"
  [ -z "$REFERENCE" ] || python -m fairseq_ext.tools.recipes check-references "$REFERENCE"
  out=${out:-$PLACE/checkpoints/$1/$(basename "$data")$size}
  require_room "$out" 500
}

# find_references SPLIT: set SCORING, the flags with which `fairseq-ext table` scores translations
# of a split, and REFERENCE, the prefix of the binarised sentences to score against where their text
# is missing, else empty.
find_references() {
  local target files=("$data/$1".*-*.*.idx)
  [ -e "${files[0]}" ] ||
    die "--data is '$data', which has no $1.*.idx: give a folder that fairseq-preprocess wrote."
  target=$(basename "${files[0]}")
  target=${target#*-} target=${target%%.*}
  SCORING=(--gen-subset "$1")
  # the language of pt_BR is pt
  [[ ! "${target%%[_-]*}" =~ ^[a-z]{2,3}$ ]] || SCORING+=(--target-lang "${target%%[_-]*}")
  if [ -e "$data/text/$1.$target" ]; then
    SCORING+=(--reference "$data/text/$1.$target")
    REFERENCE=''
  else
    REFERENCE=${files[0]%.*.idx}.$target
  fi
}

# set_variants NAME...: set VARIANTS to what the script's function print_variant prints of each
# name.
set_variants() {
  local name line
  VARIANTS=()
  for name in "$@"; do
    line=$(print_variant "$name") || exit 1
    VARIANTS+=("$line")
  done
  [ ${#VARIANTS[@]} -gt 0 ] ||
    die "--variants is empty: see 'bash $0 --help' for those that there are."
}

# Mechanisms of the papers and what else stands in their slots, with the flags and the term of a
# criterion of each; which are closest to a mechanism of a paper, which is the first of its row.
# printed by docs/print_mechanisms.py: variants
MECHANISMS='dna hna ag gaussian roles gate asa'
ALTERNATIVES='sinkformer entmax sparsemax entmax-learned sink off-by-one talking differential alibi t5 rotary disentangled dense random rdrop input l0'
NORMALISERS='sinkformer entmax sparsemax entmax-learned sink off-by-one'
POSITIONS='alibi t5 rotary'
TERMS='ag asa rdrop l0'
SECOND_PASSES='asa rdrop'
CLOSEST=(
  'dna sinkformer entmax sparsemax entmax-learned sink off-by-one'
  'ag alibi t5 rotary'
  'gaussian alibi t5 rotary'
  'roles input l0'
  'gate input l0'
  'asa rdrop'
)
declare -gA VARIANT_FLAGS=(
  [dna]='--encoder-normaliser doubly'
  [hna]='--encoder-normaliser hybrid'
  [ag]='--ag-encoder-heads next:1,prev:1 --ag-alpha 1'
  [gaussian]='--encoder-gaussian-heads 2'
  [roles]='--encoder-roles rare,separator,relative'
  [gate]='--head-gate static'
  [sinkformer]='--encoder-normaliser sinkformer'
  [entmax]='--encoder-normaliser entmax'
  [sparsemax]='--encoder-normaliser entmax --entmax-alpha 2'
  [entmax-learned]='--encoder-normaliser entmax --entmax-learned'
  [sink]='--encoder-normaliser sink'
  [off-by-one]='--encoder-normaliser sink --sink off-by-one'
  [talking]='--encoder-head-mixer talking'
  [differential]='--encoder-head-mixer differential'
  [alibi]='--encoder-positions alibi'
  [t5]='--encoder-positions t5'
  [rotary]='--encoder-positions rotary'
  [disentangled]='--encoder-scorer disentangled'
  [dense]='--encoder-scorer dense'
  [random]='--encoder-scorer random'
  [rdrop]=''
  [input]='--head-gate input'
  [l0]='--head-gate l0'
  [asa]='--asa-layers all'
)
declare -gA VARIANT_TERMS=(
  [ag]=ag
  [rdrop]=rdrop
  [l0]=l0
  [asa]=asa
)
# end of variants

# print_mechanisms PLAIN NAME [ARCHITECTURE OBJECTIVE]: print a variant, mechanisms of $MECHANISMS and
# $ALTERNATIVES and a learning rate joined by +, or PLAIN without any of them, and its flags, as
# NAME=FLAGS. ARCHITECTURE and OBJECTIVE are those without mechanisms (default: of translation).
print_mechanisms() {
  local part flag term flags='' own=' ' terms='' passes=0
  for part in ${2//+/ }; do
    [ "$part" != "$1" ] || continue
    [[ "$part" != [0-9.]* ]] || {
      flags+=" --lr $part"
      continue
    }
    [ -n "${VARIANT_FLAGS[$part]+is set}" ] ||
      die "--variants has '$part' and must have some of $1, ${MECHANISMS// /, }," \
        "${ALTERNATIVES// /, }."
    flags+="${VARIANT_FLAGS[$part]:+ ${VARIANT_FLAGS[$part]}}"
    own+="${VARIANT_TERMS[$part]:-} "
  done
  for flag in --encoder-normaliser --encoder-positions --encoder-head-mixer --encoder-scorer \
    --head-gate; do
    [[ "$flags " != *"$flag "*"$flag "* ]] ||
      die "--variants has '$2', and two of these give $flag: leave one out."
  done
  for term in $TERMS; do [[ "$own" != *" $term "* ]] || terms+=_$term; done
  for term in $SECOND_PASSES; do [[ "$own" != *" $term "* ]] || passes=$((passes + 1)); done
  [ "$passes" -lt 2 ] || die "--variants has '$2', which makes two second passes: leave" \
    "${SECOND_PASSES// / or } out."
  say "$2=--arch ${3:-transformer_una$size} --criterion" \
    "${4:-label_smoothed_cross_entropy}$terms$flags"
}

# study NAME=FLAGS... -- FLAG...: train variants, which all get the last flags and those of the user
# (REST), which replace any others, with $seeds seeds and $folds folds if that is set, on $data; add
# their folders to RUNS. Flags that fairseq would refuse end the script before the first training. If
# GENERATE is set, each run translates as it says, with the average of the last AVERAGE checkpoints if
# that is set; it answers the parts of $data (or SUBSET=FILE) in the array PREDICT.
study() {
  local numbers part given=() variants=() generate=()
  [ -z "${GENERATE:-}" ] || generate=(--generate "$GENERATE" ${AVERAGE:+--average "$AVERAGE"})
  for part in "${PREDICT[@]}"; do generate+=(--predict "$part"); done
  while [ "$1" != -- ]; do
    given+=("$1${REST[*]:+ ${REST[*]@Q}}")
    variants+=(--variant "${given[-1]}")
    add_runs "$out/${1%%=*}"
    shift
  done
  python -m fairseq_ext.tools.recipes dry-run "$data" "${given[@]//\$SEED/1}" "${@//\$SEED/1}" || exit
  mapfile -t numbers < <(seq "$seeds")
  rm -f "$out/diverged.txt" # of an earlier call
  mkdir -p "$out"
  touch "$out/.begun" # for leave_out_diverged
  foreground python -m fairseq_ext.cli sweep --out "$out" --seeds "${numbers[@]}" \
    ${folds:+--folds "$folds"} --jobs "$jobs" "${variants[@]}" "${generate[@]}" -- "$data" "${@:2}"
}

# add_runs FOLDER: add the repetitions of a variant to RUNS, by the names that `fairseq-ext sweep`
# gives them.
add_runs() {
  local seed fold prefix=''
  for seed in $(seq "$seeds"); do
    [ "$seeds" = 1 ] || prefix=seed-$seed-
    if [ -z "${folds:-}" ]; then
      RUNS+=("$1/seed-$seed")
    else
      for fold in $(seq "$folds"); do RUNS+=("$1/${prefix}fold-$fold"); done
    fi
  done
}

# leave_out_diverged STATUS: after a `study` that ended with this status, leave variants out of RUNS of
# which a training ended at an update that was not finite, and write into $out/diverged.txt how many
# did. End the script if trainings ended for another reason.
leave_out_diverged() {
  local run variant finite=()
  local -A diverged=()
  [ "$1" = 1 ] || exit "$1"
  for run in "${RUNS[@]}"; do
    [ ! -e "$run/train.done" ] || continue
    [ "$run/train.log" -nt "$out/.begun" ] || exit 1 # a refused sweep
    tail -n 3 "$run/train.log" | grep -q 'update [0-9]* is not finite' || exit 1
    diverged[${run%/*}]=$((${diverged[${run%/*}]:-0} + 1))
  done
  [ ${#diverged[@]} -gt 0 ] || exit 1
  for variant in "${!diverged[@]}"; do
    say "${variant##*/}: ${diverged[$variant]} of $seeds trainings diverged"
  done | sort | tee "$out/diverged.txt"
  for run in "${RUNS[@]}"; do [ -n "${diverged[${run%/*}]:-}" ] || finite+=("$run"); done
  RUNS=("${finite[@]}")
  say "They are left out, see $out/diverged.txt; the same command tries them again."
}

# compare METRIC... [FLAG...]: write the table of RUNS to $out/table.txt and print it. Where
# variants are repeated, they are tested against the first one, or against BASELINE (the file is
# then table-BASELINE.txt), by the metrics in BY if that is set and by each test in TESTS (default:
# t).
compare() {
  local test tests=() variants table=$out/table${BASELINE:+-$BASELINE}.txt
  variants=$(printf '%s\n' "${RUNS[@]%/*}" | sort -u | wc -l)
  if [ $((seeds * ${folds:-1})) -gt 1 ] && [ "$variants" -gt 1 ]; then
    for test in ${TESTS:-t}; do tests+=(--test "$test"); done
    # shellcheck disable=SC2206 # words
    tests+=(${BASELINE:+--baseline "$BASELINE"} ${BY:+--by $BY})
  fi
  python -m fairseq_ext.cli table "${tests[@]}" --output "$table" --metric "$@" -- "${RUNS[@]}"
  say
  cat "$table"
}

# print_best METRIC ORDER RUN...: print the variant with the highest or lowest mean of a metric.
print_best() {
  local table
  table=$(python -m fairseq_ext.cli table --metric "$1" --sort "$2" --format csv -- "${@:3}") || exit
  sed -n '2s/,.*//p' <<<"$table"
}

# draw_curves METRIC TEXT: draw a logged metric of RUNS over updates.
draw_curves() {
  python -m fairseq_ext.cli curves --metric "$1" --out "$out/curves.png" "${RUNS[@]}"
  say
  say "Picture of the $2: $out/curves.png"
}

# set_user_dir: set USER_DIR to the --user-dir in REST with its folder, or to nothing.
set_user_dir() {
  local place
  USER_DIR=()
  for place in "${!REST[@]}"; do
    case "${REST[place]}" in
    --user-dir) USER_DIR=("${REST[@]:place:2}") ;;
    --user-dir=*) USER_DIR=("${REST[place]}") ;;
    esac
  done
}

# describe_attention [FLAG...]: analyse the attention of each of RUNS over validation data, in
# RUN/analysis, where `compare` finds its metrics analysis.SITE.NAME.
describe_attention() {
  local run
  set_user_dir
  for run in "${RUNS[@]}"; do
    is_newer "$run/analysis/heads.json" "$run/checkpoint_last.pt" ||
      foreground python -m fairseq_ext.cli analyse "$run/checkpoint_last.pt" --data "$data" \
        --sentences 0 --out "$run/analysis" "${USER_DIR[@]}" "$@"
  done
}

# keep_variants NAME...: leave those of RUNS that are of these variants.
keep_variants() {
  local name run kept=()
  for name in "$@"; do
    for run in "${RUNS[@]}"; do [ "${run%/*}" != "$out/$name" ] || kept+=("$run"); done
  done
  RUNS=("${kept[@]}")
}

# compare_closest METRIC... [FLAG...]: as `compare`, each mechanism of a paper with the alternatives
# that are closest to it, as far as there are RUNS of them.
compare_closest() {
  local all=("${RUNS[@]}") row
  for row in "${CLOSEST[@]}"; do
    RUNS=("${all[@]}")
    # shellcheck disable=SC2086 # words
    keep_variants $row
    BASELINE=${row%% *}
    [[ " ${RUNS[*]} " != " $out/$BASELINE/"* ]] || [ ${#RUNS[@]} -le $((seeds * ${folds:-1})) ] ||
      compare "$@"
  done
  RUNS=("${all[@]}")
  unset BASELINE
}
