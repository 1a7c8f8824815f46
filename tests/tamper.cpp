// SPDX-License-Identifier: Apache-2.0

// tamper: does to a run or corpus what a dishonest trainer would, for the tests and the demo.
//
//   tamper flip-bit FILE                     one bit of the last byte but a thousand
//   tamper learning-rate RUN STEP            the recorded rate one ulp higher, later records
//   rechained tamper set RUN STEP FIELD JSON           another value of a field, or a new one;
//   later records rechained tamper drop RUN STEP FIELD               without a field; later records
//   rechained tamper set-genesis RUN FIELD JSON        another value in the genesis; records
//   rechained tamper parse                             whether standard input is one line of JSON
//   tamper change-document CORPUS RUN STEP   other text in the document that is read after STEP
//   tamper swap-documents CORPUS RUN STEP    that document and the next one change places
//
// The corpus forms keep the manifest, so that a trainer that trusts its own disk takes the corpus
// for the one the genesis names.

#include <fstream>
#include <iostream>

#include <ordo/data/stream.hpp>
#include <ordo/train/run_directory.hpp>

namespace {

using namespace ordo;

void flip_bit(const std::filesystem::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1000, std::ios::end);
  const auto at = file.tellg();
  const int byte = file.get();
  require(byte >= 0, path.string(), "too short to tamper with");
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 1));
}

/// Calls `change(step, record)` for every record and writes them as a chain again that starts from
/// `genesis`.
template <class Change>
void rewrite_records(const train::run_directory& run, digest::hash256 previous,
                     const Change& change) {
  std::string lines;
  for (std::uint64_t step = 1; step <= run.steps(); ++step) {
    train::json record = run.record(step);
    record["previous"] = digest::hex(previous);
    change(step, record);
    lines += io::canonical_json(record) + "\n";
    previous = train::root_of(record);
  }
  io::write_file_atomic(run.path() / "records.jsonl", lines);
}

void raise_learning_rate(const std::filesystem::path& path, std::uint64_t at) {
  const train::run_directory run(path);
  rewrite_records(run, run.root(0), [&](std::uint64_t step, train::json& record) {
    if (step != at)
      return;
    const float rate = io::parse_f32_hex(record.at("learning_rate").get<std::string>(), "record");
    record["learning_rate"] = io::f32_hex(arith::from_bits(arith::bits(rate) + 1));
  });
}

void set_field(const std::filesystem::path& path, std::uint64_t at, const std::string& field,
               const std::string& value) {
  const train::run_directory run(path);
  rewrite_records(run, run.root(0), [&](std::uint64_t step, train::json& record) {
    if (step == at)
      record[field] = io::parse_json(value, "the new value");
  });
}

void drop_field(const std::filesystem::path& path, std::uint64_t at, const std::string& field) {
  const train::run_directory run(path);
  rewrite_records(run, run.root(0), [&](std::uint64_t step, train::json& record) {
    if (step == at)
      record.erase(field);
  });
}

void set_genesis(const std::filesystem::path& path, const std::string& field,
                 const std::string& value) {
  const train::run_directory run(path);
  train::json genesis = run.genesis();
  genesis[field] = io::parse_json(value, "the new value");
  rewrite_records(run, train::root_of(genesis), [](std::uint64_t, train::json&) {});
  io::write_file_atomic(path / "run.json", io::canonical_json(genesis));
}

void parse_input() {
  std::string line, more;
  require(std::getline(std::cin, line) && !std::getline(std::cin, more), "standard input",
          "it is not one line");
  io::parse_json(line, "standard input");
}

/// All documents of a source's first shard, and the two that are read next after `step`.
struct opened_shard {
  std::filesystem::path bin, idx;
  std::vector<std::vector<std::uint32_t>> documents;
  std::size_t next = 0, after = 0;
};

opened_shard open_shard(const std::filesystem::path& corpus_path, const train::run_directory& run,
                        std::uint64_t step) {
  const data::corpus corpus(corpus_path);
  data::window_stream stream(corpus, run.config().seed, run.config().sequence);
  stream.seek(io::get_array(run.record(step), "windows", "record")[1].get<std::uint64_t>());
  const std::size_t s = stream.source_of(stream.cursor().window);
  const data::source_cursor at = stream.cursor().sources[s];
  const data::source_info& info = corpus.contents().sources[s];
  require(info.shards.size() == 1, corpus_path.string(), "tamper reads sources of one shard");
  const data::permutation order(run.config().seed, "ordo.data.order." + info.name, at.epoch,
                                info.documents);
  opened_shard shard{corpus_path / info.name / data::shard_name(0, ".bin"),
                     corpus_path / info.name / data::shard_name(0, ".idx"),
                     {},
                     0,
                     0};
  shard.next = order(at.place);
  shard.after = order((at.place + 1) % info.documents);
  for (std::uint64_t d = 0; d < info.documents; ++d) {
    shard.documents.emplace_back(corpus.document_length(s, d));
    corpus.read(s, d, 0, shard.documents.back());
  }
  return shard;
}

void write_shard(const opened_shard& shard) {
  std::string bin, idx;
  std::uint64_t offset = 0;
  const auto put = [](std::string& to, const auto& value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  put(idx, offset);
  for (const auto& document : shard.documents) {
    for (const std::uint32_t id : document)
      put(bin, id);
    put(idx, offset += document.size());
  }
  io::write_file_atomic(shard.bin, bin);
  io::write_file_atomic(shard.idx, idx);
}

void change_document(const std::filesystem::path& corpus, const std::filesystem::path& run,
                     std::uint64_t step) {
  opened_shard shard = open_shard(corpus, train::run_directory(run), step);
  auto& document = shard.documents[shard.next];
  const std::string secret = "What nobody was told. ";
  for (std::size_t i = 0; i + 1 < document.size(); ++i) {
    document[i] = static_cast<unsigned char>(secret[i % secret.size()]);
  }
  write_shard(shard);
}

void swap_documents(const std::filesystem::path& corpus, const std::filesystem::path& run,
                    std::uint64_t step) {
  opened_shard shard = open_shard(corpus, train::run_directory(run), step);
  std::swap(shard.documents[shard.next], shard.documents[shard.after]);
  write_shard(shard);
}

} // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    const auto is = [&](const char* name, std::size_t count) {
      return words.size() == count && words[0] == name;
    };
    if (is("flip-bit", 2)) {
      flip_bit(words[1]);
    } else if (is("learning-rate", 3)) {
      raise_learning_rate(words[1], std::stoull(words[2]));
    } else if (is("set", 5)) {
      set_field(words[1], std::stoull(words[2]), words[3], words[4]);
    } else if (is("drop", 4)) {
      drop_field(words[1], std::stoull(words[2]), words[3]);
    } else if (is("set-genesis", 4)) {
      set_genesis(words[1], words[2], words[3]);
    } else if (is("parse", 1)) {
      parse_input();
    } else if (is("change-document", 4)) {
      change_document(words[1], words[2], std::stoull(words[3]));
    } else if (is("swap-documents", 4)) {
      swap_documents(words[1], words[2], std::stoull(words[3]));
    } else {
      throw error("tamper", "unknown form", "see the head of tests/tamper.cpp");
    }
  } catch (const std::exception& failure) {
    std::cerr << "tamper: " << failure.what() << "\n";
    return 2;
  }
  return 0;
}
