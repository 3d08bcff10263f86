# Functions of all scripts. Every other file of scripts/lib/ reads this one first; a script sources
# one of them.
# Environment: PYTHON (interpreter for a new .venv), FAIRSEQ_EXT_CORPORA (folder with corpora),
# FAIRSEQ_EXT_SKIP_INSTALL=1 (use the commands on PATH as they are), OMP_NUM_THREADS (default 1).

set -euo pipefail
unset CDPATH # with it, cd prints
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

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
  sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
  exit
}

# read_options ACCEPTED ARGUMENT...: read the arguments of a script. ACCEPTED has --name= for an
# option with a value and --name for one without (a variable of that name gets the value, or yes),
# WORD if other words are accepted (they become WORDS), and -- if anything may follow a -- (it
# becomes REST).
read_options() {
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

# require_positive FLAG [VALUE]: refuse a value that is not a positive number.
require_positive() {
  [ $# = 1 ] || [[ "$2" =~ ^[1-9][0-9]*$ ]] || die "$1 is '$2' and must be a positive number."
}

# require_one_of FLAG VALUE ACCEPTED...: refuse a value that is not among the accepted ones.
require_one_of() {
  local accepted
  for accepted in "${@:3}"; do [ "$2" != "$accepted" ] || return 0; done
  die "$1 is '$2' and must be one of: ${*:3}."
}

# Environment.

# is_supported PYTHON: whether an interpreter exists and has a version that fairseq runs with.
is_supported() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null; }

# find_python: print the first supported interpreter, before there is an environment.
find_python() {
  local candidate candidates=(python3.12 python3.11 python3)
  [ -z "${PYTHON:-}" ] || candidates=("$PYTHON")
  for candidate in "${candidates[@]}"; do
    is_supported "$candidate" && command -v "$candidate" && return
  done
  die "Python 3.11 or 3.12 is needed and ${PYTHON:-no suitable python on PATH} is neither:" \
    "install one, or set PYTHON to its path."
}

# enter_environment: put the active virtual environment on PATH, or .venv, made if it is missing.
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
  is_supported "$VIRTUAL_ENV/bin/python" ||
    die "The environment '$VIRTUAL_ENV' has $("$VIRTUAL_ENV/bin/python" --version)" \
      "and Python 3.11 or 3.12 is needed: deactivate it or make another."
  export VIRTUAL_ENV PATH="$VIRTUAL_ENV/bin:$PATH"
}

# require_compiler: refuse a machine that cannot build fairseq where it has no wheel.
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

# install_package [EXTRAS]: install this repository. The build of fairseq needs the torch that it
# will run with, so torch is installed first, and build isolation, which would fetch another torch,
# is off. With CUDA_HOME it would build kernels that we do not use.
install_package() {
  local pip=(python -m pip --disable-pip-version-check install -c "$ROOT/constraints.txt")
  "${pip[@]}" torch numpy cython setuptools wheel &&
    env -u CUDA_HOME "${pip[@]}" --no-build-isolation --editable "$ROOT${1:+[$1]}"
}

# setup_environment [EXTRAS]: make `python` and fairseq's commands those of the environment, which
# is installed if need be. A stamp for each set of extras records the installed versions; every set
# includes the package without extras.
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

# workspace COMMAND ARGUMENT...: run fairseq_ext.prepare.workspace. It needs no package, so that it
# runs before there is an environment.
workspace() {
  local python=python
  [ -n "${FAIRSEQ_EXT_SKIP_INSTALL:-}" ] || python=${VIRTUAL_ENV:-$ROOT/.venv}/bin/python
  is_supported "$python" || python=$(find_python)
  PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH} "$python" -m fairseq_ext.prepare.workspace "$@"
}

# require_room FOLDER MB [--corpus FOLDER] [--work FOLDER]: refuse a folder, which need not exist
# yet, that cannot be written to or has less free space.
require_room() { workspace room "$@"; }

# produce OUT COMMAND...: write what COMMAND prints to OUT, unless OUT exists already.
produce() {
  local out=$1
  shift
  [ ! -e "$out" ] || return 0
  mkdir -p "$(dirname "$out")"
  "$@" >"$out.part" || return
  mv "$out.part" "$out"
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
