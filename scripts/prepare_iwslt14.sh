#!/usr/bin/env bash
# IWSLT 2014, German to English: 160,239 / 7,283 / 6,750 pairs of TED talks, prepared as by
# fairseq's recipe of that name.
#
# Usage: bash scripts/prepare_iwslt14.sh [OUT] [OPTION...]        (default data-bin/iwslt14.de-en)
#
#   --offline DIR  a folder with de-en.tgz or the files in it; without it they are downloaded
#                  (exit code 69 if that fails)
#   --merges N     merges of the joint BPE (default 10000)
#   --bpe TOOL     fastbpe (default if it is installed) or subword-nmt: the same pieces
#   --dictionaries separate (default) or joined
#
# Tokenised without normalised punctuation, lower-cased; training pairs of up to 175 tokens and a
# ratio of 1.5, every 23rd of them held out; test set: dev2010, TEDX dev2012, tst2010 to tst2012.
# docs/data.md lists the differences from Moses' Perl. Cost: 2 minutes, 300 MB.

. "$(dirname "$0")/lib/data.sh"
SHARED=${SHARED/joined/separate}
corpus_recipe iwslt14.de-en 10000 1000 "$@"
test=IWSLT14.TED.dev2010.de-en.@.xml+IWSLT14.TEDX.dev2012.de-en.@.xml
for year in 2010 2011 2012; do test+=+IWSLT14.TED.tst$year.de-en.@.xml; done
read_parallel_text de en iwslt14 iwslt14 -- train=train.tags.de-en.@ "test=$test"
tokenise_text --raw-punctuation --lowercase
sort_pairs text "$WORK/tokens=$WORK/text" --longest 175 --every 23
split_words "$WORK/text" "$WORK/pieces"
finish "$WORK/text" "$WORK/pieces"
