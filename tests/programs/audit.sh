#!/bin/bash
# The auditor: what is right replays to MATCH wherever it starts, and every change is DIFFERS with its step and
# field, or INCONCLUSIVE with the reason; never MATCH, never silence.
source "$(dirname "$0")/harness.sh"
audit=$bin/ordo-audit
hash='[0-9a-f]{64}'

make_corpus corpus
init run
train run
expect_verdict 0 "MATCH conformance $hash" "$audit" selftest --device serial
expect_verdict 0 "MATCH conformance $hash" env OMP_NUM_THREADS=7 "$audit" selftest --device openmp

# From the seed, from checkpoints, on either device.
expect_verdict 0 "MATCH step 40 $(root run 40)" "$audit" replay --run run --from 1 --to 40 --device serial
[ "$(grep -c '^step [0-9]* [0-9a-f]\{64\}$' out)" = 40 ] || fail "it does not report forty steps"
expect_verdict 0 "MATCH step 7 $(root run 7)" "$audit" replay --run run --step 7 --device openmp
expect_verdict 0 "MATCH step 8 $(root run 8)" env OMP_NUM_THREADS=1 "$audit" replay --run run --step 8
expect_verdict 0 "MATCH step 40 $(root run 40)" "$audit" replay --run run --from 34 --to 40
expect_verdict 0 "MATCH step 23 $(root run 23)" "$audit" explain --run run --step 23
cp -r run bare
rm -rf bare/checkpoints/* bare/commitments/* bare/metrics.jsonl bare/lock
expect_verdict 0 "MATCH step 25 $(root run 25)" "$audit" replay --run bare --from 19 --to 25
[ "$(grep -c '^step ' out)" = 7 ] || fail "it does not report the steps asked for, and no others"

# How it speaks.
expect 0 "^MATCH" "$audit" replay --run run --step 22 --quiet
[ "$(wc -l < out)" = 1 ] || fail "--quiet prints more than the verdict"
[ ! -s err ] || fail "--quiet has something to say"
expect 0 '"verdict":"MATCH"' "$audit" replay --run run --step 22 --json
"$tamper" parse < out || fail "--json is no JSON"
expect 0 '"verdict":"MATCH"' "$audit" selftest --json
"$tamper" parse < out || fail "--json is no JSON"

# caught STEP FIELD RUN [OPTION...]: replaying STEP of RUN names FIELD.
caught() {
  local step=$1 field=$2 run=$3
  shift 3
  expect_verdict 1 "DIFFERS step $step expected $hash got $hash" "$audit" replay --run "$run" "$@"
  grep -q "$field" out || fail "$field is not named"
  [ "$(tail -n 1 out | cut -d' ' -f5)" != "$(tail -n 1 out | cut -d' ' -f7)" ] || fail "both roots are the same"
}
zeros=0000000000000000000000000000000000000000000000000000000000000000
changes=('windows [360,376]' "batch_root \"$zeros\"" 'learning_rate "3b7d70a5"' "microbatch_root \"$zeros\""
         "gradient_root \"$zeros\"" 'loss "40800000"' 'norm "3f800000"' 'clip "3f000000"'
         'spike {"event":false,"events":[],"halt":false,"skip":false,"skips_left":9}' 'adam_step 1'
         'tokens 1' 'cursor {"sources":[[0,0,0,0],[0,0,0,0]],"window":0}' "parameter_root \"$zeros\""
         "optimizer_root \"$zeros\"" 'surplus "something"' 'loss 4' 'norm null')
for change in "${changes[@]}"; do
  field=${change%% *}
  cp -r run changed
  "$tamper" set changed 24 "$field" "${change#* }"
  caught 24 "^step 24, $field: " changed --step 24
  if [ "$field" = loss ] || [ "$field" = parameter_root ]; then
    caught 24 "^step 24, $field: " changed --from 22 --to 30 --device serial
    expect 1 "\"field\":\"$field\"" "$audit" replay --run changed --step 24 --json
    "$tamper" parse < out || fail "--json is no JSON"
    expect 1 "^DIFFERS" "$audit" replay --run changed --step 24 --quiet
    [ "$(wc -l < out)" = 1 ] || fail "--quiet prints more than the verdict"
  fi
  rm -rf changed
done
for field in loss spike parameter_root cursor; do
  cp -r run changed
  "$tamper" drop changed 24 "$field"
  caught 24 "^step 24, $field: " changed --step 24
  rm -rf changed
done
cp -r run rate
"$tamper" learning-rate rate 24
caught 24 "learning rate is not the schedule" rate --step 24

# The chain itself, wherever the audit looks.
cp -r run chain
sed -i '5s/"loss":"[0-9a-f]*"/"loss":"40800000"/' chain/records.jsonl
caught 5 "line 6.*previous" chain --step 24
cp -r run numbers
"$tamper" set numbers 12 step 13
caught 12 "line 12.*step" numbers --step 24
cp -r run gap
sed -i 12d gap/records.jsonl
expect_verdict 1 "DIFFERS step 12 expected $hash got $hash" "$audit" replay --run gap --step 24
cp -r run doubled
sed -i 12p doubled/records.jsonl
expect_verdict 1 "DIFFERS step 13 expected $hash got $hash" "$audit" replay --run doubled --step 24

# Which tensors and micro-batches differ, where the run kept its commitments.
cp -r run tensor
name=model.layers.1.mlp.up_proj.weight
sed -i "s/\(\"gradients\":{.*\"$name\":\"\)[0-9a-f]*\(\".*\"microbatches\"\)/\1$zeros\2/" tensor/commitments/step-000024.json
"$tamper" set tensor 24 gradient_root "\"$zeros\""
caught 24 "^  $name\$" tensor --step 24
[ "$(grep -c '^  ' out)" = 1 ] || fail "it names more than the one tensor"
cp -r run micro
sed -i "s/\"microbatches\":\[\"[0-9a-f]*\",\"[0-9a-f]*\"/\"microbatches\":[\"$zeros\",\"$zeros\"/" micro/commitments/step-000024.json
"$tamper" set micro 24 microbatch_root "\"$zeros\""
caught 24 "^  micro-batch 1\$" micro --step 24
[ "$(grep -c '^  ' out)" = 2 ] || fail "it names other than two micro-batches"

# Checkpoints.
cp -r run bit
"$tamper" flip-bit bit/checkpoints/step-000021/model.safetensors
caught 21 "model.safetensors" bit --step 24
expect_verdict 0 "MATCH step 15 $hash" "$audit" replay --run bit --step 15
cp -r run moment
"$tamper" flip-bit moment/checkpoints/step-000021/optimizer.safetensors
caught 21 "optimizer.safetensors" moment --step 24
cp -r run record
"$tamper" set record 21 loss '"40800000"'
caught 21 "belongs to another record" record --step 24
# The record changed and the checkpoint made to fit: the state is not what the record commits to.
cp -r run fitted
"$tamper" set fitted 21 parameter_root "\"$zeros\""
sed -i "s/\"record\":\"[0-9a-f]*\"/\"record\":\"$(root fitted 21)\"/" fitted/checkpoints/step-000021/state.json
caught 21 "^step 21, parameter_root: " fitted --step 24
# A checkpoint whose counters lie.
for change in 'adam_step s/"adam_step":[0-9]*/"adam_step":3/' 'spike s/"skips_left":[0-9]*/"skips_left":7/' \
              'spike s/"events":\[[0-9]*\]/"events":[1]/' 'tokens s/"tokens":[0-9]*/"tokens":5/'; do
  cp -r run counters
  sed -i "${change#* }" counters/checkpoints/step-000021/state.json
  ! cmp -s counters/checkpoints/step-000021/state.json run/checkpoints/step-000021/state.json || fail "nothing was changed: $change"
  caught 21 "^step 21, ${change%% *}: " counters --step 24
  rm -rf counters
