#!/usr/bin/env bash
# Headlines for articles by models whose encoder has plain (una), doubly-normalised (dna) or hybrid
# attention (hna).
#
# Paper: Attention that does not Explain Away (Ding et al. 2020), Table 3.
# Needs: Gigaword in $FAIRSEQ_EXT_CORPORA, which is never downloaded, unless data-bin/gigaword exists.
#
# Usage: bash scripts/train_gigaword.sh [OPTION...] [-- FLAG...]
#
#   --data      a folder of scripts/prepare_gigaword.sh (default: data-bin/gigaword)
#   --variants  default: 'una dna hna'; also sinkhorn-K, K sweeps of normalisation (dna is 1)
#   --size      size of the models: _tiny (default), _gigaword (the paper's), _iwslt_de_en, '' (base),
#               _wmt_en_de, _wmt_en_de_big
#   --positions S,T  tokens of articles and headlines, with </s> (default: as the data were made, else
#               128,64)
#   --share     one stack of layers is both encoder and decoder
#   --updates   length of each training (default: 1800)
#   --seeds     repetitions of each model (default: 3)
#   --jobs      trainings side by side (default: 1)
#   --out       folder of runs and table (default: checkpoints/gigaword/ and the name of the data with
#               the size)
#   FLAG        flags of fairseq-train for all trainings
#
# A second run of the same command continues where the first was interrupted. Articles that are longer
# than --positions are cut; training leaves out headlines that are longer. The hybrid weight starts at
# 0.1. Sinkhorn (the paper: more sweeps gain nothing): --variants 'dna sinkhorn-2 sinkhorn-5'
#
# The paper has 3.8 M pairs, WordPiece of 30,522, batches of 512, Adam, 500,000 updates, 5 runs, and
# models of 108 M parameters, as --share gives (222 M without). Its learning rate cannot be read, and
# it does not say how it searches; those here are ours. Tiny models normalise before their layers,
# without which they learn little from the sample. The paper's size on one GPU:
#   bash scripts/train_gigaword.sh --size _gigaword --share --updates 500000 --seeds 5 -- --fp16 \
#     --batch-size 128 --max-tokens 16384 --update-freq 4 --lr 3e-4 --warmup-updates 10000 \
#     --save-interval-updates 5000 --log-interval 1000
#
# Expected: in the paper, ROUGE-1, ROUGE-2, ROUGE-L (F1) and their standard errors
#   una  38.02 ± .07  18.93 ± .10  35.25 ± .09
#   dna  38.19 ± .05  19.09 ± .07  35.52 ± .06
#   hna  38.27        19.30        35.56
# Ours on the sample of 10,000 pairs (prepare_gigaword.sh data-bin/gigaword --merges 8000 --valid 500),
# ROUGE-1: 14.0, 14.2, 14.2 (3 seeds, docs/results/).
# Cost: 6 to 8 minutes on one core for each training on the sample.

. "$(dirname "$0")/lib/study.sh"

# print_variant NAME: print a variant and its flags, as NAME=FLAGS.
print_variant() {
  case "$1" in
  una | dna) say "$1=--arch transformer_$1$size" ;;
  hna) say "hna=--arch transformer_hna$size --hna-init 0.1" ;;
  sinkhorn-[1-9]*)
    say "$1=--arch transformer_una$size --encoder-normaliser sinkhorn --sinkhorn-sweeps ${1#*-}"
    ;;
  *) die "--variants has '$1' and must have some of una, dna, hna, sinkhorn-2, sinkhorn-5, ..." ;;
  esac
}

read_study_options 3 '--variants= --share --positions=' "$@"
is_pair() { [[ "$positions" =~ ^[1-9][0-9]*,[1-9][0-9]*$ ]]; }
[ -z "$positions" ] || is_pair ||
  die "--positions is '$positions' and must be two numbers, as in 128,64."
# shellcheck disable=SC2086 # words
set_variants ${variants:-una dna hna}
setup_environment rouge_score
prepare_study gigaword test gigaword

positions=${positions:-$(workspace setting "$data" --positions)}
is_pair || positions=128,64
source_positions="--truncate-source --max-source-positions ${positions%,*}"
words=--remove-bpe
[ ! -e "$data/wordpiece.txt" ] || words="--bpe wordpiece --wordpiece-vocab ${data@Q}/wordpiece.txt"
set_translation_flags "$updates" test
# shellcheck disable=SC2206 # words
FLAGS+=($source_positions --max-target-positions "${positions#*,}"
  --skip-invalid-size-inputs-valid-test ${share:+--share-encoder-decoder-layers})
if [ "$size" = _tiny ]; then # tuned with una on the validation part of the sample
  FLAGS+=(--lr 2e-3 --dropout 0.2 --encoder-normalize-before --decoder-normalize-before)
fi
# references may be longer than headlines that models are trained on, and are written beside theirs
longest=$((${positions#*,} > 50 ? 50 : ${positions#*,} - 1))
GENERATE="--gen-subset test --beam 5 --max-len-b $longest --max-tokens 1000 --num-workers 0
  $source_positions --max-target-positions 1024
  --model-overrides \"{'max_target_positions': 1024}\" $words"
study "${VARIANTS[@]}" -- "${FLAGS[@]}"
compare rouge-1 rouge-2 rouge-l valid.nll_loss "${SCORING[@]}" --target-lang en
