#!/usr/bin/env bash
# RoBERTa-style pre-training with and without attention guidance, and with other normalisers.
#
# Papers: Guiding Attention for Self-Supervised Learning with Transformers (AG; Deshpande & Narasimhan
# 2020), Figure 3, Tables 3, 5 and 6; Attention that does not Explain Away (DNA; Ding et al. 2020),
# Figure 4.
# Needs: $FAIRSEQ_EXT_CORPORA with the development corpus `books`, unless --data is given.
#
# Usage: bash scripts/pretrain.sh EXPERIMENT [OPTION...] [-- FLAG...]
#
#   convergence  with and without guidance: how fast do they learn? (AG, Figure 3, Table 3; with
#                --objective replaced_token_detection Table 6, whose generator is learned with
#                -- --generator-size 0.25); keeps checkpoints after 0 %, 1 % and 100 % of the training
#   fraction     1/4, 1/2, 3/4 or all of the heads guided; keeps checkpoints as convergence does
#   robustness   with and without guidance, at three learning rates, without and with warm-up
#   tuned        with and without guidance, each with the best of four settings (learning rate with
#                dropout of attention, warm-up) after a third of --updates; chosen.txt in --out has them,
#                and a chosen.txt that is there is used as it is
#   patterns     all five patterns, and each left out, next and prev together (AG, Table 5)
#   normalisers  softmax, doubly-normalised and hybrid attention (DNA, Figure 4), with the share of keys
#                that each explains away (Figure 1)
#   alternatives plain attention, the normalisers of the papers and others, and other positions: the
#                table of scripts/alternatives.sh
#
#   --data       a folder of scripts/prepare_mlm.sh (default: data-bin/books, made if it is missing)
#   --size       size of the models: _tiny (default), _8, _12, _16 or _large; _8 to _16 have the
#                settings of AG and _large those of DNA, in place of small ones
#   --objective  masked_lm, masked_lm_nsp, masked_lm_sop or replaced_token_detection
#                (default: masked_lm; normalisers: masked_lm_sop)
#   --updates    length of each training (default: 3000; _8 to _16: 100000; _large: 125000)
#   --lr         highest learning rate (default: 1e-3; 1e-4; .00176)
#   --alpha      initial weight of guidance (default: 100; _12, _16 and _large: 10)
#   --seeds      repetitions of each model (default: 3)
#   --jobs       trainings side by side (default: 1)
#   --out        folder of runs, table and curves (default: checkpoints/EXPERIMENT/ and the name of
#                the data with size and objective)
#   FLAG         flags of fairseq-train, which replace those of the size
#
# A second run of the same command continues where the first was interrupted. At full size, on GPUs:
#   bash scripts/prepare_mlm.sh wikitext-103 data-bin/wikitext-103 --vocabulary gpt2
#   bash scripts/pretrain.sh convergence --data data-bin/wikitext-103 --size _12 -- --fp16 \
#     --distributed-world-size 8 --batch-size 32
# DNA's batch of 4096 on 8 GPUs with 16 sequences at a time (on one GPU it is the default):
#   bash scripts/pretrain.sh normalisers --data data-bin/wikitext-103 --size _large -- --fp16 \
#     --distributed-world-size 8 --batch-size 16 --update-freq 32
#
# Expected: in AG's Table 3 (English; nats), training / validation / average of the training:
#   8 layers   without 1.75 / 2.41 / 2.48, with 1.74 / 2.43 / 2.09
#   12 layers          1.86 / 2.47 / 2.56       1.73 / 2.29 / 2.07
#   16 layers          6.40 / 7.28 / 6.67       1.81 / 2.46 / 2.24
# Our losses on six books and a part of WikiText-2, in bits: docs/results/.
# Cost: 10 to 30 minutes on one core for each training of the default.

. "$(dirname "$0")/lib/pretraining.sh"

# guided [FLAG...]: print the criterion with guidance that fades over the whole training.
guided() {
  say "--criterion ${objective}_ag --ag-alpha $alpha --ag-decay-updates $updates" \
    "$([[ "$*" != *period* ]] || say "--ag-period=$period")" "$@"
}

# multiply NUMBER FACTOR: print their product.
multiply() { awk "BEGIN { print $1 * $2 }"; }

