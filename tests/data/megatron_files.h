#pragma once
// Writes data sets in Megatron-LM's layout (data/megatron.h) for tests.

#include <cstdint>
#include <string>
#include <vector>

#include "tests/data/corpus_case.h"

namespace ring {

template <class T>
void append_bytes(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

struct MegatronFiles {
  std::string magic{"MMIDIDX\0\0", 9};
  std::uint64_t version = 1;
  std::uint8_t code = 8;
  std::vector<std::int32_t> lengths;
  std::vector<std::int64_t> starts, documents{0};
  std::string bin;

  template <class T>
  void add_sequence(const std::vector<std::int64_t>& tokens) {
    lengths.push_back(static_cast<std::int32_t>(tokens.size()));
    starts.push_back(static_cast<std::int64_t>(bin.size()));
    for (const std::int64_t t : tokens) append_bytes(bin, static_cast<T>(t));
  }
  void end_document() { documents.push_back(static_cast<std::int64_t>(lengths.size())); }
  template <class T>
  void add_document(const std::vector<std::int64_t>& tokens) {
    add_sequence<T>(tokens);
    end_document();
  }

  std::string index() const {
    std::string bytes = magic;
    append_bytes(bytes, version);
    append_bytes(bytes, code);
    append_bytes(bytes, static_cast<std::uint64_t>(lengths.size()));
    append_bytes(bytes, static_cast<std::uint64_t>(documents.size()));
    for (const auto n : lengths) append_bytes(bytes, n);
    for (const auto n : starts) append_bytes(bytes, n);
    for (const auto n : documents) append_bytes(bytes, n);
    return bytes;
  }
  void write(const std::string& prefix) const {
    write_text(prefix + ".idx", index());
    write_text(prefix + ".bin", bin);
  }
};

}  // namespace ring
