// SPDX-License-Identifier: Apache-2.0
// expect: ordo::nn::AttentionBlocks: blocks are multiples of 16, at most 128; use 64, 64

#include <ordo/nn/attention_shape.hpp>

int main() {
  return ordo::nn::AttentionBlocks<60, 64>::query;
}
