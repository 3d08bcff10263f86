#!/usr/bin/env bash
# Trains two small models in the same way and draws one encoder head of each for one sentence:
# two_heads.png of the README. DATA is the data-bin/mine of the README, made of Multi30k. The picture
# there has the two maps of a drawing of four models, which are gone, under one scale of colours.
#
#   bash docs/pictures/two_heads.sh DATA OUT [UPDATES]        (default 600; some minutes on one core)

set -euo pipefail
data=$1 out=$2 updates=${3:-600}
label=label_smoothed_cross_entropy
fairseq-ext sweep --out "$out" --seeds 1 \
  --variant softmax="--arch transformer_una_tiny --criterion $label" \
  --variant guided="--arch transformer_una_tiny --criterion ${label}_ag --ag-encoder-heads next:1,prev:1 --ag-alpha 1" \
  -- "$data" --share-all-embeddings --dropout 0.1 --max-tokens 1024 --max-update "$updates" --label-smoothing 0.1 \
  --optimizer adam --adam-betas '(0.9, 0.98)' --lr 3e-3 --lr-scheduler inverse_sqrt --warmup-updates 400 \
  --no-epoch-checkpoints --num-workers 0
fairseq-ext map "$out"/{softmax,guided}/seed-1/checkpoint_last.pt --data "$data" \
  --sentence 'two dogs are running on the beach .' --site encoder --layer 1 --head 0 --out "$out/two_heads.png"
