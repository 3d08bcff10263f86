#!/usr/bin/env bash
# Search for the heads to guide: translation models with several assignments of patterns to heads,
# ranked by BLEU on validation data.
#
# Paper: Guiding Attention for Self-Supervised Learning with Transformers (Deshpande & Narasimhan
# 2020), the choice of patterns for translation.
# Needs: Multi30k, from $FAIRSEQ_EXT_CORPORA or downloaded, unless --data is given.
#
# Usage: bash scripts/ag_patterns.sh [OPTION...] [ASSIGNMENT...] [-- FLAG...]
#
#   ASSIGNMENT  SITE=HEADS or several joined by +, as in encoder=next:1,prev:1+decoder=prev:1, where
#               SITE is encoder, decoder or cross; none is a model without guidance
#               (default: none, each pattern alone in the encoder, and some together)
#   --data      a folder of fairseq-preprocess --joined-dictionary with train, valid and test
#               (default: Multi30k)
#   --size      size of the models: _tiny (default), _iwslt_de_en, '' (base), _wmt_en_de,
#               _wmt_en_de_big
#   --updates   length of each training (default: 1800)
#   --seeds     repetitions of each assignment (default: 1)
#   --jobs      trainings side by side (default: 1)
#   --alpha     initial weight of guidance (default: 10; auto would give each pattern another weight)
#   --out       folder of runs and table (default: checkpoints/ag_patterns/ and the name of the data
#               with the size)
#   FLAG        flags of fairseq-train, which replace those of the quickstart
#
# A second run continues where the first was interrupted, or adds assignments. BLEU ranks, since equal
# NLL need not mean equal BLEU (see the paper's WMT14 scores in scripts/table7.sh). With one seed,
# differences below 1 BLEU mean nothing.
#
# Expected: in the paper, next:1,prev:1 in the encoder is best, and the global patterns (first, delim,
# period) hurt. Our scores on Multi30k: docs/results/.
# Cost: 8 minutes on one core for each of the 11 trainings of the default.

. "$(dirname "$0")/lib/study.sh"

read_study_options 1 '--alpha=10 WORD' "$@"
[ ${#WORDS[@]} -gt 0 ] || WORDS=(none
  encoder={next,prev,first,self,delim,period}:1 encoder=next:1,prev:1 encoder=next:1,prev:1,first:1
  encoder=next:1,prev:1+decoder=prev:1 encoder=next:1,prev:1+cross=diagonal:1)

# guidance_flags ASSIGNMENT: print the flags of fairseq-train for an assignment.
guidance_flags() {
  local part flags=''
  [ "$1" != none ] || return 0
  for part in ${1//+/ }; do
    case "$part" in
    encoder=* | decoder=* | cross=*) flags+=" --ag-${part%%=*}-heads ${part#*=}" ;;
    *) die "'$1' is no assignment: give none, or SITE=HEADS, as in encoder=next:1,prev:1." ;;
    esac
  done
  say "--criterion label_smoothed_cross_entropy_ag --ag-alpha $alpha$flags"
}

declare -A guided
variants=()
for assignment in "${WORDS[@]}"; do
  name=${assignment//[=,]/-} name=${name//:/}
  guided[$name]=$(guidance_flags "$assignment")
  variants+=("$name=--arch transformer_una$size ${guided[$name]}")
done
prepare_study ag_patterns valid
set_translation_flags "$updates" valid
study "${variants[@]}" -- "${FLAGS[@]}"
say
python -m fairseq_ext.cli table "${SCORING[@]}" --sort highest --output "$out/table.txt" \
  --metric bleu valid.nll_loss train.nll_avg -- "${RUNS[@]}"
cat "$out/table.txt"
say
read -r best _ < <(sed -n 2p "$out/table.txt")
say "Best on the validation data: $best (${guided[$best]:-no guidance})"
