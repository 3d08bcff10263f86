#!/usr/bin/env bash
# Probe of antecedents: the attention heads that find them, in encoders trained with and without
# attention guidance, in other encoders and in random models.
#
# Paper: Guiding Attention for Self-Supervised Learning with Transformers (Deshpande & Narasimhan
# 2020), Table 8.
# Needs: runs of `bash scripts/pretrain.sh fraction`, and corpora of coreference.
#
# Usage: bash scripts/probe.sh [CHECKPOINT...] [OPTION...]
#
#   CHECKPOINT     further encoders, e.g. of `fairseq-ext import-hf`
#   --runs         folder of scripts/pretrain.sh fraction, whose variants plain, ag-0.5 and ag-1 are
#                  probed (default: checkpoints/fraction/books_tiny-masked_lm)
#   --coreference  folder with coref-synthetic/refl.N and gap/gap-*.tsv, plain or .gz, and with
#                  conll2012/*_conll for those who have it (default: $FAIRSEQ_EXT_CORPORA)
#   --among        words, nouns or all, see `fairseq-ext probe --help` (default: words)
#   --distractors  sentences before each synthetic one (default: 8, as in the code of the paper's
#                  authors; the paper speaks of one, with which random models find the place)
#   --limit        texts of each corpus (default: all)
#   --random       seeds of models with random parameters (default: 3)
#   --out          folder of table and picture (default: checkpoints/probe)
#
# Expected: in the paper's Table 8, share of antecedents that the best head finds:
#                        CoNLL-2012 all / nominal / pronominal / proper   synthetic
#   rules                .66 / .48 / .72 / .73
#   random parameters    .50 / .41 / .47 / .60                            .266 (printed 26.6)
#   RoBERTa-base         .74 / .71 / .74 / .76                            .99
#   without guidance     .68 / .58 / .69 / .73                            .87
#   half of the heads    .28 / .21 / .32 / .29                            .84
#   all heads            .21 / .13 / .21 / .28                            .00
# Ours, _tiny, 3,000 updates, synthetic / GAP: .08 / .10 without guidance, .08 / .08 with half of the
# heads, .02 / .07 with all, .07 / .11 random (docs/results/). GAP, which is free, stands for
# CoNLL-2012; it has pronouns and names alone.
# Cost: on one core, with the _tiny size, 40 seconds for 10,000 synthetic sentences and a model; 75
# minutes for 9 such corpora, GAP, 9 runs and 3 random models, a tenth of that with --limit 1000.

. "$(dirname "$0")/lib/common.sh"

read_options "WORD --runs= --coreference= --among=words --distractors=8 --limit# --random=3 --out=" "$@"
coreference=${coreference:-${FAIRSEQ_EXT_CORPORA:-}}
setup_environment
runs=${runs:-$PLACE/checkpoints/fraction/books_tiny-masked_lm}
out=${out:-$PLACE/checkpoints/probe}
shopt -s nullglob

checkpoints=()
for variant in plain ag-0.5 ag-1; do
  files=("$runs/$variant"/seed-*/checkpoint_last.pt)
  [ ${#files[@]} -gt 0 ] ||
    die "--runs is '$runs', which has no $variant/seed-*/checkpoint_last.pt: give what" \
      "'bash scripts/pretrain.sh fraction' made."
  checkpoints+=("${files[@]}")
done
corpora=("$coreference"/coref-synthetic/refl.[0-9]{,.gz} "$coreference"/gap/gap-*.tsv{,.gz})
[ ! -d "$coreference/conll2012" ] || corpora+=("$coreference/conll2012")
[ ${#corpora[@]} -gt 0 ] ||
  die "--coreference is '$coreference', which has no coref-synthetic/refl.N and no gap/gap-*.tsv:" \
    "give a folder that has, or set FAIRSEQ_EXT_CORPORA to it."
require_room "$out" 100

foreground python -m fairseq_ext.cli probe "${checkpoints[@]}" "${WORDS[@]}" --out "$out" \
  --coreference "${corpora[@]}" --among "$among" --distractors "$distractors" --random "$random" \
  ${limit:+--limit "$limit"}
say "Picture of all heads: $out/probe.png"
