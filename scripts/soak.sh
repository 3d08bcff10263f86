#!/usr/bin/env bash
# Trainings of all families that are killed, have too little memory or a full disk, and are run again;
# then what their models say, compared with trainings that nothing disturbed; then commands that read
# very many lines.
#
# Usage: bash scripts/soak.sh [--install-here] [--minutes N] [--seed N] [--lines N] [--out FILE]
#
#   --install-here  install into the active environment what it lacks
#   --minutes  how long (default: 30)
#   --seed     of the order and of all disturbances (default: 1)
#   --lines    how many commands read afterwards (default: 100000; 0 for none)
#   --out      a file for the table, which is also printed
#
# The exit code is 1 if an end was another one, or a command left half a file or a traceback. Where
# a file system may be mounted (as root), full disks are small ones. docs/reliability.md has a table.

. "$(dirname "$0")/lib/install.sh"
case "${1:-}" in
-h | --help) usage ;;
--install-here) install_here=yes && shift ;;
esac
install_environment test pytest
export PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH}
exec python "$ROOT/tests/soak.py" "$@"
