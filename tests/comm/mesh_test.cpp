#include "comm/mesh/mesh.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "comm/gloo/gloo.h"
#include "comm/host.h"
#include "tests/comm/ranks.h"

namespace ring {
namespace {

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

constexpr const char* kRemedy =
    " with so many. Set parallel.cp and parallel.tp, or start others: ringmaster launch --nproc-per-node N";

TEST(Mesh, OneProcessHasEveryAxis) {
  const auto mesh = Mesh::join({});
  for (const char* axis : {"dp", "cp", "tp", "pp"}) {
    EXPECT_EQ(mesh->degree(axis), 1);
    EXPECT_EQ(mesh->coord(axis), 0);
    EXPECT_EQ(mesh->axis(axis).backend(), "self");
  }
  EXPECT_EQ(mesh->store(), nullptr);
  EXPECT_NE(error_of([&] { mesh->axis("ep"); }).find("no axis 'ep'"), std::string::npos);
}

std::string refusal(const std::map<std::string, int>& degrees, int world) {
  return error_of([&] { mesh_degrees(degrees, world); });
}

TEST(Mesh, RefusesDegreesAndSaysWhatFits) {
  EXPECT_EQ(refusal({{"cp", 3}}, 8),
            std::string("mesh: cp: 3 x tp: 1 does not divide 8 processes; cp may be 1, 2, 4 or 8") + kRemedy);
  EXPECT_EQ(refusal({{"tp", 5}}, 8),
            std::string("mesh: cp: 1 x tp: 5 does not divide 8 processes; tp may be 1, 2, 4 or 8") + kRemedy);
  EXPECT_EQ(refusal({{"cp", 3}, {"tp", 2}}, 8),
            std::string("mesh: cp: 3 x tp: 2 does not divide 8 processes; cp may be 1, 2 or 4") + kRemedy);
  EXPECT_EQ(refusal({{"cp", 4}, {"tp", 4}}, 8),
            std::string("mesh: cp: 4 x tp: 4 does not divide 8 processes; cp may be 1 or 2") + kRemedy);
  EXPECT_EQ(refusal({{"cp", 2}, {"tp", 3}}, 8),
            std::string("mesh: cp: 2 x tp: 3 does not divide 8 processes; tp may be 1, 2 or 4") + kRemedy);
  EXPECT_EQ(refusal({{"cp", 5}, {"tp", 3}}, 8),
            std::string("mesh: cp: 5 x tp: 3 does not divide 8 processes; cp x tp may be 1, 2, 4 or 8") + kRemedy);
  EXPECT_EQ(refusal({{"cp", 2}}, 1),
            std::string("mesh: cp: 2 x tp: 1 does not divide 1 process; cp may be 1") + kRemedy);
  EXPECT_EQ(refusal({{"dp", 3}}, 4),
            "mesh: dp: 3 x cp: 1 x tp: 1 needs 3 processes, but 4 were started. Start them (ringmaster launch "
            "--nproc-per-node 3 -- train ..), or set parallel.dp to 4, or to 0 for what is left");
  EXPECT_NE(refusal({{"pp", 2}}, 4).find("pp: 2: pipeline parallelism is not in this version"), std::string::npos);
  EXPECT_NE(refusal({{"xp", 1}}, 4).find("no axis 'xp'"), std::string::npos);
  EXPECT_NE(refusal({{"cp", 0}}, 4).find("'cp' is 0"), std::string::npos);
  WorkerEnvironment four;
  four.world = 4;  // refused before anybody is waited for
  EXPECT_NE(error_of([&] { Mesh::join(four, {}, {.degrees = {{"cp", 3}}}); }).find("cp may be"), std::string::npos);
}

TEST(Mesh, DegreesThatAreNotGiven) {
  const MeshDegrees m = mesh_degrees({{"cp", 2}, {"tp", 2}, {"pp", 1}}, 24);
  EXPECT_EQ(m.dp, 6);
  EXPECT_EQ(m.cp, 2);
  EXPECT_EQ(m.tp, 2);
  EXPECT_EQ(mesh_degrees({}, 7).dp, 7);
}

TEST(Mesh, LoopbackBetweenNodesIsRefused) {
  WorkerEnvironment env;
  env.world = 2;
  env.host_store = true;
  env.local_world = 1;
  env.cookie = "c";
  env.store_ports = 16;
  env.store = {"127.0.0.1", 21800};
  const std::string error = error_of([&] { Mesh::join(env); });
  EXPECT_NE(error.find("RINGMASTER_ADDRESS"), std::string::npos) << error;
}

class DistMesh : public testing::Test {
 protected:
  void SetUp() override {
    if (!gloo_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};

// Two jobs started with the same address and port, as two torchruns on one host are: the cookie keeps them apart.
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
        const auto mesh = Mesh::join(env, options);
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

// Runs all ranks of a mesh as threads of this process.
std::string run_mesh(int world, const MeshPlan& plan, const std::function<void(Mesh&)>& fn) {
  const StoreServer server({"127.0.0.1", 0}, "mesh");
  std::vector<std::thread> threads;
  std::vector<std::string> errors(static_cast<std::size_t>(world));
  for (int rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      try {
        WorkerEnvironment env;
        env.rank = rank;
        env.world = env.local_world = world;
        env.store = server.endpoint();
        env.cookie = "mesh";
        CommOptions options;
        options.verify = true;
        const auto mesh = Mesh::join(env, options, plan);
        fn(*mesh);
        mesh->host().barrier().synchronize();
      } catch (const Error& e) {
        errors[static_cast<std::size_t>(rank)] = e.what();
      }
    });
  for (std::thread& t : threads) t.join();
  return test::joined(errors);
}

std::string members(Communicator& c, int rank) {
  std::string all;
  for (const std::string& r : gather_host(c, std::to_string(rank))) all += (all.empty() ? "" : " ") + r;
  return all;
}

TEST_F(DistMesh, RanksOfEveryAxis) {
  const MeshPlan plan{.degrees = {{"cp", 2}, {"tp", 2}}, .emulate_nodes = 2};
  EXPECT_EQ(run_mesh(8, plan,
                     [](Mesh& m) {
                       const int t = m.rank() % 2, c = m.rank() / 2 % 2, d = m.rank() / 4;
                       RING_CHECK(m.coord("dp") == d && m.coord("cp") == c && m.coord("tp") == t, "coordinates");
                       const auto expect = [&](Communicator& comm, const std::string& want) {
                         const std::string got = members(comm, m.rank());
                         RING_CHECK(got == want, "got ", got, ", expected ", want);
                       };
                       const auto at = [](int dp, int cp, int tp) { return std::to_string((dp * 2 + cp) * 2 + tp); };
                       expect(m.axis("tp"), at(d, c, 0) + " " + at(d, c, 1));
                       expect(m.axis("cp"), at(d, 0, t) + " " + at(d, 1, t));
                       expect(m.axis("dp"), at(0, c, t) + " " + at(1, c, t));
                       expect(m.axis("pp"), std::to_string(m.rank()));
                       expect(m.data(), at(0, 0, t) + " " + at(0, 1, t) + " " + at(1, 0, t) + " " + at(1, 1, t));
                       expect(m.host(), "0 1 2 3 4 5 6 7");
                       RING_CHECK(&m.all() == &m.host() && &m.all() != &m.data(), "groups of the same ranks are one");
                       RING_CHECK(m.nodes_of_cp_ranks() == std::vector<int>({2 * d, 2 * d + 1}), "nodes");
                     }),
            "");
}

TEST_F(DistMesh, EqualGroupsShareOneCommunicatorButForContext) {
  EXPECT_EQ(run_mesh(2, {},
                     [](Mesh& m) {
                       RING_CHECK(&m.axis("dp") == &m.data() && &m.data() == &m.all() && &m.all() == &m.host(), "dp 2");
                       RING_CHECK(m.axis("cp").backend() == "self" && m.nodes_of_cp_ranks() == std::vector<int>{0},
                                  "cp 1");
                     }),
            "");
  EXPECT_EQ(run_mesh(2, {.degrees = {{"cp", 2}}},
                     [](Mesh& m) {
                       RING_CHECK(&m.data() == &m.all() && m.axis("dp").size() == 1, "cp 2");
                       RING_CHECK(&m.axis("cp") != &m.data() && members(m.axis("cp"), m.rank()) == "0 1", "cp alone");
                       RING_CHECK(m.nodes_of_cp_ranks() == std::vector<int>({0, 0}), "one host is one node");
                     }),
            "");
}

TEST_F(DistMesh, HostValues) {
  const auto errors = test::run_ranks(3, [](Communicator& c) {
    std::vector<double> v = {9007199254740991.0 - 3 + c.rank() * 0, 0.5 * c.rank(), -1.0 * c.rank()};
    all_reduce_host(c, v, Reduce::max);
    RING_CHECK(v[0] == 9007199254740988.0 && v[1] == 1.0 && v[2] == 0.0, "max");
    RING_CHECK(sum_host(c, c.rank() + 0.25) == 3.75, "sum");
    RING_CHECK(any_host(c, c.rank() == 2) && !any_host(c, false), "any");
    const auto names = gather_host(c, std::string(static_cast<std::size_t>(c.rank()), 'x'));
    RING_CHECK(names == (std::vector<std::string>{"", "x", "xx"}), "gather of different lengths");
    check_same(c, "config", "abc");
    try {
      check_same(c, "config hash", c.rank() == 1 ? "b" : "a");
      fail("a difference went unnoticed");
    } catch (const Error& e) {
      RING_CHECK(std::string(e.what()) == "config hash differs between ranks: rank 0 has 'a', rank 1 has 'b'",
                 e.what());
    }
  });
  EXPECT_EQ(test::joined(errors), "");
}

TEST(Host, OneRank) {
  const auto mesh = Mesh::join({});
  EXPECT_EQ(sum_host(mesh->all(), 2.5), 2.5);
  EXPECT_EQ(gather_host(mesh->all(), "me"), std::vector<std::string>{"me"});
}

}  // namespace
}  // namespace ring
