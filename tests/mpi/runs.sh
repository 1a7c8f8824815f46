#!/bin/bash
# A run is the same run on any number of processes, which may change whenever it is resumed; processes that
# do not belong together are refused, and one that dies or hangs ends the job with its name.
# usage: runs.sh BUILD_DIR MPIEXEC
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
launcher=${2:?usage: $0 BUILD_DIR MPIEXEC}
source "$here/../programs/harness.sh"

# on COUNT COMMAND...: by so many processes.
on() {
  local count=$1
  shift
  bash "$here/mpirun.sh" "$launcher" "$count" "$@"
}
# train_on COUNT RUN [OPTION...]
train_on() {
  local count=$1 run=$2
  shift 2
  on "$count" "$bin/ordo-train" run --run "$run" --quiet --device serial "$@"
}
# The ids of the processes that train `long`, ascending.
trainers() {
  local folder
  for folder in /proc/[0-9]*; do
    if tr '\0' ' ' < "$folder/cmdline" 2> /dev/null | grep -q "^$bin/ordo-train run --run long "; then
      echo "${folder#/proc/}"
    fi
  done | sort -n
}
trap 'trainers | xargs -r kill -s KILL' EXIT # what a failed check leaves
make_corpus corpus

# Any number of processes: fewer than the eight virtual ranks, dividing them or not, or more.
mesh="mesh.replicas=4 mesh.shards=2 mesh.accumulation=2"
init alone $mesh
train alone > /dev/null
steps=$(wc -l < alone/records.jsonl)
[ "$(skips alone)" -gt 0 ] || fail "no step was skipped: the test is too easy"
for count in 1 2 3 4 5 6 7 8 9; do
  init "run$count" $mesh
  expect 0 "^step $steps " on "$count" "$bin/ordo-train" run --run "run$count" --device serial
  same_run "run$count" alone
done

# Meshes whose trees are not full, by several numbers of processes each.
for shape in 1x3 3x1 5x1 6x2 7x1 3x3; do
  init "mesh$shape" mesh.replicas="${shape%x*}" mesh.shards="${shape#*x}" mesh.accumulation=2
  cp -r "mesh$shape" "two$shape"
  cp -r "mesh$shape" "five$shape"
  train "mesh$shape" --until 3 > /dev/null
  train_on 2 "two$shape" --until 3 > /dev/null
  train_on 5 "five$shape" --until 3 > /dev/null
  same_run "two$shape" "mesh$shape"
  same_run "five$shape" "mesh$shape"
done

# The number changes at every resume: in the middle of skipped steps, at the change of the batch, off checkpoints.
init turns $mesh
at=0
for turn in 3:2 1:1 4:3 2:8 1:5 9:4 2:3; do
  at=$((at + ${turn%:*}))
  train_on "${turn#*:}" turns --until "$at" > /dev/null
done
train turns > /dev/null
same_run turns alone

# binary32, without a master copy, and OpenMP beside Serial.
init plain $mesh model.linear=binary32 optimizer.master=false
cp -r plain plain3
train plain --until 5 > /dev/null
train_on 3 plain3 --until 5 > /dev/null
same_run plain3 plain
init openmp $mesh
on 3 "$bin/ordo-train" run --run openmp --quiet --device openmp > /dev/null
same_run openmp alone

# Audited by one process.
expect_verdict 0 "MATCH step $steps $(root alone "$steps")" "$bin/ordo-audit" replay --run run3 --from 1 --to "$steps"

# What several processes cannot do, and wrong calls: one error each, no process left behind.
expect 2 "only 'run' works on several processes" on 2 "$bin/ordo-train" inspect run2
expect 2 "holds no run" train_on 2 nowhere
expect 2 "unknown option" train_on 2 run2 --untl 3

# Processes that would do something else are refused before the first step.
cp -r corpus other
"$bin/ordo-data" build --tokenizer byte --quiet --out different --source terms=1:terms.txt
init refused $mesh
per_process() { # COMMAND of process 0, COMMAND of process 1
  bash "$here/mpirun.sh" "$launcher" 1 $1 : -n 1 $2
}
expect 2 "process 1 .*its corpus is" per_process "$bin/ordo-train run --run refused --quiet" \
  "$bin/ordo-train run --run refused --quiet --corpus different"
cp "$bin/ordo-train" another-train
printf '\n' >> another-train
expect 2 "process 1 .*its program is" per_process "$bin/ordo-train run --run refused --quiet" \
  "./another-train run --run refused --quiet"
mkdir elsewhere
cp -r plain elsewhere/refused
expect 2 "process 1 .*its configuration is" per_process "$bin/ordo-train run --run refused --quiet" \
  "$bin/ordo-train run --run elsewhere/refused --quiet --corpus corpus"
[ ! -s refused/records.jsonl ] || fail "a refused job recorded a step"
expect 0 "^step 2 " per_process "$bin/ordo-train run --run refused --until 2" \
  "$bin/ordo-train run --run refused --quiet --until 2 --corpus other"

# A process that is killed, or stands still: the job ends, says where, and fewer processes go on.
init long $mesh schedule.total_tokens=15360000
cp -r long straight
victim() { # waits for the job's first records; the process id of its last process
  for _ in $(seq 200); do
    [ "$(wc -l < long/records.jsonl)" -lt "$1" ] || break
    sleep 0.05
  done
  trainers | tail -n 1
}
for signal in KILL STOP; do
  before=$(wc -l < long/records.jsonl)
  train_on 3 long --patience 5 > out 2> err < /dev/null &
  job=$!
  pid=$(victim $((before + 3)))
  kill -s "$signal" "$pid"
  status=0
  began=$SECONDS
  wait "$job" || status=$?
  [ "$status" != 0 ] || fail "a job whose process got SIG$signal ended well"
  [ $((SECONDS - began)) -lt 60 ] || fail "it took $((SECONDS - began)) s to see that a process got SIG$signal"
  if [ "$signal" = STOP ]; then
    grep -Eq "no answer from process [0-9, ]+ for 5 s in '(step [0-9]+, |waiting|telling)" err || fail "it names no process and phase"
  else
    grep -Eq "(on signal 9|Killed|no answer from process)" err || fail "it does not say that a process was killed"
  fi
  kill -s KILL "$pid" 2> /dev/null || true
  nothing_partial long
  checks=$((checks + 1))
done
done_so_far=$(wc -l < long/records.jsonl)
train_on 2 long --until $((done_so_far + 2)) > /dev/null
train straight --until $((done_so_far + 2)) > /dev/null
same long/records.jsonl straight/records.jsonl

# SIGUSR1 to the launcher stops after the step, with everything saved.
bash "$here/mpirun.sh" "$launcher" 2 "$bin/ordo-train" run --run long --quiet > out 2> err < /dev/null &
job=$! # the launcher itself
victim $((done_so_far + 5)) > /dev/null
kill -s USR1 "$job"
status=0
wait "$job" || status=$?
[ "$status" = 2 ] || fail "a stopped job left with $status"
grep -q "everything is saved" err || fail "a stopped job does not say so"
train straight --until "$(wc -l < long/records.jsonl)" > /dev/null
same_run long straight
passed
