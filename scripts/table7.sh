#!/usr/bin/env bash
# Table 7 of "Guiding Attention for Self-Supervised Learning with Transformers" (Deshpande &
# Narasimhan 2020): translation with plain attention (base), hard-coded Gaussian self-attention
# (hard-coded) and attention guidance (ag), and how fast each of them learns.
#
# Usage: bash scripts/table7.sh [OPTION...] [-- FLAG...]
#
#   --data     what fairseq-preprocess --joined-dictionary wrote, with train, valid and test
#              (default: Multi30k, from $FAIRSEQ_EXT_CORPORA or downloaded)
#   --size     of the models: _tiny (default), _iwslt_de_en, '' (base), _wmt_en_de, _wmt_en_de_big
#   --updates  length of the training (default: 1800)
#   --seeds    repetitions of each model (default: 3)
#   --jobs     trainings side by side (default: 1)
#   --alpha    of guidance, initially (default: auto)
#   --heads    that are guided, of each encoder layer (default: next:1,prev:1, the paper's)
#   --out      where runs and curves go (default: checkpoints/table7/DATA SIZE)
#   FLAG       of fairseq-train, in place of those of the quickstart
#
# A second run of the same command goes on where the first was interrupted.
# The paper's corpora, with its size and length and usual settings for the rest, on one GPU:
#   bash scripts/table7.sh --data data-bin/iwslt16.en-de --size '' --updates 100000 -- --fp16 \
#     --max-tokens 4096 --update-freq 8 --lr 7e-4 --warmup-updates 4000 --save-interval-updates 5000
#
# Expected: in the paper, as NLL at the end of training / average of the training / in validation
# (in nats; logs and our table are in bits, of 0.693 nats), then BLEU:
#               IWSLT16 En-De                 WMT14 En-De
#   base        1.18 / 1.88 / 2.25, 24.52     1.77 / 2.07 / 1.61, 26.24
#   hard-coded  1.30 / 1.92 / 2.26, 24.42     1.94 / 2.23 / 1.73, 25.50
#   ag          1.18 / 1.84 / 2.22, 24.42     1.75 / 2.05 / 1.60, 23.34
# Ours, of Multi30k: docs/results.md.
# Cost: on one core 8 minutes for each of the 9 trainings of the default.

. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/study.sh"

heads=next:1,prev:1 alpha=auto
study_options 3 '--alpha= --heads=' "$@"
study_data table7 test
translation_flags "$updates" test
guided="--criterion label_smoothed_cross_entropy_ag --ag-alpha $alpha --ag-encoder-heads $heads"
study "base=--arch transformer_una$size" "hard-coded=--arch transformer_gaussian$size" \
  "ag=--arch transformer_una$size $guided" -- "${FLAGS[@]}" "${REST[@]}"

tests=()
[ "$seeds" = 1 ] || tests=(--test t --baseline base --by bleu train.nll_avg)
say
python -m fairseq_ext.cli table "${SCORING[@]}" "${tests[@]}" \
  --metric train.nll_loss train.nll_avg valid.nll_loss bleu -- "${RUNS[@]}"
up_to_date "$out/curves.png" "${RUNS[@]/%//train.log}" ||
  python -m fairseq_ext.cli curves --metric nll_loss --out "$out/curves.png" "${RUNS[@]}"
say
say "Picture of the NLL: $out/curves.png"
