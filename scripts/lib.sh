# Steps shared by all scripts: source this file first.
# Environment: PYTHON (interpreter for a new .venv), FAIRSEQ_EXT_CORPORA (folder with corpora),
# FAIRSEQ_EXT_SKIP_INSTALL=1 (use the commands on PATH as they are), OMP_NUM_THREADS (default 1).

set -euo pipefail
unset CDPATH # with it, cd prints
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Two OpenMP threads next to other work can make training and decoding many times slower.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} PYTHONUTF8=1
[ -t 2 ] || export TQDM_DISABLE=1 # progress bars are for terminals
CORES=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc) # those that this process may use
# Who calls a data recipe himself means its options; scripts take data that are there as they are.
CALLER=${FAIRSEQ_EXT_CALLER:-}
export FAIRSEQ_EXT_CALLER=$0
# Of a data recipe: what makes a difference for what it makes, and a file of what is complete.
SETTINGS=() MADE=manifest.json LOCK=''

say() { printf '%s\n' "$*"; }
die() {
  printf '%s\n' "$*" >&2
  exit 1
}

# The comment at the top of the calling script is its help.
usage() {
  sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
  exit
}

# options ACCEPTED ARGUMENT...: reads the arguments of a script. ACCEPTED has --name= for an option
# with a value, --name for one without (the variables of that name get the value, or yes), WORD for
# other words, which become WORDS, and -- for what follows a --, which becomes REST.
options() {
  local accepted=" $1 " help="see 'bash ${0#"$PWD/"} --help'"
  shift
  WORDS=() REST=()
  while [ $# -gt 0 ]; do
    if [[ "$1" =~ ^(-h|--help)$ ]]; then
      usage
    elif [[ "$1" = -- && "$accepted" == *" -- "* ]]; then
      REST=("${@:2}")
      return
    elif [[ "$accepted" == *" $1= "* ]]; then
      [ $# -gt 1 ] || die "$1 needs a value: $help."
      printf -v "${1#--}" %s "$2"
      shift
    elif [[ "$accepted" == *" $1 "* && "$1" =~ ^--[a-z]+$ ]]; then
      printf -v "${1#--}" yes
    elif [[ "$accepted" == *" WORD "* && "$1" != -* ]]; then
      WORDS+=("$1")
    else
      die "Unknown argument '$1': $help."
    fi
    shift
  done
}

# positive FLAG VALUE...
positive() {
  local flag=$1 value
  for value in "${@:2}"; do
    [[ "$value" =~ ^[1-9][0-9]*$ ]] || die "$flag is '$value' and must be a positive number."
  done
}

# data_recipe DEFAULT [ARGUMENT [MB]]: what every data recipe starts with. Sets OUT, the folder that
# it makes, and WORK, the one beside it in which it works; ends the script if OUT is made already.
# MB: what OUT and WORK need on the disk.
data_recipe() {
  case "${2:-}" in
  -h | --help) usage ;;
  -*) die "Unknown option '$2': the only argument is the output folder (default: $1)." ;;
  esac
  OUT=${2:-$ROOT/$1}
  OUT=${OUT%/}
  [ ! -L "$OUT" ] || OUT=$(realpath -m "$OUT") # which is renamed in the end
  WORK=$OUT.partial
  made_already
  require_room "$OUT" $((${3:-500} - $(megabytes "$WORK")))
}

# made_already: ends the script if OUT holds data, which must have been made with these SETTINGS,
# unless another script calls this one. An empty folder is as good as none.
made_already() {
  local found=("$OUT"/$MADE)
  [ -e "$OUT" ] || return 0
  [ ! -d "$OUT" ] || [ -n "$(ls -A "$OUT")" ] || return 0
  [ -e "${found[0]}" ] ||
    die "'$OUT' is there and was not made by a data recipe (it has no $MADE): delete it or give" \
      "another folder."
  [ -n "$CALLER" ] || same_settings
  say "$OUT is there already: delete it to prepare it again."
  exit
}

