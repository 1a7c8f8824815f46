// SPDX-License-Identifier: Apache-2.0
#pragma once

/// \file
/// The record of a step: everything the step commits to, as one line of canonical JSON whose
/// SHA-256 is the step's root.

#include <cstdint>
#include <string>
#include <vector>

#include <ordo/digest/merkle.hpp>
#include <ordo/digest/sha256.hpp>
#include <ordo/io/canonical_json.hpp>
#include <ordo/train/step.hpp>

namespace ordo::train {

using json = nlohmann::json;

/// The fields of a record in the order in which an audit compares them: causes before effects.
inline constexpr const char* record_fields[] = {
    "step",          "windows", "batch_root", "learning_rate",  "microbatch_root",
    "gradient_root", "loss",    "norm",       "clip",           "spike",
    "adam_step",     "tokens",  "cursor",     "parameter_root", "optimizer_root",
    "previous"};

inline json to_json(const spike_state& spikes) {
  return {{"skips_left", spikes.skips_left}, {"events", spikes.event_steps}};
}

/// Makes a step's record. `previous` is the root of the record before it (of the genesis for the
/// first step), `cursor` the data stream's state after it.
inline json make_record(const step_result& r, const progress& at, const digest::hash256& previous,
                        const digest::hash256& batch_root, json cursor) {
  json spike = to_json(at.spikes);
  spike["event"] = r.spike.event;
  spike["skip"] = r.spike.skip;
  spike["halt"] = r.spike.halt;
  return {{"step", at.step},
          {"windows", {r.first_window, r.last_window}},
          {"batch_root", digest::hex(batch_root)},
          {"learning_rate", io::f32_hex(r.learning_rate)},
          {"microbatch_root", digest::hex(digest::merkle_root(r.microbatch_roots))},
          {"gradient_root", digest::hex(digest::state_root(r.gradients))},
          {"loss", io::f32_hex(arith::canonical(r.loss))},
          {"norm", io::f32_hex(arith::canonical(r.norm))},
          {"clip", io::f32_hex(r.clip)},
          {"spike", std::move(spike)},
          {"adam_step", at.adam_step},
          {"tokens", at.tokens},
          {"cursor", std::move(cursor)},
          {"parameter_root", digest::hex(digest::state_root(r.parameters))},
          {"optimizer_root", digest::hex(digest::state_root(r.optimizer))},
          {"previous", digest::hex(previous)}};
}

/// The root of a record or genesis: SHA-256 of its canonical JSON.
inline digest::hash256 root_of(const json& record) {
  return digest::sha256_of(std::string_view(io::canonical_json(record)));
}

/// The first field, in the order of `record_fields`, in which two records differ; empty if none.
/// `previous` counts after these, it differs as soon as any earlier record does; fields that no
/// record should have come last.
inline std::string first_difference(const json& a, const json& b) {
  for (const char* field : record_fields) {
    const auto in_a = a.find(field), in_b = b.find(field);
    if ((in_a == a.end()) != (in_b == b.end()))
      return field;
    if (in_a != a.end() && *in_a != *in_b)
      return field;
  }
  for (const json* record : {&a, &b}) {
    for (const auto& [field, value] : record->items()) {
      if (!a.contains(field) || !b.contains(field))
        return field;
    }
  }
  return {};
}

/// What localises a difference within a step: roots by tensor and by micro-batch.
inline json make_commitments(const step_result& r) {
  const auto by_name = [](const std::vector<digest::named_root>& roots) {
    json object = json::object();
    for (const digest::named_root& entry : roots)
      object[entry.name] = digest::hex(entry.root);
    return object;
  };
  json microbatches = json::array();
  for (const digest::hash256& root : r.microbatch_roots)
    microbatches.push_back(digest::hex(root));
  return {{"microbatches", std::move(microbatches)},
          {"gradients", by_name(r.gradients)},
          {"parameters", by_name(r.parameters)},
          {"optimizer", by_name(r.optimizer)}};
}

} // namespace ordo::train
