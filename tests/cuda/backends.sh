#!/bin/bash
# A run does not know on which device it was computed: training, resuming and auditing on a GPU and on a
# processor, in every combination, give one run and MATCH.
source "$(dirname "$0")/../programs/harness.sh"
audit=$bin/ordo-audit
command -v nvidia-smi > /dev/null && nvidia-smi > /dev/null 2>&1 || { echo "no GPU: nothing was tested"; exit 77; }

expect_verdict 0 "MATCH conformance [0-9a-f]{64}" "$audit" selftest --device cuda

make_corpus corpus
init base
train base --device serial
init gpu
train gpu --device cuda
same_run gpu base
expect_verdict 0 "MATCH step 40 $(root gpu 40)" "$audit" replay --run gpu --from 1 --to 40 --device serial
expect_verdict 0 "MATCH step 40 $(root base 40)" "$audit" replay --run base --from 1 --to 40 --device cuda
expect_verdict 0 "MATCH step 25 $(root gpu 25)" "$audit" replay --run gpu --from 20 --to 25 --device openmp

# In turns, from the genesis on.
"$bin/ordo-train" init --config base.ini --corpus corpus --run turns --device cuda --quiet
train turns --device cuda --until 5
train turns --device openmp --until 19
train turns --device cuda --until 30
train turns --device serial
same_run turns base

# Text, from a checkpoint that another device wrote.
for device in cuda serial; do
  "$bin/ordo-train" generate --run turns --step 28 --prompt "Licens" --tokens 40 --temperature 0.8 --seed 3 \
    --device "$device" > "text.$device"
done
same text.cuda text.serial

# Ten times the same.
short=schedule.total_tokens=3072
init once "$short"
train once --device cuda
for again in 1 2 3 4 5 6 7 8 9; do
  init "again-$again" "$short"
  train "again-$again" --device cuda
  same_run "again-$again" once
done

# Shapes that kernels do not like, and the other arithmetic.
variants=(model.linear=binary32 model.weight_steps=largest optimizer.master=false mesh.replicas=3 model.window=8
          model.head_dim=32 model.hidden=48 model.feed_forward=80 data.sequence=96 data.sequence=33)
for pair in "${variants[@]}"; do
  name=${pair//[.=]/-}
  init "$name" "$short" "$pair"
  init "$name-cpu" "$short" "$pair"
  train "$name" --device cuda
  train "$name-cpu" --device openmp
  same_run "$name" "$name-cpu"
done
passed
