// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Instantiates everything that `device` refers to for one execution space; nothing runs on it
/// before a small kernel has given the right answer.

#include <ordo/audit/conformance.hpp>
#include <ordo/core/device_check.hpp>

#include "devices.hpp"

namespace ordo::instances {

template <execution_space Space>
Space working_space() {
  const Space space;
  require_working(space);
  return space;
}

template <execution_space Space>
device make_device(const char* name) {
  return {name,
          [](const train::run_config& run, device::corpus corpus,
             device::processes processes) -> std::unique_ptr<train::driver> {
            return std::make_unique<train::run_driver<Space>>(
                working_space<Space>(), run, std::move(corpus), std::move(processes));
          },
          [] { return audit::conformance(working_space<Space>()); }};
}

} // namespace ordo::instances
