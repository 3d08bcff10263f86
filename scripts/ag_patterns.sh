#!/usr/bin/env bash
# Searches for the heads to guide (Deshpande & Narasimhan 2020, translation) on validation data:
# trains a translation model with each of several assignments of patterns to heads, and ranks them.
#
# Usage: bash scripts/ag_patterns.sh [OPTION...] [ASSIGNMENT...] [-- FLAG...]
#
#   ASSIGNMENT  SITE=HEADS or several joined by +, as in encoder=next:1,prev:1+decoder=prev:1, where
#               SITE is encoder, decoder or cross; none is a model without guidance
#               (default: none, each pattern alone in the encoder, and some together)
#   --data      what fairseq-preprocess --joined-dictionary wrote, with train, valid and test
#               (default: Multi30k, from $FAIRSEQ_EXT_CORPORA or downloaded)
#   --size      of the models: _tiny (default), _iwslt_de_en, '' (base), _wmt_en_de, _wmt_en_de_big
#   --updates   length of the training (default: 1800)
#   --seeds     repetitions of each assignment (default: 1)
#   --jobs      trainings side by side (default: 1)
#   --alpha     of guidance, initially (default: 10; auto would give patterns different weights)
#   --out       where runs and table go (default: checkpoints/ag_patterns/DATA SIZE)
#   FLAG        of fairseq-train, in place of those of the quickstart
#
# The rank is that of BLEU on the validation data, since equal NLL need not mean equal BLEU: see the
# paper's WMT14 in scripts/table7.sh. With one seed, differences below 1 BLEU mean nothing.
# A second run goes on where the first was interrupted, or adds assignments.
#
# Expected: in the paper, next:1,prev:1 in the encoder is best, and global patterns (first, delim,
# period) hurt. Ours, of Multi30k: docs/results.md.
# Cost: on one core 8 minutes for each of the 11 trainings of the default.

. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/study.sh"

alpha=10
study_options 1 '--alpha= WORD' "$@"
[ ${#WORDS[@]} -gt 0 ] || WORDS=(none
  encoder={next,prev,first,self,delim,period}:1 encoder=next:1,prev:1 encoder=next:1,prev:1,first:1
  encoder=next:1,prev:1+decoder=prev:1 encoder=next:1,prev:1+cross=diagonal:1)

# as_flags ASSIGNMENT
as_flags() {
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
  guided[$name]=$(as_flags "$assignment")
  variants+=("$name=--arch transformer_una$size ${guided[$name]}")
done
study_data ag_patterns valid
translation_flags "$updates" valid
study "${variants[@]}" -- "${FLAGS[@]}" "${REST[@]}"
say
python -m fairseq_ext.cli table "${SCORING[@]}" --sort highest --output "$out/table.txt" \
  --metric bleu valid.nll_loss train.nll_avg -- "${RUNS[@]}"
cat "$out/table.txt"
say
read -r best _ < <(sed -n 2p "$out/table.txt")
say "Best on the validation data: $best (${guided[$best]:-no guidance})"
