// Runs the tests or, with --worker, a worker process that a test started.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

#include "tests/layouts/worker.h"

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "--worker") return ring::test::serve_requests(std::atoi(argv[2]));
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
