#!/usr/bin/env bash
# Masked language models of few and of many layers on little text, with and without attention
# guidance, and their worth as encoders: from raw text to losses and scores.
#
# Paper: Guiding Attention for Self-Supervised Learning with Transformers (Deshpande & Narasimhan
# 2020), Tables 3 and 4, on text that can be had. docs/results/protocols.md has the protocol.
# Needs: $FAIRSEQ_EXT_CORPORA with the development corpora yoruba-raw and masakhaner2-yor, or oromo-raw
# and masakhanews-orm.
#
# Usage: bash scripts/low_resource.sh LANGUAGE [PART] [OPTION...] [-- FLAG...]
#
#   LANGUAGE     yoruba  names by MasakhaNER 2.0
#                oromo   news topics by MasakhaNEWS; 62 % of the raw text are its training articles
#   PART         search, pretrain or finetune, which stand for all parts up to it (default: finetune)
#                  search    learning rates of plain and guided models of 4 layers, a third of --updates
#                            each; the loss of validation chooses: chosen.txt in --out, if it is missing
#                  pretrain  masked language models of each depth; guided ones have the rate that was
#                            chosen for guidance, all others that for plain
#                  finetune  each on the task of the language
#   --variants   plain, ag, today (the Transformer of today), mechanisms of scripts/alternatives.sh, some
#                joined by +, also with a learning rate, as in ag+1e-3; the first is compared with the
#                others (default: 'plain ag')
#   --layers     depths (default: '4 12'); guidance begins at 100, from 12 layers on at 10
#   --rates      of the search (default: '5e-4 1e-3 2e-3')
#   --updates    length of each pre-training (default: 3000)
#   --seeds      repetitions (default: 3)
#   --folds      of cross-validation over all parts of yoruba's task, with the encoders of seed 1 (default:
#                10); with 1 its published parts, with the encoders of each seed, as for oromo
#   --epochs     of fine-tuning (default: 3, oromo: 10)
#   --vocabulary tokens of the byte-level BPE (default: 8000)
#   --jobs       trainings side by side (default: 1)
#   --out        folder of runs and tables (default: checkpoints/low_resource/LANGUAGE)
#   FLAG         flags of fairseq-train for all trainings, e.g. --fp16
#
# A second run of the same command continues where the first was interrupted, or adds variants, depths,
# seeds; tables are of the last command. OUT/layers-N has table.txt (loss of validation; of the last epoch,
# and the mean, of training, in bits), converged.txt (which runs are half a bit below the loss of
# frequencies alone), curves.png, and TASK/table.txt (F1 of entities or accuracy, of published parts
# at the epoch that is best on valid), with t-tests against the first variant.
#
# Expected: in AG's Table 3 (Oromo; validation, nats) with 8, 12, 16 layers 4.06, 6.74, 6.93, guided 3.93,
# 3.88, 3.92; in Table 4 (F1 of names) 64.6, 51.5, 53.5, guided 66.7, 67.9, 67.2.
# Cost: of one quiet core for each pre-training of 4 layers 15 minutes (18 guided), of 12 layers 42 (52
# guided, 60 of today); for each fold of names some 3 and 8. The defaults take 12 hours.

. "$(dirname "$0")/lib/pretraining.sh"

SEARCHED=4 # layers
ALTERNATIVES+=' today' VARIANT_FLAGS[today]=''

# print_variant NAME: print a variant and its flags, with the chosen rate unless it has its own.
print_variant() {
  local size=_tiny side=plain line
  [[ "+$1+" != *+today+* ]] || size=_today_tiny
  [[ "+$1+" != *+ag+* ]] || side=ag
  line=$(print_mechanisms plain "$1" "roberta_una$size" masked_lm) || exit 1
  [[ "$1" =~ \+[0-9.] ]] || line+=" --lr $(sed -n "s/^$side+//p" "$out/chosen.txt")"
  say "$line"
}