done

# A cursor that contradicts itself is no place in the stream.
cp -r run counters
sed -i 's/"sources":\[\[\([0-9]*,[0-9]*\),[0-9]*,[0-9]*/"sources":[[\1,0,0/' counters/checkpoints/step-000021/state.json
expect_verdict 2 "INCONCLUSIVE .*step-000021/state.json: the cursor .*" "$audit" replay --run counters --step 24
expect_verdict 0 "MATCH step 20 $(root run 20)" "$audit" replay --run counters --step 20

# An audit of a run that goes on meanwhile.
cp -r run live
rm -rf live/checkpoints/step-00002[1-9] live/checkpoints/step-0000[34]*
head -n 14 run/records.jsonl > live/records.jsonl
train live &
child=$!
for attempt in 1 2 3; do
  expect_verdict 0 "MATCH step 10 $(root run 10)" "$audit" replay --run live --step 10
  last=$(wc -l < live/records.jsonl)
  expect_verdict 0 "MATCH step $last $(root run "$last")" "$audit" replay --run live --step "$last"
done
wait "$child"
same_run live run

# The genesis.
cp -r run initial
"$tamper" set-genesis initial parameter_root "\"$zeros\""
caught 0 "^step 0, parameter_root: the initial state" initial --step 1
cp -r run words
"$tamper" set-genesis words tokenizer "\"$zeros\""
caught 0 "^step 0, tokenizer: " words --step 1
cp -r run seed
sed -i 's/"data.seed":"7"/"data.seed":"8"/' seed/run.json
caught 0 "line 1.*genesis" seed --step 1

