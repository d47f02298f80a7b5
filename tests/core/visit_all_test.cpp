#include "core/visit_all.h"

#include <gtest/gtest.h>

#include <string>

namespace ring {
namespace {

template <class T>
struct Pair {
  T first, second;
};

struct Mixed {
  int one = 1;
  double other_type = 0.5;
  Pair<int> nested{2, 3};
  std::vector<Pair<int>> list = {{4, 5}, {6, 7}};
  std::shared_ptr<int> shared = std::make_shared<int>(100);
  int last = 8;
};

TEST(VisitAll, VisitsEachValueInTheOrderOfDeclaration) {
  Mixed mixed;
  EXPECT_EQ(list_all<int>(mixed), (std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(list_all<double>(mixed), std::vector<double>{0.5});
  EXPECT_EQ(list_all<int>(3), std::vector<int>{3}) << "a value itself";
  visit_all<int>(mixed, [](int& v) { v = -v; });
  EXPECT_EQ(list_all<int>(mixed), (std::vector<int>{-1, -2, -3, -4, -5, -6, -7, -8}));
}

struct Empty {};
struct Nine {
  int a, b, c, d, e, f, g, h, i;
};
struct Nineteen {
  int a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s;
};

TEST(VisitAll, CountsMembers) {
  EXPECT_TRUE(list_all<int>(Empty{}).empty());
  EXPECT_EQ(list_all<int>(Nine{1, 2, 3, 4, 5, 6, 7, 8, 9}), (std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(list_all<int>(Nineteen{.s = 19}).size(), 19u);
}

}  // namespace
}  // namespace ring
