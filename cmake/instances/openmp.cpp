// SPDX-License-Identifier: Apache-2.0

#include "make_device.hpp"

namespace ordo::instances {

const device& openmp() {
  static const device instance = make_device<Kokkos::OpenMP>("openmp");
  return instance;
}

} // namespace ordo::instances
