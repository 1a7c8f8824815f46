// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Versions of the library and of the numeric contract it implements.

namespace ordo {

/// Version of the sources, as recorded in a run's genesis.
inline constexpr const char* version = "0.1.0";

/// Version of the numeric contract (docs/contract.md). Any change of any bit is a new number.
inline constexpr int contract_version = 1;

} // namespace ordo
