#!/usr/bin/env bash
# Times the plans of a part (heads, joint, joint-2) beside the plain samplers: PART/speed.json, and PART/speed-whole.json where the
# action is done before the call is. Wants an otherwise idle machine.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
plans=bench/plans
model="${1%-2}"
case "$1" in
  heads) arms="$plans/steps-2_video-1.toml;$plans/steps-3_video-1.toml;$plans/steps-4_video-1.toml;plain_2;plain_3;plain_4" ;;
  joint) arms="$plans/steps-1_tokens-0-31.toml;$plans/steps-2_video-1_tokens-0-31.toml;$plans/steps-3_video-1_tokens-0-31.toml;plain_1;plain_2;plain_3" ;;
  joint-2) arms="$plans/steps-4_video-1_tokens-0-31.toml;$plans/steps-6_video-1_tokens-0-31.toml;$plans/video-1_tokens-0-31.toml;plain_4;plain_6;plain_10" ;;
  *) echo "usage: speed.sh heads|joint|joint-2" >&2; exit 2 ;;
esac
bench=("${PYTHON:-python3}" -m leanwam bench generate --model "$model" --caches --batch 1,8 --plans "$arms")
"${bench[@]}" --until action --rounds "${ROUNDS:-12}" --out "studies/fastest-same/$1/speed.json"
[ "$model" = heads ] || "${bench[@]}" --rounds "${ROUNDS:-12}" --out "studies/fastest-same/$1/speed-whole.json"
