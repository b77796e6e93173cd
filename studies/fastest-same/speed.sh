#!/usr/bin/env bash
# Times the plans of a part (heads) beside the plain samplers: PART/speed.json. Wants an otherwise idle machine.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
plans=bench/plans
"${PYTHON:-python3}" -m leanwam bench generate --model "$1" --until action --caches --batch 1,8 --rounds 12 \
  --plans "$plans/steps-2_video-1.toml;$plans/steps-3_video-1.toml;$plans/steps-4_video-1.toml;plain_2;plain_3;plain_4" \
  --out "studies/fastest-same/$1/speed.json"
