# Sourced by the tests beside it, which are called as NAME.sh BUILD_DIR. Works in a folder of its own below
# the build directory and needs nothing but bash, coreutils, sed, grep, awk, find and flock.
set -euo pipefail
programs=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$(cd "${1:?usage: $0 BUILD_DIR}" && pwd)
bin=$build/bin
tamper=$build/tests/tamper
scratch=$build/tests/programs/$(basename "$0" .sh)
rm -rf "$scratch"
mkdir -p "$scratch"
cd "$scratch"
export OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive OMP_PROC_BIND=false LC_ALL=C
unset OMP_THREAD_LIMIT OMP_DYNAMIC 2> /dev/null || true
checks=0

fail() {
  echo "FAILED ($(basename "$0"), line ${BASH_LINENO[${#BASH_LINENO[@]}-2]}): $*" >&2
  [ ! -s out ] || { echo "--- standard output"; tail -n 5 out; } >&2
  [ ! -s err ] || { echo "--- standard error"; tail -n 5 err; } >&2
  exit 1
}
# The end of a test. What a failed one leaves stays, to be looked at.
passed() {
  cd "$build"
  rm -rf "$scratch"
  echo "$(basename "$0"): $checks checks passed"
}

# expect STATUS TEXT COMMAND...: runs it, its output in `out` and `err`; the status must be that one and TEXT
# (an extended regular expression) must be found: in `out` for 0 and 1, in `err` for 2. Errors must say who
# speaks, and no program may die of a signal or leave without a word.
expect() {
  local status=$1 text=$2 got=0 from=out
  shift 2
  "$@" > out 2> err < /dev/null || got=$?
  [ "$got" = "$status" ] || fail "status $got instead of $status: $*"
  [ "$status" != 2 ] || from=err
  grep -Eq -- "$text" "$from" || fail "no '$text' in its $from: $*"
  checks=$((checks + 1))
}

# expect_verdict STATUS PATTERN COMMAND...: as `expect`, of the last line of standard output.
expect_verdict() {
  local status=$1 pattern=$2 got=0
  shift 2
  "$@" > out 2> err < /dev/null || got=$?
  [ "$got" = "$status" ] || fail "status $got instead of $status: $*"
  tail -n 1 out | grep -Eq -- "^($pattern)\$" || fail "the last line is no '$pattern': $*"
  checks=$((checks + 1))
}

# same A B: two files with the same bytes. differ A B: two files that must not have them.
same() {
  cmp "$1" "$2" > /dev/null 2>&1 || fail "$1 and $2 differ: $(cmp "$1" "$2" 2>&1 || true)"
  checks=$((checks + 1))
}
differ() {
  ! cmp -s "$1" "$2" || fail "$1 and $2 are the same"
  checks=$((checks + 1))
}
# same_run A B: everything that two runs to the same step share, and nothing left half-written in A.
same_run() {
  same "$1/run.json" "$2/run.json"
  same "$1/records.jsonl" "$2/records.jsonl"
  diff -r "$1/commitments" "$2/commitments" > /dev/null || fail "commitments of $1 and $2 differ"
  local last
  last=$(find "$2/checkpoints" -mindepth 1 -maxdepth 1 -name 'step-*' | sort | tail -n 1)
  diff -r "$1/checkpoints/$(basename "$last")" "$last" > /dev/null \
    || fail "the last checkpoints of $1 and $2 differ"
  nothing_partial "$1"
}
nothing_partial() {
  local left
  left=$(find "$1" -name '*.partial-*')
  [ -z "$left" ] || fail "left half-written: $left"
  checks=$((checks + 1))
}

# variant KEY=VALUE...: tiny.ini with other values, on standard output.
variant() {
  local text pair
  text=$(cat "$programs/tiny.ini")
  for pair in "$@"; do
    text=$(printf '%s\n' "$text" | awk -v name="${pair%%=*}" -v value="${pair#*=}" '
      BEGIN { dot = index(name, "."); section = "[" substr(name, 1, dot - 1) "]"; key = substr(name, dot + 1) }
      /^\[/ { current = $1 }
      current == section && $1 == key && $2 == "=" { next }
      { print }
      $1 == section { print key " = " value; done = 1 }
      END { if (!done) print section "\n" key " = " value }')
  done
  printf '%s\n' "$text"
}

# The corpus of the tests: two sources, made of the licence.
make_corpus() {
  sed -n '1,90p' "$programs/../../LICENSE" > terms.txt
  sed -n '91,$p' "$programs/../../LICENSE" > rest.txt
  "$bin/ordo-data" build --tokenizer byte --split-blank-lines --quiet --out "$1" \
    --source terms=1:terms.txt --source rest=2:rest.txt
}
# init RUN [KEY=VALUE...]: a new run of tiny.ini, with other values.
init() {
  local run=$1
  shift
  variant "$@" > "$run.ini"
  "$bin/ordo-train" init --config "$run.ini" --corpus corpus --run "$run" --quiet
}
train() {
  local run=$1
  shift
  "$bin/ordo-train" run --run "$run" --quiet "$@"
}
# skips RUN: steps that made no update.
skips() { grep -c '"skip":true' "$1/records.jsonl" || true; }
# root RUN STEP: SHA-256 of the record.
root() { sed -n "$2p" "$1/records.jsonl" | tr -d '\n' | sha256sum | cut -c1-64; }
