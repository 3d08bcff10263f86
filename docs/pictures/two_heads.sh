#!/usr/bin/env bash
# Trains two small models in the same way, and draws two_heads.png of the README with what is said
# of it; docs/draw_heads.py has the rule that chooses sentence and heads.
# DATA is a folder of scripts/prepare_multi30k.sh.
#
#   bash docs/pictures/two_heads.sh DATA OUT        (600 updates each; some minutes on one core)

set -euo pipefail
data=$1 out=$2
fairseq-ext sweep --out "$out" --seeds 1 \
  --variant softmax='--arch transformer_una_tiny' --variant dna='--arch transformer_dna_tiny' \
  -- "$data" --share-all-embeddings --dropout 0.1 --max-tokens 1024 --max-update 600 --label-smoothing 0.1 \
  --criterion label_smoothed_cross_entropy --optimizer adam --adam-betas '(0.9, 0.98)' --lr 3e-3 \
  --lr-scheduler inverse_sqrt --warmup-updates 400 --no-epoch-checkpoints --num-workers 0
python "$(dirname "$0")/../draw_heads.py" --write --data "$data" \
  --choose "$out"/{softmax,dna}/seed-1/checkpoint_last.pt
