// SPDX-License-Identifier: Apache-2.0
// expect: ordo::Sliced: two or three slices on each side exist

#include <ordo/linalg/gemm_sliced.hpp>

int main() {
  return sizeof(ordo::Sliced<4, 2>);
}
