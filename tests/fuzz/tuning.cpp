// Measured choices as a file or a checkpoint holds them.

#include <cstdint>
#include <string>

#include "core/check.h"
#include "kernels/tuning.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    ring::Tuning tuning("");
    tuning.adopt(std::string(reinterpret_cast<const char*>(data), size));
    ring::Tuning again("");
    again.adopt(tuning.text());
    RING_CHECK(again.text() == tuning.text(), "choices change when they are written and read");
  } catch (const ring::Error&) {
  }
  return 0;
}
