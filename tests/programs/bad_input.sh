#!/bin/bash
# What is wrong is refused: exit status 2, a sentence on standard error that names the thing and says what to
# do, nothing lost and nothing half-written; what can go on afterwards goes on to the same bits.
source "$(dirname "$0")/harness.sh"
data=$bin/ordo-data trainer=$bin/ordo-train audit=$bin/ordo-audit

make_corpus corpus
init run
train run

# ---- The command line ---------------------------------------------------------------------------------------
for program in ordo-data ordo-train ordo-audit; do
  expect 2 "unknown command 'frobnicate'; see --help" "$bin/$program" frobnicate
  expect 0 "Exit status: 0" "$bin/$program" --help
  expect 0 "numeric contract" "$bin/$program" --version
  status=0
  "$bin/$program" > out 2> err || status=$?
  [ "$status" = 2 ] || fail "$program without a command: status $status"
done
expect 2 "unknown command 'rnu'; did you mean 'run'" "$trainer" rnu --run run
expect 2 "unknown command 'reply'; did you mean 'replay'" "$audit" reply --run run
expect 2 "unknown option '--untill'; did you mean '--until'" "$trainer" run --run run --untill 3
expect 2 "unknown option '--unt'" "$trainer" run --run run --unt 3
expect 2 "until.*ordo-train run --help" "$trainer" run --run run --until three
expect 2 "until" "$trainer" run --run run --until -1
expect 2 "'--run' is required" "$trainer" run
expect 2 "--help" "$trainer" run --run run --run run
expect 2 "--help" "$trainer" run --run run surplus
expect 2 "no such device; it has: .*serial" "$trainer" run --run run --device abacus
expect 0 "--until" "$trainer" run --help
expect 2 "no checkpoint of it; one of: 0, 7, 14, 21, 28, 35, 40" "$trainer" generate --run run --step 8 --prompt a
expect 2 "--prompt: it is empty" "$trainer" generate --run run --step 7 --prompt ""
expect 2 "--temperature: it is negative" "$trainer" generate --run run --step 7 --prompt a --temperature=-1
expect 0 "^a" "$trainer" generate --run run --step 7 --prompt a --tokens 3 --temperature 1
expect 2 "holds no run" "$trainer" inspect corpus
expect 2 "holds no corpus" "$data" inspect run
[ ! -w /dev/full ] || expect 2 "standard output: .*cannot be written" \
  bash -c '"$1" stream corpus --seed 1 --seq 32 --windows 0:50 > /dev/full' - "$data"

# ---- The configuration --------------------------------------------------------------------------------------
# refused TEXT KEY=VALUE...: ordo-train init refuses this variant and makes nothing.
refused() {
  local text=$1
  shift
  variant "$@" > bad.ini
  expect 2 "$text" "$trainer" init --config bad.ini --corpus corpus --run refused
  [ ! -e refused ] || fail "a run was made: $*"
  nothing_partial .
}
for key in layers hidden heads kv_heads head_dim feed_forward vocabulary padded_vocabulary window; do
  for value in 0 -1 16777217 9223372036854775807 9223372036854775808 1.5 many ""; do
    refused "model.$key" "model.$key=$value"
  done
done
refused "kv_heads" model.heads=3 model.kv_heads=2
refused "head_dim" model.head_dim=24
refused "head_dim" model.head_dim=272
refused "padded_vocabulary" model.padded_vocabulary=256
refused "full_every" model.full_every=-1
refused "vocabulary" model.vocabulary=258
refused "model.hidden" model.hidden=140000
refused "padded_vocabulary" model.padded_vocabulary=140000
refused "feed_forward" model.feed_forward=70000
refused "head_dim" model.heads=16384
for key in data.sequence mesh.micro_batch mesh.replicas mesh.shards mesh.accumulation schedule.total_tokens \
           run.checkpoint_every spike.skipped; do
  for value in 0 -1 18446744073709551615 18446744073709551616 x ""; do
    refused "$key" "$key=$value"
  done
