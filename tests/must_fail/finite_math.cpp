// SPDX-License-Identifier: Apache-2.0
// expect: ordo: -ffinite-math-only removes the treatment of NaN; compile without it
// flags: -ffinite-math-only

#include <ordo/arith/value.hpp>

int main() {}
