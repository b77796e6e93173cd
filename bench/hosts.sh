#!/bin/sh
# The table of docs/hosts/diffusers.md: plans of ours and caches of diffusers on one tiny random Wan model.
# Usage: bench/hosts.sh [options of leanwam bench generate]. Writes bench/results/hosts.json;
# python docs/tables.py then fills the page.
set -eu
cd "$(dirname "$0")/.."
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}"
PYTHON=${PYTHON:-python}
# MagCache's ratios are those that it prints for this model: cache:magcache:num_inference_steps=20:calibrate=True
mag="[1.0,1.0027,1.0009,0.9958,1.0022,0.9915,1.0071,1.0084,0.9991,0.989,1.0162,0.9819,1.0001,0.9989,1.0007,\
1.0008,1.0113,0.9922,1.0078,0.9898]"
taylor="cache_interval=4:cache_identifiers=['blocks.*attn1','blocks.*ffn']"
plans="dense;video=sparse_10;video=sparse_5;video=sparse_5/taylor2;plain_5;frames=drop_middle;\
cache:first_block:threshold=0.1;cache:first_block:threshold=0.3;cache:taylorseer:$taylor;\
cache:magcache:num_inference_steps=20:threshold=0.1:mag_ratios=$mag;cache:seacache:threshold=0.25;\
cache:pab:spatial_attention_block_skip_range=2;frames=drop_middle,cache=first_block:threshold=0.3;\
video=sparse_10,cache=first_block:threshold=0.3"
exec "$PYTHON" -m leanwam bench generate --model host:bench/wan_tiny.py:wan --plans "$plans" \
  --out bench/results/hosts.json "$@"