# same_settings: OUT was made with SETTINGS, as 'merges 4000', in so far as it is known. Where only one
# of the commands names a folder of the corpus (--offline), it may be the same.
same_settings() {
  local new old known
  known=$(recorded_in "$OUT")
  for new in "${SETTINGS[@]}"; do
    old=$(grep -- "^${new%% *} " <<<"$known") || continue
    new=${new//\\/\\\\} # as JSON has it
    new=${new//\"/\\\"}
    [ "$old" = "$new" ] || [[ "$old" = "--offline " || "$new" = "--offline " ]] ||
      die "'$OUT' was made with $(in_words "$old") and this command has $(in_words "$new"): delete it," \
        "give another folder, or give the same options."
  done
}

# in_words SETTING
in_words() { [ "$1" = "${1% }" ] && say "'$1'" || say "no ${1% }"; }

# recorded_in FOLDER: those that its manifest names, a line each.
recorded_in() {
  [ ! -e "$1/manifest.json" ] ||
    sed -n '/^  "settings": \[$/,/^  \]/s/^    "\(.*\)",\{0,1\}$/\1/p' "$1/manifest.json"
}

# Environment.

supported() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null; }

find_python() {
  local candidate candidates=(python3.12 python3.11 python3)
  [ -z "${PYTHON:-}" ] || candidates=("$PYTHON")
  for candidate in "${candidates[@]}"; do
    supported "$candidate" && command -v "$candidate" && return
  done
  die "Python 3.11 or 3.12 is needed and ${PYTHON:-no suitable python on PATH} is neither:" \
    "install one, or set PYTHON to its path."
}

# The active virtual environment if there is one, else .venv.
enter_environment() {
  local python
  if [ -z "${VIRTUAL_ENV:-}" ]; then
    VIRTUAL_ENV=$ROOT/.venv
    if [ ! -x "$VIRTUAL_ENV/bin/pip" ]; then
      python=$(find_python)
      require_room "$ROOT" 6000 # a CUDA build of torch takes 5 GB
      say "Creating .venv with $("$python" --version)."
      "$python" -m venv "$VIRTUAL_ENV" ||
        die "'$python -m venv' failed: install its venv module or activate an environment."
    fi
  fi
  supported "$VIRTUAL_ENV/bin/python" ||
    die "The environment '$VIRTUAL_ENV' has $("$VIRTUAL_ENV/bin/python" --version)" \
      "and Python 3.11 or 3.12 is needed: deactivate it or make another."
  export VIRTUAL_ENV PATH="$VIRTUAL_ENV/bin:$PATH"
}

# Where fairseq has no wheel, it is built from source.
require_compiler() {
  python -c 'import platform, sys
sys.exit(sys.version_info >= (3, 12) and platform.machine() == "x86_64")' || return 0
  local include
  include=$(python -c 'import sysconfig; print(sysconfig.get_path("include"))')
  { command -v c++ && [ -e "$include/Python.h" ]; } >/dev/null ||
    die "fairseq has a wheel for Python 3.12 only and its source needs a C++ compiler and Python.h:" \
      "use Python 3.12, or install g++ and python3-dev."
  say "fairseq is built from source for $(python --version), which takes a few minutes."
}

# The build of fairseq needs the torch that it will run with, so torch is installed first; build
# isolation, which would fetch another torch, is off. CUDA_HOME would build what we do not use.
install_package() {
  local pip=(python -m pip --disable-pip-version-check install -c "$ROOT/constraints.txt")
  "${pip[@]}" torch numpy cython setuptools wheel &&
    env -u CUDA_HOME "${pip[@]}" --no-build-isolation --editable "$ROOT${1:+[$1]}"
}

# setup_environment [EXTRAS]: after it, `python` and fairseq's commands are ours. A stamp for each
# set of extras says that it is installed, and with which versions; every set holds the rest.
setup_environment() {
  [ -z "${FAIRSEQ_EXT_SKIP_INSTALL:-}" ] || return 0
  local stamp checksum
  enter_environment
  stamp=$VIRTUAL_ENV/.fairseq_ext
  checksum="$(cat "$ROOT/setup.py" "$ROOT/constraints.txt" | cksum) $ROOT"
  if ! grep -qsxF "$checksum" "$stamp".${1:-*}; then
    require_compiler
    install_package "${1:-}" || die "The installation failed: the reason stands above."
    printf '%s\n' "$checksum" >"$stamp.${1:-none}"
  fi
}

# Files.

# require_room DIR MB: DIR, or where it will be made, can be written to and has so much space.
require_room() {
  local there=$1 probe free
  while [ ! -e "$there" ]; do there=$(dirname "$there"); done
  probe=$(mktemp "$there/.room.XXXXXX" 2>/dev/null) ||
    die "Cannot write to '$1': choose another folder or change its permissions."
  rm "$probe"
  free=$(df -Pk "$there" | awk 'NR == 2 { print int($4 / 1024) }')
  [ "$free" -ge "$2" ] ||
    die "'$1' has $free MB of free space and $2 MB are needed: make room or choose another folder."
}

# produce OUT COMMAND...: OUT becomes what COMMAND prints; kept if it is there already.
produce() {
  local out=$1
  shift
  [ ! -e "$out" ] || return 0
  mkdir -p "$(dirname "$out")"
  "$@" >"$out.part" || return
  mv "$out.part" "$out"
}

# megabytes PATH: what it takes on the disk, 0 if it is not there.
megabytes() { du -sk "$1" 2>/dev/null | awk '{ all = $1 } END { print int(all / 1024) }' || true; }

# needed MB [FOLDER]: MB, which a corpus as published needs on the disk while it is prepared, or less
# if FOLDER holds a smaller one: ten times its archives cover every stage of them.
needed() {
  local all=$1
  [ -z "${2:-}" ] || all=$((100 + 10 * $(megabytes "$2/")))
  echo $((all < $1 ? all : $1))
}

# work_from SOURCE: forget the work in WORK if it was begun from another source. No other command
# works there until this script ends.
work_from() {
  mkdir -p "$WORK"
  lock_work
  [ "$(cat "$WORK/source" 2>/dev/null)" != "$1" ] || return 0
  find "$WORK" -mindepth 1 -delete
  printf '%s\n' "$1" >"$WORK/source"
}

# lock_work: what a script that was killed has left running ends first, if it ends soon.
lock_work() {
  [ -z "$LOCK" ] && command -v flock >/dev/null || return 0 # which Linux has
  exec {LOCK}<"$WORK"
  flock -w 3 "$LOCK" || [ $? != 1 ] ||
    die "Another command works in '$WORK': wait until it has ended, or stop it."
}

# one_at_a_time FOLDER: waits for other scripts that make something in it, as side by side they may.
one_at_a_time() {
  mkdir -p "$1"
  ! command -v flock >/dev/null || { exec {LOCK}<"$1" && flock "$LOCK"; }
}

# given_corpus NAME: its folder within the one given by the user; empty if none was given.
given_corpus() {
  local folder=${FAIRSEQ_EXT_CORPORA:-}
  [ -n "$folder" ] || return 0
  [ -d "$folder/$1" ] ||
    die "FAIRSEQ_EXT_CORPORA is '$folder', which is no folder with '$1' in it: correct or unset it."
  printf '%s' "$folder/$1"
}

# Commands.

# translation_flags UPDATES SPLIT: sets FLAGS, which train a small model, and GENERATE, which
# translates a part of the data with it.
translation_flags() {
  FLAGS=(--share-all-embeddings --dropout 0.1 --max-tokens 1024 --max-update "$1"
    --optimizer adam --adam-betas '(0.9, 0.98)' --lr 3e-3 --lr-scheduler inverse_sqrt
    --warmup-updates 400 --criterion label_smoothed_cross_entropy --label-smoothing 0.1
    --save-interval-updates 300 --keep-interval-updates 1 --no-epoch-checkpoints --log-interval 100
    --distributed-world-size 1 --num-workers 0)
  GENERATE="--gen-subset $2 --beam 5 --max-len-a 1.2 --max-len-b 10 --max-tokens 1000 --remove-bpe
  --num-workers 0"
}

# foreground COMMAND...: it ends when this script ends, however that is. What bash runs in its
# foreground goes on when bash is told to stop.
foreground() {
  local status=0
  "$@" &
  # shellcheck disable=SC2064 # the process id is that of now
  trap "kill $! 2>/dev/null; wait $!" EXIT
  wait $! || status=$?
  trap - EXIT
  return "$status"
}

# up_to_date OUT INPUT...: OUT is newer than all of them.
up_to_date() {
  local out=$1 input
  shift
  for input in "$@"; do
    [ "$out" -nt "$input" ] || return
  done
}
