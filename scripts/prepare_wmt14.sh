#!/usr/bin/env bash
# WMT 2014, English to German: 4.5 million pairs of Europarl, Common Crawl and News Commentary, test
# set newstest2014 (3,003 sentences).
#
# Usage: bash scripts/prepare_wmt14.sh [OUT] [OPTION...]            (default data-bin/wmt14.en-de)
#
#   --offline DIR  a folder with the archives or the files in them; without it they are downloaded
#                  (exit code 69 if that fails)
#   --commentary V v12 of News Commentary (default, as in fairseq's recipe), or v9 (as in 2014)
#   --merges N     merges of the joint BPE (default 40000)
#   --bpe TOOL     fastbpe (default if it is installed) or subword-nmt: the same pieces
#   --dictionaries joined (default) or separate
#
# Normalised, tokenised, words split at hyphens (a @-@ b), cased; every 100th pair held out; training
# and validation pairs of up to 250 pieces and a ratio of 1.5. Score with
# `fairseq-ext score --metrics bleu compound-split-bleu`.
# Cost, estimated from smaller corpora: an hour on two cores, 1.7 GB of downloads, 10 GB of disk.

. "$(dirname "$0")/lib/data.sh"
EXTRA='--commentary=v12'
corpus_recipe wmt14.en-de 40000 12000 "$@"
require_one_of --commentary "$commentary" v12 v9
read_parallel_text en de wmt europarl-v7 commoncrawl "news-commentary-$commentary" newstests -- \
  "train=europarl-v7.de-en.@+commoncrawl.de-en.@+news-commentary-$commentary.de-en.@" \
  'test=newstest2014-deen-*.@.sgm|newstest2014.@'
tokenise_text --printed --hyphens
sort_pairs held "$WORK/tokens=$WORK/text" --every 100
split_words "$WORK/text" "$WORK/pieces"
sort_pairs cleaned "$WORK/pieces=$WORK/short/pieces" "$WORK/text=$WORK/short/text" --parts train valid \
  --longest 250
finish "$WORK/short/text" "$WORK/short/pieces"
