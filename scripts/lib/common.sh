# Functions of all scripts. Every other file of scripts/lib/ reads this one first; a script sources
# one of them.
# Environment: PYTHON (interpreter for a new .venv), FAIRSEQ_EXT_CORPORA (folder with corpora),
# FAIRSEQ_EXT_SKIP_INSTALL=1 (use the commands on PATH as they are, without a look at them),
# FAIRSEQ_EXT_PLACE (folder of data-bin/ and checkpoints/), OMP_NUM_THREADS (default 1).

set -euo pipefail
unset CDPATH # with it, cd prints
SCRIPTS=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
ROOT=$(cd "$SCRIPTS/.." && pwd)
# PACKAGE is the plugin; PLACE holds data-bin/ and checkpoints/. Scripts lie beside the package in a
# checkout, and in it where it was installed.
if [ -d "$ROOT/fairseq_ext" ]; then
  PACKAGE=$ROOT/fairseq_ext PLACE=$ROOT
else
  PACKAGE=$ROOT PLACE=$PWD
fi
export FAIRSEQ_EXT_PLACE=${FAIRSEQ_EXT_PLACE:-$PLACE}
PLACE=$FAIRSEQ_EXT_PLACE

# Two OpenMP threads next to other work can make training and decoding many times slower.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} PYTHONUTF8=1
[ -t 2 ] || export TQDM_DISABLE=1 # progress bars are for terminals
CORES=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc) # available to this process
# The script that called this one, empty if a user did.
CALLER=${FAIRSEQ_EXT_CALLER:-}
export FAIRSEQ_EXT_CALLER=$0

say() { printf '%s\n' "$*"; }
die() {
  printf '%s\n' "$*" >&2
  exit 1
}

# The comment at the top of the calling script is its help.
usage() {
  local text
  text=$(sed -n '2,/^$/s/^# \{0,1\}//p' "$0")
  [ -d "$ROOT/fairseq_ext" ] || # installed
    text=$(sed -E 's/bash scripts\/(\w+)\.sh/fairseq-ext recipe \1/g' <<<"$text")
  say "$text"
  exit
}

