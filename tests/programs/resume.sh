#!/bin/bash
# An interrupted run is the uninterrupted one: whatever ends the trainer, whenever, the same command goes on
# to the same records and the same checkpoint.
source "$(dirname "$0")/harness.sh"
RANDOM=1812

make_corpus corpus
init whole
train whole
[ "$(wc -l < whole/records.jsonl)" = 40 ] || fail "the run has not 40 steps"
[ "$(skips whole)" -ge 1 ] || fail "no step was skipped: the tests need one"
[ "$(skips whole)" -le 35 ] || fail "nearly every step was skipped"
windows=$(sed -n 's/.*"windows":\[\([0-9]*\),\([0-9]*\)\].*/\2 \1/p' whole/records.jsonl | awk '{ print $1 - $2 }' | uniq)
[ "$windows" = "8
16" ] || fail "the batch did not grow once: $windows"
nothing_partial whole

# fresh RUN FROM: what init left of FROM.
fresh() {
  cp -r "$2" "$1"
  rm -rf "$1"/checkpoints/* "$1"/commitments/* "$1/metrics.jsonl" "$1/lock"
  : > "$1/records.jsonl"
}
# interrupt RUN SIGNAL CENTISECONDS: starts the trainer, waits until it listens to SIGTERM and so long again,
# sends the signal. Sets `status`.
interrupt() {
  "$bin/ordo-train" run --run "$1" --quiet > out 2> err &
  local child=$! tries=0
  while kill -0 "$child" 2> /dev/null; do
    ! grep -Eqs '^SigCgt:.*[4-7c-f]...$' "/proc/$child/status" || break
    tries=$((tries + 1))
    [ "$tries" -lt 2000 ] || fail "the trainer does not start"
    sleep 0.01
  done
  sleep "$(printf '%d.%02d' $(($3 / 100)) $(($3 % 100)))"
  kill "-$2" "$child" 2> /dev/null || true
  status=0
  wait "$child" 2> /dev/null || status=$?
  checks=$((checks + 1))
}

for signal in TERM INT KILL; do
  fresh "by-$signal" whole
  stopped=0
  for attempt in 1 2 3 4 5 6 7 8 9 10; do
    interrupt "by-$signal" "$signal" $((RANDOM % 40))
    if [ "$status" = 0 ]; then break; fi
    stopped=$((stopped + 1))
    if [ "$signal" = KILL ]; then
      [ "$status" = 137 ] || fail "status $status after SIGKILL"
      continue
    fi
    [ "$status" = 2 ] || fail "status $status after SIG$signal"
    grep -Eq '^ordo-train: stopped after step [0-9]+; .*the same command goes on$' err \
      || fail "it does not say that it was stopped"
    # What is recorded is in a checkpoint: nothing has to be computed twice.
    last=$(wc -l < "by-$signal/records.jsonl")
    [ "$last" = 0 ] || [ -d "by-$signal/checkpoints/$(printf 'step-%06d' "$last")" ] \
      || fail "SIG$signal at step $last left no checkpoint"
  done
  [ "$stopped" -ge 1 ] || fail "SIG$signal never came in time"
  train "by-$signal"
  same_run "by-$signal" whole
  steps=$(grep -o '"step":[0-9]*' "by-$signal/metrics.jsonl" | cut -d: -f2)
  [ "$steps" = "$(sort -nu <<< "$steps")" ] || fail "metrics.jsonl has a step twice or out of order"
  [ "$signal" = KILL ] || [ "$(wc -l <<< "$steps")" = 40 ] || fail "metrics.jsonl lacks a step"
  echo "SIG$signal: $stopped interruptions"
done

# The spike rule halts after record and checkpoint.
init halting spike.threshold=0.8 spike.halt_events=2 spike.halt_window=20
expect 2 "halted by the spike rule after step [0-9]+; record and checkpoint are written" \
  "$bin/ordo-train" run --run halting
halt=$(wc -l < halting/records.jsonl)
sed -n "${halt}p" halting/records.jsonl | grep -q '"halt":true' || fail "the last record halts nothing"
[ "$(grep -c '"halt":true' halting/records.jsonl)" = 1 ] || fail "it went on after a halt"
[ "$halt" -lt 40 ] || fail "nothing was halted"
[ -f "halting/checkpoints/$(printf 'step-%06d' "$halt")/state.json" ] || fail "the halt left no checkpoint"
expect 0 "^MATCH step $halt " "$bin/ordo-audit" replay --run halting --step "$halt" --device serial
# Nobody goes past a halt without saying so.
expect 2 "the spike rule halted the run after step $halt; look at .*--past-halt" \
  "$bin/ordo-train" run --run halting
[ "$(wc -l < halting/records.jsonl)" = "$halt" ] || fail "it went past a halt unasked"
cp -r halting past
expect 0 "^step $((halt + 1)) " "$bin/ordo-train" run --run past --past-halt --until $((halt + 1))
# The halt comes again when the steps before it are run again.
cp -r halting again
rm -rf again/checkpoints/* again/commitments/* again/metrics.jsonl
: > again/records.jsonl
train again --until $((halt - 1))
expect 2 "halted by the spike rule after step $halt;" "$bin/ordo-train" run --run again --device serial
same_run again halting

# Killed while it saves: a checkpoint every step makes saving the most of the work.
init saving run.checkpoint_every=1 schedule.total_tokens=7680
fresh killed-saving saving
train saving
seen=0
for attempt in $(seq 25); do
  interrupt killed-saving KILL $((RANDOM % 12))
  [ -z "$(find killed-saving -name '*.partial-*')" ] || seen=$((seen + 1))
  [ "$status" != 0 ] || break
done
train killed-saving
same_run killed-saving saving
echo "killed while saving: $attempt times, something half-written $seen times"

# --until stops at a step and is no part of the run.
fresh steps whole
for step in 1 2 7 8 20 21 33; do
  train steps --until "$step"
  [ "$(wc -l < steps/records.jsonl)" = "$step" ] || fail "--until $step ends elsewhere"
  [ -f "steps/checkpoints/$(printf 'step-%06d' "$step")/state.json" ] || fail "--until $step saves nothing"
done
expect 0 "^step 33 $(root whole 33)\$" "$bin/ordo-train" run --run steps --until 12
expect 0 "^step 40 $(root whole 40)\$" "$bin/ordo-train" run --run steps --until 1000
same_run steps whole
expect 0 "^step 40 $(root whole 40)\$" "$bin/ordo-train" run --run steps
same_run steps whole

# What killed writes leave is cleared away, and only that.
cp -r steps remains
rm -rf remains/checkpoints/step-00003[3-9] remains/checkpoints/step-000040
mkdir -p remains/checkpoints/step-000035.partial-4194305
echo half > remains/checkpoints/step-000035.partial-4194305/model.safetensors
echo half > remains/commitments/step-000040.json.partial-4194305
echo half > remains/run.json.partial-4194305
head -n 37 whole/records.jsonl > remains/records.jsonl
sed -n 38p whole/records.jsonl | head -c 300 >> remains/records.jsonl
echo mine > remains/checkpoints/notes.txt
train remains
[ -f remains/checkpoints/notes.txt ] || fail "it removed a file that it had not made"
same_run remains whole

# Without checkpoints it starts from the seed, and checks every step against its record.
cp -r whole bare
rm -rf bare/checkpoints/*
train bare --device serial
same_run bare whole

# A record that is no longer what the step gives ends the run and is left alone.
cp -r whole changed
"$tamper" set changed 39 loss '"40800000"'
rm -rf changed/checkpoints/step-000040
cp changed/records.jsonl before
expect 2 "step 39 came out different .*'loss'" "$bin/ordo-train" run --run changed
same changed/records.jsonl before
passed