# set_variants_of EXPERIMENT: set VARIANTS.
set_variants_of() {
  local all=,next:1,prev:1,first:1,delim:1,period:1 kept share rate warmup name number
  case "$1" in
  convergence) VARIANTS=("plain=$plain" "ag=$(guided)") ;;
  fraction)
    VARIANTS=("plain=$plain")
    for share in 0.25 0.5 0.75 1; do VARIANTS+=("ag-$share=$(guided --ag-fraction $share)"); done
    ;;
  robustness)
    for rate in "$(multiply "$lr" .1)" "$(multiply "$lr" .5)" "$lr"; do
      for warmup in 0 $((updates / 10)); do
        VARIANTS+=("plain-$rate-$warmup=$plain --lr $rate --warmup-updates $warmup"
          "ag-$rate-$warmup=$(guided --lr "$rate" --warmup-updates $warmup)")
      done
    done
    ;;
  tuned)
    [ -e "$out/chosen.txt" ] || choose_settings
    while read -r name number; do
      VARIANTS+=("$(print_setting "$name" "$number")")
    done <"$out/chosen.txt"
    ;;
  patterns)
    VARIANTS=("all=$(guided --ag-encoder-heads "${all#,}")")
    for name in next:1,prev:1 first:1 delim:1 period:1; do
      kept=${all/,$name/}
      VARIANTS+=("without-${name//[:1,]/}=$(guided --ag-encoder-heads "${kept#,}")")
    done
    ;;
  normalisers)
    for name in una dna hna; do VARIANTS+=("$name=$plain --arch roberta_$name$size"); done
    ;;
  alternatives)
    for name in plain dna hna $NORMALISERS $POSITIONS; do
      VARIANTS+=("$(print_mechanisms plain "$name" "roberta_una$size" "$objective")")
    done
    FLAGS+=(--validate-interval-updates $((updates / 10 + 1)))
    ;;
  esac
}

# print_setting NAME NUMBER: print plain or ag with one of the four settings of a search, as
# NAME=FLAGS.
print_setting() {
  local flags=$plain rate=$lr dropout=.1 share=$((6 + 10 * ($2 % 2)))
  [ "$1" = plain ] || flags=$(guided)
  [ "$2" -gt 2 ] || rate=$(multiply "$lr" .5) dropout=0
  say "$1=$flags --lr $rate --attention-dropout $dropout --warmup-updates $((updates * share / 100))"
}

# choose_settings: train each side with each setting for a third of the updates, and write the number
# of the one with the lowest loss of validation to $out/chosen.txt.
choose_settings() {
  local folder=$out name number line chosen FLAGS=() VARIANTS=() updates=$(((updates + 2) / 3)) seeds=1
  local out=$out/search
  set_flags "$size"
  for number in 1 2 3 4; do
    for name in plain ag; do
      line=$(print_setting "$name" "$number")
      VARIANTS+=("${line/=/-$number=}")
    done
  done
  train_variants
  compare loss
  chosen=$(for name in plain ag; do
    number=$(print_best loss lowest "$out/$name"-*/seed-1) || exit
    say "$name ${number#*-}"
  done)
  produce "$folder/chosen.txt" say "$chosen"
  RUNS=()
}

# train_variants: train VARIANTS, and add their folders to RUNS.
train_variants() {
  COMMON=(--task "$objective" --arch "roberta_una$size" "${FLAGS[@]}")
  study "${VARIANTS[@]}" -- "${COMMON[@]}"
}

# train_beginning SHARE FLAG...: train the first part of each variant, for the first seed.
train_beginning() {
  local share=$1 variant variants=()
  for variant in "${VARIANTS[@]}"; do variants+=(--variant "$variant ${REST[*]@Q} ${*:2}"); done
  foreground python -m fairseq_ext.cli sweep --out "$out/after-$share" "${variants[@]}" -- "$data" \
    "${COMMON[@]}" --disable-validation
}

read_options "WORD --data= --size=_tiny --objective= --updates# --lr= --alpha= --seeds#3 --jobs#1 --out= \
  --" "$@"
experiment=${WORDS[*]:-}
case "$experiment" in
convergence | fraction | robustness | tuned | patterns | alternatives) objective=${objective:-masked_lm} ;;
normalisers) objective=${objective:-masked_lm_sop} ;;
*) die "The experiment is '$experiment' and must be convergence, fraction, robustness, tuned," \
  "patterns, normalisers or alternatives." ;;
esac
case "$objective" in
masked_lm | masked_lm_nsp | masked_lm_sop | replaced_token_detection) ;;
*) die "--objective is '$objective' and must be masked_lm, masked_lm_nsp, masked_lm_sop or" \
  "replaced_token_detection." ;;
esac
set_flags "$size"
setup_environment
[ -n "$data" ] || bash "$SCRIPTS/prepare_mlm.sh" books "$PLACE/data-bin/books"
data=${data:-$PLACE/data-bin/books}
[ -e "$data/train.idx" ] && [ -e "$data/bpe/encoder.json" ] ||
  die "--data is '$data', which has no train.idx or no bpe/encoder.json: give a folder that" \
    "scripts/prepare_mlm.sh wrote."
grep -q '^<mask> ' "$data/dict.txt" ||
  die "$data/dict.txt has no <mask>: add the line '<mask> 0' at its end."
out=${out:-$PLACE/checkpoints/$experiment/$(basename "$data")$size-$objective}
require_room "$out" 500

period="'$(python -m fairseq_ext.tools.recipes period-ids "$data/bpe/encoder.json")'"
plain="--criterion $objective" VARIANTS=()
set_variants_of "$experiment"
train_variants
if [[ "$experiment" =~ ^(convergence|fraction)$ ]]; then
  train_beginning 0 --lr 0 --max-update 1
  train_beginning 1 --max-update $(((updates + 99) / 100))
fi

metrics=(train.loss train.loss_avg loss)
[ "$objective" != replaced_token_detection ] || metrics+=(f1)
BY='train.loss_avg loss'
if [[ "$experiment" =~ ^(normalisers|alternatives)$ ]]; then
  describe_attention --limit 100
  metrics+=(analysis.encoder.{explained_away,below_bound,entropy})
fi
if [ "$experiment" = alternatives ]; then
  metrics+=(updates-to.loss time-ratio)
  compare_closest "${metrics[@]}"
fi
compare "${metrics[@]}"
draw_curves loss loss
