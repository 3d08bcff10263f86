#!/usr/bin/env bash
# Role-guided masks: sentence classification from scratch compared with a plain Transformer, a CNN and
# a BiLSTM, what each role is worth, and translation.
#
# Paper: Multi-Head Self-Attention with Role-Guided Masks (Wang et al. 2020), Tables 2 and 3, Figure 2.
# Needs: the files of the corpora in $FAIRSEQ_EXT_CORPORA unless they are in data-bin; Multi30k, from
# there or downloaded, for translate.
#
# Usage: bash scripts/roles.sh EXPERIMENT [OPTION...] [-- FLAG...]
#
#   classify CORPUS...  Table 3: a plain Transformer, one of the same size with roles, a multi-scale
#                CNN (Kim 2014) and a BiLSTM
#   ablate CORPUS  Figure 2: one role after the other replaced by none; its head stays
#   translate    Table 2: roles in the encoder of a translation model, and roles in its training only
#
#   CORPUS       a corpus of scripts/prepare_task.sh (the paper's: trec cr mr mpqa subj
#                sst-2-sentences; its SST has phrases too: sst-2), made in data-bin with a vocabulary
#                of words
#   --roles      roles of the first heads of each layer (default: rare,separator,relative, and for
#                sentences with dependency and major where `fairseq-ext annotate` made
#                train.annotations)
#   --guided     flags of trainings with roles alone, as in --guided --head-gate
#   --seeds      repetitions (default: 3; 1 in cross-validation)
#   --updates    length of each training (default: 1000, of translate 1800)
#   --jobs       trainings side by side (default: 1)
#   --data       data to use instead of those in data-bin (CORPUS, for translate Multi30k)
#   --out        folder of runs, in a folder CORPUS but for translate (default: checkpoints/roles, and
#                checkpoints/roles/translate/ with the name of the data and the size)
#   FLAG         flags of fairseq-train for all trainings, e.g. --fp16
# Options of classify and ablate:
#   --variants   of classify (default: 'transformer roles cnn bilstm')
#   --folds      folds of cross-validation (default: 10 for cr, mpqa, mr and subj, else none)
#   --words      the most frequent words of the training part alone (default: all); the folders of
#                data and runs are then CORPUS-N
# Options of translate:
#   --size       size of the models: _tiny (default), _iwslt_de_en, '' (base), _wmt_en_de,
#                _wmt_en_de_big
#
# A second run of the same command continues where the first was interrupted. Where there is a test
# part, it is scored at the epoch that is best on the validation part (the paper's code reports the
# best epoch on its validation part, which for trec and subj is the test part); in cross-validation the
# last epoch is scored. The paper's rows use 100-d GloVe, and 6 or 8 heads, five of them with roles. A
# width of 100 needs a number of heads that divides it: -- --encoder-embed-dim 100
# --encoder-attention-heads 10 --word-vectors glove.6B.100d.txt
#
# Expected: in the paper, CR, TREC, SUBJ, MPQA, MR, SST
#   transformer  82.0  91.8  93.2  88.6  77.7  81.8
#   roles        84.4  93.6  93.8  90.7  80.0  84.2
#   cnn          81.2  93.1  93.3  89.1  77.8  80.9
#   bilstm       82.6  92.4  93.6  88.9  78.4  81.1
# and WMT16 En-De 34.3 BLEU, with roles 38.8. Ours without word vectors (docs/results/): TREC 87.5,
# with roles 87.6; CR 79.0, with roles 75.6 (rare overfits without word vectors; without it 81.5
# against 82.3 on fold 1); MR 76.9, with roles 74.9; MPQA 84.9, with roles 84.1;
# ewt-genre 59.2, with roles (gold parses) 58.2; Multi30k 31.4 BLEU, with roles 31.8.
# Cost: on one core 1 to 2 minutes for each training of a sentence model, 8 of a translation model.

. "$(dirname "$0")/lib/finetuning.sh"

# Settings of models of sentences, tuned on the validation parts of sst-2-sentences and trec and on
# one fold of cr and mr, with a plain Transformer, a CNN and a BiLSTM.
SIZES='--encoder-layers 2 --encoder-embed-dim 96 --encoder-ffn-embed-dim 192
--encoder-attention-heads 6'
GUIDED="--arch roberta_roles $SIZES --pooling mean --dropout .5 --attention-dropout .1 --lr 5e-4"

# print_variant NAME: print a variant of models of sentences and its flags, as NAME=FLAGS.
print_variant() {
  case "$1" in
  transformer) say "$1=$GUIDED --encoder-roles none" ;;
  roles) say "$1=$GUIDED --encoder-roles $names $guided" ;;
  without-*) say "$1=$GUIDED --encoder-roles $(without "${1#*-}") $guided" ;;
  cnn | bilstm) say "$1=--arch sentence_$1 --pooling max --dropout .3 --lr 2e-3" ;;
  *) die "--variants has '$1' and must have some of transformer, roles, cnn and bilstm." ;;
  esac
}

# without ROLE: print the roles with none in its place.
without() { sed -E "s/(^|[,\/])$1\b/\1none/g" <<<"$names"; }

