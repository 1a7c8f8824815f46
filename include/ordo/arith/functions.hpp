// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// All functions of the contract, section "Functions".

#include <ordo/arith/activation.hpp>
#include <ordo/arith/exp.hpp>
#include <ordo/arith/log.hpp>
#include <ordo/arith/rsqrt.hpp>
#include <ordo/arith/trigonometric.hpp>
