#!/usr/bin/env bash
# Gigaword headlines (Rush et al. 2015): 3.8 million first sentences and titles, test set of 1,951.
#
# Usage: bash scripts/prepare_gigaword.sh [OUT] [OPTION...]          (default data-bin/gigaword)
#
#   --offline DIR   the folder with the corpus, which is never downloaded, since the Linguistic Data
#                   Consortium licenses it (default: $FAIRSEQ_EXT_CORPORA/gigaword-headline). It has, plain
#                   or .gz, perhaps in folders: train.{article,title}.txt, valid.{article,title}.filter.txt,
#                   input.txt and task1_ref0.txt; or {train,dev,test}.{src,tgt}.txt; the test part also as
#                   test1951.jsonl
#   --pieces KIND   wordpiece (default, the paper's kind) or bpe
#   --merges N      size of the vocabulary of WordPiece, or merges of BPE (default: 30522)
#   --wordpiece FILE  a WordPiece vocabulary, as BERT's vocab.txt, in place of --merges
#   --bpe TOOL      for --pieces bpe: fastbpe (default if it is installed) or subword-nmt
#   --valid N       pairs for validation, spread over the validation part (default 10000, as the paper)
#   --positions S,T  tokens of an article and of a title, with </s> (default 128,64); the rest is cut,
#                    but for titles of the test part, which are references
#
# The corpus is tokenised and in lower case, with digits as #; its <unk> and UNK become the word unk.
# Pairs with an empty side are left out of training. text/test.title is the reference for ROUGE.
# Languages: article, title. Translate with --bpe wordpiece --wordpiece-vocab OUT/wordpiece.txt.
# Cost, estimated from 10,000 pairs: 15 minutes on two cores, 3 GB of disk.

. "$(dirname "$0")/lib/data.sh"
SHARED='--offline= --merges# --bpe='
EXTRA='--pieces=wordpiece --wordpiece= --valid#10000 --positions=128,64'

# refuse_conflicts: refuse options that have no effect together.
refuse_conflicts() {
  require_one_of --pieces "$pieces" wordpiece bpe
  [ "$pieces" = wordpiece ] || [ -z "$wordpiece" ] ||
    die "--wordpiece is a vocabulary of WordPiece and --pieces is bpe: give one of them."
  [ "$pieces" = bpe ] || [ -z "$bpe" ] ||
    die "--bpe is a tool of byte-pair encoding and --pieces is wordpiece: give --pieces bpe with it."
  [ -z "$wordpiece" ] || [ -z "$merges" ] ||
    die "--merges is the size of a vocabulary and --wordpiece has one already: give one of them."
}

corpus_recipe gigaword 30522 3000 "$@"
[[ "$positions" =~ ^([2-9]|[1-9][0-9]+),([2-9]|[1-9][0-9]+)$ ]] ||
  die "--positions is '$positions' and must be two numbers from 2 upwards, as in 128,64."
[ -z "$wordpiece" ] || [ -f "$wordpiece" ] ||
  die "--wordpiece is '$wordpiece' and must be a file, as BERT's vocab.txt."
FROM=${offline:-$(corpus_folder gigaword-headline)} SOURCE=article TARGET=title
[ -n "$FROM" ] || die "Gigaword is never downloaded: give the folder that has it with --offline."

# split_into_wordpieces: split WORK/text into WORK/pieces.
split_into_wordpieces() {
  local path vocabulary=$WORK/wordpiece.txt
  if [ -n "$wordpiece" ]; then
    produce "$vocabulary" cat "$wordpiece"
  elif [ ! -e "$vocabulary" ]; then
    prepare_step wordpiece learn --size "$merges" "$vocabulary" "$WORK/text"/train.*
  fi
  for path in "$WORK/text"/*; do
    produce "$WORK/pieces/$(basename "$path")" foreground apply_wordpieces "$vocabulary" "$path"
  done
  produce "$WORK/srcdict" prepare_step wordpiece dict "$vocabulary"
}

# apply_wordpieces VOCABULARY FILE: print the pieces of a file; replaces this shell.
apply_wordpieces() { exec python -m fairseq_ext.prepare.wordpiece apply "$1" <"$2"; }

begin "$FROM"
step raw "Reading the corpus" unless_refused gigaword extract "$FROM" "$WORK/raw" \
  --valid "$valid"
step checked "Checking it" check_parts
sort_pairs text "$WORK/raw=$WORK/text" --longest 1000 --ratio 1000
case "$pieces" in
wordpiece)
  step split "Splitting words: a WordPiece vocabulary of ${wordpiece:-$merges}" split_into_wordpieces
  DICTIONARY=$WORK/srcdict
  ;;
bpe) split_words "$WORK/text" "$WORK/pieces" ;;
esac
step truncated "Cutting what is longer than $positions tokens" \
  prepare_step gigaword truncate "$WORK/pieces" --positions ${positions//,/ }
finish "$WORK/text" "$WORK/pieces"
