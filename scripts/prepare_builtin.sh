#!/usr/bin/env bash
# The built-in corpus, English to German: a seeded grammar of our own, 12,000 / 500 / 500 pairs,
# no test sentence seen in training.
#
# Usage: bash scripts/prepare_builtin.sh [OUT]       (default data-bin/builtin.en-de)
#
# Tokenised, lower-cased, 1,000 joint BPE merges. Cost: half a minute.

. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/corpus.sh"
corpus_recipe builtin.en-de 1000 500 "$@"
SOURCE=en TARGET=de
begin builtin
python -m fairseq_ext.data.builtin "$WORK/raw"
tokenise_text --lowercase
split_words "$WORK/tokens" "$WORK/pieces"
finish "$WORK/tokens" "$WORK/pieces"
