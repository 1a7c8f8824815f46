// SPDX-License-Identifier: Apache-2.0

// gradient_error RUN STEP: relative error (Frobenius norm, against binary64) of the int8 weight
// gradient on the activations and gradients of a trained model, with the rotation and without.

#include <cmath>
#include <cstdio>
#include <iostream>

#include <ordo/data/stream.hpp>
#include <ordo/train/run_directory.hpp>

namespace {

using namespace ordo;
using space_type = Kokkos::Serial;
using operands = model::workspace<space_type>::weight_gradient_operands;
using codes_matrix = Kokkos::View<std::int8_t**, Kokkos::LayoutRight, Kokkos::HostSpace>;
using values_matrix = std::vector<double>;

/// dW in binary64 from the operands as they are, row-major [n, k].
values_matrix exact_gradient(const operands& o) {
  const std::size_t m = o.dy.extent(0), n = o.dy.extent(1), k = o.x.codes.extent(1);
  values_matrix dw(n * k);
  for (std::size_t t = 0; t < m; ++t) {
    for (std::size_t i = 0; i < n; ++i) {
      const double g =
          static_cast<double>(arith::to_f32(o.dy(t, i))) * static_cast<double>(o.x.step(0));
      for (std::size_t j = 0; j < k; ++j)
        dw[i * k + j] += g * o.x.codes(t, j);
    }
  }
  return dw;
}

/// Int8 codes of the columns of a matrix, transposed, one scale a column or one for all: what the
/// rotation is followed by, without the rotation.
template <class Value>
void quantize_columns(std::size_t m, std::size_t columns, const Value& value, bool one_scale,
                      codes_matrix codes, std::vector<float>& scale) {
  float largest_of_all = 0;
  std::vector<float> largest(columns);
  for (std::size_t j = 0; j < columns; ++j) {
    for (std::size_t t = 0; t < m; ++t)
      largest[j] = std::max(largest[j], std::fabs(value(t, j)));
    largest_of_all = std::max(largest_of_all, largest[j]);
  }
  for (std::size_t j = 0; j < columns; ++j) {
    scale[j] = (one_scale ? largest_of_all : largest[j]) / 127.0f;
    for (std::size_t t = 0; t < m; ++t) {
      codes(j, t) = quant::to_code(value(t, j), quant::inverse_step(scale[j]));
    }
  }
}

double relative_error(const values_matrix& exact, const std::vector<double>& got) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    error += (got[i] - exact[i]) * (got[i] - exact[i]);
    norm += exact[i] * exact[i];
  }
  return std::sqrt(error / norm);
}

std::vector<double> product(codes_matrix a, const std::vector<float>& scale_a, codes_matrix b,
                            const std::vector<float>& scale_b) {
  const std::size_t n = a.extent(0), k = b.extent(0);
  Kokkos::View<std::int32_t**, Kokkos::LayoutRight, Kokkos::HostSpace> c("c", n, k);
  gemm_int8(space_type(), order::Exact{}, matrix_view<const std::int8_t, space_type>(a),
            matrix_view<const std::int8_t, space_type>(b),
            matrix_view<std::int32_t, space_type>(c));
  std::vector<double> dw(n * k);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < k; ++j) {
      dw[i * k + j] = static_cast<double>(c(i, j)) * static_cast<double>(scale_a[i]) *
                      static_cast<double>(scale_b[j]);
    }
  }
  return dw;
}

void report(const operands& o) {
  const std::size_t m = o.dy.extent(0), n = o.dy.extent(1), k = o.x.codes.extent(1);
  const auto padded = static_cast<std::size_t>(quant::rotated_length(static_cast<std::int64_t>(m)));
  const values_matrix exact = exact_gradient(o);
  const space_type space;
  codes_matrix a("a", n, padded), b("b", k, padded), plain_a("a", n, m), plain_b("b", k, m);
  std::vector<float> scale_a(n), scale_b(k);
  quant::rotate_columns<bf16>(space, o.dy, {}, matrix_view<std::int8_t, space_type>(a),
                              vector_view<float, space_type>(scale_a.data(), n));
  quant::rotate_columns<std::int8_t>(space, o.x.codes, o.x.step,
                                     matrix_view<std::int8_t, space_type>(b),
                                     vector_view<float, space_type>(scale_b.data(), k));
  const double rotated = relative_error(exact, product(a, scale_a, b, scale_b));
  const float step = o.x.step(0);
  double plain[2];
  for (const bool one_scale : {false, true}) {
    quantize_columns(
        m, n, [&](std::size_t t, std::size_t i) { return arith::to_f32(o.dy(t, i)); }, one_scale,
        plain_a, scale_a);
    quantize_columns(
        m, k,
        [&](std::size_t t, std::size_t j) { return step * static_cast<float>(o.x.codes(t, j)); },
        one_scale, plain_b, scale_b);
    plain[one_scale] = relative_error(exact, product(plain_a, scale_a, plain_b, scale_b));
  }
  std::printf(
      "%-16s %4zu x %4zu, %zu tokens: with rotation %.2f %%, without %.2f %%, without and one "
      "scale a tensor %.2f %%\n",
      o.layer, n, k, m, 100 * rotated, 100 * plain[0], 100 * plain[1]);
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: gradient_error RUN STEP\n";
    return 2;
  }
  const Kokkos::ScopeGuard kokkos;
  try {
    const train::run_directory run(argv[1]);
    const std::uint64_t step = std::stoull(argv[2]);
    const space_type space;
    train::train_state<space_type> state(run.config());
    const auto info =
        train::load_checkpoint(space, run.checkpoints(), step, run.genesis_root(), state);
    const data::corpus corpus(run.corpus_hint());
    data::window_stream stream(corpus, run.config().seed, run.config().sequence);
    stream.resume(info.cursor, "cursor");
    std::vector<std::uint32_t> ids, labels, window(run.config().sequence + 1);
    for (std::uint64_t w = 0; w < run.config().micro_batch; ++w) {
      stream.next(window);
      ids.insert(ids.end(), window.begin(), window.end() - 1);
      labels.insert(labels.end(), window.begin() + 1, window.end());
    }
    const model::numerics numerics = train::numerics_of(run.config());
    model::prepared_weights<space_type> weights(run.config().model, numerics);
    weights.prepare(space, vector_view<const bf16, space_type>(state.parameters));
    model::workspace<space_type> work(run.config().model, numerics,
                                      static_cast<std::int64_t>(run.config().micro_batch),
                                      static_cast<std::int64_t>(run.config().sequence));
    Kokkos::View<float*, Kokkos::HostSpace> gradients("gradients", state.parameters.extent(0));
    model::whole_gradients<space_type> sink(run.config().model, gradients);
    const auto sum = work.forward_backward(space, weights, ids, labels,
                                           1.0f / static_cast<float>(ids.size()), sink);
    std::printf("loss %.4f at step %llu\n", static_cast<double>(sum.mean()),
                static_cast<unsigned long long>(step));
    for (const operands& o : work.first_block_operands())
      report(o);
  } catch (const std::exception& failure) {
    std::cerr << "gradient_error: " << failure.what() << "\n";
    return 2;
  }
}
