#pragma once
// Files outside of a test program. A package of the tests (scripts/gpu_tests.py) runs on another machine: there the
// environment variables RING_SOURCE_DIR and RING_BINARY replace the paths of the build.

#include <string>

namespace ring::test {

std::string source_dir();   // the repository, without a slash at its end
std::string ring_binary();  // the ringmaster program

}  // namespace ring::test
