#!/usr/bin/env bash
# Trains four small models in the same way and draws one encoder head of each for one sentence:
# four_heads.png of the README. DATA is the data-bin/mine of the README, made of Multi30k.
#
#   bash docs/pictures/four_heads.sh DATA OUT [UPDATES]        (default 600; 15 minutes on one core)

set -euo pipefail
data=$1 out=$2 updates=${3:-600}
label=label_smoothed_cross_entropy
fairseq-ext sweep --out "$out" --seeds 1 \
  --variant softmax="--arch transformer_una_tiny --criterion $label" \
  --variant doubly-normalised="--arch transformer_dna_tiny --criterion $label" \
  --variant guided="--arch transformer_una_tiny --criterion ${label}_ag --ag-encoder-heads next:1,prev:1 --ag-alpha 1" \
  --variant adversarial="--arch transformer_asa_tiny --criterion ${label}_asa" \
  -- "$data" --share-all-embeddings --dropout 0.1 --max-tokens 1024 --max-update "$updates" --label-smoothing 0.1 \
  --optimizer adam --adam-betas '(0.9, 0.98)' --lr 3e-3 --lr-scheduler inverse_sqrt --warmup-updates 400 \
  --no-epoch-checkpoints --num-workers 0
fairseq-ext map "$out"/{softmax,doubly-normalised,guided,adversarial}/seed-1/checkpoint_last.pt --data "$data" \
  --sentence 'two dogs are running on the beach .' --site encoder --layer 1 --head 0 --out "$out/four_heads.png"
