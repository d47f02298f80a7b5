#include "model/params.h"

#include <gtest/gtest.h>

#include <ctime>

#include "core/check.h"
#include "tests/error_of.h"

namespace ring {
namespace {

TEST(Parameters, DuplicateNamesAreRefused) {
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

TEST(Parameters, EveryShardHoldsWholeParts) {
  const auto slice_of = [](int rank, int size) {
    Parameters p;
    p.add({{.name = "a", .rows = 2}, {.name = "b", .rows = 3}, {.name = "c", .rows = 4}, {.name = "d", .rows = 5}}, 3,
          {.cut = Cut::parts});
    p.shard({rank, size});
    return *p.declared()[0];
  };
  EXPECT_EQ(slice_of(0, 2).shape, (Shape{5, 3}));
  const Param second = slice_of(1, 2);
  EXPECT_EQ(second.shape, (Shape{9, 3}));
  EXPECT_EQ(second.parts[1].rows, 0);
  EXPECT_EQ(second.parts[3].first_row, 4);
  EXPECT_EQ(second.parts[3].start, (Shape{0, 0}));
  EXPECT_NE(error_of([&] { slice_of(0, 3); }).find("4 parts do not divide"), std::string::npos);
}

// A linear search for each name would take a hundred times as long.
TEST(Parameters, ManyAreAddedQuickly) {
  const std::clock_t start = std::clock();
  Parameters many;
  for (int i = 0; i < 60'000; ++i) many.add({{.name = str("blocks.", i, ".mlp.w1"), .rows = 1}}, 1);
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 2);
}

}  // namespace
}  // namespace ring
