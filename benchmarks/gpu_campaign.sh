#!/usr/bin/env bash
# Run, measure and record every path to a GPU, a stage at a time.
#
#   benchmarks/gpu_campaign.sh [--rehearse] [--out FOLDER] [--minutes N] STAGE...
#
# Stages, each of at most N minutes (8), to be run alone or together, and again at will:
#   smoke      what is installed and works; then every test that needs a GPU
#   decode     DALI by batch and threads, nvJPEG, the CPU kernels, and DALI's own limit
#   feed       copies to the GPU, whether they hide, the waiting of loader and reference by workers
#   attention  kernels at 8 x 2,048 x 32 heads x 128, then 256 to 8,192 tokens, padded and packed
#   ladder     the reference model from the naive loop up
#   asides     the techniques that stand beside the ladder, each alone
#   profile    where the time of the reference model and of the loader goes
#   suite      the other tests of the repository, on a machine that has a GPU
#   all        smoke to profile
#
# Each writes STAGE*.json and STAGE.log into FOLDER (build/gpu), and replaces those of an earlier run.
# Results are written while a stage runs: one that is out of time keeps what it has measured.
# --rehearse runs all of it on the CPU with little data, to see that it runs.
# PYTHON names the interpreter: that of .venv by default, or else python3.
set -uo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '2,23s/^# \{0,1\}//p' "$0"; }
fail() { echo "gpu_campaign.sh: $1" >&2; exit 2; }

stages=() rehearse='' out=build/gpu minutes=8 inside=''
while (($#)); do
  case $1 in
    --rehearse) rehearse=--rehearse ;;
    --out) out=${2:?--out needs a folder}; shift ;;
    --minutes) minutes=${2:?--minutes needs a number}; shift ;;
    --inside) inside=yes ;; # of the stage's own process, which ends with its time
    -h | --help) usage; exit ;;
    all) stages+=(smoke decode feed attention ladder asides profile) ;;
    smoke | decode | feed | attention | ladder | asides | profile | suite) stages+=("$1") ;;
    *) fail "there is no stage or option $1; see --help" ;;
  esac
  shift
done
((${#stages[@]})) || { usage >&2; exit 2; }
[[ $minutes =~ ^[0-9]*\.?[0-9]+$ && $minutes =~ [1-9] ]] || fail "--minutes $minutes: give a number above 0"
if [[ -z ${PYTHON-} ]]; then
  PYTHON=python3
  [[ -x .venv/bin/python ]] && PYTHON=$PWD/.venv/bin/python
fi
export PYTHONUNBUFFERED=1

# Run a command, and go on behind one that fails; the stage has failed then.
failed=0
run() {
  printf '\n$ %s\n' "$*"
  "$@" || { failed=$?; echo "gpu_campaign.sh: ended with status $failed: $*"; }
}
python() { run "$PYTHON" -m "$@"; }
quick() { [[ -n $rehearse ]]; } # a rehearsal

smoke() {
  command -v nvidia-smi > /dev/null && run nvidia-smi
  python benchmarks.gpu.smoke $rehearse --json "$out/smoke.json"
  mapfile -t files < <(grep -rlE --include='*.py' 'mark\.gpu' tests)
  python pytest -m gpu -n "$(workers)" -rfE --maxfail 40 "${files[@]}"
}

decode() {
  local sizes=()
  quick && sizes=(--samples 64 --rounds 1 --batches 8 16 --threads 1 2)
  python benchmarks.gpu.decode $rehearse "${sizes[@]}" --json "$out/decode.json"
}

feed() { python benchmarks.gpu.feed $rehearse --json "$out/feed.json"; }

attention() {
  python benchmarks.attention $rehearse --size 128 --json "$out/attention.json"
}

small_ladder=(--samples 256 --steps 1 --warm-up 1 --rounds 1 --pack 1152) # which hold the longest text

ladder() {
  local sizes=(--samples 4096)
  quick && sizes=("${small_ladder[@]}" --only naive prefetch packs)
  python benchmarks.ladder --part way "${sizes[@]}" --json "$out/ladder.json"
}

asides() {
  local sizes=(--samples 4096 --steps 30)
  quick && sizes=("${small_ladder[@]}" --only images LoRA --processes 1)
  python benchmarks.ladder --part asides "${sizes[@]}" --json "$out/asides.json"
}

profile() {
  local samples=4096 model=base pack=8192 device=cuda precision=bf16
  quick && samples=256 model=tiny pack=1024 device=cpu precision=fp32
  run "$PYTHON" -c "
from benchmarks.chats import chats
print('shards and tokenizer:', *chats($samples))"
  local data=build/bench/chats-$samples
  local model_options=(
    "$data-packed" --tokenizer "$data-tokenizer.json" --model $model --device $device
    --pack $pack --max-length $pack --overlong truncate --precision $precision --steps 12
  )
  python examples.vlm.train "${model_options[@]}" \
    --profile "$out/profile-trace.json" --json "$out/profile-reference.json"
  [[ -f $out/profile-trace.json ]] && run gzip -f "$out/profile-trace.json"
  python examples.vlm.train "${model_options[@]}" --memory-phases --json "$out/profile-memory.json"
  python datapipe profile "$data-packed" --image 336,normalize=imagenet --batch-size 32 \
    --device $device --seconds $(quick && echo 3 || echo 10) --report "$out/profile-loader.html"
}

suite() { python pytest -m 'not campaign and not gpu' -n "$(workers)" -rfE --maxfail 60; }

# Processes of tests: each has a context of some 500 MB on the GPU.
workers() { local cores; cores=$(nproc); echo $((cores > 8 ? 8 : cores)); }

if [[ -n $inside ]]; then
  trap 'exit 130' INT # of the time that is over: without it the next command would begin
  "${stages[0]}"
  exit $((failed != 0))
fi

mkdir -p "$out"
bad=() interrupted=''
for stage in "${stages[@]}"; do
  rm -f "$out/$stage".json "$out/$stage"-*
  echo "--- $stage, to $out/$stage.log"
  begun=$SECONDS
  timeout --signal INT --kill-after 20 "${minutes}m" \
    "$0" --inside $rehearse --out "$out" "$stage" > >(tee "$out/$stage.log") 2>&1 &
  pid=$!
  trap 'interrupted=yes; kill -INT $pid' INT # Ctrl-C reaches only this process
  wait $pid
  status=$?
  [[ -n $interrupted ]] && wait $pid
  trap - INT
  took=$((SECONDS - begun))
  [[ -n $interrupted ]] && { echo "--- $stage: interrupted after $took s"; exit 130; }
  case $status in
    0) echo "--- $stage: done in $took s" ;;
    124 | 137) echo "--- $stage: out of time after $took s"; bad+=("$stage (out of time)") ;;
    *) echo "--- $stage: FAILED after $took s, see $out/$stage.log"; bad+=("$stage") ;;
  esac
done
echo
"$PYTHON" -m benchmarks.gpu.aims "$out"
((${#bad[@]} == 0)) || { echo "not whole: ${bad[*]}"; exit 1; }
