#include "model/params.h"

#include <gtest/gtest.h>

#include <ctime>

#include "core/check.h"
#include "tests/error_of.h"

namespace ring {
namespace {

TEST(Parameters, ANameIsGivenOnce) {
  Parameters p;
  p.add({{.name = "a", .rows = 2}}, 3);
  p.add({{.name = "b", .rows = 2}, {.name = "c", .rows = 2}}, 3);
  EXPECT_NE(error_of([&] {
              p.add({{.name = "d", .rows = 2}, {.name = "c", .rows = 2}}, 3);
            }).find("parameter c added twice"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              p.add({{.name = "e", .rows = 2}, {.name = "e", .rows = 2}}, 3);
            }).find("parameter e added twice"),
            std::string::npos);
}

// To look for each name among all before it takes a hundred times as long.
TEST(Parameters, ManyTakeLittleTime) {
  const std::clock_t start = std::clock();
  Parameters many;
  for (int i = 0; i < 60'000; ++i) many.add({{.name = str("blocks.", i, ".mlp.w1"), .rows = 1}}, 1);
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 2);
}

}  // namespace
}  // namespace ring
