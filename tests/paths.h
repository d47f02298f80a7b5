#pragma once
// Paths of files that tests use. If a package of the tests (scripts/gpu_tests.py) runs on a different machine, the
// environment variables RING_SOURCE_DIR and RING_BINARY replace the paths of the build.

#include <string>

namespace ring::test {

std::string source_dir();   // the repository, without a trailing slash
std::string ring_binary();  // the ringmaster program

}  // namespace ring::test