done
# The gradient of a weight sums sequence * micro_batch int8 products, of which int32 holds 133,144.
refused "data.sequence \* mesh.micro_batch" data.sequence=16384 mesh.micro_batch=9
refused "data.sequence \* mesh.micro_batch" data.sequence=133145 mesh.micro_batch=1
refused "mesh.(replicas|accumulation)" mesh.replicas=65536 mesh.shards=65536 mesh.accumulation=65536
refused "mesh.accumulation.*ascending" mesh.accumulation=1@100,2@100,3
refused "mesh.accumulation" mesh.accumulation=1@,2
refused "mesh.accumulation" mesh.accumulation=,
refused "mesh.accumulation" mesh.accumulation=1@5120,0
refused "warmup_tokens" schedule.warmup_tokens=15360
for key in model.rope_theta model.norm_epsilon model.initial_std optimizer.beta1 optimizer.beta2 optimizer.epsilon \
           optimizer.max_norm schedule.peak_rate spike.threshold; do
  for value in nan inf -1 1e999 0x1p3 1,5 ""; do
    refused "$key" "$key=$value"
  done
done
refused "optimizer.beta2" optimizer.beta2=1
refused "optimizer.beta2" optimizer.beta2=0.99999999999
refused "optimizer.epsilon" optimizer.epsilon=1e-60
refused "floor_rate" schedule.floor_rate=-1e-3
refused "z_loss" optimizer.z_loss=-1
refused "weight_decay" optimizer.weight_decay=-0.1
refused "schedule.clock is 'now'; one of: before, after" schedule.clock=now
refused "model.linear is 'fp8'; one of: int8, binary32" model.linear=fp8
refused "model.weight_steps is 'median'; one of: mean, largest" model.weight_steps=median
refused "optimizer.master is 'yes'; one of: false, true" optimizer.master=yes
refused "halt_window" spike.halt_events=2
refused "unknown key 'model.layer'; known keys: model.layers" model.layer=2
refused "unknown key 'nowhere.at_all'" nowhere.at_all=1
refused "unknown key 'model.Layers'" model.Layers=2
{ cat "$programs/tiny.ini"; printf '[model]\nlayers = 2\n'; } > twice.ini
expect 2 "twice.ini: 'model.layers' is given twice" "$trainer" init --config twice.ini --corpus corpus --run refused
{ cat "$programs/tiny.ini"; echo 'not a line of a configuration'; } > words.ini
expect 2 "words.ini: .*write \[section\] lines" "$trainer" init --config words.ini --corpus corpus --run refused
{ echo 'layers = 2'; cat "$programs/tiny.ini"; } > bare.ini
expect 2 "bare.ini: unknown key 'layers'" "$trainer" init --config bare.ini --corpus corpus --run refused
head -c 4096 /dev/urandom > noise.ini
expect 2 "noise.ini" "$trainer" init --config noise.ini --corpus corpus --run refused
: > empty.ini
expect 2 "model.layers" "$trainer" init --config empty.ini --corpus corpus --run refused
expect 2 "nowhere.ini: there is no such file; shipped configurations" \
  "$trainer" init --config nowhere.ini --corpus corpus --run refused
expect 2 "there is no such file" "$trainer" init --config corpus --corpus corpus --run refused
[ ! -e refused ] || fail "a run was made"

# A model that no machine holds.
refused "memory" model.hidden=131072 model.layers=60000
# A shape that no kernel was written for is no error.
init odd model.hidden=36 model.feed_forward=50 data.sequence=31 mesh.micro_batch=3 model.padded_vocabulary=257 \
  schedule.total_tokens=2232
train odd
expect 0 "^MATCH step 3 " "$audit" replay --run odd --from 1 --to 3 --device serial

