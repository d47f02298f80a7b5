// Records of JSON Lines, cut at any place into blocks.

#include "data/json_lines.h"

#include <cstdint>

#include "core/check.h"

namespace {

struct Ignore final : ring::DocumentSink {
  void part(std::string_view, bool) override {}
  void end() override {}
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::size_t block = std::size_t{data[0]} + 1;
  Ignore ignore;
  try {
    ring::JsonLines lines("in.jsonl", documents_of({.text = "a.b"}, ignore));
    for (std::size_t at = 0; at < text.size(); at += block) lines.block(text.substr(at, block));
    lines.end_of_file();
  } catch (const ring::Error&) {
  }
  return 0;
}
