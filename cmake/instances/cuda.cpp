// SPDX-License-Identifier: Apache-2.0

#include "make_device.hpp"

namespace ordo::instances {

const device& cuda() {
  static const device instance = make_device<Kokkos::Cuda>("cuda");
  return instance;
}

} // namespace ordo::instances
