// Target: measured choices as a file or a checkpoint stores them.

#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/check.h"
#include "kernels/tuning.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ring::Tuning tuning(""), again("");
  try {
    tuning.merge_record(std::string(reinterpret_cast<const char*>(data), size));
  } catch (const ring::Error&) {
    return 0;  // refused
  }
  again.merge_record(tuning.text());  // choices that were read can be written and read: an Error here is a finding
  if (again.text() != tuning.text()) std::abort();
  return 0;
}
