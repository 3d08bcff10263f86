#!/usr/bin/env bash
# Parallel text of your own, or of another corpus, to a folder for fairseq.
#
# Usage: bash scripts/prepare_parallel.sh SOURCE TARGET OUT --offline DIR [OPTION...]
#
#   SOURCE TARGET  languages
#   OUT            the folder to make
#   --offline DIR  the folder with the text: files, plain or .gz, or archives that have them
#   --train, --valid, --test   names of files, with @ in the place of the language (default: train.@,
#                  valid.@, test.@); several as a.@+b.@, alternatives as a.@|b.@; the .xml and .sgm
#                  files of IWSLT and WMT are accepted
#   --every N      every Nth training pair for validation, instead of --valid
#   --merges N     merges of the joint BPE (default 10000)
#   --bpe TOOL     fastbpe (default if it is installed) or subword-nmt: the same pieces
#   --dictionaries joined (default) or separate
#   --tokenised    the text is tokenised already (text that looks so without this is warned of)
#   --hyphens      words are split at hyphens (a @-@ b)
#   --lowercase    lower-case the text
#   --longest N    tokens of a training sentence (default 250). Longer ones are left out, and pairs of
#                  which one side is more than --ratio times as long as the other (default 1.5)
#
# Example, news test sets as a small WMT:
#   bash scripts/prepare_parallel.sh en de data-bin/news.en-de --offline newstests --hyphens \
#     --train newstest2009.@+newstest2010.@+newstest2011.@+newstest2012.@ \
#     --valid newstest2013.@ --test newstest2014.@
# Cost: 4 million tokens take a minute on two cores.

. "$(dirname "$0")/lib/data.sh"
train=train.@ valid='' test=test.@ every='' tokenised='' hyphens='' lowercase='' longest=250 ratio=1.5
languages=()
case "${1:-}" in -h | --help) usage ;; esac
while [ $# -gt 0 ] && [[ "$1" != -* ]] && [ ${#languages[@]} -lt 2 ]; do
  languages+=("$1")
  shift
done
[ ${#languages[@]} = 2 ] && [[ "${1:-}" == [!-]* ]] ||
  die "SOURCE, TARGET and OUT are needed: see 'bash scripts/prepare_parallel.sh --help'."
[ "${languages[0]}" != "${languages[1]}" ] ||
  die "SOURCE and TARGET are both '${languages[0]}': give two languages."
SETTINGS=("languages ${languages[*]}")
EXTRA='--train= --valid= --test= --every= --tokenised --hyphens --lowercase --longest= --ratio='
corpus_recipe parallel 10000 500 "$@"
[ -n "$offline" ] || die "--offline is needed: the folder with the text."
require_positive --longest "$longest"
require_positive --every ${every:+"$every"}
[ -z "$every" ] || [ -z "$valid" ] || die "--valid and --every are two ways to one part: give one."
[[ "$ratio" =~ ^[1-9][0-9]*(\.[0-9]+)?$ ]] ||
  die "--ratio is '$ratio' and must be a number from 1 upwards, as 1.5."
flags=(${tokenised:+--tokenised} ${hyphens:+--hyphens} ${lowercase:+--lowercase})
[ -z "$tokenised" ] || [ ${#flags[@]} = 1 ] ||
  die "--tokenised text stays as it is: leave ${flags[*]:1} out."
parts=("train=$train" "test=$test")
[ -n "$every" ] || parts+=("valid=${valid:-valid.@}")
for part in "${parts[@]}"; do
  [[ "$part" != *[*?[]* ]] || die "--${part%%=*} is '${part#*=}', and * ? [ do not stand for" \
    "several files: name each of them, joined by +."
done
read_parallel_text "${languages[@]}" own -- "${parts[@]}"
tokenise_text "${flags[@]}"
sort_pairs text "$WORK/tokens=$WORK/text" --longest "$longest" --ratio "$ratio" ${every:+--every "$every"}
split_words "$WORK/text" "$WORK/pieces"
finish "$WORK/text" "$WORK/pieces"
