#!/bin/bash
# The rules that a machine can check, on every source of the repository.
# usage: tests/rules_test.sh SOURCE_DIR
set -euo pipefail
cd "${1:?usage: $0 SOURCE_DIR}"
export LC_ALL=C
shopt -s lastpipe  # so that a rule at the end of a pipe can count
found=0

# without PATTERN: the lines of standard input that do not match.
without() { grep -vE "$1" || true; }
# rule TEXT: standard input must be empty.
rule() {
  local lines
  lines=$(cat)
  [ -z "$lines" ] || {
    found=$((found + 1))
    echo "RULE: $1"
    sed -n '1,20s/^/  /p' <<< "$lines"
  }
}
folders=()
for folder in include trainer auditor tests benchmarks examples cmake scripts; do
  [ ! -d "$folder" ] || folders+=("$folder")
done
mapfile -t sources < <(find "${folders[@]}" -type f \( -name '*.hpp' -o -name '*.cpp' -o -name '*.cu' -o -name '*.h' \) | sort)
mapfile -t headers < <(find include -type f -name '*.hpp' | sort)
[ "${#headers[@]}" -gt 50 ] || { echo "rules_test: no headers in $PWD" >&2; exit 1; }

for file in "${sources[@]}"; do
  head -n 1 "$file" | grep -q '^// SPDX-License-Identifier: Apache-2.0$' || echo "$file"
done | rule "the first line of a source names its licence: // SPDX-License-Identifier: Apache-2.0"

for file in "${headers[@]}"; do
  [ "$(grep -c '^#pragma once$' "$file")" = 1 ] || echo "$file"
done | rule "a header has one #pragma once"

for file in "${headers[@]}"; do
  lines=$(wc -l < "$file")
  [ "$lines" -le 400 ] || echo "$file: $lines"
done | rule "a header has at most 400 lines"

{ grep -nE '^.{101,}' "${sources[@]}" | cut -c1-120 || true; } | rule "a line has at most 100 columns"
{ grep -n "$(printf '\t')" "${sources[@]}" || true; } | rule "no tabs"
{ grep -nE ' +$' "${sources[@]}" || true; } | rule "no spaces at the end of a line"
# In brackets, so that this file does not hold the words.
{ grep -rnE '\b(TOD[O]|FIXM[E]|XX[X]|HAC[K])\b' "${folders[@]}" README.md CONTRIBUTING.md docs || true; } \
  | rule "what is to be done is done, or is no comment"
{ find "${folders[@]}" -type f | grep -Ei '(^|[/_-])(fast|optimi[sz]ed|utils?|common|manager|misc|helpers?)([._-]|$)' || true; } \
  | rule "a name says what a thing is, not that it is good or shared"

# What could reach a result must come from the library itself. std::fma is arith's one primitive, a binary64
# square root is correctly rounded everywhere.
{ grep -nE 'std::(exp|exp2|expm1|log|log2|log10|log1p|pow|sin|cos|tan|asin|acos|atan|atan2|sinh|cosh|tanh|erf|erfc|cbrt|hypot|lgamma|tgamma|fma)f?\(' \
    "${headers[@]}" || true; } | without '^include/ordo/arith/value.hpp:.*std::fma\(a, b, c\)' | rule "no libm in the library"
{ grep -nE '^([^/]|/[^/])*[^:a-z_](expf|logf|log2f|powf|sinf|cosf|tanhf|fmaf|sqrtf|rsqrtf|__expf|__logf|__fmaf?_rn)\(' \
    "${headers[@]}" || true; } | without '^include/ordo/(arith/value|cuda/)' | rule "no libm in the library, unqualified either"
{ grep -nE 'Kokkos::(exp|log|pow|sin|cos|tanh|erf|fma|rsqrt)\(' "${headers[@]}" || true; } | rule "no mathematics of Kokkos in the library"
{ grep -nE '#include <random>|std::(shuffle|mt19937|sample|accumulate|reduce|transform_reduce|inner_product)|[^a-z_]s?rand\(' \
    "${headers[@]}" trainer/*.hpp trainer/*.cpp auditor/*.cpp || true; } \
  | rule "no random numbers or sums of the standard library: their order is unspecified or unstated"
{ grep -nE '#pragma (STDC|omp|GCC (optimize|ivdep))|__attribute__\(\(optimize' "${headers[@]}" || true; } \
  | rule "no pragma decides how numbers are computed, or on how many threads"
{ grep -nE 'std::(cout|cerr|clog|abort|exit|terminate)|[^a-z_:](printf|fprintf|puts|abort|exit)\(' "${headers[@]}" || true; } \
  | rule "headers neither print nor end the program"

# Kernels start in one place, under the library's name.
{ grep -nE 'parallel_(for|reduce|scan)' "${headers[@]}" || true; } | without '^include/ordo/core/execution.hpp:' \
  | rule "kernels are launched through detail::for_each and for_blocks alone (core/execution.hpp)"
for file in "${headers[@]}"; do
  [ "$file" != include/ordo/core/execution.hpp ] || continue
  # Each call with the lines after it, up to its label.
  awk -v file="$file" '
    { text = $0; sub(/\/\/.*/, "", text) }
    !open && match(text, /(^|[^_a-z])for_(each|blocks)\(/) {
      open = 1; line = NR; call = ""
      text = substr(text, RSTART + RLENGTH)
    }
    open {
      call = call " " text
      if (match(call, /"[^"]*"/)) {
        label = substr(call, RSTART + 1, RLENGTH - 2)
        if (label !~ /^ordo::[a-z0-9_:]+$/) print file ":" line ": \"" label "\""
        open = 0
      } else if (match(call, /^ *[a-z_]+, *label *,/)) {
        open = 0  # handed on by a caller
      } else if (NR - line > 4) {
        print file ":" line ": no label"
        open = 0
      }
    }' "$file"
done | rule "a kernel is called ordo::op::stage"
{ grep -noE '(View<[^()]*>|vector|matrix|(f32_vector|bf16_matrix)<[A-Za-z]*>)( [a-z_]+)?\("[^"]*"' "${headers[@]}" || true; } \
  | without '\("ordo::[a-z0-9_:]+"' | rule "an allocation is called ordo::op::stage"

# Every operation has its definition.
{ grep -rnE 'std::(fma)\(' include/ordo/reference || true; } | rule "definitions use the primitives of arith"
{ grep -rn 'Kokkos::' include/ordo/reference || true; } | rule "definitions know no Kokkos"

# Tests and configurations.
for file in tests/*_test.cpp; do
  grep -q 'TEST_CASE' "$file" || echo "$file"
done | rule "a test has cases"
for file in tests/must_fail/*.cpp; do
  grep -q '^// expect: ' "$file" || echo "$file"
done | rule "what must fail says by which words"

if [ "$found" -gt 0 ]; then
  echo "rules_test: $found rules broken"
  exit 1
fi
echo "rules_test: ${#sources[@]} sources keep the rules"
