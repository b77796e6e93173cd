#!/usr/bin/env bash
# Makes the study's five checkpoints again (another machine or torch changes the last digits): the first study's shared policy, demonstrations of the new tasks (8 minutes on one
# core), then 4,000 updates of each arm (13 to 30 minutes). Resumable: run it again after a kill. PYTHON names the
# interpreter, RUNS the folder, ARMS some of the arms.
set -euo pipefail
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" MUJOCO_GL="${MUJOCO_GL:-egl}"
leanwam=("${PYTHON:-python3}" -m leanwam)
runs="${RUNS:-runs}"
VARIANTS=" " bash studies/frames/train.sh
seed="${SEED:-0}"
study=frames-2
[ "$seed" = 0 ] || study=frames-3
mkdir -p "$runs/$study"
[ -e "$runs/frames.demos.zarr" ] || "${leanwam[@]}" reference collect --observation pixels --episodes 48 --seed 0 \
  --tasks plate-slide,plate-slide-side,coffee-push,coffee-pull,pick-place,sweep-into,bin-picking,door-open,drawer-open,window-open,faucet-open,button-press \
  --out "$runs/frames.demos.zarr"
for arm in ${ARMS:-dense drop-middle mae25 loss-only no-future}; do
  out="joint-$arm"
  [ "$arm" != dense ] || out=joint
  "${leanwam[@]}" reference train --preset "studies/frames-2/presets/$arm.toml" --seed "$seed" --demos "$runs/frames.demos.zarr" \
    --tasks plate-slide,plate-slide-side,coffee-push,coffee-pull,sweep-into,bin-picking,door-open,drawer-open,window-open,faucet-open,button-press \
    --init "$runs/joint-policy-2" --out "$runs/$study/$out"
done
