#!/bin/bash
# The bits of a run do not depend on where it is computed; each choice of its configuration changes them.
source "$(dirname "$0")/harness.sh"

make_corpus corpus
init base
train base
for threads in 1 7; do
  init "threads-$threads"
  OMP_NUM_THREADS=$threads train "threads-$threads" --device openmp
  same_run "threads-$threads" base
done
init serial
train serial --device serial
same_run serial base

# The device that makes the genesis, and one run on several devices in turn.
"$bin/ordo-train" init --config base.ini --corpus corpus --run turns --device serial --quiet
train turns --device serial --until 5
OMP_NUM_THREADS=7 train turns --device openmp --until 19
OMP_NUM_THREADS=1 train turns --device openmp --until 30
train turns --device serial
same_run turns base

# Each of these is another run, the same on every device.
short=schedule.total_tokens=3072
variants=(model.linear=binary32 model.weight_steps=largest optimizer.master=false schedule.clock=before
          data.seed=8 mesh.accumulation=2 mesh.replicas=3 mesh.shards=1 optimizer.z_loss=0
          optimizer.max_norm=0.5 model.window=8)
init plain "$short"
train plain
# own RUN: what its second step says of itself.
own() { sed -n 2p "$1/records.jsonl" | sed 's/"previous":"[0-9a-f]*"//'; }
others=(plain)
for pair in "${variants[@]}"; do
  name=${pair//[.=]/-}
  init "$name" "$short" "$pair"
  init "$name-serial" "$short" "$pair"
  OMP_NUM_THREADS=3 train "$name" --device openmp
  train "$name-serial" --device serial
  same_run "$name-serial" "$name"
  for other in "${others[@]}"; do
    differ "$name/run.json" "$other/run.json"
    differ <(own "$name") <(own "$other")
  done
  others+=("$name")
done

# How often it is saved is part of the genesis, and of nothing else.
init often "$short" run.checkpoint_every=1
train often
differ often/run.json plain/run.json
sed 's/"previous":"[0-9a-f]*"//' often/records.jsonl > often.txt
sed 's/"previous":"[0-9a-f]*"//' plain/records.jsonl > plain.txt
same often.txt plain.txt
passed
