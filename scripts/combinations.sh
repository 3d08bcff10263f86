#!/usr/bin/env bash
# Mechanisms of several papers together: guidance (ag), doubly-normalised (dna) and hybrid attention
# (hna), role-guided masks (roles), adversarial self-attention (asa), hard-coded Gaussian heads
# (gaussian) and weights of heads (gate), each alone and each with each other, compared with none.
#
# Usage: bash scripts/combinations.sh [OPTION...] [-- FLAG...]
#
#   --variants  mechanisms, those together joined by +, as in 'plain dna ag dna+ag'; the others are
#               compared with the first (default: plain, each alone, and all pairs but dna+hna)
#   --data      what fairseq-preprocess --joined-dictionary wrote, with train, valid and test
#               (default: Multi30k, from $FAIRSEQ_EXT_CORPORA or downloaded)
#   --size      of the models: _tiny (default), _iwslt_de_en, '' (base), _wmt_en_de, _wmt_en_de_big;
#               all with 8 heads, or 16 in the last one
#   --updates   length of the training (default: 1800)
#   --seeds     repetitions of each model (default: 3)
#   --jobs      trainings side by side (default: 1)
#   --out       where runs go (default: checkpoints/combinations/DATA SIZE)
#   FLAG        of fairseq-train, for all trainings, e.g. --fp16
#
# Of the heads of each encoder layer the first two are hard-coded, the next three have the roles rare,
# separator and relative, and the next two are guided, if there are such. A second run of the same
# command goes on where the first was interrupted, or adds variants.
#
# Expected: no paper has such models. Ours, one seed in bf16: none 30.7 BLEU, alone from 31.6 (roles,
# dna, hna) to 33.6 (gaussian), the best pair 33.9 (ag+gate; docs/results.md). With 27 comparisons the
# p-values are corrected for as many, so that 3 seeds show large differences alone: take more of few
# variants.
# Cost: on one core 7 to 10 minutes for each training and 15 to 19 with asa, or 14 hours for the 84 of
# the default.

. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/finetuning.sh"
. "$(dirname "$0")/study.sh"

MECHANISMS='ag dna hna roles asa gaussian gate'

# pairs: prints all pairs of mechanisms that there can be.
pairs() {
  local one other late
  for one in $MECHANISMS; do
    late=''
    for other in $MECHANISMS; do
      [ -z "$late" ] || [ "$one+$other" = dna+hna ] || say "$one+$other"
      [ "$one" != "$other" ] || late=yes
    done
  done
}

# variant NAME: prints it with its flags.
variant() {
  local part flags='' terms=''
  for part in ${1//+/ }; do
    case "$part" in
    plain) ;;
    ag) terms=_ag$terms flags+=' --ag-encoder-heads next:1,prev:1 --ag-alpha 1' ;;
    dna) flags+=' --encoder-normaliser doubly' ;;
    hna) flags+=' --encoder-normaliser hybrid' ;;
    roles) flags+=' --encoder-roles rare,separator,relative' ;;
    asa) terms+=_asa flags+=' --asa-layers all' ;;
    gaussian) flags+=' --encoder-gaussian-heads 2' ;;
    gate) flags+=' --head-gate' ;;
    *) die "--variants has '$part' and must have some of plain, ${MECHANISMS// /, }." ;;
    esac
  done
  [[ "$flags" != *-normaliser*-normaliser* ]] ||
    die "--variants has '$1', and attention is normalised in one way: give dna or hna."
  say "$1=--arch transformer_una$size --criterion label_smoothed_cross_entropy$terms$flags"
}

variants="plain $MECHANISMS $(pairs)"
study_options 3 '--variants=' "$@"
# shellcheck disable=SC2086 # words
chosen $variants
study_data combinations test
translation_flags "$updates" test # for GENERATE, and FLAGS
case "$size" in _tiny | _iwslt_de_en) FLAGS+=(--encoder-attention-heads 8) ;; esac
study "${VARIANTS[@]}" -- "${FLAGS[@]}" "${REST[@]}"
repetitions=$seeds
compare "$out" bleu valid.nll_loss train.nll_avg "${SCORING[@]}"
