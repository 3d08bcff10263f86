#!/usr/bin/env bash
# Role-guided masks (Wang et al. 2020): sentence classification from scratch compared with a plain
# Transformer, a CNN and a BiLSTM, what each role is worth, and translation.
#
# Usage: bash scripts/roles.sh EXPERIMENT [OPTION...] [-- FLAG...]
#
#   classify CORPUS...  Table 3: a plain Transformer, one of the same size with roles, a multi-scale
#                CNN (Kim 2014) and a BiLSTM
#   ablate CORPUS  Figure 2: one role after the other replaced by none; its head stays
#   translate    Table 2: roles in the encoder of a translation model, and roles in its training only
#
#   CORPUS       of scripts/prepare_task.sh (the paper's: trec cr mr mpqa subj sst-2-sentences; its
#                SST has phrases too: sst-2), made in data-bin with a vocabulary of words
#   --roles      of the first heads of each layer (default: rare,separator,relative, and for sentences
#                with dependency and major where `fairseq-ext annotate` made train.annotations)
#   --guided     flags of trainings with roles alone, as in --guided --head-gate
#   --seeds      repetitions (default: 3; 1 in cross-validation)
#   --updates    length of each training (default: 1000, of translate 1800)
#   --jobs       trainings side by side (default: 1)
#   --data       instead of the folder in data-bin: CORPUS or Multi30k
#   --out        where runs go, in a folder CORPUS but for translate (default: checkpoints/roles, and
#                checkpoints/roles/translate/ with the name of the data and the size)
#   FLAG         of fairseq-train, for all trainings, e.g. --fp16
# of classify and ablate:
#   --variants   of classify (default: 'transformer roles cnn bilstm')
#   --folds      cross-validation (default: 10 for cr, mpqa, mr and subj, else none)
#   --words      the most frequent ones of the training part (default: all); the folders of data and
#                runs are then CORPUS-N
# of translate:
#   --size       of the models: _tiny (default), _iwslt_de_en, '' (base), _wmt_en_de, _wmt_en_de_big
#
# A second run of the same command goes on where the first was interrupted. With a test part the
# scores are those on it of the epoch that is best on the validation part (the paper's code reports
# the best epoch on the test part); in cross-validation those of the last epoch. The paper's rows use
# 100-d GloVe: -- --encoder-embed-dim 100 --encoder-attention-heads 10 --word-vectors glove.6B.100d.txt
#
# Expected: in the paper, CR, TREC, SUBJ, MPQA, MR, SST
#   transformer  82.0  91.8  93.2  88.6  77.7  81.8
#   roles        84.4  93.6  93.8  90.7  80.0  84.2
#   cnn          81.2  93.1  93.3  89.1  77.8  80.9
#   bilstm       82.6  92.4  93.6  88.9  78.4  81.1
# and WMT16 En-De 34.3 BLEU, with roles 38.8. Ours without word vectors (docs/results.md): TREC 87.5,
# with roles 87.6; CR 79.0, with roles 75.6; MR 76.9, with roles 74.9; MPQA 84.9, with roles 84.1;
# ewt-genre 59.2, with roles (gold parses) 58.2; Multi30k 31.4 BLEU, with roles 31.8.
# Cost: on one core 1 to 2 minutes for each training of a sentence model, 8 of a translation model.

. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/finetuning.sh"
. "$(dirname "$0")/study.sh"

# Settings of models of sentences, found on the validation parts of sst-2-sentences and trec and on
# one fold of cr and mr, with a plain Transformer, a CNN and a BiLSTM.
SIZES='--encoder-layers 2 --encoder-embed-dim 96 --encoder-ffn-embed-dim 192
--encoder-attention-heads 6'
GUIDED="--arch roberta_roles $SIZES --pooling mean --dropout .5 --attention-dropout .1 --lr 5e-4"
RIVAL='--pooling max --dropout .3 --lr 2e-3'

