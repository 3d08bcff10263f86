#!/usr/bin/env bash
# Mechanisms of several papers together: guidance (ag), doubly-normalised (dna) and hybrid attention
# (hna), role-guided masks (roles), adversarial self-attention (asa), hard-coded Gaussian heads
# (gaussian) and weights of heads (gate), each alone and in pairs, compared with none of them.
#
# Paper: none has such models.
# Needs: Multi30k, from $FAIRSEQ_EXT_CORPORA or downloaded, unless --data is given.
#
# Usage: bash scripts/combinations.sh [OPTION...] [-- FLAG...]
#
#   --variants  mechanisms, joined by + where they are together, as in 'plain dna ag dna+ag'; the
#               first is compared with the others (default: plain, each alone, and all pairs but
#               dna+hna)
#   --data      a folder of fairseq-preprocess --joined-dictionary with train, valid and test
#               (default: Multi30k)
#   --size      size of the models: _tiny (default), _iwslt_de_en, '' (base), _wmt_en_de,
#               _wmt_en_de_big; all with 8 heads, the last one with 16
#   --updates   length of each training (default: 1800)
#   --seeds     repetitions of each model (default: 3)
#   --jobs      trainings side by side (default: 1)
#   --out       folder of runs and table (default: checkpoints/combinations/ and the name of the data
#               with the size)
#   FLAG        flags of fairseq-train for all trainings, e.g. --fp16
#
# In each encoder layer the first two heads are hard-coded, the next three have the roles rare,
# separator and relative, and the next two are guided, as far as a variant has these mechanisms. A
# second run of the same command continues where the first was interrupted, or adds variants.
#
# Expected: our BLEU, one seed in bf16: none 30.7, alone from 31.6 (roles, dna, hna) to 33.6
# (gaussian), the best pair 33.9 (ag+gate; docs/results/). The p-values of 27 comparisons are
# corrected for as many, so that 3 seeds show large differences only: give more seeds to fewer
# variants.
# Cost: on one core 7 to 10 minutes for each training, 15 to 19 with asa, 14 hours for the 84 of the
# default.

. "$(dirname "$0")/lib/study.sh"

# print_pairs: print all pairs of mechanisms that go together.
print_pairs() {
  local one other late
  for one in $MECHANISMS; do
    late=''
    for other in $MECHANISMS; do
      [ -z "$late" ] || [ "$one+$other" = dna+hna ] || say "$one+$other"
      [ "$one" != "$other" ] || late=yes
    done
  done
}

print_variant() { print_mechanisms plain "$1"; }

read_study_options 3 '--variants=' "$@"
# shellcheck disable=SC2046,SC2086 # words
set_variants ${variants:-plain $MECHANISMS $(print_pairs)}
prepare_study combinations test
set_translation_flags "$updates" test # for GENERATE, and FLAGS
case "$size" in _tiny | _iwslt_de_en) FLAGS+=(--encoder-attention-heads 8) ;; esac
study "${VARIANTS[@]}" -- "${FLAGS[@]}"
compare bleu valid.nll_loss train.nll_avg "${SCORING[@]}"
