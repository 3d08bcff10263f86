# Functions of data recipes. What a step made is kept, so that a recipe that was interrupted
# continues; OUT gets its name when all is done.

. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

ARGUMENTS=("$@") # of the script
# Options that most recipes share, options of one recipe alone, values of --bpe, and a dictionary to
# use.
SHARED='--offline= --merges# --bpe= --dictionaries=joined' EXTRA='' DICTIONARY=''
SPLITTERS='fastbpe subword-nmt'
offline='' dictionaries=joined # of recipes without these options
# Settings that change what a recipe makes, files and folders that are too large to be summed, and a
# pattern of files that only complete data have.
SETTINGS=() LARGE=() MADE=manifest.json

# data_recipe DEFAULT [OUT [MB [FOLDER]]]: begin a data recipe. Set OUT, the folder that it makes,
# and WORK, the folder beside OUT in which it works; end the script if OUT is made already. MB is
# the disk space that the corpus as published needs, FOLDER a corpus that may be smaller.
data_recipe() {
  case "${2:-}" in
  -h | --help) usage ;;
  -*) die "Unknown option '$2': the only argument is the output folder (default: $1)." ;;
  esac
  OUT=${2:-$PLACE/$1}
  OUT=${OUT%/}
  [ ! -L "$OUT" ] || OUT=$(realpath -m "$OUT") # which is renamed in the end
  [ ! -L "$OUT" ] || die "'$OUT' is a link to itself: delete it or give another folder."
  WORK=$OUT.partial
  stop_if_made
  require_room "$OUT" "${3:-500}" --work "$WORK" ${4:+--corpus "$4"}
}

# stop_if_made: end the script if OUT holds data. They must have been made with the same SETTINGS,
# from files that have not changed since, unless another script calls this one, since scripts that
# train take data as they are. An empty folder counts as none.
stop_if_made() {
  local files=("$OUT"/$MADE)
  [ -e "$OUT" ] || return 0
  [ ! -d "$OUT" ] || [ -n "$(ls -A "$OUT")" ] || return 0
  [ -e "${files[0]}" ] ||
    die "'$OUT' is there and was not made by a data recipe (it has no $MADE): delete it or give" \
      "another folder."
  if [ -z "$CALLER" ]; then
    workspace same "$OUT" "${SETTINGS[@]}"
    refuse_newer "${files[0]}"
  fi
  say "$OUT is there already: delete it to prepare it again."
  exit
}

