#!/usr/bin/env bash
# Lints, checks types and runs the tests of the repository that it lies in.
#
# An active environment that has fairseq_ext and the tools is used as it is; without one, everything
# is installed into .venv of this repository.
#
# Usage: bash scripts/test.sh [--install-here] [--all] [PYTEST ARGUMENT...]
#
#   --install-here  install into the active environment what it lacks
#   --all           slow tests, too: every mechanism, command and recipe in more cases (three quarters of
#                   an hour on two cores; without it 15 minutes)
#
# Tests on real text need FAIRSEQ_EXT_CORPORA, a folder with corpora; they are skipped without it.
# Markers choose tests: `-m recipe`, or processes, corpora, browser, gpu, slow, and 'not' of them.

. "$(dirname "$0")/lib/install.sh"
chosen=(-m 'not slow')
while [ $# -gt 0 ]; do
  case "$1" in
  -h | --help) usage ;;
  --all) chosen=() ;;
  --install-here) install_here=yes ;;
  *) break ;;
  esac
  shift
done
install_environment test pytest pytest_timeout xdist hypothesis mypy importlinter
cd "$ROOT"
# whatever package the environment has, this one is tested
export PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH}
tested=$(cd / && python -c 'import fairseq_ext; print(*fairseq_ext.__path__)')
[ "$tested" = "$PACKAGE" ] || die "The tests would import '$tested' and not '$PACKAGE'."
say "Testing $PACKAGE with $(command -v python)."
ruff check .
ruff format --check .
mypy
lint-imports
# a file of tests at a time on each core, since what its tests share is made once
python -m pytest --numprocesses "$((CORES < 8 ? CORES : 8))" --dist loadfile --no-loadscope-reorder --durations 20 \
  "${chosen[@]}" "$@"
