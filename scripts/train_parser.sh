#!/usr/bin/env bash
# A dependency parser of spaCy trained on a treebank, and its parses of corpora that have none, for
# the roles dependency and major.
#
# Paper: Multi-Head Self-Attention with Role-Guided Masks (Wang et al. 2020), whose corpora of
# sentences are parsed by spaCy.
# Needs: spaCy (pip install -e '.[spacy]'); the English Web Treebank in $FAIRSEQ_EXT_CORPORA, or
# another treebank of Universal Dependencies by --train and --dev.
#
# Usage: bash scripts/train_parser.sh [OPTION...] [DATA...]
#
#   DATA       folders of labelled text, as scripts/prepare_task.sh --words 0 makes them: each of their
#              splits gets annotations (fairseq-ext annotate)
#   --train    the treebank, CoNLL-U, plain or .gz (default: ud-english-ewt/en_ewt-ud-train.conllu.gz)
#   --dev      the part that the parser is chosen and measured on (default: en_ewt-ud-dev.conllu.gz)
#   --lang     its language (default: en)
#   --updates  length of the training (default: 5000)
#   --out      folder of the parser (default: checkpoints/parser)
#
# scores.json has attachment scores (dep_uas, dep_las, without punctuation) on --dev, with the words of
# the treebank, scores-lower.json those of its text in lower case, as corpora of sentences often are. A
# parser that is there is used as it is.
#
# Expected: on the development part of the English Web Treebank 84.2 to 84.4 unlabelled, 79.7 to 80.0
# labelled, in lower case 84.0 to 84.1 and 79.5 (spaCy 3.8.18, two trainings with the same seed).
# Cost: 20 to 50 minutes of one core.

. "$(dirname "$0")/lib/common.sh"

# spacy COMMAND ARGUMENT...: run a command of spaCy; what it prints goes to a file.
spacy() {
  local log=$work/spacy.log
  python -m spacy "$@" &>"$log" ||
    die "'spacy $1' failed ($(grep '[^ ]' "$log" | tail -n 1)): what it printed is in $log."
}

# convert FILE NAME: make $work/NAME.spacy of a file of CoNLL-U.
convert() {
  [ "$1" -ef "$work/$2.conllu" ] || gzip -cdf "$1" >"$work/$2.conllu"
  spacy convert "$work/$2.conllu" "$work" --converter conllu --n-sents 10
}

# is_by PARSER FILE: whether about.json of annotations names this parser.
is_by() {
  python -c 'import json, sys
sys.exit(json.load(open(sys.argv[2]))["parser"] != sys.argv[1])' "$@"
}

# refuse_annotations FOLDER: end the script, since another parser made them.
refuse_annotations() {
  die "'$1' is not by this parser: delete it, or leave '$(dirname "$1")' out."
}

train_parser() {
  local work=$out.part
  [ -e "$work/spacy.log" ] || [ -z "$(ls -A "$work" 2>/dev/null)" ] ||
    die "'$work', in which this works, is there and is not of this script: rename it or give" \
      "another --out."
  mkdir -p "$work"
  lock_folder "$work"
  find "$work" -mindepth 1 -delete
  convert "$train" train
  convert "$dev" dev
  spacy init fill-config "$SCRIPTS/configs/parser.cfg" "$work/filled.cfg"
  foreground python -m spacy train "$work/filled.cfg" --output "$work" --nlp.lang "$lang" \
    --paths.train "$work/train.spacy" --paths.dev "$work/dev.spacy" \
    --training.max_steps "$updates" --training.eval_frequency "$((updates < 500 ? updates : 500))"
  spacy evaluate "$work/model-best" "$work/dev.spacy" --output "$work/scores.json" --gold-preproc
  awk -F '\t' -v OFS='\t' 'NF == 10 { $2 = tolower($2) } 1' "$work/dev.conllu" >"$work/lower.conllu"
  convert "$work/lower.conllu" lower
  spacy evaluate "$work/model-best" "$work/lower.spacy" --output "$work/scores-lower.json" \
    --gold-preproc
  rm -r "$work"/*.{conllu,spacy} "$work"/{spacy.log,model-last}
  mv "$work" "$out"
}

read_options "WORD --train= --dev= --lang=en --updates#5000 --out=" "$@"
out=${out:-$PLACE/checkpoints/parser}
out=${out%/}
if [ ! -e "$out/model-best" ]; then
  [ ! -e "$out" ] || rmdir "$out" 2>/dev/null ||
    die "'$out' is there and has no parser (model-best): delete it, or give another --out."
  [ -n "$train" ] && [ -n "$dev" ] || treebank=$(corpus_folder ud-english-ewt)
  train=${train:-${treebank:+$treebank/en_ewt-ud-train.conllu.gz}}
  dev=${dev:-${treebank:+$treebank/en_ewt-ud-dev.conllu.gz}}
  for file in train dev; do
    [ -f "${!file}" ] || die "--$file is '${!file}', which is no file: give CoNLL-U, or set" \
      "FAIRSEQ_EXT_CORPORA to a folder with ud-english-ewt."
  done
fi
for data in "${WORDS[@]}"; do
  [ -e "$data/train.jsonl" ] ||
    die "'$data' has no train.jsonl: give folders of scripts/prepare_task.sh --words 0."
done
if [ ! -e "$out/model-best" ]; then # whose annotations none can be
  for made in "${WORDS[@]}"; do
    made=$(find -L "$made" -maxdepth 1 -name '*.annotations' | head -n 1)
    [ -z "$made" ] || refuse_annotations "$made"
  done
fi
setup_environment
python -c 'import spacy' 2>/dev/null ||
  die "spaCy is not installed: pip install -e '.[spacy]' does it."
[ -e "$out/model-best" ] || train_parser
say "The parser is $out/model-best; its scores are in $out."
for data in "${WORDS[@]}"; do
  for file in "$data"/*.jsonl; do
    split=$(basename "$file" .jsonl)
    made=$data/$split.annotations
    if [ ! -e "$made" ]; then
      fairseq-ext annotate "$data" --split "$split" --parser "spacy:$out/model-best"
    elif [ "$out/model-best" -nt "$made" ] || ! is_by "spacy:$out/model-best" "$made/about.json"; then
      refuse_annotations "$made"
    fi
  done
done
