// SPDX-License-Identifier: Apache-2.0
// expect: no matching function for call to .*linear_forward\(

#include <ordo/nn/linear.hpp>

void forward(const ordo::nn::int8_weights<Kokkos::Serial>& w) {
  ordo::nn::linear_forward(Kokkos::Serial(), w);
}
