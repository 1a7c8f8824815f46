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
         "f629547e222b11a17ce4cccb17ea32a44f55bbd1a5c1f73571593ee17e8675ba"},
        {"sum Lanes<16>", "10007",
         "669fd6c4d03d3577a369124f16901810e1f3daed067c6214a5f6e76ccce828b5"},
        {"sum Lanes<32>", "10007",
         "82486077f6cc72e3dcda55d36d69fe33d4b10a388697cda8fec027d8971bac68"},
        {"sum Tree", "10007",
         "82486077f6cc72e3dcda55d36d69fe33d4b10a388697cda8fec027d8971bac68"},
        {"sum Exact", "10007",
         "26b9cad90e1aa0a21a15263c880f0b5dbfb0c429c16ffe41b35ef1837d25f92c"},
        {"truncated_normal", "10007",
         "3113b3edf1933f48bb2fa5e7ed74eac78038358d6e02cd0b1d6d97fbc10cbfa3"},
        {"gemm_int8 Exact", "65 x 131 x 517",
         "1f5ba91fbab77844fdfa5ce98b509fd15c2d083ce2715a591d1b4e88e49e5a80"},
        {"gemm_sliced Sliced<2,2>", "65 x 131 x 517",
         "207ff1fe443f1246d473842fe7e560b991de61ef843e32ca24e363116eb5b702"},
        {"gemm_f32 Sequential", "65 x 131 x 517",
         "fd29f82b72dfef6c82473600a01f4d4d21efdcca37678b7aaaf44822f093cba1"},
        {"gemm_f32 Lanes<16>", "65 x 131 x 517",
         "94ad08c16aa0fff73fa4917b7351cdd75cfd68f7eaef2a7d2b97a1b9d4aa29ca"},
        {"linear int8 mean", "300 x 272 x 129",
         "848d4794655f7713a2cc399029c4629d0d68373ee4d775f6b5a3d1950b772b63"},
        {"linear int8 largest", "300 x 272 x 129",
         "bb78a7ed4e5fd04b1ce088c8d01b6e84c3aedd29f82411a0fab1ac512bde1f86"},
        {"linear binary32", "300 x 272 x 129",
         "eacfa8aa758f234b47f51f548ba1555654bbdbee58bdfbd6f4e613a06be71548"},
        {"rms_norm Lanes<32>", "300 x 129",
         "a08935789faeae74cdfdf41ae3556c5edd2fcf5a199e662879f1e1158da56edc"},
        {"swiglu", "300 x 136",
         "f401e80e007fd141624447414f4babae9b6d74622627fb3b61da0a2c907f0387"},
        {"adamw bf16", "5000",
         "181cab65cb75be190debad5cd12d52a23dbf80649125f699d2ae3402ca1f9c82"},
        {"adamw master", "5000",
         "85815a12e7f5c05e0234617887d6c025d02b882a8a416e9efa556a6f106e972e"},
        {"model int8 loss", "2 x 150",
         "13e1077e40df6cd330e5eb9e24dcd662da791658a0a05f3b13ea7c83f509d6a8"},
        {"model int8 gradients", "125312",
         "6d66fa800b5f6150cc750c2dcfef934dc3573276f5ebca001f39b42e235f21f7"},
        {"model binary32 loss", "2 x 150",
         "7a5cfc291ea59bb1dde0684624cd61b89217ec6ac62c67ed9211c5c0ead83ac1"},
        {"model binary32 gradients", "125312",
         "b863b185f808ede2d064589788b4191c1f4cf39ae02f38692178e3fab7883e78"},
        // end of generated lines
    };
    std::vector<conformance_line> all;
    for (const auto& line : text) all.push_back({line[0], line[1], digest::parse_hash(line[2])});
    return all;
  }();
  return lines;
}

}  // namespace ordo::audit
