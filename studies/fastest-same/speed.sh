#!/usr/bin/env bash
# Times the plans of a part (heads or joint) beside the plain samplers: PART/speed.json, and PART/speed-whole.json where the
# action is done before the call is. Wants an otherwise idle machine.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
plans=bench/plans
case "$1" in
  heads) arms="$plans/steps-2_video-1.toml;$plans/steps-3_video-1.toml;$plans/steps-4_video-1.toml;plain_2;plain_3;plain_4" ;;
  joint) arms="$plans/steps-1_tokens-0-31.toml;$plans/steps-2_video-1_tokens-0-31.toml;$plans/steps-3_video-1_tokens-0-31.toml;plain_1;plain_2;plain_3" ;;
esac
bench=("${PYTHON:-python3}" -m leanwam bench generate --model "$1" --caches --batch 1,8 --plans "$arms")
"${bench[@]}" --until action --rounds 12 --out "studies/fastest-same/$1/speed.json"
[ "$1" = heads ] || "${bench[@]}" --rounds 12 --out "studies/fastest-same/$1/speed-whole.json"
