#include "comm/mesh.h"

#include <gtest/gtest.h>

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

TEST(Mesh, RefusesWhatItCannotDo) {
  WorkerEnvironment four;
  four.world = 4;
  EXPECT_NE(error_of([&] {
              Mesh::join(four, {}, {{"tp", 2}});
            }).find("'tp' of degree 2 is not in this version"),
            std::string::npos);
  EXPECT_NE(error_of([&] { Mesh::join(four, {}, {{"dp", 3}}); }).find("multiply to 3, but 4"), std::string::npos);
  EXPECT_NE(error_of([&] { Mesh::join(four, {}, {{"xp", 1}}); }).find("no axis 'xp'"), std::string::npos);
  EXPECT_NE(error_of([&] { Mesh::join(four, {}, {{"cp", 0}}); }).find("'cp' is 0"), std::string::npos);
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
        env.cookie = "job " + std::to_string(job);
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
