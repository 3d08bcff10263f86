# Steps of data recipes: source this after lib.sh. What a step made is kept, so that a recipe that
# was interrupted goes on; OUT gets its name when all is done.

ARGUMENTS=("$@") # of the script
DICTIONARY='' SHARED='--offline= --merges= --bpe= --dictionaries=' EXTRA='' dictionaries=joined

# corpus_recipe NAME MERGES MB ARGUMENT...: reads the options that these recipes share, unless SHARED
# names fewer, and those named in EXTRA; sets OUT, WORK, offline, merges, bpe and dictionaries; ends
# the script if OUT is made already. MB is what the corpus as published needs on the disk. A script
# may have a function refuse_conflicts, for options without effect; merges is empty in it unless it
# was given.
corpus_recipe() {
  offline='' merges='' bpe='' WORDS=()
  options "WORD $SHARED $EXTRA" "${@:4}"
  [ -z "$(type -t refuse_conflicts)" ] || refuse_conflicts
  merges=${merges:-$2}
  [ ${#WORDS[@]} -lt 2 ] ||
    die "${#WORDS[@]} words are given and the only one is the output folder (default: data-bin/$1)."
  positive --merges "$merges"
  one_of --bpe "${bpe:-fastbpe}" fastbpe subword-nmt
  one_of --dictionaries "$dictionaries" joined separate
  [ -z "$offline" ] || [ -d "$offline" ] ||
    die "--offline is '$offline' and must be a folder with the files of the corpus."
  made_from "$(basename "$0")" $SHARED $EXTRA
  data_recipe "data-bin/$1" "${WORDS[0]:-}" "$(needed "$3" "$offline")"
}

# made_from RECIPE OPTION...: adds them to SETTINGS, but for --bpe, whose tools make the same pieces.
made_from() {
  local name offline=${offline:+$(realpath "$offline")}
  SETTINGS+=("recipe $1")
  for name in "${@:2}"; do
    name=${name#--} name=${name%=}
    [ "$name" = bpe ] || SETTINGS+=("--$name ${!name}")
  done
}

# one_of FLAG VALUE ACCEPTED...
one_of() {
  local accepted
  for accepted in "${@:3}"; do [ "$2" != "$accepted" ] || return 0; done
  die "$1 is '$2' and must be one of: ${*:3}."
}

# step NAME TEXT COMMAND...: says the text and runs the command, unless that was done before.
step() {
  [ ! -e "$WORK/.$1" ] || return 0
  say "$2"
  "${@:3}"
  touch "$WORK/.$1"
}

# prepare_step NAME ARGUMENT...: of fairseq_ext.prepare.
prepare_step() { foreground python -m "fairseq_ext.prepare.$1" "${@:2}"; }

# unless_refused NAME ARGUMENT...: the same. Text that it refuses leaves no work, so that corrected
# text is read next; what else ends it leaves the work, to go on from.
unless_refused() {
  local status=0
  prepare_step step "fairseq_ext.prepare.$1" "${@:2}" || status=$?
  [ "$status" != 65 ] || { rm -r "$WORK" && exit 1; }
  return "$status"
}

# parallel_text SOURCE TARGET GROUP ARCHIVE... -- PART=PATTERN...: WORK/raw/PART.LANGUAGE out of the
# files in the folder given by --offline, or of archives that are downloaded (GROUP is a folder for
# them). Patterns are those of fairseq_ext.prepare.extract.
parallel_text() {
  SOURCE=$1 TARGET=$2
  local archives=() group=$3
  shift 3
  while [ "$1" != -- ]; do
    archives+=("$1")
    shift
  done
  begin "$SOURCE $TARGET $offline $*"
  obtain "$offline" "$group" "${archives[@]}"
  step raw "Reading the corpus" unless_refused extract "$FROM" "$WORK/raw" \
    --languages "$SOURCE" "$TARGET" --parts "${@:2}"
  step checked "Checking it" checked
}

# obtain FOLDER GROUP ARCHIVE...: sets FROM, FOLDER with its archives checked, or without one a folder
# named GROUP to which they are downloaded.
obtain() {
  FROM=$1
  if [ -z "$FROM" ]; then
    FROM=$(dirname "$OUT")/downloads/$2
    say "Downloading to $FROM"
    prepare_step fetch "$FROM" "${@:3}"
  elif [ $# -gt 2 ]; then
    step verified "Checking archives" prepare_step fetch --check "$FROM" "${@:3}"
  fi
}

# begin SOURCE: work of another command or source is forgotten.
begin() {
  work_from "${ARGUMENTS[*]} $1"
  setup_environment
}

# checked: both sides of each part have the same number of lines.
checked() {
  local part parts=()
  for part in "$WORK/raw"/*."$SOURCE"; do parts+=("$part" "${part%."$SOURCE"}.$TARGET"); done
  unless_refused check "${parts[@]}"
}

# tokenise_text FLAG...: WORK/tokens, by sacremoses; flags of fairseq_ext.prepare.tokenise.
tokenise_text() {
  step tokens "Tokenising" prepare_step tokenise "$WORK/raw" "$WORK/tokens" "$@"
}

# sort_pairs NAME VIEW... FLAG...: pairs held out or left out; see fairseq_ext.prepare.bitext.
sort_pairs() {
  local name=$1
  shift
  step "$name" "Sorting pairs" unless_refused bitext "$@" --languages "$SOURCE" "$TARGET"
}

# split_words FOLDER OUT: to pieces, by a joint BPE.
split_words() {
  step split "Splitting words: $merges joint BPE merges, from the training text" \
    prepare_step subwords "$1" "$WORK/bpe.codes" "$2" --merges "$merges" ${bpe:+--bpe "$bpe"}
}

# finish TEXT PIECES: binarised, with the tokenised text beside, a summary and a manifest. DICTIONARY
# is one to use.
finish() {
  local part prefixes=() joined=(${DICTIONARY:+--srcdict "$DICTIONARY"})
  for part in train valid test; do
    [ ! -e "$2/$part.$SOURCE" ] || prefixes+=("--${part}pref" "$2/$part")
  done
  [ "$dictionaries" = separate ] || joined+=(--joined-dictionary)
  step binarised "Binarising" binarised --source-lang "$SOURCE" --target-lang "$TARGET" \
    "${prefixes[@]}" "${joined[@]}"
  [ "$1" = "$WORK/text" ] || [ ! -e "$1" ] || { rm -rf "$WORK/text" && mv "$1" "$WORK/text"; }
  complete "$2"
}

# complete PIECES FLAG...: a summary of the pieces that were binarised and a manifest, by flags of
# fairseq_ext.prepare.manifest; then all has its name.
complete() {
  step summary "What there is" prepare_step manifest "$WORK" "$@" \
    --about "$(basename "$0") ${ARGUMENTS[*]@Q}" "${SETTINGS[@]/#/--setting=}"
  rm -rf "$WORK"/{raw,tokens,pieces,encoded,unpacked,short,srcdict}
  rm -rf "$WORK"/{source,inputs} "$WORK"/.[a-z]*
  [ ! -d "$OUT" ] || rmdir "$OUT" # it was empty
  mv "$WORK" "$OUT"
  say "$OUT is ready."
}

# binarised FLAG...: by fairseq-preprocess.
binarised() {
  rm -f "$WORK"/dict.*.txt "$WORK"/{train,valid,test}.* # of a run that was interrupted
  foreground fairseq-preprocess "$@" --destdir "$WORK" --workers "$CORES" &>"$WORK/binarise.log" ||
    die "Binarising failed: the reason is at the end of $WORK/binarise.log."
}
