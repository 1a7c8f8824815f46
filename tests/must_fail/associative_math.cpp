// SPDX-License-Identifier: Apache-2.0
// expect: ordo: -ffast-math .or a part of it. reorders sums; compile without it
// flags: -fassociative-math -fno-signed-zeros -fno-trapping-math
// only: GNU

#include <ordo/arith/value.hpp>

int main() {}
