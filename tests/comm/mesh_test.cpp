#include "comm/mesh/mesh.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "comm/gloo/gloo.h"
#include "comm/host.h"
#include "tests/comm/mesh_ranks.h"
#include "tests/comm/ranks.h"
#include "tests/error_of.h"

namespace ring {
namespace {

// Returns the axes of a run. Mesh itself accepts any axes.
MeshLayout layout_of(int dp, int cp, int tp) {
  return {.axes = {{"pp", 1}, {"dp", dp}, {"cp", cp, AxisTransfers::beside_kernels}, {"tp", tp}},
          .unions = {{"dp", "cp"}}};
}

TEST(MeshAxes, CoordinatesAndGroupsFollowTheAxes) {
  const MeshAxes grid({{"a", 2}, {"b", 3}, {"c", 4}});
  EXPECT_EQ(grid.size(), 24);
  for (int a = 0, rank = 0; a < 2; ++a)
    for (int b = 0; b < 3; ++b)
      for (int c = 0; c < 4; ++c, ++rank) {
        EXPECT_EQ(grid.coord(rank, "a"), a);
        EXPECT_EQ(grid.coord(rank, "b"), b);
        EXPECT_EQ(grid.coord(rank, "c"), c);
      }
  using Ranks = std::vector<int>;
  EXPECT_EQ(grid.group(17, {"c"}), (Ranks{16, 17, 18, 19}));
  EXPECT_EQ(grid.group(17, {"b"}), (Ranks{13, 17, 21}));
  EXPECT_EQ(grid.group(17, {"a"}), (Ranks{5, 17}));
  EXPECT_EQ(grid.group(17, {"a", "b"}), (Ranks{1, 5, 9, 13, 17, 21}));
  EXPECT_EQ(grid.group(17, {"c", "a"}), (Ranks{4, 5, 6, 7, 16, 17, 18, 19}));
  EXPECT_EQ(grid.group(17, {"a", "b", "c"}).size(), 24u);
}

TEST(MeshAxes, RefusesInvalidAxes) {
  EXPECT_NE(error_of([] { MeshAxes({{"dp", 2}, {"dp", 2}}); }).find("two axes are named dp"), std::string::npos);
  EXPECT_NE(error_of([] { MeshAxes({{"dp", 0}}); }).find("axis dp has degree 0"), std::string::npos);
  EXPECT_NE(error_of([] {
              MeshAxes({{"dp", 2}, {"tp", 1}}).group(0, {"ep"});
            }).find("no axis 'ep'; its axes are dp, tp"),
            std::string::npos);
}

TEST(Mesh, OneProcessHasEveryAxis) {
  const auto mesh = Mesh::join(WorkerEnvironment{}, {}, layout_of(1, 1, 1));
  for (const char* axis : {"dp", "cp", "tp", "pp"}) {
    EXPECT_EQ(mesh->degree(axis), 1);
    EXPECT_EQ(mesh->coord(axis), 0);
    EXPECT_EQ(mesh->axis(axis).backend(), "self");
  }
  EXPECT_EQ(mesh->store(), nullptr);
  EXPECT_NE(error_of([&] { mesh->axis("ep"); }).find("no axis 'ep'"), std::string::npos);
  EXPECT_NE(error_of([&] { mesh->group({"dp", "tp"}); }).find("no group dp x tp"), std::string::npos);
}

TEST(Mesh, AxesMustCoverTheWorld) {
  EXPECT_NE(error_of([] { Mesh::join(WorkerEnvironment{}, {}, layout_of(2, 1, 1)); }).find("axes of 2 ranks"),
            std::string::npos);
}

TEST(Mesh, LoopbackBetweenNodesIsRefused) {
  WorkerEnvironment env;
  env.world = 2;
  env.host_store = true;
  env.local_world = 1;
  env.cookie = "c";
  env.store_ports = 16;
  env.store = {"127.0.0.1", 21800};
  const std::string error = error_of([&] { Mesh::join(env, {}, layout_of(2, 1, 1)); });
  EXPECT_NE(error.find("RINGMASTER_ADDRESS"), std::string::npos) << error;
}

class DistMesh : public testing::Test {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};

// Two jobs start with the same address and port, like two torchruns on one host. Their cookies keep them apart.
TEST_F(DistMesh, TwoJobsOnOnePortDoNotMerge) {
  std::vector<std::thread> threads;
  std::vector<std::string> errors(4);
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      const int job = i / 2;
      try {
        WorkerEnvironment env;
        env.source = "torchrun";
        env.rank = i % 2;
        env.world = env.local_world = 2;
        env.host_store = true;
        env.store_ports = 16;
        env.store = {"127.0.0.1", 21900};
        env.cookie = str("job ", job, " of ", getpid());  // other runs of this test use the same ports
        CommOptions options;
        options.connect_timeout = Timeout(10'000);
        const auto mesh = Mesh::join(env, options, layout_of(2, 1, 1));
        const auto jobs = gather_host(mesh->all(), std::to_string(job));
        RING_CHECK(jobs == std::vector<std::string>(2, std::to_string(job)), "met the other job");
        RING_CHECK(mesh->coord("dp") == i % 2 && mesh->degree("dp") == 2 && mesh->degree("cp") == 1, "axes");
        mesh->all().barrier().synchronize();
      } catch (const Error& e) {
        errors[static_cast<std::size_t>(i)] = e.what();
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(test::joined(errors), "");
}

// All ranks verify that they call the same operations.
std::string run_verified(const MeshLayout& layout, const std::function<void(Mesh&)>& fn) {
  CommOptions options;
  options.verify = true;
  return test::run_mesh(layout, fn, options);
}

std::string members_of(Communicator& c, int rank) {
  std::string all;
  for (const std::string& r : gather_host(c, std::to_string(rank))) all += (all.empty() ? "" : " ") + r;
  return all;
}

TEST_F(DistMesh, EveryAxisHasItsRanks) {
  MeshLayout layout = layout_of(2, 2, 2);
  layout.emulate_nodes = 2;
  EXPECT_EQ(
      run_verified(
          layout,
          [](Mesh& m) {
            const int t = m.rank() % 2, c = m.rank() / 2 % 2, d = m.rank() / 4;
            RING_CHECK(m.coord("dp") == d && m.coord("cp") == c && m.coord("tp") == t, "coordinates");
            const auto expect = [&](Communicator& comm, const std::string& want) {
              const std::string got = members_of(comm, m.rank());
              RING_CHECK(got == want, "got ", got, ", expected ", want);
            };
            const auto at = [](int dp, int cp, int tp) { return std::to_string((dp * 2 + cp) * 2 + tp); };
            expect(m.axis("tp"), at(d, c, 0) + " " + at(d, c, 1));
            expect(m.axis("cp"), at(d, 0, t) + " " + at(d, 1, t));
            expect(m.axis("dp"), at(0, c, t) + " " + at(1, c, t));
            expect(m.axis("pp"), std::to_string(m.rank()));
            expect(m.group({"dp", "cp"}), at(0, 0, t) + " " + at(0, 1, t) + " " + at(1, 0, t) + " " + at(1, 1, t));
            expect(m.host(), "0 1 2 3 4 5 6 7");
            RING_CHECK(&m.all() == &m.host() && &m.all() != &m.group({"dp", "cp"}), "groups of the same ranks are one");
            RING_CHECK(m.nodes_along("cp") == std::vector<int>({2 * d, 2 * d + 1}), "nodes");
          }),
      "");
}

TEST_F(DistMesh, AnAxisHasGroupsByNode) {
  EXPECT_EQ(run_verified(layout_of(1, 4, 2),
                         [](Mesh& m) {
                           const auto expect = [&](Communicator& comm, const std::vector<int>& ranks) {
                             std::string want;
                             for (const int r : ranks) want += (want.empty() ? "" : " ") + std::to_string(r);
                             const std::string got = members_of(comm, m.rank());
                             RING_CHECK(got == want, "got ", got, ", expected ", want);
                           };
                           const int t = m.rank() % 2, node = m.rank() / 4 * 4, index = m.rank() % 4;
                           const Mesh::NodeGroups two = m.groups_by_node("cp", 2);
                           expect(two.node, {node + t, node + 2 + t});
                           expect(two.between_nodes, {index, index + 4});
                           RING_CHECK(&m.groups_by_node("cp", 2).node == &two.node, "made again");
                           const Mesh::NodeGroups one = m.groups_by_node("cp", 4);
                           RING_CHECK(&one.node == &m.axis("cp") && one.between_nodes.size() == 1, "one node");
                         }),
            "");
  const auto mesh = Mesh::fake(layout_of(1, 4, 2), 0);
  EXPECT_THROW(mesh->groups_by_node("cp", 3), Error);
}

TEST_F(DistMesh, EqualGroupsShareACommunicatorExceptBesideKernels) {
  EXPECT_EQ(
      run_verified(layout_of(2, 1, 1),
                   [](Mesh& m) {
                     RING_CHECK(
                         &m.axis("dp") == &m.group({"dp", "cp"}) && &m.axis("dp") == &m.all() && &m.all() == &m.host(),
                         "dp 2");
                     RING_CHECK(m.axis("cp").backend() == "self" && m.nodes_along("cp") == std::vector<int>{0}, "cp 1");
                   }),
      "");
  EXPECT_EQ(run_verified(layout_of(1, 2, 1),
                         [](Mesh& m) {
                           RING_CHECK(&m.group({"dp", "cp"}) == &m.all() && m.axis("dp").size() == 1, "cp 2");
                           RING_CHECK(&m.axis("cp") != &m.all() && members_of(m.axis("cp"), m.rank()) == "0 1",
                                      "cp alone");
                           RING_CHECK(m.nodes_along("cp") == std::vector<int>({0, 0}), "one host is one node");
                         }),
            "");
}

// One rank starts the background operation first, the other rank last. If both groups had one order, each rank would
// wait for ever.
TEST_F(DistMesh, TheBackgroundHasItsOwnOrder) {
  EXPECT_EQ(run_verified(layout_of(2, 1, 1),
                         [](Mesh& m) {
                           Communicator& background = m.background();
                           RING_CHECK(&background == &m.background() && &background != &m.host(), "made once");
                           std::vector<Work> meetings;
                           if (m.rank() == 0) meetings.push_back(background.barrier());
                           RING_CHECK(members_of(m.host(), m.rank()) == "0 1", "steps");
                           if (m.rank() == 1) meetings.push_back(background.barrier());
                           meetings.front().synchronize();
                           RING_CHECK(members_of(background, m.rank()) == "0 1", "saves");
                         }),
            "");
}

TEST_F(DistMesh, HostValuesAreReducedAndGathered) {
  const auto errors = test::run_ranks(3, [](Communicator& c) {
    std::vector<double> v = {9007199254740991.0 - 3 + c.rank(), 0.5 * c.rank(), -1.0 * c.rank()};
    all_reduce_host(c, v, Reduce::max);
    RING_CHECK(v[0] == 9007199254740990.0 && v[1] == 1.0 && v[2] == 0.0, "max");
    RING_CHECK(sum_host(c, c.rank() + 0.25) == 3.75, "sum");
    const OnThisHost here = sum_on_this_host(c, static_cast<std::uint64_t>(c.rank()));
    RING_CHECK(here.processes == c.size() && here.sum == static_cast<std::uint64_t>(c.size() * (c.size() - 1) / 2),
               "host");
    RING_CHECK(any_host(c, c.rank() == 2) && !any_host(c, false), "any");
    const auto names = gather_host(c, std::string(static_cast<std::size_t>(c.rank()), 'x'));
    RING_CHECK(names == (std::vector<std::string>{"", "x", "xx"}), "gather of different lengths");
  });
  EXPECT_EQ(test::joined(errors), "");
}

TEST(Host, OneRankGetsItsOwnValues) {
  const auto mesh = Mesh::join(WorkerEnvironment{}, {}, layout_of(1, 1, 1));
  EXPECT_EQ(sum_host(mesh->all(), 2.5), 2.5);
  EXPECT_EQ(gather_host(mesh->all(), "me"), std::vector<std::string>{"me"});
  EXPECT_EQ(sum_on_this_host(mesh->all(), 7).processes, 1);
  EXPECT_EQ(sum_on_this_host(mesh->all(), std::uint64_t{1} << 60).sum, std::uint64_t{1} << 60);
}

}  // namespace
}  // namespace ring
