#!/usr/bin/env bash
# Data for fine-tuning: a published corpus to train.jsonl, valid.jsonl and, if it has such a part,
# test.jsonl: a JSON object for each example, with raw text and, where they are known, labels.
#
# Usage: bash scripts/prepare_task.sh CORPUS [OUT] [--words N]
#
#   CORPUS  one of these, whose files lie in $FAIRSEQ_EXT_CORPORA as they are published, plain or .gz
#           (`python -m fairseq_ext.prepare.corpora --list` prints which folders and parts):
#             sst-2, rte, mrpc, qnli, cola, mnli, qqp, sts-b, wnli    GLUE, e.g. SST-2/train.tsv
#             squad-1.1, squad-2.0                                    squad/train-v1.1.json
#             race, dream, hellaswag                                  RACE/train/middle/*.txt
#             wnut-17                                                 wnut17/wnut17train.conll
#             anli, paws-qqp, paws-wiki                               anli_v1.0/R1/train.jsonl
#             sst-5, sts, quora                                       CS224N, e.g. sts/sts-train.csv
#                                (sts and sts-b also STS-benchmark, stsbenchmark/sts-train.csv)
#             masakhaner2-yor, masakhanews-orm                        masakhaner2-yor/train.txt
#             ewt-genre    English Web Treebank, ud-english-ewt/en_ewt-ud-train.conllu
#             cr, mpqa, mr, subj, trec, sst-2-sentences               sentclass/custrev.all
#   OUT     the folder to make (default data-bin/CORPUS)
#   --words also make a vocabulary for encoders trained from scratch (dict.txt, tokenizer.json): the N
#           most frequent words of train.jsonl, in lower case, or all with 0; an OUT that exists
#           without a vocabulary gets one
#
# cr, mpqa, mr and subj, and masakhaner2-yor-joined with all parts of that corpus, are for
# cross-validation (--folds) and have train.jsonl only. Where files have no part
# for validation (quora/quora-part.csv, trec, mrpc without dev.tsv), or only a piece of a corpus is there
# (glue-qnli/dev-part.tsv, hellaswag/val-part.jsonl), every tenth example becomes valid.jsonl, and
# with it the examples that share with it: a pair (quora, mrpc), a text (trec, hellaswag), a question or a
# sentence (qnli). pawsx-en/dev-part.tsv alone makes valid.jsonl of paws-wiki.
# Cost: seconds; mnli, the largest, 10 seconds and 0.6 GB of memory (measured at its size).

. "$(dirname "$0")/lib/data.sh"

# require_train: refuse --words for data without the training part, from which it takes the words.
require_train() {
  [ -z "$words" ] || [ -e "$OUT/train.jsonl" ] || ! compgen -G "$OUT/*.jsonl" >/dev/null ||
    die "'$OUT' has no train.jsonl, from which --words would take them: leave --words out."
}

read_options "WORD --words=" "$@"
[ ${#WORDS[@]} -gt 0 ] && [ ${#WORDS[@]} -lt 3 ] ||
  die "${#WORDS[@]} words are given, which are to be CORPUS and OUT: see 'bash $0 --help'."
[[ "$words" =~ ^[0-9]*$ ]] || die "--words is '$words' and must be a number, 0 for all words."
OUT=${WORDS[1]:-$PLACE/data-bin/${WORDS[0]}}
OUT=${OUT%/}
require_train
SETTINGS=("CORPUS ${WORDS[0]}" ${words:+"--words $words"})
if [ -z "$words" ] || [ ! -e "$OUT/train.jsonl" ] || [ -e "$OUT/dict.txt" ]; then
  [ -n "${FAIRSEQ_EXT_CORPORA:-}" ] ||
    die "FAIRSEQ_EXT_CORPORA is not set: set it to the folder with the files of '${WORDS[0]}'."
  MADE='*.jsonl'
  one_at_a_time "$(dirname "$OUT")"
  data_recipe "data-bin/${WORDS[0]}" "$OUT"
  setup_environment
  python -m fairseq_ext.prepare.corpora "${WORDS[0]}" "$FAIRSEQ_EXT_CORPORA" "$OUT"
else
  workspace same "$OUT" "${SETTINGS[0]}"
fi
require_train
if [ -n "$words" ]; then
  setup_environment
  python -m fairseq_ext.prepare.word_vocabulary "$OUT" --words "$words"
fi
workspace record "$OUT" "${SETTINGS[@]}"
say "$OUT is ready."
