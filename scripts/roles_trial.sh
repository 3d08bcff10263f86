#!/usr/bin/env bash
# Role-guided masks with what the paper gave them: word vectors, parses and a search of settings,
# beside a plain Transformer that has the same vectors and as long a search.
#
# Paper: Multi-Head Self-Attention with Role-Guided Masks (Wang et al. 2020), Table 3, Figure 2.
# Needs: the files of the corpora in $FAIRSEQ_EXT_CORPORA unless they are in data-bin, and there the
# English Web Treebank; spaCy (pip install -e '.[spacy]'); an encoder, or word vectors.
#
# Usage: bash scripts/roles_trial.sh [PART...] [OPTION...] [-- FLAG...]
#
#   PART         search, trial or ablate, which stand for all parts up to it (default: ablate)
#                  search  settings of each side, drawn with seed 1: heads, dropout, learning rate, with
#                          roles also which and --role-rare-min-count; one training each. Accuracy at
#                          the last epoch on what was set aside chooses: CORPUS/chosen.txt
#                  trial   the chosen settings: 10-fold cross-validation of cr, mr, mpqa; on trec and
#                          sst-2-sentences several seeds, test part
#                  ablate  cr and mr, the chosen setting with all five roles: without each of them in
#                          turn, and with random trees (fairseq-ext annotate --shuffle 1)
#   --corpora    of cr, mr, mpqa, trec, sst-2-sentences (default: all)
#   --vectors    an encoder, as of `fairseq-ext import-hf`, or word vectors in GloVe's text form; they
#                are projected onto 96 components (default: checkpoints/encoders/minilm/model.pt)
#   --parser     folder of scripts/train_parser.sh, which trains it (default: checkpoints/parser)
#   --tries      settings of each side's search (default: 6)
#   --seeds      repetitions where there is a test part (default: 5)
#   --folds      of cross-validation (default: 10)
#   --updates    length of each training (default: 1000)
#   --jobs       trainings side by side (default: 1)
#   --out        folder of runs and tables (default: checkpoints/roles-trial)
#   FLAG         flags of fairseq-train for all trainings, e.g. --fp16
#
# Data are made in data-bin/roles-trial/CORPUS. What is set aside is every tenth training example,
# taken away before folds are made, or the part for validation. The best epoch is the best one on what
# was set aside; last and best are in the tables, CORPUS/table*.txt and table.txt, which also has the
# share of words with a vector, the parser's attachment scores, and the test over corpora. A second
# run of the same command continues where the first was interrupted; a search that has ended is kept,
# whatever --tries is, until CORPUS/chosen.txt is deleted. The protocol, which was written
# before the runs, is in docs/results/protocols.md.
#
# Expected: in the paper, CR, TREC, MPQA, MR, SST without roles 82.0, 91.8, 88.6, 77.7, 81.8, with
# them 84.4, 93.6, 90.7, 80.0, 84.2. Ours, last epoch: 80.7, 89.6, 88.4, 75.6, 82.2, with them 79.6,
# 91.0, 88.2, 76.9, 81.3 (docs/results/).
# Cost: by 1,000 updates on cr and sst-2-sentences, 50 s of one core for each of up to 280 trainings,
# four core-hours in all, and up to one for the parser.

. "$(dirname "$0")/lib/finetuning.sh"

FIVE=rare,separator,dependency,major,relative

# prepare CORPUS: set data, and make it with a vocabulary and word vectors, but no parses.
prepare() {
  local file
  prepare_corpus "$1"
  data=$DATAS/$1
  if [ -e "$DATA/valid.jsonl" ]; then
    for file in "$DATA"/*.jsonl; do produce "$data/${file##*/}" cat "$file"; done
  else # before folds are made
    produce "$data/aside.jsonl" awk 'NR % 10 == 0' "$DATA/train.jsonl"
    produce "$data/train.jsonl" awk 'NR % 10' "$DATA/train.jsonl"
  fi
  [ -e "$data/dict.txt" ] || bash "$SCRIPTS/prepare_task.sh" "$1" "$data" --words 0
  produce "$data/made-of" realpath -m "$vectors" "$parser"
  realpath -m "$vectors" "$parser" | cmp -s - "$data/made-of" ||
    die "'$data' was made with these vectors and this parser: $(paste -sd' ' "$data/made-of"):" \
      "give the same, or delete it."
  produce "$data/share.txt" foreground python -m fairseq_ext.cli export-vectors "$vectors" \
    --words "$data/dict.txt" --width 96 --out "$data/vectors.txt"
  cat "$data/share.txt"
}

# shuffle: set data to a copy of it with random trees.
shuffle() {
  local file split plain=$data
  data+=-random
  mkdir -p "$data"
  for file in "$plain"/{*.jsonl,*.json,*.txt}; do
    ln -sf "../${plain##*/}/${file##*/}" "$data"
  done
  for split in train aside; do
    [ -e "$data/$split.annotations" ] ||
      foreground python -m fairseq_ext.cli annotate "$data" --split "$split" \
        --parser "spacy:$parser/model-best" --shuffle 1
  done
}

