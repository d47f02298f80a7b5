// The tests, or, with --worker, one of the processes that they start.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

#include "tests/layouts/worker.h"

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "--worker") return ring::test::serve_orders(std::atoi(argv[2]));
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
