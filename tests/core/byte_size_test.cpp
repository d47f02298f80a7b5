#include "core/byte_size.h"

#include <gtest/gtest.h>

#include "core/fields.h"
#include "tests/error_of.h"

namespace ring {
namespace {

struct Sizes {
  std::int64_t chunk = 1;
  std::int64_t staging = -1;
  double budget = 0;
  std::int64_t count = 0;
  void fields(Fields& f) {
    f("chunk", chunk, "of memory", bytes_in_range(1, 1e12));
    f("staging", staging, "of memory", bytes_in_range(0, 1e12), word("MB", -1));
    f("budget", budget, "of memory, or a share of it", share_or_bytes(1000, 1e15));
    f("count", count, "of anything", in_range(0, 1e12));
  }
};

Sizes parse_sizes(const std::string& text, const std::vector<std::string>& overrides = {}) {
  Sizes sizes;
  load_config_text(sizes, text, "a.yaml", overrides);
  return sizes;
}

TEST(ByteSize, HasUnits) {
  const auto bytes = [](const std::string& text) {
    std::int64_t n = -1;
    EXPECT_EQ(parse_bytes(text, n), "") << text;
    return n;
  };
  EXPECT_EQ(bytes("50MB"), 50'000'000);
  EXPECT_EQ(bytes("3 GiB"), std::int64_t{3} << 30);
  EXPECT_EQ(bytes("7k"), 7000);
  EXPECT_EQ(bytes("2tib"), std::int64_t{2} << 40);
  EXPECT_EQ(bytes("1e3"), 1000);
  EXPECT_EQ(bytes("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(bytes("8388607TiB"), std::int64_t{8388607} << 40);
  EXPECT_EQ(bytes("1.5GB"), 1'500'000'000);
  EXPECT_EQ(bytes("24.5 GiB"), std::int64_t{49} << 29);
  EXPECT_EQ(bytes("0.29GB"), 290'000'000) << "which a double rounds to 289,999,999.99...";
  EXPECT_EQ(bytes("2.0MB"), 2'000'000);
  EXPECT_EQ(bytes(".5k"), 500);
  EXPECT_EQ(bytes("0.3333KB"), 333) << "rounded down";
  EXPECT_EQ(bytes("0.9999KiB"), 1023) << "rounded down";
  EXPECT_EQ(bytes("8388607.999999999999999999TiB"), INT64_MAX) << "less than 2^63 by a part of a byte";
  for (const char* bad :
       {"8388608TiB", "8388608.0TiB", "-8388609TiB", "1e15TB", "5XB", "MB", "", "9223372036854775808", "1.5", "1.5B",
        "1.5.5GB", "1,5GB", ".GB", "-1.5GB", "1.5XB", "99999999999999999999.5GB", "0.1234567890123456789GB"}) {
    std::int64_t n = 0;
    EXPECT_NE(parse_bytes(bad, n), "") << bad;
  }
}

TEST(ByteSize, SettingsAcceptByteSizes) {
  const Sizes sizes = parse_sizes("chunk: 2MiB\nstaging: 4 kB\nbudget: 30MB\n");
  EXPECT_EQ(sizes.chunk, 2 << 20);
  EXPECT_EQ(sizes.staging, 4000);
  EXPECT_EQ(sizes.budget, 30e6);
  EXPECT_EQ(parse_sizes("budget: 0.5").budget, 0.5);
  EXPECT_EQ(parse_sizes("budget: 1").budget, 1);
  EXPECT_EQ(parse_sizes("budget: 1kB").budget, 1000);
  EXPECT_EQ(parse_sizes("budget: 1e9", {"budget=2GB"}).budget, 2e9);
  EXPECT_EQ(parse_sizes("chunk: 1.5MB").chunk, 1'500'000);
  EXPECT_EQ(parse_sizes("", {"budget=1.5GB"}).budget, 1.5e9);
  EXPECT_EQ(parse_sizes("staging: 1kB", {"staging=MB"}).staging, -1) << "a word of the setting's own";
  EXPECT_EQ(to_yaml(sizes), "chunk: 2097152\nstaging: 4000\nbudget: 3e7\ncount: 0\n");
}

TEST(ByteSize, MistakesNameTheSetting) {
  const auto errors = [](const std::string& text, const std::vector<std::string>& overrides = {}) {
    return error_of([&] { parse_sizes(text, overrides); });
  };
  EXPECT_EQ(errors("chunk: 1\nbudget: 30XB\n"), "a.yaml:2: budget: expected bytes, such as 50MB or 1GiB, got 30XB");
  EXPECT_EQ(errors("", {"chunk=2TB"}), "command line: chunk=2TB: must be in [1, 1e12] bytes, is 2000000000000");
  const std::string share = "must be a share in [0, 1] or a size such as 80GB, in [1000, 1e15] bytes, is ";
  EXPECT_EQ(errors("", {"budget=1B"}), "command line: budget=1B: " + share + "1B");
  EXPECT_EQ(errors("budget: 1 b"), "a.yaml:1: budget: " + share + "1 b");
  EXPECT_EQ(errors("budget: 80"), "a.yaml:1: budget: " + share + "80") << "neither a share nor a size";
  EXPECT_EQ(errors("", {"budget=999B"}), "command line: budget=999B: " + share + "999");
  EXPECT_EQ(errors("count: 30MB"), "a.yaml:1: count: expected an integer, got 30MB");
  EXPECT_NE(errors("chunk: '2MiB'"), "");
}

}  // namespace
}  // namespace ring
