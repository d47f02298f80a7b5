#include "bench/links.h"

#include <gtest/gtest.h>

#include <regex>
#include <string>

#include "core/fields.h"
#include "tests/error_of.h"
#include "tests/paths.h"
#include "tests/process.h"

namespace ring {
namespace {

// The node's rate is the sum of its ranks' rates.
TEST(Links, RatesOfALinkAreSharedByTheRanksOfANode) {
  DeviceRates r = shipped_rates("h100");
  r.link_bytes_per_second = 5;
  Links links{.nodes = 2, .ranks_per_node = 4, .inside = {}, .between = LinkTimes{}};
  links.between->exchange = {.seconds = 1e-3, .bytes_per_second = 1e9};
  set_links(links, r);
  EXPECT_EQ(r.node_link_bytes_per_second, 4e9);
  EXPECT_EQ(r.node_link_seconds, 1e-3);
  EXPECT_EQ(r.link_bytes_per_second, 5) << "was not measured";
  links.inside = LinkTimes{};
  links.inside->exchange = {.seconds = 1e-6, .bytes_per_second = 7e9};
  links.inside->collective = {.seconds = 2e-6, .bytes_per_second = 8e9};
  links.between.reset();
  set_links(links, r);
  EXPECT_EQ(r.link_bytes_per_second, 7e9);
  EXPECT_EQ(r.link_seconds, 1e-6);
  EXPECT_EQ(r.collective_bytes_per_second, 8e9);
  EXPECT_EQ(r.collective_seconds, 2e-6);
  EXPECT_EQ(r.node_link_bytes_per_second, 4e9) << "was not measured again";
  EXPECT_NE(links_table(links).find("inside a node"), std::string::npos);
  EXPECT_EQ(links_table(links).find("between nodes"), std::string::npos);
}

TEST(Links, NodesHaveTheSameNumberOfRanks) {
  WorkerEnvironment env;
  env.world = 8;
  env.local_world = 4;
  EXPECT_EQ(layout_of_links(env, {}).axes[0].degree, 2);
  EXPECT_EQ(layout_of_links(env, {}).axes[1].degree, 4);
  env.local_world = 3;
  EXPECT_NE(error_of([&] { layout_of_links(env, {}); }).find("--nproc-per-node"), std::string::npos);
}

TEST(DistLinks, OneNodeHasLinksInsideOnly) {
  const std::string file = testing::TempDir() + "links_of_one_node.yaml";
  std::remove(file.c_str());
  const test::Finished f = test::run_process({test::ring_binary(), "launch", "-n", "2", "--", "bench", "links",
                                              "--device", "cpu", "--seconds", "0.005", "--out", file});
  ASSERT_EQ(f.code, 0) << f.output;
  EXPECT_NE(f.output.find("inside a node"), std::string::npos) << f.output;
  EXPECT_EQ(f.output.find("between nodes "), std::string::npos) << f.output;
  DeviceRates rates;
  load_config(rates, file);
  EXPECT_GT(rates.link_bytes_per_second, 0);
  EXPECT_GT(rates.collective_bytes_per_second, 0);
  EXPECT_EQ(rates.node_link_bytes_per_second, 0);
  EXPECT_GT(rates.fp32.products, 0) << "shipped";
  const test::Finished alone = test::run_process({test::ring_binary(), "bench", "links", "--out", file});
  EXPECT_EQ(alone.code, 1);
  EXPECT_NE(alone.output.find("ringmaster launch"), std::string::npos) << alone.output;
  std::remove(file.c_str());
}

}  // namespace
}  // namespace ring
