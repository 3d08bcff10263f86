# What recipes that compare variants of training share: source this after lib.sh.

# study_options SEEDS NAMES ARGUMENT...: reads their options, those in NAMES too, as `options` does;
# sets data, size, updates, seeds (default: SEEDS), jobs and out.
study_options() {
  data='' size=_tiny updates=1800 seeds=$1 jobs=1 out=''
  options "--data= --size= --updates= --seeds= --jobs= --out= -- $2" "${@:3}"
  case "$size" in
  '' | _tiny | _iwslt_de_en | _wmt_en_de | _wmt_en_de_big | _gigaword) ;;
  *) die "--size is '$size' and must be _tiny, _iwslt_de_en, _wmt_en_de, _wmt_en_de_big," \
    "_gigaword or ''." ;;
  esac
  positive --updates "$updates"
  positive --seeds "$seeds"
  positive --jobs "$jobs"
}

# study_data NAME SPLIT [CORPUS]: the data, prepared unless given by --data (default:
# multi30k.en-de); sets SCORING and, if it was not given, out.
study_data() {
  local corpus=${3:-multi30k.en-de}
  [ -z "$data" ] || scoring "$2"
  setup_environment
  [ -n "$data" ] || bash "$ROOT/scripts/prepare_${corpus%%.*}.sh" "$ROOT/data-bin/$corpus"
  data=${data:-$ROOT/data-bin/$corpus}
  scoring "$2"
  [ -z "$REFERENCE" ] || whole
  out=${out:-$ROOT/checkpoints/$1/$(basename "$data")$size}
  require_room "$out" 500
}

# scoring SPLIT: sets SCORING, what `fairseq-ext table` has to know of a part of the data, and
# REFERENCE, the binarised sentences that it scores against if their text is not there, else empty.
scoring() {
  local target found=("$data/$1".*-*.*.idx)
  [ -e "${found[0]}" ] ||
    die "--data is '$data', which has no $1.*.idx: give a folder that fairseq-preprocess wrote."
  target=$(basename "${found[0]}")
  target=${target#*-} target=${target%%.*}
  SCORING=(--gen-subset "$1")
  [[ ! "${target%%[_-]*}" =~ ^[a-z]{2,3}$ ]] || SCORING+=(--target-lang "${target%%[_-]*}") # of pt_BR
  if [ -e "$data/text/$1.$target" ]; then
    SCORING+=(--reference "$data/text/$1.$target")
    REFERENCE=''
  else
    REFERENCE=${found[0]%.idx}
  fi
}

# whole: ends the script if the binarised REFERENCE lacks words, as its last table would.
whole() {
  python - "$REFERENCE" <<'PY'
import logging, sys
from pathlib import Path

logging.disable()
from fairseq.data import Dictionary, data_utils

from fairseq_ext.errors import UsageError

path = Path(sys.argv[1])
split, language = path.name.split(".")[0], path.suffix[1:]
words = Dictionary.load(str(path.parent / f"dict.{language}.txt"))
sentences = data_utils.load_indexed_dataset(str(path), words)
lacking = sum(bool((sentence == words.unk()).any()) for sentence in sentences)
if lacking:
    raise UsageError(
        f"{lacking} of the {len(sentences)} sentences of {path} have words that are not in the "
        f"dictionary, so nothing can be scored against them; put their text into "
        f"{path.parent}/text/{split}.{language}"
    )
PY
}

# chosen NAME...: sets VARIANTS, what the script's function `variant` prints of each.
chosen() {
  local name line
  VARIANTS=()
  for name in "$@"; do
    line=$(variant "$name") || exit 1
    VARIANTS+=("$line")
  done
  [ ${#VARIANTS[@]} -gt 0 ] || die "--variants is empty: see 'bash $0 --help' for those that there are."
}

# study NAME=FLAGS... -- FLAG...: trains variants, which all get the last flags, and translates as
# GENERATE says, if set, with the average of the last AVERAGE checkpoints, if set; sets RUNS. What
# fairseq would refuse is refused before any of them is trained.
study() {
  local numbers variants=() generate=()
  [ -z "${GENERATE:-}" ] || generate=(--generate "$GENERATE" ${AVERAGE:+--average "$AVERAGE"})
  rehearse "$@"
  mapfile -t numbers < <(seq "$seeds")
  RUNS=()
  while [ "$1" != -- ]; do
    variants+=(--variant "$1")
    RUNS+=("${numbers[@]/#/$out/${1%%=*}/seed-}")
    shift
  done
  foreground python -m fairseq_ext.cli sweep --out "$out" --seeds "${numbers[@]}" --jobs "$jobs" \
    "${variants[@]}" "${generate[@]}" -- "$data" "${@:2}"
}

# rehearse NAME=FLAGS... -- FLAG...: builds and checks all that the variants would train, with 1 for
# $SEED.
rehearse() {
  python - "$data" "${@//\$SEED/1}" <<'PY'
import logging, shlex, sys

logging.disable()  # fairseq tells of every dictionary, and of what is not installed
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from fairseq_ext.criterions.beginning import check_all
from fairseq_ext.errors import UsageError


def refuse(message):
    raise UsageError(f"fairseq-train cannot take these flags: {message.split(' (choose')[0]}")


_, data, *given = sys.argv
common = given[given.index("--") + 1 :]
for variant in given[: given.index("--")]:
    parser = options.get_training_parser()
    parser.error = refuse
    flags = [data, *common, *shlex.split(variant.partition("=")[2])]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, flags))
    task = tasks.setup_task(cfg.task)
    check_all(task.build_model(cfg.model), task.build_criterion(cfg.criterion), cfg)
PY
}
