#!/usr/bin/env bash
# Makes the study's checkpoints again: demonstrations (18 minutes on one core), the shared policy in two rounds of the
# learning rate (22 and 23), four variants in two rounds (7 to 11 each). Resumable: run it again after a kill. PYTHON names
# the interpreter, RUNS the folder.
set -euo pipefail
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" MUJOCO_GL="${MUJOCO_GL:-egl}"
leanwam=("${PYTHON:-python3}" -m leanwam)
runs="${RUNS:-runs}"
tasks=push,pick-place,sweep-into,bin-picking,door-open,drawer-open,window-open,faucet-open,button-press
mkdir -p "$runs"
[ -e "$runs/hand.demos.zarr" ] || "${leanwam[@]}" reference collect --observation pixels \
  --tasks "push,pick-place,sweep-into,bin-picking,basketball,door-open,drawer-open,window-open,faucet-open,button-press" \
  --episodes 48 --seed 0 --out "$runs/hand.demos.zarr"
"${leanwam[@]}" reference train --preset joint-policy --demos "$runs/hand.demos.zarr" --tasks "$tasks" --out "$runs/joint-policy"
"${leanwam[@]}" reference train --preset joint-policy --seed 1 --updates 7000 --threads 2 --init "$runs/joint-policy" \
  --demos "$runs/hand.demos.zarr" --tasks "$tasks" --out "$runs/joint-policy-2"
for variant in ${VARIANTS:-joint joint-drop-middle joint-mae25 joint-loss-only}; do
  "${leanwam[@]}" reference train --preset "studies/frames/first/$variant.toml" --demos "$runs/hand.demos.zarr" \
    --tasks "$tasks" --init "$runs/joint-policy-2" --out "$runs/first/$variant"
  "${leanwam[@]}" reference train --preset "$variant" --demos "$runs/hand.demos.zarr" \
    --tasks "$tasks" --init "$runs/first/$variant" --out "$runs/$variant"
done
