#!/usr/bin/env bash
# Sets up the environment with the test extras, then lints, checks types and runs the tests.
#
# Usage: bash scripts/test.sh [--all] [PYTEST ARGUMENT...]
#
#   --all  slow tests, too: every mechanism, command and recipe in more cases (25 minutes on two
#          cores; without it 8)
#
# Tests on real text need FAIRSEQ_EXT_CORPORA, a folder with corpora; they are skipped without it.
# Markers choose tests: `-m recipe`, or processes, corpora, browser, gpu, slow, and 'not' of them.

. "$(dirname "$0")/lib/common.sh"
chosen=(-m 'not slow')
case "${1:-}" in
-h | --help) usage ;;
--all)
  chosen=()
  shift
  ;;
esac
setup_environment test
cd "$ROOT"
ruff check .
ruff format --check .
mypy
lint-imports
# a file of tests at a time on each core, since what its tests share is made once
python -m pytest --numprocesses "$((CORES < 8 ? CORES : 8))" --dist loadfile --no-loadscope-reorder --durations 20 \
  "${chosen[@]}" "$@"
