// SPDX-License-Identifier: Apache-2.0

#include "make_device.hpp"

namespace ordo::instances {

const device& serial() {
  static const device instance = make_device<Kokkos::Serial>("serial");
  return instance;
}

} // namespace ordo::instances
