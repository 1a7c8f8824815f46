// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// Sums, sums of squares and largest magnitudes of whole vectors, in parallel where the order
/// leaves room for it.

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include <ordo/arith/bf16.hpp>
#include <ordo/arith/value.hpp>
#include <ordo/core/execution.hpp>
#include <ordo/order/policies.hpp>
#include <ordo/order/sum.hpp>
#include <ordo/reduce/exact.hpp>
#if defined(ORDO_CUDA)
#include <ordo/cuda/tree_sum.hpp>
#endif

namespace ordo::reduce {

namespace detail {

/// The element type of a view, without const.
template <class View>
using element = std::remove_const_t<typename View::value_type>;

/// What is added: the value itself.
struct identity {
  ORDO_FORCE_FUNCTION float operator()(float x) const { return arith::flush(x); }
  ORDO_FORCE_FUNCTION float operator()(bf16 x) const { return arith::to_f32(x); }
};

/// What is added: its square, rounded by `mul`; exact for bf16.
struct square {
  ORDO_FORCE_FUNCTION float operator()(float x) const {
    const float value = arith::flush(x);
    return arith::mul(value, value);
  }
  ORDO_FORCE_FUNCTION float operator()(bf16 x) const {
    const float value = arith::to_f32(x);
    return arith::mul_exact(value, value);
  }
};

/// One number on the device and its way back.
template <class T, class Space>
class result_cell {
public:
  explicit result_cell(const std::string& label) : cell_(label) {} // zeroed
  T* data() const { return cell_.data(); }
  T get() const {
    T value;
    Kokkos::deep_copy(value, cell_);
    return value;
  }

private:
  Kokkos::View<T, typename Space::memory_space> cell_;
};

template <class Space, class T, class Term>
float sum(const Space& space, order::Sequential policy, const T* x, std::int64_t n, Term term) {
  const result_cell<float, Space> cell("ordo::reduce::result");
  float* const out = cell.data();
  ordo::detail::for_each(
      space, "ordo::reduce::sequential", 1, KOKKOS_LAMBDA(std::int64_t) {
        *out = order::sum(policy, n, [=](std::int64_t i) { return term(x[i]); });
      });
  return arith::canonical(cell.get());
}

/// Groups of lanes are independent: on a host as many as compilers make vectors of, elsewhere one.
/// The last step joins all lanes.
template <class Space, int W, class T, class Term>
float sum(const Space& space, order::Lanes<W>, const T* x, std::int64_t n, Term term) {
  constexpr bool host =
      Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename Space::memory_space>::accessible;
  constexpr int group = !host ? 1 : W < 32 ? W : 32;
  const Kokkos::View<float*, typename Space::memory_space> lanes("ordo::reduce::lanes", W);
  float* const lane = lanes.data();
  ordo::detail::for_each(
      space, "ordo::reduce::lanes", W / group, KOKKOS_LAMBDA(std::int64_t g) {
        const T* const from = x + g * group;
        const std::int64_t here = n - g * group;
        float total[group] = {};
        std::int64_t i = 0;
        for (; i + group <= here; i += W) {
          for (int j = 0; j < group; ++j)
            total[j] = arith::add(total[j], term(from[i + j]));
        }
        for (int j = 0; i + j < here && j < group; ++j) {
          total[j] = arith::add(total[j], term(from[i + j]));
        }
        for (int j = 0; j < group; ++j)
          lane[g * group + j] = total[j];
      });
  const result_cell<float, Space> cell("ordo::reduce::result");
  float* const out = cell.data();
  ordo::detail::for_each(
      space, "ordo::reduce::join", 1, KOKKOS_LAMBDA(std::int64_t) {
        for (int half = W / 2; half > 0; half /= 2) {
          for (int j = 0; j < half; ++j)
            lane[j] = arith::add(lane[2 * j], lane[2 * j + 1]);
        }
        *out = lane[0];
      });
  return arith::canonical(cell.get());
}

/// Every power-of-two block of at least 4096 starts at a multiple of 4096, so whole chunks of 4096
/// are subtrees: they are summed independently. The elements behind them are the smaller blocks.
template <class Space, class T, class Term>
float sum(const Space& space, order::Tree policy, const T* x, std::int64_t n, Term term) {
#if defined(ORDO_CUDA)
  if constexpr (ordo::detail::on_cuda<Space>) {
    const auto needed = static_cast<std::size_t>(cuda::tree_scratch(n));
    const Kokkos::View<float*, typename Space::memory_space> scratch(
        Kokkos::view_alloc(space, Kokkos::WithoutInitializing, "ordo::reduce::tree"), needed);
    const Kokkos::View<float[2], typename Space::memory_space> result("ordo::reduce::result");
    cuda::tree_sum(space.cuda_stream(), x, n, term, scratch.data(), result.data());
    float host[2];
    cuda::check(cudaMemcpyAsync(host, result.data(), sizeof host, cudaMemcpyDeviceToHost,
                                space.cuda_stream()),
                "ordo::reduce::sum");
    space.fence();
    return host[1];
  }
#endif
  constexpr std::int64_t chunk = 4096;
  const std::int64_t chunks = n / chunk;
  const Kokkos::View<float*, typename Space::memory_space> partials(
      "ordo::reduce::chunks", static_cast<std::size_t>(chunks));
  float* const partial = partials.data();
  ordo::detail::for_each(
      space, "ordo::reduce::chunks", chunks, KOKKOS_LAMBDA(std::int64_t c) {
        const T* const from = x + c * chunk;
        partial[c] = order::sum(policy, chunk, [=](std::int64_t i) { return term(from[i]); });
      });
  const result_cell<float, Space> cell("ordo::reduce::result");
  float* const out = cell.data();
  ordo::detail::for_each(
      space, "ordo::reduce::fold", 1, KOKKOS_LAMBDA(std::int64_t) {
        order::tree_fold leaves, rest;
        for (std::int64_t c = 0; c < chunks; ++c)
          leaves.push(partial[c]);
        for (std::int64_t i = chunks * chunk; i < n; ++i)
          rest.push(term(x[i]));
        *out = leaves.result(rest);
      });
  return arith::canonical(cell.get());
}

/// Work item `part` of for_parts.
template <class F>
struct part_of_indices {
  F f;
  std::int64_t n, parts, grain; ///< grain 0: interleaved

