// SPDX-License-Identifier: Apache-2.0
// expect: ordo::order::Lanes: the number of lanes is no power of two; use 1, 2, 4, 8

#include <ordo/order/policies.hpp>

int main() {
  return ordo::order::Lanes<3>::width;
}
