#!/usr/bin/env bash
# Proves and measures everything on a machine with a GPU, which needs no network: Python 3.12 with a
# torch built for CUDA.
#
# Usage: bash benchmarks/gpu.sh --out DIR [--wheels DIR] [OPTION...]
#        bash benchmarks/gpu.sh --collect DIR
#
#   --out      folder of the results: STAGE.json and STAGE.md of each stage, and runs/
#   --wheels   folder of wheels, which are installed in OUT/env beside the machine's torch
#              (default: the environment as it is)
#   --stages   of right (kernels and training steps), fast (benchmarks), real (Multi30k and masked
#              LM) and distributed (default: 'right fast distributed real')
#   --minutes  for all stages; nothing new is begun after them (default: 9)
#   --dry      small sizes on a CPU, to try everything but the GPU
#   --collect  fill the folder of wheels, on a machine with a registry (40 MiB, without torch)
#
# Corpora are those of $FAIRSEQ_EXT_CORPORA (Multi30k, books), else built-in ones. Exit code: 0 all is
# done and right; 1 something is wrong, or no GPU; 75 nothing is wrong so far, but the time was up. The
# same command goes on.

. "$(dirname "$0")/../scripts/lib/common.sh"

read_options '--out= --wheels= --stages= --minutes#9 --collect= --dry' "$@"
stages=${stages:-right fast distributed real}
if [ -n "$collect" ]; then
  exec python3 "$ROOT/benchmarks/gpu/wheels.py" collect "$collect"
fi
[ -n "$out" ] || die "--out is missing: give a folder for the results."
for stage in $stages; do
  require_one_of --stages "$stage" right fast real distributed
done
mkdir -p "$out"
out=$(cd "$out" && pwd)
deadline=$(($(date +%s) + 60 * minutes))

# enter_gpu_environment: make an environment in which the wheels lie before the machine's packages.
enter_gpu_environment() {
  local env=$out/env machine
  [ -d "$wheels" ] || die "--wheels is '$wheels', which is no folder: fill one with --collect."
  wheels=$(cd "$wheels" && pwd)
  if [ ! -e "$env/ready" ]; then
    machine=$(python3 -c 'import site; print(*site.getsitepackages(), sep="\n")')
    python3 -m venv --without-pip --clear "$env"
    printf '%s\n' "$machine" >"$("$env/bin/python" -c 'import site; print(site.getsitepackages()[0])')/machine.pth"
    PATH="$env/bin:$PATH" python "$ROOT/benchmarks/gpu/wheels.py" install "$wheels"
    touch "$env/ready"
  fi
  export VIRTUAL_ENV=$env PATH="$env/bin:$PATH"
  [ ! -e "$wheels/COMMIT" ] || export FAIRSEQ_EXT_COMMIT=${FAIRSEQ_EXT_COMMIT:-$(cat "$wheels/COMMIT")}
}

[ -z "$wheels" ] || enter_gpu_environment
export FAIRSEQ_EXT_SKIP_INSTALL=1 PYTHONPATH=$ROOT:$ROOT/benchmarks:$ROOT/benchmarks/gpu
export FAIRSEQ_EXT_TRUST_TRITON=1  # what a version gets wrong is to be seen
if [ -n "$dry" ]; then
  export CUDA_VISIBLE_DEVICES=
else
  python "$ROOT/benchmarks/gpu/wheels.py" check
  python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
    die "torch finds no GPU: --dry tries everything else on a CPU."
fi

# Data. Those in the package are small enough to try with; a result needs real ones.
merges=10000 corpus=multi30k books=books
if [ -n "$dry" ] || [ ! -d "${FAIRSEQ_EXT_CORPORA:-}/multi30k-en-de" ]; then corpus=builtin merges=800; fi
if [ -n "$dry" ] || [ ! -d "${FAIRSEQ_EXT_CORPORA:-}/gutenberg" ]; then books=$out/runs/text; fi
data=$out/runs/$corpus.en-de text=$out/runs/running-text
[ -e "$data" ] || bash "$ROOT/scripts/prepare_$corpus.sh" "$data" --merges $merges >"$out/data.log" 2>&1 ||
  die "The data could not be prepared: see $out/data.log."
if [ ! -e "$text" ]; then
  if [ "$books" != books ]; then
    mkdir -p "$books"
    cp "$data/text/train.en" "$books/train.txt"
    cp "$data/text/valid.en" "$books/valid.txt"
  fi
  bash "$ROOT/scripts/prepare_mlm.sh" "$books" "$text" --vocabulary 500 >>"$out/data.log" 2>&1 ||
    die "The running text could not be prepared: see $out/data.log."
fi

status=0
for stage in $stages; do
  left=$(((deadline - $(date +%s)) / 60)) code=0
  if [ "$left" -gt 0 ]; then
    foreground python "$ROOT/benchmarks/gpu/run.py" "$stage" --out "$out" --data "$data" \
      --text "$text" --minutes "$left" ${dry:+--dry} || code=$?
  else
    code=75
  fi
  # what is wrong stays wrong, though time is up as well
  case "$status:$code" in 0:* | 75:[!0]*) status=$code ;; esac
done
exit $status
