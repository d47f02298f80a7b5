// Target: the header of a safetensors file. The tensors are visited like a reader of weights does, and written again.

#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/safetensors/header.h"
#include "core/check.h"

namespace {

// Checks that the header means the same after it was written, without JSON's freedom of order and spaces.
void check_written(const ring::SafetensorsHeader& header, std::uint64_t data) {
  const std::vector<std::pair<std::string, ring::SafeTensor>> tensors(header.tensors.begin(), header.tensors.end());
  const std::string again = ring::safetensors_header(tensors, header.metadata) + std::string(data, 'x');
  const ring::SafetensorsHeader read = ring::parse_safetensors(again);
  if (read.tensors.size() != header.tensors.size() || read.metadata != header.metadata) std::abort();  // a finding
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  std::uint64_t length = size;
  std::string whole(reinterpret_cast<const char*>(&length), sizeof length);
  whole += text;
  // Reads the input as it is, and as a header of matching length: bytes of tensors would only be skipped.
  for (const std::string& file : {text, whole}) try {
      const ring::SafetensorsHeader header = ring::parse_safetensors(file);
      std::uint64_t end = header.bytes;
      for (const auto& [name, t] : header.tensors) {
        if (t.end < t.begin || header.bytes + t.end > file.size()) std::abort();  // a finding
        end = std::max(end, header.bytes + t.end);
        ring::text_of(t);
      }
      if (end != file.size()) std::abort();  // a finding
      check_written(header, file.size() - header.bytes);
    } catch (const ring::Error&) {
    }
  return 0;
}
