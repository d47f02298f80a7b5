#include "tests/paths.h"

#include <cstdlib>

namespace ring::test {
namespace {

std::string from_environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value ? value : otherwise;
}

}  // namespace

std::string source_dir() { return from_environment("RING_SOURCE_DIR", RING_SOURCE_DIR); }
std::string ring_binary() { return from_environment("RING_BINARY", RING_BINARY); }

}  // namespace ring::test
