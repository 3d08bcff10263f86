#!/usr/bin/env bash
# Table 3 of "Attention that does not Explain Away" (Ding et al. 2020): headlines for articles by
# models whose encoder has plain (una), doubly-normalised (dna) or hybrid attention (hna).
#
# Usage: bash scripts/train_gigaword.sh [OPTION...] [-- FLAG...]
#
#   --data      what scripts/prepare_gigaword.sh wrote (default: data-bin/gigaword, from
#               $FAIRSEQ_EXT_CORPORA)
#   --variants  default: 'una dna hna'; also sinkhorn-K, K sweeps of normalisation (dna is 1)
#   --size      of the models: _tiny (default), _gigaword (the paper's), _iwslt_de_en, '' (base),
#               _wmt_en_de, _wmt_en_de_big
#   --positions S,T  tokens of articles and headlines, with </s> (default: as the data were made, else
#               128,64)
#   --share     one stack of layers is both encoder and decoder
#   --updates   length of the training (default: 1800)
#   --seeds     repetitions of each model (default: 3)
#   --jobs      trainings side by side (default: 1)
#   --out       where runs go (default: checkpoints/gigaword/DATA SIZE)
#   FLAG        of fairseq-train, for all trainings
#
# A second run of the same command goes on where the first was interrupted. Articles that are longer
# than --positions are cut; training leaves out headlines that are longer. The hybrid weight begins
# as 0.1.
#
# The paper's: 3.8 M pairs, WordPiece of 30,522, batches of 512, Adam, 500,000 updates, 5 runs, and
# models of 108 M parameters, which is what --share gives (222 M without). It gives no learning rate
# that could be read, nor how it searches; those here are ours. Tiny models normalise before their
# layers, without which they learn little from the sample. On one GPU:
#   bash scripts/train_gigaword.sh --size _gigaword --share --updates 500000 --seeds 5 -- --fp16 \
#     --batch-size 128 --max-tokens 16384 --update-freq 4 --lr 3e-4 --warmup-updates 10000 \
#     --save-interval-updates 5000 --log-interval 1000
# Sinkhorn (the paper: more sweeps gain nothing): --variants 'dna sinkhorn-2 sinkhorn-5'
#
# Expected: in the paper, ROUGE-1, ROUGE-2, ROUGE-L (F1) and their standard errors
#   una  38.02 ± .07  18.93 ± .10  35.25 ± .09
#   dna  38.19 ± .05  19.09 ± .07  35.52 ± .06
#   hna  38.27        19.30        35.56
# Ours on the sample of 10,000 pairs (prepare_gigaword.sh data-bin/gigaword --merges 8000 --valid 500),
# ROUGE-1: 14.0, 14.2, 14.2 (3 seeds, docs/results.md).
# Cost: on one core 6 to 8 minutes for each training on the sample.

. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/finetuning.sh"
. "$(dirname "$0")/study.sh"

# variant NAME: prints it with its flags.
variant() {
  case "$1" in
  una | dna) say "$1=--arch transformer_$1$size" ;;
  hna) say "hna=--arch transformer_hna$size --hna-init 0.1" ;;
  sinkhorn-[1-9]*)
    say "$1=--arch transformer_una$size --encoder-normaliser sinkhorn --sinkhorn-sweeps ${1#*-}"
    ;;
  *) die "--variants has '$1' and must have some of una, dna, hna, sinkhorn-2, sinkhorn-5, ..." ;;
  esac
}

variants='una dna hna' share='' positions=''
study_options 3 '--variants= --share --positions=' "$@"
two_numbers() { [[ "$positions" =~ ^[1-9][0-9]*,[1-9][0-9]*$ ]]; }
[ -z "$positions" ] || two_numbers ||
  die "--positions is '$positions' and must be two numbers, as in 128,64."
# shellcheck disable=SC2086 # words
chosen $variants
study_data gigaword test gigaword

positions=${positions:-$(recorded_in "$data" | sed -n 's/^--positions //p')}
two_numbers || positions=128,64
source_positions="--truncate-source --max-source-positions ${positions%,*}"
words=--remove-bpe
[ ! -e "$data/wordpiece.txt" ] || words="--bpe wordpiece --wordpiece-vocab ${data@Q}/wordpiece.txt"
translation_flags "$updates" test
# shellcheck disable=SC2206 # words
FLAGS+=($source_positions --max-target-positions "${positions#*,}"
  --skip-invalid-size-inputs-valid-test ${share:+--share-encoder-decoder-layers})
if [ "$size" = _tiny ]; then # found with una on the validation part of the sample
  FLAGS+=(--lr 2e-3 --dropout 0.2 --encoder-normalize-before --decoder-normalize-before)
fi
# references may be longer than headlines that models are trained on, and are written beside theirs
longest=$((${positions#*,} > 50 ? 50 : ${positions#*,} - 1))
GENERATE="--gen-subset test --beam 5 --max-len-b $longest --max-tokens 1000 --num-workers 0
  $source_positions --max-target-positions 1024
  --model-overrides \"{'max_target_positions': 1024}\" $words"
study "${VARIANTS[@]}" -- "${FLAGS[@]}" "${REST[@]}"
repetitions=$seeds
compare "$out" rouge-1 rouge-2 rouge-l valid.nll_loss "${SCORING[@]}" --target-lang en