# set_corpus CORPUS: set data, out, chosen (the flags of both sides, after the search), and what is
# validated on: aside, where the best epoch is best, and scored.
set_corpus() {
  set_task "$1"
  data=$DATAS/$1 out=$root/$1 chosen=()
  if [ -e "$data/aside.jsonl" ]; then
    aside=aside scored=valid seeds=1 folds=$given_folds
  else
    aside=valid scored=test seeds=$given_seeds folds=''
  fi
  [ ! -e "$out/chosen.txt" ] || mapfile -t chosen < <(grep -v '^#' "$out/chosen.txt")
  require_room "$out" 1000
}

# train SUBSETS VARIANT...: train models that are validated on SUBSETS.
train() {
  set_training_flags 0 0 5e-4 32 "$updates"
  add_linear_schedule $((UPDATES / 10))
  study "${@:2}" -- "${FLAGS[@]}" --arch roberta_roles --encoder-layers 2 --encoder-embed-dim 96 \
    --encoder-ffn-embed-dim 192 --pooling mean --attention-dropout .1 --output linear \
    --pooler-dropout .5 --word-vectors "$data/vectors.txt" --valid-subset "$1" \
    --save-interval 1000 --no-save-optimizer-state
}

# search: choose a setting of each side.
search() {
  local settings seeds=1 folds='' place=$out out=$out/search
  [ ${#chosen[@]} = 0 ] || return 0
  mapfile -t settings < <(python "$SCRIPTS/roles_trial.py" draw 1 "$tries")
  train "$aside" "${settings[@]}"
  produce "$place/chosen.txt" python "$SCRIPTS/roles_trial.py" choose "$out" "${settings[@]}"
  cat "$place/chosen.txt"
}

# report VARIANT...: compare variants with the first one, by the last epoch and the best one.
report() {
  local name RUNS=() BASELINE=$1 BY="last.$scored.$METRIC $scored.$METRIC"
  for name in "$@"; do add_runs "$out/$name"; done
  # shellcheck disable=SC2086 # words
  compare $BY --spread deviation --mixed
}

trial() {
  train "$aside,$scored" "${chosen[@]}"
  report plain roles
}

# ablate: take each role away from all five, and give random trees.
ablate() {
  local name base=roles flags=${chosen[1]#roles=} variants=()
  case "$out" in */cr | */mr) ;; *) return 0 ;; esac
  [[ " $flags " == *" --encoder-roles $FIVE "* ]] ||
    base=five variants=("five=$flags --encoder-roles $FIVE")
  for name in ${FIVE//,/ }; do
    variants+=("without-$name=$flags --encoder-roles ${FIVE/$name/none}")
  done
  variants[-5]+=' --role-rare-min-count 0' # without rare
  train "$aside,$scored" "${variants[@]}"
  report "$base" without-{rare,separator,dependency,major,relative}
  shuffle
  train "$aside,$scored" "random=$flags --encoder-roles $FIVE"
  report random "$base"
}

# summarise: print what all corpora say, beside the share of vectors and the scores of the parser.
summarise() {
  local name
  for name in "${names[@]}"; do say "$name: $(sed 's/.* has //' "$DATAS/$name/share.txt")"; done
  for name in scores scores-lower; do
    [ ! -e "$parser/$name.json" ] ||
      say "parser, $name: $(grep -Eo '"dep_[ul]as": ?[0-9.]+' "$parser/$name.json" | xargs)"
  done
  say
  python "$SCRIPTS/roles_trial.py" compare "${names[@]/#/$root/}"
}

read_options "WORD --corpora= --vectors= --parser= --tries#6 --seeds#5 --folds#10 --updates#1000 --jobs#1 \
  --out= --" "$@"
part=${WORDS[0]:-ablate}
[ ${#WORDS[@]} -lt 2 ] || die "${#WORDS[@]} parts are given: give the last one that is wanted."
require_one_of PART "$part" search trial ablate
known='cr mr mpqa trec sst-2-sentences'
read -ra names <<<"${corpora:-$known}"
# shellcheck disable=SC2086 # words
for name in "${names[@]}"; do require_one_of --corpora "$name" $known; done
parser=${parser:-$PLACE/checkpoints/parser} root=${out:-$PLACE/checkpoints/roles-trial}
vectors=${vectors:-$PLACE/checkpoints/encoders/minilm/model.pt} DATAS=$PLACE/data-bin/roles-trial
given_seeds=$seeds given_folds=$folds
[ -f "$vectors" ] || die "--vectors is '$vectors', which is not there: give an encoder or vectors."
setup_environment
for name in "${names[@]}"; do prepare "$name"; done
bash "$SCRIPTS/train_parser.sh" --out "$parser" "${names[@]/#/$DATAS/}"
for step in search trial ablate; do
  for name in "${names[@]}"; do
    set_corpus "$name"
    "$step"
  done
  if [ "$step" = trial ]; then
    rm -f "$root/table.txt"
    produce "$root/table.txt" summarise
    cat "$root/table.txt"
  fi
  [ "$step" != "$part" ] || break
done
