#include "comm/leader.h"

#include <gtest/gtest.h>

#include <optional>

#include "core/storage.h"
#include "tests/comm/ranks.h"

namespace ring {
namespace {

TEST(DistLeader, AllRanksGetTheLeadersValues) {
  const auto errors = test::run_ranks(3, [](Communicator& comm) {
    const auto mine = [&](auto leader, auto other) { return comm.rank() == 0 ? leader : other; };
    EXPECT_EQ(broadcast_from_rank0(comm, [&] { return mine(std::string("a\0b", 3), std::string("?")); }),
              std::string("a\0b", 3));
    EXPECT_EQ(broadcast_from_rank0(comm, [&] { return std::string(); }), "");
    EXPECT_EQ(broadcast_from_rank0(comm, [&] { return mine(std::int64_t{1} << 60, std::int64_t{0}); }),
              std::int64_t{1} << 60);
    using Step = std::optional<std::int64_t>;
    EXPECT_EQ(broadcast_from_rank0(comm, [&] { return mine(Step(7), Step()); }), Step(7));
    EXPECT_EQ(broadcast_from_rank0(comm, [&] { return mine(Step(), Step(7)); }), Step());
  });
  EXPECT_EQ(test::joined(errors), "");
}

TEST(DistLeader, TheLeadersExceptionKeepsItsType) {
  const auto errors = test::run_ranks(2, [](Communicator& comm) {
    const auto act = []() -> bool { throw OutOfMemory("no memory", "use less"); };
    if (comm.rank() == 0) {
      EXPECT_THROW(broadcast_from_rank0(comm, act), OutOfMemory);
    } else {
      try {
        broadcast_from_rank0(comm, act);
        ADD_FAILURE() << "nothing was thrown";
      } catch (const OutOfMemory&) {
        ADD_FAILURE() << "the rank has memory";
      } catch (const Error& e) {
        EXPECT_STREQ(e.what(), "no memory. use less");
      }
    }
    EXPECT_TRUE(broadcast_from_rank0(comm, [] { return true; }));  // the ranks can continue together
  });
  EXPECT_EQ(test::joined(errors), "");
}

}  // namespace
}  // namespace ring
