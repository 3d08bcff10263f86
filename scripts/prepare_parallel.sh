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
#   --test-last N  the last N training pairs for testing, instead of --test
#   --merges N     merges of the joint BPE (default 10000)
#   --bpe TOOL     fastbpe (default if it is installed) or subword-nmt: the same pieces;
#                  sentencepiece: raw text, which is not tokenised first, and translations come out
#                  raw (fairseq-generate --remove-bpe sentencepiece)
#   --vocab-size N with sentencepiece: joint pieces (default 8000)
#   --model-type T with sentencepiece: unigram (default) or bpe
#   --dictionaries joined (default) or separate
#   --tokenised    the text is tokenised already (text that looks so without this is warned of)
#   --hyphens      words are split at hyphens (a @-@ b)
#   --lowercase    lower-case the text
#   --longest N    tokens of a training sentence (default 250). Longer ones are left out, and pairs of
#                  which one side is more than --ratio times as long as the other (default 1.5).
#                  With sentencepiece tokens are pieces, whose numbers vary more (default 2).
#
# Example, news test sets as a small WMT:
#   bash scripts/prepare_parallel.sh en de data-bin/news.en-de --offline newstests --hyphens \
#     --train newstest2009.@+newstest2010.@+newstest2011.@+newstest2012.@ \
#     --valid newstest2013.@ --test newstest2014.@
# Cost: 4 million tokens take a minute on two cores.

. "$(dirname "$0")/lib/data.sh"
SPLITTERS+=' sentencepiece'

# refuse_conflicts: refuse options that exclude each other, and set defaults that depend on others.
refuse_conflicts() {
  local name
  [ -z "$test_last" ] || [ -z "$test" ] ||
    die "--test and --test-last are two ways to one part: give one."
  [ -n "$test_last" ] || test=${test:-test.@}
  if [ "$bpe" = sentencepiece ]; then
    for name in merges tokenised hyphens lowercase; do
      [ -z "${!name}" ] ||
        die "--$name does nothing with --bpe sentencepiece, which takes text as it is: leave it out."
    done
    vocab_size=${vocab_size:-8000} model_type=${model_type:-unigram} ratio=${ratio:-2}
  fi
  [ "$bpe" = sentencepiece ] || [ -z "$vocab_size$model_type" ] ||
    die "--vocab-size and --model-type are for --bpe sentencepiece: give that, too, or leave them out."
  ratio=${ratio:-1.5}
}

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
EXTRA='--train=train.@ --valid= --test= --every# --test-last# --tokenised --hyphens --lowercase'
EXTRA+=' --longest#250 --ratio= --vocab-size# --model-type='
corpus_recipe parallel 10000 500 "$@"
[ -n "$offline" ] || die "--offline is needed: the folder with the text."
[ "${vocab_size:-0}" -le 1000000 ] ||
  die "--vocab-size is $vocab_size, and more than 1000000 pieces need too much memory: give fewer."
require_one_of --model-type "${model_type:-bpe}" unigram bpe
[ -z "$every" ] || [ -z "$valid" ] || die "--valid and --every are two ways to one part: give one."
[[ "$ratio" =~ ^[1-9][0-9]*(\.[0-9]+)?$ ]] ||
  die "--ratio is '$ratio' and must be a number from 1 upwards, as 1.5."
flags=(${tokenised:+--tokenised} ${hyphens:+--hyphens} ${lowercase:+--lowercase})
[ -z "$tokenised" ] || [ ${#flags[@]} = 1 ] ||
  die "--tokenised text stays as it is: leave ${flags[*]:1} out."
parts=("train=$train" ${test:+"test=$test"})
[ -n "$every" ] || parts+=("valid=${valid:-valid.@}")
for part in "${parts[@]}"; do
  [[ "$part" != *[*?[]* ]] || die "--${part%%=*} is '${part#*=}', and * ? [ do not stand for" \
    "several files: name each of them, joined by +."
done
read_parallel_text "${languages[@]}" own -- "${parts[@]}"
hold_out=(${every:+--every "$every"} ${test_last:+--test-last "$test_last"})
limits=(--longest "$longest" --ratio "$ratio")
if [ "$bpe" = sentencepiece ]; then # whose pieces are what lengths are measured in
  sort_pairs held "$WORK/raw=$WORK/held" "${hold_out[@]}"
  split_raw_text "$WORK/held" "$WORK/encoded" "$vocab_size" "$model_type"
  sort_pairs text "$WORK/encoded=$WORK/pieces" "$WORK/held=$WORK/text" "${limits[@]}" \
    --parts train ${every:+valid}
else
  tokenise_text "${flags[@]}"
  sort_pairs text "$WORK/tokens=$WORK/text" "${limits[@]}" "${hold_out[@]}"
  split_words "$WORK/text" "$WORK/pieces"
fi
finish "$WORK/text" "$WORK/pieces"
