#!/usr/bin/env bash
# A small trained model to look at, English to German, from the built-in corpus. Pages, notebook and
# `fairseq-ext map` can load it, so that no training of yours has to come first.
#
# Usage: bash scripts/demo.sh [OPTION...]
#
#   --updates N   length of the training (default: 600)
#   --dir DIR     folder of data-bin/ and checkpoints/ (default: this repository, or the current
#                 folder if fairseq-ext recipe runs this)
#
# Model: doubly-normalised attention in the encoder, checkpoints/demo/dna/seed-1/checkpoint_last.pt.
# A second run continues where the first was interrupted.
#
# Expected: 94.6 BLEU on the test part, which is a toy (one seed). Cost: 3.5 minutes of one core.

. "$(dirname "$0")/lib/common.sh"

read_options '--updates#600 --dir=' "$@"
dir=${dir:-$PLACE}
require_room "$dir" 200
setup_environment
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
data=$dir/data-bin/builtin.en-de out=$dir/checkpoints/demo
bash "$SCRIPTS/prepare_builtin.sh" "$data"
set_translation_flags "$updates" test
foreground python -m fairseq_ext.cli sweep --out "$out" --variant dna='--arch transformer_dna_tiny' \
  --generate "$GENERATE" -- "$data" "${FLAGS[@]}"
say
python -m fairseq_ext.cli table --reference "$data/text/test.de" "$out/dna/seed-1"
say
say "A model to look at: fairseq-ext map $out/dna/seed-1/checkpoint_last.pt --index 0 --out map.html"
