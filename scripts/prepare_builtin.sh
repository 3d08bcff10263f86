#!/usr/bin/env bash
# The built-in corpus, English to German: a seeded grammar of our own, 12,000 / 500 / 500 pairs,
# no test sentence seen in training.
#
# Usage: bash scripts/prepare_builtin.sh [OUT]       (default data-bin/builtin.en-de)
#
# Tokenised, lower-cased, 1,000 joint BPE merges. Cost: half a minute.

. "$(dirname "$0")/lib.sh"
data_recipe data-bin/builtin.en-de "$@"

work_from builtin
setup_environment
python -m fairseq_ext.data.builtin "$WORK/raw"
prepare_translation en de 1000 lowercase