# set_corpus CORPUS: set data, out, names (of roles), FLAGS, seeds, folds and SCORES.
set_corpus() {
  local name=$1${words:+-$words}
  set_task "$1"
  data=${given_data:-$PLACE/data-bin/$name} out=${given_out:-$PLACE/checkpoints/roles}/$name
  [ -n "$given_data" ] || [ -e "$data/dict.txt" ] ||
    bash "$SCRIPTS/prepare_task.sh" "$1" "$data" --words "${words:-0}"
  [ -e "$data/dict.txt" ] ||
    die "--data is '$data', which has no dict.txt: give a folder of scripts/prepare_task.sh --words."
  require_room "$out" 2000
  folds=$given_folds
  case "$1" in cr | mpqa | mr | subj) folds=${folds:-10} ;; esac
  seeds=${given_seeds:-$([ -n "$folds" ] && echo 1 || echo 3)}
  names=rare,separator,relative
  [ ! -e "$data/train.annotations" ] || names=rare,separator,dependency,major,relative
  names=${roles:-$names}
  set_training_flags 0 0 5e-4 32 "${updates:-1000}"
  add_linear_schedule $((UPDATES / 10))
  FLAGS+=(--output linear --pooler-dropout .5)
  SCORES=("$METRIC")
  if [ -n "$folds" ]; then
    FLAGS+=(--validate-interval 1000 --save-interval 1000 --no-save-optimizer-state)
  elif [ -e "$data/test.jsonl" ]; then
    SCORES=("test.$METRIC" "$METRIC")
    FLAGS+=(--valid-subset valid,test)
  fi
}

# train VARIANT...: train models of sentences, and set RUNS.
train() {
  RUNS=()
  set_variants "$@"
  study "${VARIANTS[@]}" -- "${FLAGS[@]}"
}

classify() {
  local corpus
  for corpus in "$@"; do set_task "$corpus"; done
  for corpus in "$@"; do set_corpus "$corpus"; done # before models are trained
  for corpus in "$@"; do
    set_corpus "$corpus"
    # shellcheck disable=SC2086 # words
    train ${variants:-transformer roles cnn bilstm}
    say
    say "$corpus, mean ± standard deviation:"
    compare "${SCORES[@]}" --spread deviation
  done
}

ablate() {
  set_corpus "$1"
  # shellcheck disable=SC2046 # words
  train roles $(tr ',/' '\n\n' <<<"$names" | grep -vx none | sort -u | sed 's/^/without-/')
  BASELINE=roles compare "${SCORES[@]}" --spread deviation --bars "$out/ablation.png"
  say
  say "Picture of the scores: $out/ablation.png"
}

# translate_without_roles: translate without roles by models that were trained with them.
translate_without_roles() {
  local number run bare
  for number in $(seq "$seeds"); do
    run=$out/roles/seed-$number bare=$out/training-only/seed-$number
    is_newer "$bare/generate-test.txt" "$run/checkpoint_last.pt" && continue
    mkdir -p "$bare"
    rm -f "$bare/generate-test.txt"
    ln -sf "../../roles/seed-$number/"{checkpoint_last.pt,train.log} "$bare"
    say "training-only/seed-$number: translating"
    # shellcheck disable=SC2086 # words
    produce "$bare/generate-test.txt" foreground fairseq-generate "$data" \
      --user-dir "$PACKAGE" --path "$run/checkpoint_last.pt" \
      --model-overrides "{'encoder_roles': 'none'}" $GENERATE 2>"$bare/generate-test.log" ||
      die "Translating failed: the reason is at the end of $bare/generate-test.log."
  done
}

# use_annotations: let FLAGS and GENERATE read annotations, which must be there.
use_annotations() {
  local split files
  for split in train valid test; do
    files=("$data/$split".*.annotations)
    [ -e "${files[0]}" ] ||
      die "--roles is '$names' and '$data' has no annotations of its $split part: make them with" \
        "'fairseq-ext annotate', or leave dependency and major out."
  done
  FLAGS+=(--task translation_roles)
  GENERATE+=' --task translation_roles'
}

translate() {
  seeds=${seeds:-3} updates=${updates:-1800}
  prepare_study roles/translate test
  names=${roles:-rare,separator,relative}
  set_translation_flags "$updates" test
  [[ ! "$names" =~ dependency|major ]] || use_annotations
  case "$size" in _tiny | _iwslt_de_en) FLAGS+=(--encoder-attention-heads 8) ;; esac
  study "transformer=--arch transformer_una$size" \
    "roles=--arch transformer_roles$size --encoder-roles $names $guided" -- \
    "${FLAGS[@]}"
  translate_without_roles
  add_runs "$out/training-only"
  compare bleu valid.nll_loss "${SCORING[@]}"
}

folds='' words='' most=1 takes='one corpus'
case "${1:-}" in
classify) accepted='--variants= --folds# --words#' most=99 takes='corpora' ;;
ablate) accepted='--folds# --words#' ;;
translate) accepted='--size=_tiny' most=0 takes='no corpus' ;;
-h | --help) usage ;;
*) die "The experiment is '${1:-}' and must be classify, ablate or translate." ;;
esac
read_options "WORD --roles= --guided= --seeds# --updates# --jobs#1 --data= --out= -- $accepted" "$@"
experiment=$1 corpora=("${WORDS[@]:1}")
given_data=$data given_out=$out given_seeds=$seeds given_folds=$folds
[ ${#corpora[@]} -le $most ] && { [ ${#corpora[@]} -gt 0 ] || [ $most = 0 ]; } ||
  die "$experiment takes $takes and ${#corpora[@]} are given: see 'bash $0 --help'."
[ -z "$data" ] || [ ${#corpora[@]} -lt 2 ] || die "--data is for one corpus: give one."
[ -z "$data" ] || [ -z "$words" ] ||
  die "--words is for data that are made and --data is given: leave one out."
setup_environment
"$experiment" "${corpora[@]}"
