// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The conformance report of contract 1. Written by scripts/update-conformance after a change of
/// the contract; a test compares it with what every backend computes.

#include <vector>

#include <ordo/audit/conformance_line.hpp>

namespace ordo::audit {

inline const std::vector<conformance_line>& expected_conformance() {
  static const std::vector<conformance_line> lines = [] {
    const char* const text[][3] = {
        // begin of generated lines
        {"function exp", "262144",
         "338086fbe4524a02c15ae3a46332792a8e1139f8a673652d651cd2968a15770b"},
        {"function log", "262144",
         "83938d8fda47689ed1e28c97951e65447f5a1927cdf85c0e09b0c0ffcb7edcb3"},
        {"function sin", "262144",
         "9d70b66c4c1c7a3baa7f0639db6ca6673067767cf772415c0a5b58c27f1ca83e"},
        {"function cos", "262144",
         "88f64f0d843019dfa08acc4d76b9f5af7300a36aaa2622b2cc771515b4d7fcd6"},
        {"function sigmoid", "262144",
         "5b76a350d928c78d31a21d80db36a39dbb7ba27a489949590537b8597c07a531"},
        {"function silu", "262144",
         "389fd54887f74916fa34e247d861f22137ceb62c5f45b6275ccb227db849a23f"},
        {"function rsqrt", "262144",
         "8e614ace4776310422bcb9a5888c5c29ed55134e31099d199e1a4be32fde30ba"},
        {"sum Sequential", "10007",
         "48f97b623953e5f518d610c165eb6d5528928312895fa39179b8b99e7af5cb08"},
        {"sum Lanes<16>", "10007",
         "40ef16d5a106da7dfd8e5c764776e4244225e6dffbfcb4f74392eaddd629d5df"},
        {"sum Lanes<32>", "10007",
         "b8405c2d90581aaec831fe547375ba2dd025eda99ffc7fbbe8ced0b4f4526197"},
        {"sum Tree", "10007", "ec5ec09fc948e082d30d19500464cfb8f1b19e7e333ef0b21af9c187e23f6aa9"},
        {"sum Exact", "10007", "83c20b533828b1db5fb96cdcf17f3ff9e72b7ab749812f474d9ceb8a84292f6d"},
        {"truncated_normal", "10007",
         "3113b3edf1933f48bb2fa5e7ed74eac78038358d6e02cd0b1d6d97fbc10cbfa3"},
        {"gemm_int8 Exact", "65 x 131 x 517",
         "7f010f3cb21be35d131235b4c49049bbaa9df2e7f75aad5c179fcd52344bfa05"},
        {"gemm_sliced Sliced<2,2>", "65 x 131 x 517",
         "9b575f3f1b9d93fab63923bcff734d4714aed08e7fa88c4dff7a283bc4f98e19"},
        {"gemm_f32 Sequential", "65 x 131 x 517",
         "63342d81e4924169955482657adbfb1cf596e975743fc4482903752788277074"},
        {"gemm_f32 Lanes<16>", "65 x 131 x 517",
         "978c6c3e85d61e5d141b306b91f480111d79792cbb38000d62a26ca947bb9948"},
        {"linear int8 mean", "300 x 272 x 129",
         "31da8d827c0f64809c063ea6fe5fb31a39c57c5a632f7f56ec38df28c76a694f"},
        {"linear int8 largest", "300 x 272 x 129",
         "2ffddbdc6978e18844521686692e850be26b3c03678e2450cda9ce480a84c635"},
        {"linear binary32", "300 x 272 x 129",
         "3b23b4902e161fcdbbd2523e6fd35305ab9ecc577370de50cd613c8c865f55b3"},
        {"rms_norm Lanes<32>", "300 x 129",
         "e7ac51ef54bb3bcf6906e98b7f6895191a77dc4292a32b125097ba785c962b6d"},
        {"swiglu", "300 x 136", "66fd9ba68e138a47ce9b39a98303811738adae4ee39b059042ed4a46545e7866"},
        {"adamw bf16", "5000", "9a94986bc6be50af5efd3be7d12f9e471eb7c1176ca900b4c6f104b64b9693c6"},
        {"adamw master", "5000",
         "456672e9cded29d9d0d5092ff80bc7dabfdcb6db7d59afc43f0e39d95696becc"},
        {"model int8 loss", "2 x 150",
         "2680c8eb085944315f56d87a9092752052af52bfa8ae621015337b0f4f5ce179"},
        {"model int8 gradients", "125312",
         "6281a2b619efa28907fc099ecacf6d17328b95d926045fbd5751cb85fdf7cccc"},
        {"model binary32 loss", "2 x 150",
         "2a3adcd7a5df9b177322e0c55a94387681afa96b5146d11263557ebd73684c0d"},
        {"model binary32 gradients", "125312",
         "5896019e526e9ba7864294085551c7775877c99895b371577c7e59b935b53590"},
        // end of generated lines
    };
    std::vector<conformance_line> all;
    for (const auto& line : text)
      all.push_back({line[0], line[1], digest::parse_hash(line[2])});
    return all;
  }();
  return lines;
}

} // namespace ordo::audit