# ---- Making a run ---------------------------------------------------------------------------------------------
cp -r run before
expect 2 "run: it exists; .*ordo-train run --run run" "$trainer" init --config run.ini --corpus corpus --run run
same_run run before
expect 2 "'nowhere' holds no corpus" "$trainer" init --config run.ini --corpus nowhere --run refused
expect 2 "'nowhere' holds no run" "$trainer" run --run nowhere
echo "a few words" > few.txt
"$data" build --tokenizer byte --quiet --out few --source terms=1:terms.txt --source few=1:few.txt
expect 2 "source 'few' has 13 tokens, a window needs 33; give it more text" \
  "$trainer" init --config run.ini --corpus few --run refused
[ ! -e refused ] || fail "a run was made"

# ---- Building a corpus ----------------------------------------------------------------------------------------
: > nothing.txt
for case in "nowhere.txt=--source a=1:nowhere.txt" "no text=--source a=1:nothing.txt" "share=--source a=x:terms.txt" \
            "share=--source a=0:terms.txt" "is not understood=--source terms.txt" "is no name=--source a/b=1:terms.txt" \
            "is no name=--source ..=1:terms.txt" "occurs twice=--source a=1:terms.txt --source A=1:rest.txt" \
            "empty file name=--source a=1:" "shard-tokens=--source a=1:terms.txt --shard-tokens 0"; do
  # shellcheck disable=SC2086
  expect 2 "${case%%=*}" "$data" build --tokenizer byte --out made ${case#*=}
  [ ! -e made ] || fail "a corpus was made: $case"
done
expect 2 "corpus: it exists" "$data" build --tokenizer byte --out corpus --source a=1:terms.txt
expect 2 "nowhere.json: .*check the name" "$data" build --tokenizer nowhere.json --out made --source a=1:terms.txt
echo "97 300" | { "$data" tokenizer decode > out 2> err && fail "an id outside the vocabulary" || true; }
grep -q "300 is outside the vocabulary" err || fail "the id is not named"
expect 2 "tokenizer train: .* comes with BPE" "$data" tokenizer train --input terms.txt rest.txt --vocab 300 --out t.json
expect 2 "tokenizer encode: --input is an option of train" "$data" tokenizer encode --input terms.txt
nothing_partial .

# ---- Damaged runs ---------------------------------------------------------------------------------------------
# damaged TEXT RUN: trainer, inspect and auditor refuse it, and leave the records as they are.
damaged() {
  local text=$1 run=$2
  [ ! -f "$run/records.jsonl" ] || cp "$run/records.jsonl" kept.jsonl
  expect 2 "$text" "$trainer" run --run "$run"
  expect 2 "$text" "$trainer" inspect "$run"
  local got=0
  "$audit" replay --run "$run" --step 24 > out 2> err || got=$?
  [ "$got" = 1 ] || [ "$got" = 2 ] || fail "the auditor says $got"
  tail -n 1 out | grep -Eq '^(DIFFERS|INCONCLUSIVE) ' || fail "no verdict"
  grep -Eq -- "$text" out || fail "the auditor does not name '$text'"
  [ ! -f "$run/records.jsonl" ] || same "$run/records.jsonl" kept.jsonl
  rm -rf "$run"
}
copy() { cp -r run damaged; }
copy; rm damaged/run.json; damaged "holds no run" damaged
copy; head -c 300 run/run.json > damaged/run.json; damaged "run.json: it is no valid JSON" damaged
copy; : > damaged/run.json; damaged "run.json" damaged
copy; echo '[]' > damaged/run.json; damaged "run.json" damaged
copy; echo >> damaged/run.json; damaged "run.json: it is not canonical JSON" damaged
copy; sed -i 's/"data.seed":"7"/"data.seed":"8"/' damaged/run.json; damaged "line 1: .*genesis" damaged
copy; sed -i 's/"contract":1,/"contract":7,/' damaged/run.json; damaged "contract 7, this program contract 1" damaged
copy; sed -i 's/"format":"ordo run 1"/"format":"ordo run 9"/' damaged/run.json; damaged "no genesis of a run" damaged
copy; sed -i 's/"model.layers":"2"/"model.layers":"0"/' damaged/run.json; damaged "model.layers is 0" damaged
copy; sed -i 's/"model.layers":"2"/"model.layers":2/' damaged/run.json; damaged "model.layers" damaged
copy; rm damaged/records.jsonl; damaged "records.jsonl" damaged
copy; sed -i 20d damaged/records.jsonl; damaged "records.jsonl, line 20" damaged
copy; sed -i '20s/"loss":"./"loss":"f/' damaged/records.jsonl; damaged "records.jsonl, line 21" damaged
copy; sed -i '20s/^{/{ /' damaged/records.jsonl; damaged "line 20: it is not canonical JSON" damaged
copy; sed -i '20s/,/,"loss":"40000000",/' damaged/records.jsonl; damaged "line 20: .*twice" damaged
copy; sed -i '20s/.*/{}/' damaged/records.jsonl; damaged "line 20: 'step' is missing" damaged
copy; echo "garbage" >> damaged/records.jsonl; damaged "line 41: it is no valid JSON" damaged
copy; sed -i '20s/"previous":"..../"previous":"zzzz/' damaged/records.jsonl; damaged "line 20: 'previous' is no SHA-256" damaged
copy; head -n 30 run/records.jsonl > damaged/records.jsonl
expect 2 "checkpoint of step 40, but only 30 records; restore records.jsonl" "$trainer" run --run damaged
[ "$(wc -l < damaged/records.jsonl)" = 30 ] || fail "the records were changed"
rm -rf damaged

# ---- Damaged checkpoints --------------------------------------------------------------------------------------
# The trainer says which to remove; without it the run goes on to the same end.
init half
train half --until 20
init stranger data.seed=8
train stranger --until 14
last=damaged/checkpoints/step-000020
unusable() {
  cp damaged/records.jsonl kept.jsonl
  expect 2 "the last checkpoint cannot be used: .*$1.*; remove $last, and training goes on" "$trainer" run --run damaged
  same damaged/records.jsonl kept.jsonl
  rm -rf "$last"
  train damaged --until 24
  head -n 24 run/records.jsonl > kept.jsonl
  same damaged/records.jsonl kept.jsonl
  rm -rf damaged
}
fork() { cp -r half damaged; }
fork; rm "$last/model.safetensors"; unusable "model.safetensors"
fork; rm "$last/state.json"; unusable "state.json"
fork; truncate -s -1 "$last/model.safetensors"; unusable "model.safetensors"
fork; truncate -s 4 "$last/optimizer.safetensors"; unusable "optimizer.safetensors"
fork; printf x >> "$last/model.safetensors"; unusable "model.safetensors"
fork; "$tamper" flip-bit "$last/model.safetensors"; unusable "model.safetensors: its tensors do not have the root"
fork; "$tamper" flip-bit "$last/optimizer.safetensors"; unusable "optimizer.safetensors: its tensors do not have the root"
fork; printf '\377\377\377\377\377\377\377\177' | dd of="$last/model.safetensors" conv=notrunc status=none; unusable "model.safetensors"
fork; cp half/checkpoints/step-000014/model.safetensors "$last"; unusable "model.safetensors: its tensors do not have the root"
fork; head -c 100 half/checkpoints/step-000020/state.json > "$last/state.json"; unusable "state.json: it is no valid JSON"
fork; sed -i 's/"tokens":[0-9]*/"tokens":-1/' "$last/state.json"; unusable "state.json: 'tokens' is no count"
fork; sed -i 's/"window":[0-9]*/"window":1/' "$last/state.json"; unusable "state.json: the cursor"
for key in tokens adam_step; do
  fork; sed -i "s/\"$key\":[0-9]*/\"$key\":12/" "$last/state.json"; unusable "its '$key' is not that of the record of step 20"
done
fork; sed -i 's/"skips_left":[0-9]*/"skips_left":9/' "$last/state.json"; unusable "its 'spike' is not that of the record"
fork; sed -i 's/"record":"..../"record":"0000/' "$last/state.json"; unusable "its 'record' is not that of the record"
fork; rm -rf "$last"; cp -r half/checkpoints/step-000014 "$last"
unusable "the folder says step 20, the checkpoint step 14; the checkpoint was renamed"
fork; rm -rf "$last"; cp -r stranger/checkpoints/step-000014 "$last"
sed -i 's/"step":14/"step":20/' "$last/state.json"; unusable "this checkpoint belongs to another run"
fork; rm -rf "$last"; : > "$last"; unusable "state.json"
# A checkpoint published as that of the beginning: the beginning is what the seed gives.
cp -r run damaged
mv damaged/checkpoints/step-000035 damaged/checkpoints/step-000000
expect_verdict 2 "INCONCLUSIVE .*the folder says step 0, the checkpoint step 35.*" "$audit" replay --run damaged --step 1
expect 2 "the folder says step 0, the checkpoint step 35" "$trainer" generate --run damaged --step 0 --prompt a
rm -rf damaged
fork; rm -rf damaged/checkpoints
expect 2 "'damaged/checkpoints' is missing" "$trainer" run --run damaged
rm -rf damaged
# Reading a checkpoint that is a pipe would wait for ever.
fork; rm "$last/state.json"; mkfifo "$last/state.json"; unusable "state.json: it is no regular file"
fork; rm "$last/model.safetensors"; mkfifo "$last/model.safetensors"; unusable "model.safetensors"

# ---- Damaged corpora ------------------------------------------------------------------------------------------
# spoiled TEXT: refused by every program that opens it.
spoiled() {
  expect 2 "$1" "$data" inspect spoiled
  expect 2 "$1" "$trainer" run --run half --corpus spoiled
  expect 2 "$1" "$trainer" init --config run.ini --corpus spoiled --run refused
  expect_verdict 2 "INCONCLUSIVE .*$1.*" "$audit" replay --run half --step 3 --corpus spoiled
  [ ! -e refused ] || fail "a run was made"
  rm -rf spoiled
}
cp -r corpus spoiled; truncate -s -1 spoiled/rest/shard-00000.bin; spoiled "rest/shard-00000.bin: it has [0-9]* bytes, the manifest says"
cp -r corpus spoiled; truncate -s -4096 spoiled/rest/shard-00000.bin; spoiled "rest/shard-00000.bin: it has [0-9]* bytes"
cp -r corpus spoiled; truncate -s +1 spoiled/rest/shard-00000.idx; spoiled "rest/shard-00000.idx: it has [0-9]* bytes"
cp -r corpus spoiled; rm spoiled/terms/shard-00000.bin; spoiled "terms/shard-00000.bin"
cp -r corpus spoiled; rm spoiled/manifest.json; spoiled "holds no corpus"
cp -r corpus spoiled; truncate -s -9 spoiled/manifest.json; spoiled "manifest.json: it is no valid JSON"
cp -r corpus spoiled; sed -i 's/"share":1/"share":0/' spoiled/manifest.json; spoiled "manifest.json.*share.*impossible"
cp -r corpus spoiled; sed -i 's/"name":"rest"/"name":"..\/x"/' spoiled/manifest.json; spoiled "manifest.json.*is no name"
cp -r corpus spoiled; sed -i 's/"documents":/"documents":9/' spoiled/manifest.json; spoiled "manifest.json"
cp -r corpus spoiled; sed -i 's/"share":1/"share":5/' spoiled/manifest.json
expect 2 "spoiled: it is not the corpus this run was made for; give the right one with --corpus" "$trainer" run --run half --corpus spoiled
rm -rf spoiled
# A shard that nobody checked until it was read: an id outside the vocabulary, offsets that go backwards.
cp -r corpus spoiled
for shard in terms rest; do
  dd if=/dev/zero status=none bs=1 count="$(stat -c %s corpus/$shard/shard-00000.bin)" | tr '\0' '\377' > spoiled/$shard/shard-00000.bin
done
cp half/records.jsonl kept.jsonl
expect 2 "shard-00000.bin: .*the id 4294967295, the vocabulary has 257" "$trainer" run --run half --corpus spoiled
same half/records.jsonl kept.jsonl
cp corpus/terms/shard-00000.bin spoiled/terms; cp corpus/rest/shard-00000.bin spoiled/rest
for shard in terms rest; do
  dd if=/dev/zero status=none bs=1 count="$(stat -c %s corpus/$shard/shard-00000.idx)" of=spoiled/$shard/shard-00000.idx
done
expect 2 "shard-00000.idx: .*(impossible|damaged|fetch)" "$trainer" run --run half --corpus spoiled
same half/records.jsonl kept.jsonl
mv half/local.json kept.json
expect 2 "half/local.json: it is missing, .*give --corpus" "$trainer" run --run half
train half --corpus corpus --until 20
mv kept.json half/local.json
mv corpus moved
expect 2 "corpus' holds no corpus" "$trainer" run --run half
train half --corpus moved --until 21
mv moved corpus

# ---- Two trainers at once -------------------------------------------------------------------------------------
flock half/lock sleep 30 &
holder=$!
while flock -n half/lock true; do sleep 0.02; done
expect 2 "half: another program is training this run; wait for it, or stop it" "$trainer" run --run half
kill "$holder"; wait "$holder" 2> /dev/null || true
while ! flock -n half/lock true; do sleep 0.02; done
pids=()
for i in 1 2 3; do
  "$trainer" run --run half --quiet > "out-$i" 2> "err-$i" &
  pids+=($!)
done
done_by=0
for i in 1 2 3; do
  status=0
  wait "${pids[$((i - 1))]}" || status=$?
  [ "$status" = 0 ] && done_by=$((done_by + 1)) || grep -q "another program is training this run" "err-$i" \
    || fail "a trainer ended with status $status: $(cat "err-$i")"
done
[ "$done_by" -ge 1 ] || fail "no trainer was let in"
same_run half run

# ---- A full disk ----------------------------------------------------------------------------------------------
# Files may not grow beyond a limit: the first checkpoint, the records, the optimizer's file meet it.
full() {
  local kilobytes=$1
  shift
  bash -c 'trap "" XFSZ; ulimit -f "$1"; shift; exec "$@"' - "$kilobytes" "$@"
}
init small
for kilobytes in 1 8 50 200; do
  expect 2 "(No space left|File too large); free some space .*run the same command again" \
    full "$kilobytes" "$trainer" run --run small
  nothing_partial small
  "$trainer" inspect small > out 2> err || fail "the run is damaged"
  if [ "$kilobytes" = 50 ]; then train small --until 9; fi
done
train small
same_run small run
expect 2 "free some space" full 1 "$trainer" init --config run.ini --corpus corpus --run refused
[ ! -e refused ] || fail "half a run was made"
expect 2 "free some space" full 8 "$data" build --tokenizer byte --out made --source a=1:terms.txt
[ ! -e made ] || fail "half a corpus was made"
nothing_partial .
# The same on a small file system, where one may be mounted.
mkdir disk
if mount -t tmpfs -o size=1200k tmpfs disk 2> /dev/null; then
  trap 'umount "$scratch/disk" 2> /dev/null || true' EXIT
  "$trainer" init --config run.ini --corpus corpus --run disk/run --quiet
  expect 2 "No space left on device; free some space" "$trainer" run --run disk/run
  nothing_partial disk
  recorded=$(wc -l < disk/run/records.jsonl)
  [ "$recorded" -ge 7 ] && [ "$recorded" -lt 40 ] || fail "the disk was not filled in the middle: $recorded records"
  mount -o remount,size=20m disk
  train disk/run
  same_run disk/run run
  umount disk
  echo "full disk: after step $recorded"
else
  echo "full disk: no file system can be mounted here, limits alone were tried"
fi
passed
