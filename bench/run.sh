#!/usr/bin/env bash
# Makes the committed benchmark tables again (bench/results): raw samples as JSON, one table as Markdown.
# Wants an otherwise idle machine: a disturbed run says so in its rows. PYTHON names the interpreter,
# ROUNDS the timed rounds, MODEL the trained checkpoint (by default random weights of the same shape).
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
bench=("${PYTHON:-python3}" -m leanwam bench)
results="${RESULTS:-bench/results}"
rounds="${ROUNDS:-12}"
heads="${MODEL:-random:heads}"
plans=bench/plans
gating="stride:1;sparse_10;tail_heavy_8"
few="plain_2;plain_3;plain_4;$plans/steps-2_video-1.toml;$plans/steps-3_video-1.toml;$plans/steps-4_video-1.toml"
large="video=prefix:5;video=prefix:5,frames=drop_middle;$few"
"${bench[@]}" generate --model "$heads" --plans dense --batch 1,8 --rounds "$((rounds * 25 / 2))" \
  --out "$results/generate-heads-dense.json"
"${bench[@]}" generate --model "$heads" --plans "$gating" --batch 1,4,8 --rounds "$rounds" \
  --out "$results/generate-heads-gating.json"
"${bench[@]}" generate --model "$heads" --plans "$large" --batch 1,8 --rounds "$rounds" --until action --caches \
  --out "$results/generate-heads-large.json"
"${bench[@]}" generate --model random:joint --plans "dense;video=prefix:1;video=sparse_5;frames=drop_middle;plain_5" \
  --batch 1,8 --rounds "$rounds" --until action --caches --out "$results/generate-joint.json"
"${bench[@]}" forward --model random:joint --plans "frames=drop_middle;frames=keep_all" --batch 1,4,8 \
  --rounds "$rounds" --out "$results/forward-joint.json"
"${bench[@]}" forward --model random:joint --plans "frames=drop_middle" --batch 1,8 --backends compile \
  --rounds "$rounds" --out "$results/forward-joint-compiled.json"
"${bench[@]}" forward --model world:reduced --plans "frames=drop_middle" --batch 1,4,8 --rounds "$rounds" \
  --out "$results/forward-world.json"
"${bench[@]}" train --variants joint-drop-middle,joint-mae25,joint-loss-only --batch 32 --rounds "$(((rounds + 1) / 2))" \
  --out "$results/train-joint.json"
"${PYTHON:-python3}" bench/table.py "$results"
