// SPDX-License-Identifier: Apache-2.0

// An int8 quantization-aware linear layer, forward and backward, in somebody else's program.

#include <cstdio>
#include <cstdlib>
#include <string>

#include <ordo/nn/linear_layer.hpp>
#include <ordo/random/initializers.hpp>

namespace {

using space = Kokkos::DefaultHostExecutionSpace;
template <class T>
using matrix = Kokkos::View<T**, Kokkos::LayoutRight, space>;

matrix<ordo::bf16> normal(const std::string& name, std::int64_t rows, std::int64_t columns,
                          float deviation) {
  Kokkos::View<float*, space> values(name, static_cast<std::size_t>(rows * columns));
  ordo::random::truncated_normal<space>(space(), 7, name, values, deviation);
  matrix<ordo::bf16> narrow(name, static_cast<std::size_t>(rows),
                            static_cast<std::size_t>(columns));
  for (std::size_t i = 0; i < values.size(); ++i)
    narrow.data()[i] = ordo::arith::to_bf16(values(i));
  return narrow;
}

} // namespace

int main() {
  const Kokkos::ScopeGuard kokkos;
  constexpr std::int64_t tokens = 512, inputs = 256, outputs = 384;
  const auto x = normal("x", tokens, inputs, 1.0f), w = normal("w", outputs, inputs, 0.02f);
  const auto dy = normal("dy", tokens, outputs, 1e-3f);
  const matrix<ordo::bf16> y("y", tokens, outputs), dx("dx", tokens, inputs);
  const matrix<float> dw("dw", outputs, inputs);

  using namespace ordo;
  nn::linear_layer<space> layer(nn::linear_kind::int8, quant::step_rule::mean_magnitude, outputs,
                                inputs);
  nn::linear_input<space> kept(nn::linear_kind::int8, tokens, inputs);
  const nn::linear_scratch<space> scratch(nn::linear_kind::int8, tokens, outputs);
  layer.prepare(space(), w); // once a step
  layer.forward(space(), x, kept, y, scratch);
  layer.backward(space(), dy, kept, dx, dw, scratch);

  double product = 0;
  for (std::int64_t k = 0; k < inputs; ++k) {
    product +=
        static_cast<double>(arith::to_f32(x(0, k))) * static_cast<double>(arith::to_f32(w(0, k)));
  }
  const auto got = static_cast<double>(arith::to_f32(y(0, 0)));
  std::printf("y[0][0] = %.5f, in binary64 %.5f\n", got, product);
  return product - got < 0.05 && got - product < 0.05 ? EXIT_SUCCESS : EXIT_FAILURE;
}
