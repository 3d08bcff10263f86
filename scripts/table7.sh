#!/usr/bin/env bash
# Translation with plain attention (base), hard-coded Gaussian self-attention (hard-coded) and
# attention guidance (ag), and how fast each of them learns.
#
# Paper: Guiding Attention for Self-Supervised Learning with Transformers (Deshpande & Narasimhan
# 2020), Table 7.
# Needs: Multi30k, from $FAIRSEQ_EXT_CORPORA or downloaded, unless --data is given.
#
# Usage: bash scripts/table7.sh [OPTION...] [-- FLAG...]
#
#   --data     a folder of fairseq-preprocess --joined-dictionary with train, valid and test
#              (default: Multi30k)
#   --size     size of the models: _tiny (default), _iwslt_de_en, '' (base), _wmt_en_de,
#              _wmt_en_de_big
#   --updates  length of each training (default: 1800)
#   --seeds    repetitions of each model (default: 3)
#   --jobs     trainings side by side (default: 1)
#   --alpha    initial weight of guidance (default: auto)
#   --heads    guided heads of each encoder layer (default: next:1,prev:1, as in the paper)
#   --out      folder of runs, table and curves (default: checkpoints/table7/ and the name of the data
#              with the size)
#   FLAG       flags of fairseq-train, which replace those of the quickstart
#
# A second run of the same command continues where the first was interrupted. The paper's corpora with
# its size and length, and usual settings for the rest, on one GPU:
#   bash scripts/table7.sh --data data-bin/iwslt16.en-de --size '' --updates 100000 -- --fp16 \
#     --max-tokens 4096 --update-freq 8 --lr 7e-4 --warmup-updates 4000 --save-interval-updates 5000
#
# Expected: in the paper, NLL at the end of training / average of the training / in validation (in
# nats; logs and our table are in bits, of 0.693 nats), then BLEU:
#               IWSLT16 En-De                 WMT14 En-De
#   base        1.18 / 1.88 / 2.25, 24.52     1.77 / 2.07 / 1.61, 26.24
#   hard-coded  1.30 / 1.92 / 2.26, 24.42     1.94 / 2.23 / 1.73, 25.50
#   ag          1.18 / 1.84 / 2.22, 24.42     1.75 / 2.05 / 1.60, 23.34
# Our scores on Multi30k: docs/results/.
# Cost: 8 minutes on one core for each of the 9 trainings of the default.

. "$(dirname "$0")/lib/study.sh"

read_study_options 3 '--alpha=auto --heads=next:1,prev:1' "$@"
prepare_study table7 test
set_translation_flags "$updates" test
guided="--criterion label_smoothed_cross_entropy_ag --ag-alpha $alpha --ag-encoder-heads $heads"
study "base=--arch transformer_una$size" "hard-coded=--arch transformer_gaussian$size" \
  "ag=--arch transformer_una$size $guided" -- "${FLAGS[@]}"

BY='bleu train.nll_avg' compare train.nll_loss train.nll_avg valid.nll_loss bleu "${SCORING[@]}"
draw_curves nll_loss NLL
