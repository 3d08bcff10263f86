#!/usr/bin/env bash
# IWSLT 2015, English to Vietnamese: 133,317 pairs of TED talks, validation tst2012, test tst2013,
# in Stanford's tokenised and cased version.
#
# Usage: bash scripts/prepare_iwslt15.sh [OUT] [OPTION...]        (default data-bin/iwslt15.en-vi)
#
#   --offline DIR  a folder with {train,tst2012,tst2013}.{en,vi}, plain or .gz; without it they are
#                  downloaded (exit code 69 if that fails)
#   --merges N     merges of the joint BPE (default 10000)
#   --bpe TOOL     fastbpe (default if it is installed) or subword-nmt: the same pieces
#   --dictionaries joined (default) or separate
#
# Training pairs with an empty side, with over 1,000 tokens on a side, or with one side more than nine
# times as long as the other are left out. Cost: 2 minutes, 200 MB.

. "$(dirname "$0")/lib/data.sh"
corpus_recipe iwslt15.en-vi 10000 1000 "$@"
read_parallel_text en vi iwslt15 iwslt15-{train,tst2012,tst2013}.{en,vi} -- \
  train=train.@ valid=tst2012.@ test=tst2013.@
tokenise_text --tokenised
sort_pairs text "$WORK/tokens=$WORK/text" --longest 1000 --ratio 9
split_words "$WORK/text" "$WORK/pieces"
finish "$WORK/text" "$WORK/pieces"
