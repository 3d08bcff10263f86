# Functions of recipes that pre-train encoders.

. "$(dirname "${BASH_SOURCE[0]}")/study.sh"

# set_flags SIZE: set FLAGS, and updates, lr, alpha and warmup if they were not given.
set_flags() {
  local optimizer tokens=512 batch=8 often=1
  case "$1" in
  _tiny)
    set_defaults 3000 1e-3 100
    optimizer="adam --adam-betas (0.9,0.98) --adam-eps 1e-6 --weight-decay 0.01"
    tokens=128 batch=16
    ;;
  _8 | _12 | _16)
    [ "$1" != _8 ] || alpha=${alpha:-100}
    set_defaults 100000 1e-4 10
    optimizer="adam --adam-betas (0.9,0.999) --adam-eps 1e-8"
    ;;
  _large)
    set_defaults 125000 .00176 10 3125
    optimizer="lamb --weight-decay 0.01 --fp16-no-flatten-grads" often=512
    ;;
  *) die "--size is '$1' and must be _tiny, _8, _12, _16 or _large." ;;
  esac
  # shellcheck disable=SC2206 # words
  FLAGS=(--optimizer $optimizer --clip-norm 1 --lr "$lr"
    --lr-scheduler polynomial_decay --warmup-updates "$warmup" --total-num-update "$updates"
    --max-update "$updates" --batch-size "$batch" --update-freq "$often"
    --tokens-per-sample "$tokens" --skip-invalid-size-inputs-valid-test
    --save-interval-updates $((updates / 5 + 1)) --keep-interval-updates 1 --no-epoch-checkpoints
    --validate-interval-updates $((updates / 5 + 1)) --log-interval $((updates / 30 + 1))
    --distributed-world-size 1 --num-workers 0)
}

# set_defaults UPDATES LR ALPHA [WARMUP]: set those that were not given, and warmup.
set_defaults() {
  updates=${updates:-$1} lr=${lr:-$2} alpha=${alpha:-$3} warmup=${4:-0}
}
