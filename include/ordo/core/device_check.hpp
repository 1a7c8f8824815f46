// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Whether an execution space does anything at all, and does it as the contract says.

#include <cstdint>
#include <string>

#include <ordo/arith/functions.hpp>
#include <ordo/core/error.hpp>
#include <ordo/core/execution.hpp>

namespace ordo {

namespace detail {

/// What entry i of the check is: every kind of operation, with products that tempt a compiler to
/// fuse them and results that are flushed.
ORDO_FUNCTION float checked_value(std::int64_t i) {
  const float x = arith::from_int(static_cast<std::int32_t>(i * 7919 % 4093 - 2046));
  const float y = arith::add(arith::mul(x, 0x1.000002p-3f), arith::mul(x, -0x1p-3f));
  const float z = arith::div(arith::exp(arith::mul(x, 0x1p-5f)), 3.0f);
  const float tiny = arith::mul(arith::mul(z, 0x1p-100f), 0x1p-26f);
  return arith::add(arith::add(arith::sqrt(z), y), arith::mul(tiny, 0x1p110f));
}

} // namespace detail

/// Runs a small kernel on `space` that captures a view, and compares what it left with the host's.
///
/// A backend whose kernels silently do nothing has been seen (Kokkos 4.7.00 with CUDA 13, unless it
/// was configured with its legacy View); programs call this once before anything else.
/// Throws: naming the space, if an entry was not written or has other bits.
template <execution_space Space>
void require_working(const Space& space) {
  constexpr std::int64_t n = 4096;
  const std::string where = std::string("device ") + Space::name();
  const Kokkos::View<std::uint32_t*, typename Space::memory_space> out("ordo::device_check", n);
  Kokkos::deep_copy(space, out, 0xa5a5a5a5u);
  detail::for_each(
      space, "ordo::device_check", n,
      KOKKOS_LAMBDA(std::int64_t i) { out(i) = arith::bits(detail::checked_value(i)); });
  space.fence();
  const auto host = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), out);
  const arith::float_mode mode;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint32_t found = host(static_cast<std::size_t>(i));
    require(found != 0xa5a5a5a5u, where, "a kernel was launched and wrote nothing",
            "the Kokkos of this build and its compiler do not fit together; docs/backends.md says "
            "which do");
    require(found == arith::bits(mode.pinned(detail::checked_value(i))), where,
            "entry " + std::to_string(i) + " of a small kernel differs from the host's",
            "compile with the flags of the CMake target ordo::ordo; run 'ordo-audit selftest'");
  }
}

} // namespace ordo