# read_options ACCEPTED ARGUMENT...: read the arguments of a script. ACCEPTED has --name=DEFAULT for
# an option with a value, --name#DEFAULT for one with a positive number, and --name for one without
# (a variable of that name gets the value, or the default, which may be empty, or yes), WORD if other
# words are accepted (they become WORDS), and -- if anything may follow a -- (it becomes REST).
read_options() {
  local accepted=" $1 " help="see 'bash ${0#"$PWD/"} --help'" name value
  for name in $1; do
    value=${name#"${name%%[=#]*}"} name=${name%%[=#]*} name=${name#--}
    [[ "$name" != [a-z]* ]] || printf -v "${name//-/_}" %s "${value:1}"
  done
  shift
  WORDS=() REST=()
  while [ $# -gt 0 ]; do
    name=${1#--} name=${name//-/_}
    if [[ "$1" =~ ^(-h|--help)$ ]]; then
      usage
    elif [[ "$1" = -- && "$accepted" == *" -- "* ]]; then
      REST=("${@:2}")
      return
    elif [[ "$accepted" == *" $1"[=#]* ]]; then
      [ $# -gt 1 ] || die "$1 needs a value: $help."
      [ -n "$2" ] || [ "$1" = --size ] || die "$1 is '' and needs a value: $help."
      [[ "$accepted" == *" $1="* || "$2" =~ ^[1-9][0-9]{0,14}$ ]] ||
        die "$1 is '$2' and must be a positive number."
      printf -v "$name" %s "$2"
      shift
    elif [[ "$accepted" == *" $1 "* && "$1" =~ ^--[a-z-]+$ ]]; then
      printf -v "$name" yes
    elif [[ "$accepted" == *" WORD "* && "$1" != -* ]]; then
      WORDS+=("$1")
    else
      die "Unknown argument '$1': $help."
    fi
    shift
  done
}

# require_one_of FLAG VALUE ACCEPTED...: refuse a value that is not among the accepted ones.
require_one_of() {
  local accepted
  for accepted in "${@:3}"; do [ "$2" != "$accepted" ] || return 0; done
  die "$1 is '$2' and must be one of: ${*:3}."
}

# Environment.

# is_supported PYTHON: whether an interpreter exists and has a version that fairseq runs with.
is_supported() { "$1" -c 'import sys; sys.exit(not (3, 11, 4) <= sys.version_info < (3, 14))' 2>/dev/null; }

# find_python: print the first supported interpreter, before there is an environment.
find_python() {
  local candidate candidates=(python3.12 python3.11 python3.13 python3)
  [ -z "${PYTHON:-}" ] || candidates=("$PYTHON")
  for candidate in "${candidates[@]}"; do
    is_supported "$candidate" && command -v "$candidate" && return
  done
  die "Python 3.11, 3.12 or 3.13 is needed and ${PYTHON:-no suitable python on PATH} is none:" \
    "install one, or set PYTHON to its path."
}

# find_environment: set ENVIRONMENT to the folder of the active environment, virtual or of conda,
# or to .venv if that exists; empty if there is none. Put its commands first on PATH.
find_environment() {
  ENVIRONMENT=${VIRTUAL_ENV:-${CONDA_PREFIX:-}}
  [ -n "$ENVIRONMENT" ] || [ ! -x "$ROOT/.venv/bin/python" ] || ENVIRONMENT=$ROOT/.venv
  [ -z "$ENVIRONMENT" ] || export PATH="$ENVIRONMENT/bin:$PATH"
}

# is_active: whether ENVIRONMENT is the user's, and not the .venv of this checkout.
is_active() { [ -n "$ENVIRONMENT" ] && [ ! "$ENVIRONMENT" -ef "$ROOT/.venv" ]; }

# find_problem [MODULE...]: print why `python` cannot import the package or other modules that a
# script needs, nothing if it can.
find_problem() {
  local module said
  command -v python >/dev/null || { say "there is no python" && return; }
  is_supported python || { say "$(python --version) is not 3.11, 3.12 or 3.13" && return; }
  for module in fairseq_ext.registry "$@"; do
    said=$(python -c "import $module" 2>&1) || { say "$(tail -n 1 <<<"$said")" && return; }
  done
}

# Build isolation is off, so that fairseq is built with the torch that it will run with.
CONSTRAINTS=$ROOT/constraints.txt
TORCH_FIRST=(torch numpy cython setuptools wheel)

# refuse_environment PROBLEM [EXTRAS]: end the script, and say which two commands would install.
refuse_environment() {
  local pip="python -m pip install -c $CONSTRAINTS"
  local commands="'$pip ${TORCH_FIRST[*]}' and '$pip --no-build-isolation -e $ROOT${2:+[$2]}'"
  is_active || die "fairseq_ext is not installed ($1): 'bash scripts/quickstart.sh' installs it" \
    "into .venv; in an environment of yours, $commands do."
  die "The active environment '$ENVIRONMENT' cannot run this ($1) and is left as it is: $commands" \
    "would install what is missing; or deactivate it."
}

# setup_environment [MODULE...]: make `python` and fairseq's commands those of the environment, which
# has to have these modules. Nothing is installed. The scripts that this one calls need not look again.
setup_environment() {
  [ -z "${FAIRSEQ_EXT_SKIP_INSTALL:-}" ] || return 0
  local problem
  find_environment
  problem=$(find_problem "$@")
  [ -z "$problem" ] || refuse_environment "$problem"
  export FAIRSEQ_EXT_SKIP_INSTALL=1
}

# Files.

# workspace COMMAND ARGUMENT...: run fairseq_ext.prepare.workspace. It needs no package, so that it
# runs before there is an environment.
workspace() {
  local python=python folder
  folder=$(dirname "$PACKAGE")
  is_supported python || python=$(find_python)
  PYTHONPATH=$folder${PYTHONPATH:+:$PYTHONPATH} "$python" -m fairseq_ext.prepare.workspace "$@"
}

# require_room FOLDER MB [--corpus FOLDER] [--work FOLDER]: refuse a folder, which need not exist
# yet, that cannot be written to or has less free space.
require_room() { workspace room "$@"; }

# produce OUT COMMAND...: write what COMMAND prints to OUT, unless OUT exists already.
produce() {
  local out=$1 hidden status=0
  shift
  [ ! -e "$out" ] || return 0
  mkdir -p "$(dirname "$out")"
  hidden=$(mktemp -d "$(dirname "$out")/.part.XXXXXXXX") # no link can lie in wait in it
  "$@" >"$hidden/new" && mv "$hidden/new" "$out" || status=$?
  rm -rf "$hidden"
  return "$status"
}

LOCK=''

# lock_folder FOLDER: refuse to work beside another command, or behind a link, which leads elsewhere.
# What a killed script has left running may end within 3 seconds.
lock_folder() {
  [ ! -L "$1" ] || die "'$1', in which this works, is a link: delete it or give another folder."
  [ -z "$LOCK" ] && command -v flock >/dev/null || return 0 # Linux has flock
  exec {LOCK}<"$1"
  flock -w 3 "$LOCK" || [ $? != 1 ] ||
    die "Another command works in '$1': wait until it has ended, or stop it."
}

# corpus_folder NAME: print the folder of a corpus in FAIRSEQ_EXT_CORPORA, nothing if that is not
# set.
corpus_folder() {
  local folder=${FAIRSEQ_EXT_CORPORA:-}
  [ -n "$folder" ] || return 0
  [ -d "$folder/$1" ] ||
    die "FAIRSEQ_EXT_CORPORA is '$folder', which is no folder with '$1' in it: correct or unset it."
  printf '%s' "$folder/$1"
}

# Commands.

# set_translation_flags UPDATES SPLIT: set FLAGS, which train a small translation model, and
# GENERATE, which translates a part of the data with it.
set_translation_flags() {
  FLAGS=(--share-all-embeddings --dropout 0.1 --max-tokens 1024 --max-update "$1"
    --optimizer adam --adam-betas '(0.9, 0.98)' --lr 3e-3 --lr-scheduler inverse_sqrt
    --warmup-updates 400 --criterion label_smoothed_cross_entropy --label-smoothing 0.1
    --save-interval-updates 300 --keep-interval-updates 1 --no-epoch-checkpoints --log-interval 100
    --distributed-world-size 1 --num-workers 0)
  GENERATE="--gen-subset $2 --beam 5 --max-len-a 1.2 --max-len-b 10 --max-tokens 1000 --remove-bpe
  --num-workers 0"
}

# foreground COMMAND...: run a command that ends when this script ends, whatever ends it. Without
# this function, a command in bash's foreground continues when bash is told to stop.
foreground() {
  local status=0
  "$@" &
  # shellcheck disable=SC2064 # the process id of this moment
  trap "kill $! 2>/dev/null; wait $!" EXIT
  wait $! || status=$?
  trap - EXIT
  return "$status"
}

# is_newer OUT INPUT...: whether OUT is newer than all of its inputs.
is_newer() {
  local out=$1 input
  shift
  for input in "$@"; do
    [ "$out" -nt "$input" ] || return
  done
}
