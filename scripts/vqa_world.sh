#!/usr/bin/env bash
# Questions about pictures of a generated world: three detectors without attention between them, and
# with multi-view attention by softmax (una), doubly-normalised (dna) and hybrid (hna).
#
# Paper: Ding et al. 2020, Section 6.1, Tables 1 and 4, Figure 3, whose features are not public. Here
# pictures, detectors and questions are generated: nothing of them is real.
# `python -m fairseq_ext.vqa.world.generate --help` says what is assumed of them.
#
# Usage: bash scripts/vqa_world.sh [OPTION...] [-- FLAG...]
#
#   --variants    some of 'pythia concat una dna hna' (default: all but pythia, which reads the primary
#                 detector alone); the first is compared with the others
#   --pictures    pictures of the world, with two questions each (default: 10000)
#   --world-seed  seed that the world is drawn with (default: 2, that of the protocol)
#   --data        a folder of such data, which is made if it is missing (default: data-bin/vqa-world)
#   --updates     length of each training (default: 8000)
#   --seeds       repetitions of each model (default: 3)
#   --jobs        trainings side by side (default: 1)
#   --out         folder of runs, tables and pictures (default: checkpoints/vqa_world)
#   FLAG          flags of fairseq-train for all trainings, e.g. --fp16
#
# Seeds are trained one after the other; after an interruption the same command continues. table.txt has
# the accuracy in all, of questions about rare kinds of things, and by type of answer, with t-tests from
# 2 seeds on. table-una.txt compares dna and hna with una, and has the share of boxes that are explained
# away (all boxes of the primary view together give it less than exp(-20)) or get less than 1 / boxes.
# weights/weights_u.png is the hybrid weight over updates (Figure 3); contact_sheet.png, beside the data,
# shows some of the world.
#
# Expected: docs/mechanisms/multi_view.md.
# Cost: on one core a minute for the world, about five for each training.

. "$(dirname "$0")/lib/study.sh"

print_variant() {
  case "$1" in
  pythia | concat) say "$1=--arch vqa_$1" ;;
  una | dna | hna) say "$1=--arch vqa_multi_view_$1" ;;
  *) die "--variants has '$1' and must have some of pythia, concat, una, dna, hna." ;;
  esac
}

# check_world OPTION VALUE: refuse another value than that which $world or $data was made with.
check_world() {
  local file
  for file in "$world/$1" "$data/$1"; do
    [ ! -e "$file" ] || [ "$(cat "$file")" = "$2" ] ||
      die "--$1 is $2, and ${file%/*} has $(cat "$file"): give that number, or delete $world and $data."
  done
}

# make_world: make $data from a world that is generated beside it, unless it is there.
make_world() {
  local world=$data.generated name features=()
  check_world pictures "$pictures"
  check_world world-seed "$world_seed"
  [ ! -e "$data/rare.jsonl" ] || return 0
  if [ ! -e "$world" ]; then
    foreground python -m fairseq_ext.vqa.world.generate "$world" \
      --pictures "$pictures" --seed "$world_seed"
    say "$pictures" >"$world/pictures"
    say "$world_seed" >"$world/world-seed"
  fi
  for name in shape colour size; do features+=(--features "$name=$world/$name"); done
  bash "$SCRIPTS/prepare_vqa.sh" "$data" "${features[@]}" --offline "$world" --minival all
  for name in pictures world-seed; do [ ! -e "$world/$name" ] || cp "$world/$name" "$data"; done
  python -m fairseq_ext.vqa.world.rare_part "$data"
}

read_options '--variants= --pictures#10000 --world-seed=2 --data= --updates#8000 --seeds#3 --jobs#1 --out= \
  --' "$@"
variants=${variants:-concat una dna hna}
# shellcheck disable=SC2086 # words
set_variants $variants
setup_environment
data=${data:-$PLACE/data-bin/vqa-world} out=${out:-$PLACE/checkpoints/vqa_world}
data=${data%/}
require_room "$out" 500
make_world

FLAGS=(--task vqa --criterion vqa --encoder-embed-dim 64 --question-hidden-size 64
  --question-attention-hidden-size 64 --question-attention-heads 1 --attention-hidden-size 128
  --fusion-hidden-size 256 --answer-text-hidden-size 64 --answer-image-hidden-size 256
  --batch-size 128 --optimizer adamax --lr 0.01 --clip-norm 5 --lr-scheduler polynomial_decay
  --warmup-updates 200 --total-num-update "$updates" --max-update "$updates" --dropout 0.1
  --valid-subset valid,rare --validate-interval-updates 500 --validate-interval 1000
  --save-interval-updates 500 --keep-interval-updates 1 --no-epoch-checkpoints
  --best-checkpoint-metric accuracy --maximize-best-checkpoint-metric --log-interval 50
  --distributed-world-size 1 --num-workers 0)
study "${VARIANTS[@]}" -- "${FLAGS[@]}"

BY='accuracy rare.accuracy'
# shellcheck disable=SC2086 # words
compare $BY accuracy_{yes_no,number,other} --bars "$out/accuracy.png"

joined=() hybrid=()
set_user_dir
for run in "${RUNS[@]}"; do
  case "$run" in
  */una/seed-* | */dna/seed-* | */hna/seed-*) joined+=("$run") ;;
  esac
  [[ "$run" != */hna/seed-* ]] || hybrid+=("$run")
done
for run in "${joined[@]}"; do
  is_newer "$run/analysis/column_sums.csv" "$run/checkpoint_last.pt" ||
    foreground python -m fairseq_ext.cli columns "$run/checkpoint_last.pt" --data "$data" \
      --split valid --out "$run/analysis" "${USER_DIR[@]}"
done
if [[ " $variants " == *' una '* ]]; then
  RUNS=("${joined[@]}") BASELINE=una
  # shellcheck disable=SC2086 # words
  compare $BY analysis.views.{explained_away,below_bound}
fi
if [ ${#hybrid[@]} -gt 0 ]; then
  foreground python -m fairseq_ext.cli weights "${hybrid[@]}" --out "$out/weights" "${USER_DIR[@]}"
fi