# The data: another corpus, a shard that is not the manifest's, and a run trained on text slipped in.
head -c 3000 terms.txt > shorter.txt
"$bin/ordo-data" build --tokenizer byte --split-blank-lines --quiet --out other --source terms=1:shorter.txt --source rest=2:rest.txt
expect_verdict 1 "DIFFERS step 0 expected $hash got $hash" "$audit" replay --run run --step 24 --corpus other
grep -q '^step 0, corpus: ' out || fail "the corpus is not named"
cp -r corpus spoiled
"$tamper" flip-bit spoiled/rest/shard-00000.bin
expect_verdict 1 "DIFFERS step 0 expected $hash got $hash" "$audit" replay --run run --step 24 --corpus spoiled
grep -q 'rest/shard-00000.bin' out || fail "the shard is not named"
expect 1 "^DIFFERS .*rest/shard-00000.bin" "$bin/ordo-data" inspect spoiled --verify
expect 1 '"verdict":"DIFFERS"' "$bin/ordo-data" inspect spoiled --verify --json
"$tamper" parse < out || fail "--json is no JSON"
for kind in change-document swap-documents; do
  cp -r corpus "corpus-$kind"
  cp -r run "$kind"
  rm -rf "$kind"/checkpoints/step-00002[2-9] "$kind"/checkpoints/step-0000[34]*
  head -n 21 run/records.jsonl > "$kind/records.jsonl"
  "$tamper" "$kind" "corpus-$kind" "$kind" 21
  train "$kind" --corpus "corpus-$kind" --until 23
  caught 22 "^step 22, batch_root: " "$kind" --from 22 --to 23
done

# Two runs side by side.
init other-seed data.seed=8
train other-seed --until 3
expect_verdict 1 "DIFFERS step 0 expected $(sha256sum < run/run.json | cut -c1-64) got $(sha256sum < other-seed/run.json | cut -c1-64)" \
  "$audit" explain --run run --step 2 --against other-seed
grep -q '^step 0, genesis, configuration' out || fail "the configuration is not named"
grep -q '^  data.seed$' out || fail "the key is not named"
cp -r run one-step
"$tamper" set one-step 17 norm '"3f800000"'
expect_verdict 1 "DIFFERS step 17 expected $(root run 17) got $(root one-step 17)" \
  "$audit" explain --run run --step 30 --against one-step
grep -q '^step 17, norm: ' out || fail "the field is not named"
expect_verdict 0 "MATCH step 16 $(root run 16)" "$audit" explain --run run --step 16 --against one-step
expect_verdict 2 "INCONCLUSIVE .*not recorded in both.*" "$audit" explain --run run --step 4 --against other-seed
cp other-seed/records.jsonl one-step/records.jsonl
caught 0 "line 1.*genesis" one-step --step 1

# What cannot be checked is no verdict either way.
inconclusive() {
  local why=$1
  shift
  expect_verdict 2 "INCONCLUSIVE .*$why.*" "$audit" "$@"
}
inconclusive "step 41 is not recorded" replay --run run --step 41
inconclusive "steps 0 to 3" replay --run run --from 0 --to 3
inconclusive "steps 5 to 3" replay --run run --from 5 --to 3
inconclusive "holds no run" replay --run nowhere --step 1
inconclusive "holds no run" explain --run run --step 1 --against nowhere
inconclusive "holds no corpus" replay --run run --step 1 --corpus nowhere
cp -r run checkpointless
rm -rf checkpointless/checkpoints
inconclusive "checkpoints.*missing" replay --run checkpointless --step 1
cp -r run next-contract
sed -i 's/"contract":1,/"contract":2,/' next-contract/run.json
inconclusive "contract 2, this program contract 1" replay --run next-contract --step 1
cp -r run foreign
rm -rf foreign/checkpoints/step-000007
cp -r other-seed/checkpoints/step-000003 foreign/checkpoints
inconclusive "belongs to another run" replay --run foreign --step 5
"$audit" replay --run run --step 41 --json > out 2> err || true
grep -q '"verdict":"INCONCLUSIVE"' out || fail "--json gives no verdict"
"$tamper" parse < out || fail "--json is no JSON"
expect 2 "no such device; it has: .*serial" "$audit" replay --run run --step 1 --device abacus
expect 2 "give --from A --to B" "$audit" replay --run run
expect 2 "without --from and --to" "$audit" replay --run run --step 1 --from 1
expect 2 "'--run' is required" "$audit" replay --step 1
# A verdict that nobody could read is none.
[ ! -w /dev/full ] || expect 2 "standard output: .*cannot be written" bash -c '"$1" replay --run run --step 1 > /dev/full' - "$audit"
passed
