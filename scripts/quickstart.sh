#!/usr/bin/env bash
# A small doubly-normalised Transformer on English-German text, from training to a translated and
# scored test set and pictures of its loss and attention.
#
# Paper: Attention that does not Explain Away (Ding et al. 2020), its attention in a small model.
# Needs: Python 3.11, 3.12 or 3.13. An active environment that has fairseq_ext is used as it is; without
# one, the rest is installed into .venv of this repository.
#
# Usage: bash scripts/quickstart.sh [OPTION...]
#
#   --corpus multi30k|builtin  default: multi30k, from $FAIRSEQ_EXT_CORPORA or downloaded; builtin
#                              if that fails
#   --compare                  also train the softmax Transformer, side by side
#   --updates N                length of the training (default: 1800, builtin 1200)
#   --dir DIR                  folder of data-bin/ and checkpoints/ (default: this repository, or
#                              the current folder if fairseq-ext recipe runs this)
#   --install-here             install into the active environment what it lacks
#
# A second run continues where the first was interrupted.
#
# Expected: on Multi30k 31.88 BLEU, with softmax 31.24 (means of 3 seeds, docs/results/).
# Cost: on two cores up to 8 minutes of set-up, then 10 minutes (builtin: 5).

. "$(dirname "$0")/lib/install.sh"

read_options '--corpus= --compare --updates# --dir= --install-here' "$@"
dir=${dir:-$PLACE}
case "$corpus" in
'' | multi30k) corpus_folder multi30k-en-de >/dev/null ;;
builtin) ;;
*) die "--corpus is '$corpus' and must be multi30k or builtin." ;;
esac
require_room "$dir" 1000
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
install_environment ''

prepare() { bash "$SCRIPTS/prepare_$1.sh" "$dir/data-bin/$1.en-de"; }
status=0
prepare "${corpus:-multi30k}" || status=$?
if [ "$status" = 69 ] && [ -z "$corpus" ]; then
  say "Multi30k cannot be downloaded here: the built-in corpus, a toy, is used instead."
  corpus=builtin
  prepare builtin
elif [ "$status" != 0 ]; then
  exit "$status"
fi
corpus=${corpus:-multi30k}

case "$corpus" in
multi30k) text='Multi30k test_2016_flickr' length=1800 ;;
builtin) text='Test part of the built-in corpus' length=1200 ;;
esac
set_translation_flags "${updates:-$length}" test

data=$dir/data-bin/$corpus.en-de out=$dir/checkpoints/quickstart/$corpus
variants=() runs=() logs=()
for arch in transformer_dna_tiny ${compare:+transformer_una_tiny}; do
  variants+=(--variant "$arch=--arch $arch")
  runs+=("$out/$arch/seed-1") logs+=("$out/$arch/seed-1/train.log")
done
foreground python -m fairseq_ext.cli sweep --out "$out" --jobs "${#runs[@]}" "${variants[@]}" \
  --generate "$GENERATE" -- "$data" "${FLAGS[@]}"
say
say "$text, English to German, tokenised and lower-cased, beam 5:"
python -m fairseq_ext.cli table --reference "$data/text/test.de" "${runs[@]}"

is_newer "$out/curves.png" "${logs[@]}" ||
  python -m fairseq_ext.cli curves --out "$out/curves.png" "${runs[@]}"
is_newer "$out/attention.png" "${runs[0]}/checkpoint_last.pt" ||
  python -m fairseq_ext.cli map --data "$data" --split test --index 0 --site encoder --head 0 \
    --out "$out/attention.png" "${runs[0]}/checkpoint_last.pt"
say
say "Pictures of the loss and of one attention map: $out/curves.png $out/attention.png"
