#!/usr/bin/env bash
# Multi30k task 1, English to German: 29,000 image captions, test set test_2016_flickr.
#
# Usage: bash scripts/prepare_multi30k.sh [OUT] [OPTION...]     (default data-bin/multi30k.en-de)
#
#   --offline DIR  a folder with {train,val,test_2016_flickr}.{en,de}, plain or .gz (default:
#                  $FAIRSEQ_EXT_CORPORA/multi30k-en-de if that variable is set, else they are
#                  downloaded; exit code 69 if that fails)
#   --merges N     merges of the joint BPE (default 4000; published small Transformers have 10000)
#   --bpe TOOL     fastbpe (default if it is installed) or subword-nmt: the same pieces
#   --dictionaries joined (default) or separate
#
# Normalised, tokenised, lower-cased. Cost: one minute.

. "$(dirname "$0")/lib/data.sh"
corpus_recipe multi30k.en-de 4000 500 "$@"
offline=${offline:-$(corpus_folder multi30k-en-de)}
read_parallel_text en de multi30k multi30k-{train,val,test_2016_flickr}.{en,de}.gz -- \
  train=train.@ valid=val.@ test=test_2016_flickr.@
tokenise_text --lowercase
split_words "$WORK/tokens" "$WORK/pieces"
finish "$WORK/tokens" "$WORK/pieces"
