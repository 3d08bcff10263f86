#!/usr/bin/env bash
# fairseq's own tests, run without and with the plugin, and what only one of both fails.
#
# Usage: bash scripts/fairseq_tests.sh [--install-here] CLONE [--out FILE] [-- PYTEST ARGUMENT...]
#
#   --install-here  install into the active environment what it lacks
#   CLONE   a clone of fairseq, of which tests/ and examples/ are used; the installed fairseq is
#           tested, which is to be of about the same version
#   --out   a file for the table, which is also printed
#   PYTEST ARGUMENT  as tests/test_train.py or '-k iterator' (default: all tests but those of GPUs and
#           of several processes)
#
# The exit code is 1 if something fails with the plugin alone. docs/reliability.md has a table.
# Cost: unit tests 10 minutes on one core, test_binaries.py half an hour.

. "$(dirname "$0")/lib/install.sh"
case "${1:-}" in
-h | --help | '') usage ;;
--install-here) install_here=yes && shift ;;
esac
install_environment test pytest
export PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH}
exec python "$ROOT/tests/fairseq_suite.py" "$@"
