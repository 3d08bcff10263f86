#!/usr/bin/env bash
# Translation with each mechanism of the papers but task attention, and with each of today's
# alternatives to them, alone in the encoder: one table, and tests of each mechanism against its
# closest alternatives.
#
# Papers: none has this table. docs/results/protocols.md has the protocol.
# Needs: Multi30k, from $FAIRSEQ_EXT_CORPORA or downloaded, unless --data is given.
#
# Usage: bash scripts/alternatives.sh [OPTION...] [-- FLAG...]
#
#   --variants  mechanisms, which may be joined by +, also with a learning rate, as in ag+1e-3
#               (default of all: 3e-3); the first is compared with the others (default:
#               plain, and all in $MECHANISMS and $ALTERNATIVES of lib/study.sh)
#   --data      a folder of fairseq-preprocess --joined-dictionary with train, valid and test
#               (default: Multi30k)
#   --size      size of the models: _tiny (default), _today_tiny, _iwslt_de_en, '' (base),
#               _today_base, _wmt_en_de, _wmt_en_de_big; all with 8 heads, the last one with 16
#   --updates   length of each training (default: 1800)
#   --seeds     repetitions of each model (default: 3)
#   --jobs      trainings side by side (default: 1)
#   --out       folder of runs and tables (default: checkpoints/alternatives/ and the name of the data
#               with the size)
#   FLAG        flags of fairseq-train for all trainings, e.g. --fp16
#
# Seeds are trained one after the other, so that a table of fewer seeds can be had at any time: after
# an interruption (timeout 2h bash scripts/alternatives.sh ...) the same command continues, with fewer
# --seeds, or fewer --variants, it makes the table of what is there. Masked language models on books
# with the same normalisers and positions: bash scripts/pretrain.sh alternatives.
#
# table.txt has BLEU and chrF of the test part; loss of validation and mean loss of the training, in
# bits; updates until the best validation loss of plain; time of a token ÷ plain; of encoder attention
# over validation data the share of keys that are explained away, and entropy in nats. From 2 seeds on
# t-tests against the first variant, corrected by Holm, and in table-NAME.txt each mechanism of a
# paper against its closest alternatives. bleu.png and curves.png are pictures of it.
#
# Expected: on Multi30k BLEU 31.2 of plain, 33.5 of rotary, 31.9 of dna; all are in docs/results/.
# Cost: on one core 7 to 10 minutes for each training, 15 to 25 with asa or rdrop.

. "$(dirname "$0")/lib/study.sh"

print_variant() { print_mechanisms plain "$1"; }

read_study_options 3 '--variants=' "$@"
# shellcheck disable=SC2086 # words
set_variants ${variants:-plain $MECHANISMS $ALTERNATIVES}
prepare_study alternatives test
set_translation_flags "$updates" test # for GENERATE, and FLAGS
FLAGS+=(--validate-interval-updates 100)
case "$size" in _tiny | _iwslt_de_en | _today_tiny) FLAGS+=(--encoder-attention-heads 8) ;; esac
study "${VARIANTS[@]}" -- "${FLAGS[@]}"
describe_attention --limit 500
METRICS=(bleu chrf valid.nll_loss train.nll_avg updates-to.valid.nll_loss time-ratio
  analysis.encoder.{explained_away,entropy})
BY='bleu chrf valid.nll_loss train.nll_avg'
compare "${METRICS[@]}" --bars "$out/bleu.png" "${SCORING[@]}"
compare_closest "${METRICS[@]}" "${SCORING[@]}"
draw_curves nll_loss NLL