# pretrain FOLDER LAYERS VARIANT...: train masked language models for $updates and compare them.
pretrain() {
  local alpha=$(($2 < 12 ? 100 : 10)) lr='' folds='' warmup VARIANTS FLAGS RUNS=()
  local BY='loss train.loss_avg'
  set_flags _tiny
  VARIANT_FLAGS[ag]="--ag-alpha $alpha --ag-decay-updates $updates"
  set_variants "${@:3}"
  local out=$1 tenth=$((updates / 10))
  FLAGS+=(--warmup-updates "$tenth" --save-interval-updates $((tenth + 1))
    --validate-interval-updates $((tenth + 1)) --encoder-layers "$2")
  study "${VARIANTS[@]}" -- --task masked_lm "${FLAGS[@]}"
  compare loss train.loss train.loss_avg
  draw_curves loss loss
  python -m fairseq_ext.tools.recipes converged "${RUNS[@]}" | tee "$out/converged.txt"
}

# search: write the best rate of each side to $out/chosen.txt, as plain+RATE and ag+RATE.
search() {
  local rate names=() chosen updates=$(((updates + 2) / 3)) seeds=1
  [ ! -e "$out/chosen.txt" ] || return 0
  for rate in $rates; do names+=("plain+$rate" "ag+$rate"); done
  pretrain "$out/search" "$SEARCHED" "${names[@]}"
  chosen=$(for name in plain ag; do
    print_best loss lowest "$out/search/$name+"*/seed-1 || exit
  done)
  produce "$out/chosen.txt" say "$chosen"
}

# finetune LAYERS: fine-tune the encoders of a depth.
finetune() {
  local name encoders=() repeated=(--seeds "$seeds" --test) seed="\$SEED"
  [ "$folds" = 1 ] || repeated=(--seeds 1 --folds "$folds") seed=1
  for name in $variants; do
    encoders+=("$name=$out/layers-$1/$name/seed-$seed/checkpoint_last.pt")
  done
  foreground bash "$SCRIPTS/finetune.sh" "$task" "${encoders[@]}" --vocabulary "$data" \
    "${repeated[@]}" --epochs "$epochs" --jobs "$jobs" --out "$out/layers-$1/$task" -- "${REST[@]}"
}

read_options "WORD --variants= --layers= --rates= --updates#3000 --seeds#3 --folds# --epochs# \
  --vocabulary=8000 --jobs#1 --out= --" "$@"
variants=${variants:-plain ag} layers=${layers:-4 12} rates=${rates:-5e-4 1e-3 2e-3}
language=${WORDS[0]:-} part=${WORDS[1]:-finetune}
require_one_of LANGUAGE "$language" yoruba oromo
require_one_of PART "$part" search pretrain finetune
[ "$language" = yoruba ] || [ "${folds:-1}" = 1 ] || die "--folds is for yoruba: leave it out."
case "$language" in
yoruba) task=masakhaner2-yor folds=${folds:-10} epochs=${epochs:-3} ;;
oromo) task=masakhanews-orm folds=1 epochs=${epochs:-10} ;;
esac
for depth in $layers; do
  [[ "$depth" =~ ^[1-9][0-9]*$ ]] || die "--layers is '$depth' and must be a positive number."
done
[ "$folds" = 1 ] || task+=-joined
for name in $variants; do print_variant "$name+1" >/dev/null || exit 1; done
[ -n "${FAIRSEQ_EXT_CORPORA:-}" ] ||
  die "FAIRSEQ_EXT_CORPORA is not set: set it to the folder with $language-raw."
setup_environment
data=$PLACE/data-bin/$language out=${out:-$PLACE/checkpoints/low_resource/$language}
require_room "$out" 500
bash "$SCRIPTS/prepare_mlm.sh" "$(corpus_folder "$language-raw")" "$data" --documents blank \
  --vocabulary "$vocabulary"
search
for depth in $layers; do
  # shellcheck disable=SC2086 # words
  [ "$part" = search ] || pretrain "$out/layers-$depth" "$depth" $variants
  [ "$part" != finetune ] || finetune "$depth"
done
