#!/usr/bin/env bash
# WMT 2016, English to German: 4.5 million pairs of Europarl, Common Crawl and News Commentary v11,
# validation newstest2013, test newstest2016 (2,999 sentences).
#
# Usage: bash scripts/prepare_wmt16.sh [OUT] [OPTION...]            (default data-bin/wmt16.en-de)
#
#   --offline DIR  a folder with the archives or the files in them; without it they are downloaded
#                  (exit code 69 if that fails)
#   --merges N     merges of the joint BPE (default 32000)
#   --bpe TOOL     fastbpe (default if it is installed) or subword-nmt: the same pieces
#   --dictionaries joined (default) or separate
#
# Normalised, tokenised, cased; training pairs of up to 250 pieces and a ratio of 1.5.
# Cost, estimated from smaller corpora: an hour on two cores, 1.7 GB of downloads, 10 GB of disk.

. "$(dirname "$0")/lib/data.sh"
corpus_recipe wmt16.en-de 32000 12000 "$@"
read_parallel_text en de wmt europarl-v7 commoncrawl news-commentary-v11 newstests -- \
  train=europarl-v7.de-en.@+commoncrawl.de-en.@+news-commentary-v11.de-en.@ \
  valid=newstest2013.@ 'test=newstest2016-deen-*.@.sgm|newstest2016.@'
tokenise_text --printed
split_words "$WORK/tokens" "$WORK/pieces"
sort_pairs cleaned "$WORK/pieces=$WORK/short/pieces" "$WORK/tokens=$WORK/short/text" --longest 250
finish "$WORK/short/text" "$WORK/short/pieces"
