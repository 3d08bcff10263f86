#!/usr/bin/env bash
# WikiText-103, for masked language modelling: prepare_mlm.sh with that corpus.
#
# Usage: bash scripts/prepare_wikitext103.sh [OUT] [OPTION...]       (default data-bin/wikitext-103)
#
#   OPTION   an option of scripts/prepare_mlm.sh, as --vocabulary and --offline
#
# Cost, estimated from smaller text: 20 minutes on two cores, 3 GB of disk.

case "${1:-}" in
-h | --help)
  . "$(dirname "$0")/lib/common.sh"
  usage
  ;;
esac
exec bash "$(dirname "$0")/prepare_mlm.sh" wikitext-103 "$@"
