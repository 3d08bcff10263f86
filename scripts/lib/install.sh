# Functions of the scripts that install: quickstart.sh, test.sh, soak.sh and fairseq_tests.sh.

. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

install_here='' # --install-here: into the active environment

# make_environment: make .venv, and set ENVIRONMENT to it.
make_environment() {
  local python
  python=$(find_python)
  ENVIRONMENT=$ROOT/.venv
  require_room "$ROOT" 6000 # a CUDA build of torch takes 5 GB
  say "Creating .venv with $("$python" --version)."
  "$python" -m venv "$ENVIRONMENT" ||
    die "'$python -m venv' failed: install its venv module or activate an environment."
  export PATH="$ENVIRONMENT/bin:$PATH"
}

# require_compiler: refuse a machine that cannot build fairseq where it has no wheel.
require_compiler() {
  python -c 'import platform, sys
sys.exit(sys.version_info[:2] == (3, 12) and platform.machine() == "x86_64")' || return 0
  local include
  include=$(python -c 'import sysconfig; print(sysconfig.get_path("include"))')
  { command -v c++ && [ -e "$include/Python.h" ]; } >/dev/null ||
    die "fairseq has a wheel for Python 3.12 on x86_64 only and its source needs a C++ compiler and" \
      "Python.h: use these two, or install g++ and python3-dev."
  say "fairseq is built from source for $(python --version), which takes a few minutes."
}

# install_package [EXTRAS]: install this repository into ENVIRONMENT. The build of fairseq needs the
# torch that it will run with, so torch is installed first. With CUDA_HOME it would build kernels
# that we do not use. What pip prints goes to a file.
install_package() {
  local log=$ENVIRONMENT/fairseq_ext-install.log
  local pip=(python -m pip --disable-pip-version-check install -c "$CONSTRAINTS")
  say "Installing into $ENVIRONMENT; what pip prints is in $log."
  {
    "${pip[@]}" "${TORCH_FIRST[@]}" &&
      env -u CUDA_HOME "${pip[@]}" --no-build-isolation --editable "$ROOT${1:+[$1]}"
  } &>"$log" || { tail -n 5 "$log" >&2 && die "The installation failed: the reason is in $log."; }
}

# install_environment EXTRAS [MODULE...]: make `python` and fairseq's commands those of the active
# environment if it has this package, or one like it, and the modules; otherwise of .venv, into
# which this repository is installed if need be. Nothing is installed into an active environment
# without --install-here. A stamp for each set of extras records the installed versions; every set
# includes the package without extras.
install_environment() {
  [ -z "${FAIRSEQ_EXT_SKIP_INSTALL:-}" ] || return 0
  local stamp checksum problem
  find_environment
  if is_active && [ -z "$install_here" ]; then
    problem=$(find_problem "${@:2}")
    [ -z "$problem" ] || refuse_environment "$problem; --install-here installs into it" "$1"
  else
    [ -n "$ENVIRONMENT" ] || make_environment
    is_supported python || die "'$ENVIRONMENT' has $(python --version) and Python 3.11 to 3.13 is" \
      "needed: make another environment."
    stamp=$ENVIRONMENT/.fairseq_ext
    checksum="$(cat "$ROOT/setup.py" "$CONSTRAINTS" | cksum) $ROOT"
    if ! grep -qsxF "$checksum" "$stamp".${1:-*}; then
      require_compiler
      install_package "$1"
      printf '%s\n' "$checksum" >"$stamp.${1:-none}"
    fi
  fi
  export FAIRSEQ_EXT_SKIP_INSTALL=1
}
