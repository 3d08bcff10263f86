#!/usr/bin/env bash
# The built-in corpus, English to German: a seeded grammar of our own, 12,000 / 500 / 500 pairs,
# without test sentences in the training part.
#
# Usage: bash scripts/prepare_builtin.sh [OUT] [OPTION...]       (default data-bin/builtin.en-de)
#
#   --merges N     merges of the joint BPE (default 800)
#   --bpe TOOL     fastbpe (default if it is installed) or subword-nmt: the same pieces
#   --dictionaries joined (default) or separate
#
# Tokenised, lower-cased. Cost: half a minute.

. "$(dirname "$0")/lib/data.sh"
SHARED='--merges# --bpe= --dictionaries=joined'
corpus_recipe builtin.en-de 800 500 "$@"
SOURCE=en TARGET=de
begin builtin
prepare_step toy.corpus "$WORK/raw"
tokenise_text --lowercase
split_words "$WORK/tokens" "$WORK/pieces"
finish "$WORK/tokens" "$WORK/pieces"