  KOKKOS_FUNCTION void operator()(std::int64_t part) const {
    const std::int64_t begin = part * grain;
    if (grain == 0) {
      f(part, n, parts);
    } else {
      f(begin, begin + grain < n ? begin + grain : n, 1);
    }
  }
};

/// Calls f(first, last, step) so that the indices first, first + step, ... below last of all calls
/// are those of [0, n): neighbours on a host, on a device interleaved, so that threads that run
/// together read together.
template <class Space, class F>
void for_parts(const Space& space, const char* label, std::int64_t n, const F& f) {
  constexpr std::int64_t most_parts = std::int64_t{1} << 16;
  const bool host = ordo::detail::on_host<Space>;
  const std::int64_t grain = 16384;
  const std::int64_t parts = host ? (n + grain - 1) / grain : n < most_parts ? n : most_parts;
  ordo::detail::for_each(space, label, parts, part_of_indices<F>{f, n, parts, host ? grain : 0});
}

/// Blocks add into accumulators of their own, which then add, as integers, into one.
template <class Space, class T, class Term>
float sum(const Space& space, order::Exact, const T* x, std::int64_t n, Term term) {
  require(n < (std::int64_t{1} << 31), "ordo::reduce::sum",
          std::to_string(n) + " addends may overflow the exact accumulator of binary32",
          "sum parts of less than 2^31 and join their exact_sum");
  const result_cell<exact_sum, Space> cell("ordo::reduce::exact");
  exact_sum* const total = cell.data();
  for_parts(
      space, "ordo::reduce::exact", n,
      KOKKOS_LAMBDA(std::int64_t first, std::int64_t last, std::int64_t step) {
        exact_sum part;
        for (std::int64_t i = first; i < last; i += step)
          part.add(term(x[i]));
        for (int w = 0; w < exact_sum::words; ++w)
          Kokkos::atomic_add(&total->word(w), part.word(w));
      });
  return cell.get().result();
}

template <class Space, class T>
std::int64_t integer_sum(const Space& space, const T* x, std::int64_t n) {
  constexpr std::int64_t magnitude = -std::int64_t{std::numeric_limits<T>::min()};
  require(n <= std::numeric_limits<std::int64_t>::max() / magnitude, "ordo::reduce::sum",
          std::to_string(n) + " integers may overflow a 64-bit sum", "sum parts");
  const result_cell<std::int64_t, Space> cell("ordo::reduce::result");
  std::int64_t* const total = cell.data();
  for_parts(
      space, "ordo::reduce::integers", n,
      KOKKOS_LAMBDA(std::int64_t first, std::int64_t last, std::int64_t step) {
        std::int64_t part = 0;
        for (std::int64_t i = first; i < last; i += step)
          part += x[i];
        Kokkos::atomic_add(total, part);
      });
  return cell.get();
}

} // namespace detail

/// The sum of a vector of float, bf16, or (order::Exact only) int8 or int32.
///
/// Order: by the policy, over the elements as values (subnormals count as zero).
/// Bits: of the elements and the policy only; NaN is canonical. Integers: int64, exact.
/// Throws: ordo::error if Exact could overflow, before anything runs.
template <execution_space Space, order::ordering_policy Policy, class View>
auto sum(const Space& space, Policy policy, const View& x) {
  using T = detail::element<View>;
  const vector_view<const T, Space> view = x;
  const std::int64_t n = static_cast<std::int64_t>(view.extent(0));
  if constexpr (std::is_integral_v<T>) {
    static_assert(std::is_same_v<Policy, order::Exact>,
                  "ordo::reduce::sum: integers have no rounding to order; use order::Exact");
    static_assert(std::is_same_v<T, std::int8_t> || std::is_same_v<T, std::int32_t>,
                  "ordo::reduce::sum: int8 and int32 are summed; convert other integers");
    return detail::integer_sum(space, view.data(), n);
  } else {
    return detail::sum(space, policy, view.data(), n, detail::identity{});
  }
}

/// The sum of the squares of a vector of float or bf16.
///
/// Order: by the policy, over the squares: of float each rounded by arith::mul, of bf16 exact.
/// Under order::Exact the sum of these is exact. Bits: as sum. Squares that overflow give infinity.
template <execution_space Space, order::ordering_policy Policy, class View>
float sum_squares(const Space& space, Policy policy, const View& x) {
  const vector_view<const detail::element<View>, Space> view = x;
  return detail::sum(space, policy, view.data(), static_cast<std::int64_t>(view.extent(0)),
                     detail::square{});
}

} // namespace ordo::reduce
