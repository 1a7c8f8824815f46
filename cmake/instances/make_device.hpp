// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Instantiates everything that `device` refers to for one execution space.

#include <ordo/audit/conformance.hpp>

#include "devices.hpp"

namespace ordo::instances {

template <execution_space Space>
device make_device(const char* name) {
  return {name,
          [](const train::run_config& run,
             std::shared_ptr<const data::corpus> corpus) -> std::unique_ptr<train::driver> {
            return std::make_unique<train::run_driver<Space>>(Space(), run, std::move(corpus));
          },
          [] { return audit::conformance(Space()); }};
}

} // namespace ordo::instances
