// Target: a checkpoint's manifest. Few inputs would have a valid hash, so the input is the text before the hash, which
// is appended. A manifest that is read and written again must not change.

#include <cstdint>
#include <cstdlib>
#include <string>

#include "checkpoint/files.h"
#include "checkpoint/manifest.h"
#include "checkpoint/plan.h"

namespace {

std::string with_hash(std::string body) {
  while (!body.empty() && (body.back() == '\n' || body.back() == '}')) body.pop_back();
  body += ",\n";
  return body + " \"xxh3\": \"" + ring::hash_of(body) + "\"\n}\n";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const std::string& whole : {text, with_hash(text)}) try {
      ring::Manifest manifest = ring::parse_manifest(whole);
      manifest.tensor_bytes();
      ring::slices_by_file(manifest);
      const std::string written = ring::to_text(manifest);
      if (ring::to_text(ring::parse_manifest(written)) != written) std::abort();  // a finding
    } catch (const ring::Error&) {
    }
  return 0;
}