# roles_for DATA: prints those that can be had there.
roles_for() {
  if [ -n "$roles" ]; then
    say "$roles"
  elif [ -e "$1/train.annotations" ]; then
    say rare,separator,dependency,major,relative
  else
    say rare,separator,relative
  fi
}

# variant_flags NAME: prints the flags of a variant of models of sentences.
variant_flags() {
  case "$1" in
  transformer) say "$GUIDED --encoder-roles none" ;;
  roles) say "$GUIDED --encoder-roles $names $guided" ;;
  without-*) say "$GUIDED --encoder-roles $(without "${1#*-}") $guided" ;;
  cnn) say "--arch sentence_cnn $RIVAL" ;;
  bilstm) say "--arch sentence_bilstm $RIVAL" ;;
  *) die "--variants has '$1' and must have some of transformer, roles, cnn and bilstm." ;;
  esac
}

# without ROLE: prints the roles with none in its place.
without() { sed -E "s/(^|[,\/])$1\b/\1none/g" <<<"$names"; }

# settings CORPUS: sets data, out, names (of roles), FLAGS and what compare needs.
settings() {
  local cross=$folds name=$1${words:+-$words}
  corpus_task "$1"
  data=${given_data:-$ROOT/data-bin/$name} out=${given_out:-$ROOT/checkpoints/roles}/$name
  [ -n "$given_data" ] || [ -e "$data/dict.txt" ] ||
    bash "$ROOT/scripts/prepare_task.sh" "$1" "$data" --words "${words:-0}"
  [ -e "$data/dict.txt" ] ||
    die "--data is '$data', which has no dict.txt: give a folder of scripts/prepare_task.sh --words."
  require_room "$out" 2000
  case "$1" in cr | mpqa | mr | subj) cross=${cross:-10} ;; esac
  names=$(roles_for "$data")
  training_flags 0 0 5e-4 32 "${updates:-1000}"
  linear_schedule $((UPDATES / 10))
  FLAGS+=(--output linear --pooler-dropout .5)
  if [ -n "$cross" ]; then
    FOLDS=(--folds "$cross") SCORES=("$METRIC")
    FLAGS+=(--validate-interval 1000 --save-interval 1000 --no-save-optimizer-state)
  elif [ -e "$data/test.jsonl" ]; then
    FOLDS=() SCORES=("test.$METRIC" "$METRIC")
    FLAGS+=(--valid-subset valid,test)
  else
    FOLDS=() SCORES=("$METRIC")
  fi
  mapfile -t numbers < <(seq "${seeds:-$((${#FOLDS[@]} ? 1 : 3))}")
  repetitions=$((${#numbers[@]} * ${cross:-1}))
}

# train VARIANT...: trains models of sentences; sets RUNS. What fairseq would refuse is refused
# before any of them is trained.
train() {
  local name flags variants=() given=()
  RUNS=()
  for name in "$@"; do
    flags=$(variant_flags "$name") || exit 1
    variants+=("$name=$flags ${REST[*]@Q}") # last, since those of a variant count
  done
  for name in "${variants[@]}"; do given+=(--variant "$name"); done
  rehearse "${variants[@]}" -- "${FLAGS[@]}"
  foreground python -m fairseq_ext.cli sweep --out "$out" --seeds "${numbers[@]}" "${FOLDS[@]}" \
    --jobs "$jobs" "${given[@]}" -- "$data" "${FLAGS[@]}"
  for name in "$@"; do repeated "$out/$name" ${#numbers[@]} "${FOLDS[@]:1}"; done
}

classify() {
  local corpus
  for corpus in "$@"; do corpus_task "$corpus"; done
  for corpus in "$@"; do
    settings "$corpus"
    # shellcheck disable=SC2086 # words
    train $variants
    say
    say "$corpus, mean ± standard deviation:"
    compare "$out" "${SCORES[@]}" --spread deviation
  done
}

ablate() {
  settings "$1"
  # shellcheck disable=SC2046 # words
  train roles $(tr ',/' '\n\n' <<<"$names" | grep -vx none | sort -u | sed 's/^/without-/')
  BASELINE=roles compare "$out" "${SCORES[@]}" --spread deviation --bars "$out/ablation.png"
  say
  say "Picture of the scores: $out/ablation.png"
}

# unguided NUMBER...: models that were trained with roles translate without them.
unguided() {
  local number run bare
  for number in "$@"; do
    run=$out/roles/seed-$number bare=$out/training-only/seed-$number
    up_to_date "$bare/generate-test.txt" "$run/checkpoint_last.pt" && continue
    mkdir -p "$bare"
    rm -f "$bare/generate-test.txt"
    ln -sf "../../roles/seed-$number/"{checkpoint_last.pt,train.log} "$bare"
    say "training-only/seed-$number: translating"
    # shellcheck disable=SC2086 # words
    produce "$bare/generate-test.txt" foreground fairseq-generate "$data" \
      --user-dir "$ROOT/fairseq_ext" --path "$run/checkpoint_last.pt" \
      --model-overrides "{'encoder_roles': 'none'}" $GENERATE 2>"$bare/generate-test.log" ||
      die "Translating failed: the reason is at the end of $bare/generate-test.log."
  done
}

# parsed: FLAGS and GENERATE read annotations, which are there.
parsed() {
  local split found
  for split in train valid test; do
    found=("$data/$split".*.annotations)
    [ -e "${found[0]}" ] ||
      die "--roles is '$names' and '$data' has no annotations of its $split part: make them with" \
        "'fairseq-ext annotate', or leave dependency and major out."
  done
  FLAGS+=(--task translation_roles)
  GENERATE+=' --task translation_roles'
}

translate() {
  local numbers
  seeds=${seeds:-3} updates=${updates:-1800}
  study_data roles/translate test
  names=${roles:-rare,separator,relative}
  translation_flags "$updates" test
  [[ ! "$names" =~ dependency|major ]] || parsed
  case "$size" in _tiny | _iwslt_de_en) FLAGS+=(--encoder-attention-heads 8) ;; esac
  study "transformer=--arch transformer_una$size" \
    "roles=--arch transformer_roles$size --encoder-roles $names $guided" -- \
    "${FLAGS[@]}" "${REST[@]}"
  mapfile -t numbers < <(seq "$seeds")
  unguided "${numbers[@]}"
  RUNS+=("${numbers[@]/#/$out/training-only/seed-}")
  repetitions=$seeds
  compare "$out" bleu valid.nll_loss "${SCORING[@]}"
}

variants='transformer roles cnn bilstm' roles='' guided='' seeds='' folds='' jobs=1 data='' out=''
updates='' words='' size=_tiny own='' most=1 takes='one corpus'
case "${1:-}" in
classify) own='--variants= --folds= --words=' most=99 takes='corpora' ;;
ablate) own='--folds= --words=' ;;
translate) own='--size=' most=0 takes='no corpus' ;;
-h | --help) usage ;;
*) die "The experiment is '${1:-}' and must be classify, ablate or translate." ;;
esac
options "WORD --roles= --guided= --seeds= --updates= --jobs= --data= --out= -- $own" "$@"
experiment=$1 given_data=$data given_out=$out corpora=("${WORDS[@]:1}")
[ ${#corpora[@]} -le $most ] && { [ ${#corpora[@]} -gt 0 ] || [ $most = 0 ]; } ||
  die "$experiment takes $takes and ${#corpora[@]} are given: see 'bash $0 --help'."
[ -z "$data" ] || [ ${#corpora[@]} -lt 2 ] || die "--data is for one corpus: give one."
[ -z "$data" ] || [ -z "$words" ] ||
  die "--words is for data that are made and --data is given: leave one out."
for number in jobs ${seeds:+seeds} ${folds:+folds} ${updates:+updates} ${words:+words}; do
  positive "--$number" "${!number}"
done
setup_environment
"$experiment" "${corpora[@]}"