# refuse_newer MANIFEST: refuse LARGE files that were written after a manifest.
refuse_newer() {
  local newer
  [ ${#LARGE[@]} -gt 0 ] || return 0
  newer=$(find -L "${LARGE[@]}" -type f -newer "$1" -print -quit 2>/dev/null) || true
  [ -z "$newer" ] ||
    die "$newer is newer than '$OUT', which was made from it: delete '$OUT' to prepare it again, or" \
      "give another folder."
}

# open_work SOURCE: lock WORK until this script ends, and empty it if it was begun from another
# source, or from text that has changed. End the script if no data recipe made it.
open_work() {
  [ -e "$WORK/source" ] || [ -z "$(ls -A "$WORK" 2>/dev/null)" ] ||
    die "'$WORK', in which this works, is there and was not made by a data recipe: rename it or give" \
      "another folder."
  mkdir -p "$WORK"
  lock_folder "$WORK"
  if [ "$(cat "$WORK/source" 2>/dev/null)" = "$1" ]; then
    local changed
    changed=$(changed_inputs)
    [ -n "$changed" ] || return 0
    say "${changed%%$'\n'*} has changed since this was begun, so that it begins again."
  fi
  find "$WORK" -mindepth 1 -delete
  { printf '%s\n' "$1" >"$WORK/source"; } 2>/dev/null ||
    die "'$WORK' cannot be written: make room and run the same command again."
}

# changed_inputs: print the files that WORK was made from and that have changed since, or are gone.
changed_inputs() {
  local path
  [ -e "$WORK/inputs" ] || return 0
  while IFS= read -r path; do
    if [ -e "$path" ]; then
      find -L "$path" -maxdepth 0 -cnewer "$WORK/inputs"
    else
      say "$path"
    fi
  done <"$WORK/inputs"
}

# one_at_a_time FOLDER: wait for other scripts that make something in a folder, since recipes that
# run side by side may make the same data.
one_at_a_time() {
  mkdir -p "$1"
  ! command -v flock >/dev/null || { exec {LOCK}<"$1" && flock "$LOCK"; }
}

# corpus_recipe NAME MERGES MB ARGUMENT...: begin a recipe of a parallel corpus. Read its options
# (those of SHARED and EXTRA) and set OUT, WORK, offline, merges, bpe and dictionaries; end the
# script if OUT is made already. MB is the disk space that the corpus as published needs. A script
# may define refuse_conflicts, for options without effect; merges is empty in it unless it was
# given, and stays so with SentencePiece.
corpus_recipe() {
  read_options "WORD $SHARED $EXTRA" "${@:4}"
  [ -z "$(type -t refuse_conflicts)" ] || refuse_conflicts
  [ "$bpe" = sentencepiece ] || merges=${merges:-$2}
  [ ${#WORDS[@]} -lt 2 ] ||
    die "${#WORDS[@]} words are given and the only one is the output folder (default: data-bin/$1)."
  # shellcheck disable=SC2086 # words
  require_one_of --bpe "${bpe:-fastbpe}" $SPLITTERS
  require_one_of --dictionaries "$dictionaries" joined separate
  [ -z "$offline" ] || [ -d "$offline" ] ||
    die "--offline is '$offline' and must be a folder with the files of the corpus."
  record_settings "$(basename "$0")" $SHARED $EXTRA
  data_recipe "data-bin/$1" "${WORDS[0]:-}" "$3" "$offline"
}

# record_settings RECIPE OPTION...: add a recipe and its options to SETTINGS, without a --bpe whose
# tools make the same pieces.
record_settings() {
  local name variable offline=${offline:+$(realpath "$offline")}
  SETTINGS+=("recipe $1")
  for name in "${@:2}"; do
    name=${name#--} name=${name%%[=#]*} variable=${name//-/_}
    [ "$name" = bpe ] && [ "$bpe" != sentencepiece ] || SETTINGS+=("--$name ${!variable}")
  done
}

# step NAME TEXT COMMAND...: print the text and run the command, unless this step was done before.
step() {
  [ ! -e "$WORK/.$1" ] || return 0
  say "$2"
  "${@:3}"
  touch "$WORK/.$1"
}

# name_module NAME: print the module of a step: of fairseq_ext.prepare, unless NAME is whole.
name_module() { case $1 in fairseq_ext.*) echo "$1" ;; *) echo "fairseq_ext.prepare.$1" ;; esac; }

# prepare_step NAME ARGUMENT...: run a step.
prepare_step() { foreground python -m "$(name_module "$1")" "${@:2}"; }

# unless_refused NAME ARGUMENT...: run a step that may refuse text. Refused text leaves no work, so
# that corrected text is read next; any other failure leaves the work, to continue from.
unless_refused() {
  local status=0
  prepare_step step "$(name_module "$1")" "${@:2}" || status=$?
  [ "$status" != 65 ] || { rm -r "$WORK" && exit 1; }
  return "$status"
}

# read_parallel_text SOURCE TARGET GROUP ARCHIVE... -- PART=PATTERN...: extract
# WORK/raw/PART.LANGUAGE from the files in the folder of --offline, or from archives that are
# downloaded to a folder GROUP. fairseq_ext.prepare.extract defines the patterns.
read_parallel_text() {
  SOURCE=$1 TARGET=$2
  local archives=() group=$3
  shift 3
  while [ "$1" != -- ]; do
    archives+=("$1")
    shift
  done
  begin "$SOURCE $TARGET $offline $*"
  fetch_archives "$offline" "$group" "${archives[@]}"
  step raw "Reading the corpus" unless_refused extract "$FROM" "$WORK/raw" \
    --languages "$SOURCE" "$TARGET" --parts "${@:2}"
  step checked "Checking it" check_parts
}

# fetch_archives FOLDER GROUP ARCHIVE...: set FROM, the folder of the archives: FOLDER, in which
# they are checked, or if it is empty a folder named GROUP, to which they are downloaded.
fetch_archives() {
  FROM=$1
  if [ -z "$FROM" ]; then
    FROM=$(dirname "$OUT")/downloads/$2
    say "Downloading to $FROM"
    prepare_step fetch "$FROM" "${@:3}"
  elif [ $# -gt 2 ]; then
    step verified "Checking archives" prepare_step fetch --check "$FROM" "${@:3}"
  fi
}

# begin SOURCE: open WORK for this command and source, and set the environment up.
begin() {
  open_work "${ARGUMENTS[*]} $1"
  setup_environment
  [ "${bpe:-}" != fastbpe ] || python -c 'import fastBPE' 2>/dev/null ||
    die "--bpe is fastbpe, which is not installed: pip install fastBPE (it needs a C++ compiler), or" \
      "give subword-nmt, which splits words alike."
}

# check_parts: refuse a part whose two sides have different numbers of lines.
check_parts() {
  local part parts=()
  for part in "$WORK/raw"/*."$SOURCE"; do parts+=("$part" "${part%."$SOURCE"}.$TARGET"); done
  unless_refused check "${parts[@]}"
}

# tokenise_text FLAG...: tokenise WORK/raw to WORK/tokens; flags of fairseq_ext.prepare.tokenise.
tokenise_text() {
  step tokens "Tokenising" prepare_step tokenise "$WORK/raw" "$WORK/tokens" "$@"
}

# sort_pairs NAME VIEW... FLAG...: hold pairs out or leave them out; see fairseq_ext.prepare.bitext.
sort_pairs() {
  local name=$1
  shift
  step "$name" "Sorting pairs" unless_refused bitext "$@" --languages "$SOURCE" "$TARGET"
}

# split_words FOLDER OUT: split words into pieces by a joint BPE.
split_words() {
  step split "Splitting words: $merges joint BPE merges, from the training text" \
    prepare_step subwords "$1" "$WORK/bpe.codes" "$2" --merges "$merges" ${bpe:+--bpe "$bpe"}
}

# split_raw_text FOLDER OUT SIZE KIND: split raw text into joint pieces by SentencePiece.
split_raw_text() {
  step split "Splitting text: $3 joint pieces of SentencePiece ($4), from the training text" \
    unless_refused sentencepiece "$1" "$WORK/sentencepiece.model" "$2" "$WORK/srcdict" \
    --vocab-size "$3" --model-type "$4"
  [ "$dictionaries" = separate ] || DICTIONARY=$WORK/srcdict
}

# finish TEXT PIECES: binarise the pieces, by DICTIONARY if it is set, and complete OUT with the
# tokenised text.
finish() {
  local part prefixes=() joined=(${DICTIONARY:+--srcdict "$DICTIONARY"})
  for part in train valid test; do
    [ ! -e "$2/$part.$SOURCE" ] || prefixes+=("--${part}pref" "$2/$part")
  done
  [ "$dictionaries" = separate ] || joined+=(--joined-dictionary)
  step binarised "Binarising" binarise --source-lang "$SOURCE" --target-lang "$TARGET" \
    "${prefixes[@]}" "${joined[@]}"
  [ "$1" = "$WORK/text" ] || [ ! -e "$1" ] || { rm -rf "$WORK/text" && mv "$1" "$WORK/text"; }
  complete "$2"
}

# complete PIECES FLAG...: summarise the pieces that were binarised, write the manifest (flags of
# fairseq_ext.prepare.manifest), and rename WORK to OUT.
complete() {
  step summary "What there is" prepare_step manifest "$WORK" "$@" \
    --about "$(basename "$0") ${ARGUMENTS[*]@Q}" "${SETTINGS[@]/#/--setting=}"
  rm -rf "$WORK"/{raw,held,tokens,pieces,encoded,unpacked,short,srcdict}
  rm -rf "$WORK"/{source,inputs} "$WORK"/.[a-z0-9_]*
  [ ! -d "$OUT" ] || rmdir "$OUT" # it was empty
  mv "$WORK" "$OUT"
  say "$OUT is ready."
}

# binarise FLAG...: run fairseq-preprocess, without the files of a run that was interrupted.
binarise() {
  rm -f "$WORK"/dict.*.txt "$WORK"/{train,valid,test}.*
  foreground fairseq-preprocess "$@" --destdir "$WORK" --workers "$CORES" &>"$WORK/binarise.log" ||
    die "Binarising failed: the reason is at the end of $WORK/binarise.log."
}
