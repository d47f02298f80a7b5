// Rates that settings name, with which a run plans.

#include "engine/rates.h"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "core/devices.h"
#include "core/fields.h"
#include "engine/memory_choice.h"
#include "engine/resolve.h"
#include "tests/comm/ranks.h"
#include "tests/error_of.h"

namespace ring {
namespace {

class Rates : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "ring_rates_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ + "/" + name) << text;
    return folder_ + "/" + name;
  }
  std::string file(const std::string& name, DeviceRates rates) const { return file(name, to_yaml(rates)); }

  static Config config_of(const std::string& rates, const std::vector<std::string>& more = {}) {
    Config c;
    std::vector<std::string> overrides = {
        "run.device=cpu", "run.threads=1",      "model.layers=4", "model.context=256", "model.width=128",
        "model.heads=4",  "train.batch_size=2", "train.steps=1",  "data.path=none",    "model.vocab_size=300"};
    overrides.push_back("run.rates=" + rates);
    overrides.insert(overrides.end(), more.begin(), more.end());
    override_config(c, overrides);
    return c;
  }

 private:
  std::string folder_;
};

TEST_F(Rates, ATableIsShippedForEachModel) {
  EXPECT_EQ(shipped_table("NVIDIA H100 80GB HBM3"), "h100");
  EXPECT_EQ(shipped_table("NVIDIA H100 PCIe"), "h100");
  EXPECT_EQ(shipped_table("NVIDIA H200"), "h200");
  EXPECT_EQ(shipped_table("another"), "h200");
  EXPECT_EQ(shipped_table(""), "h200");
  EXPECT_EQ(rates_named("", config_of("")).device, "cpu");
}

TEST_F(Rates, SettingsNameThemAndAnOptionHasPrecedence) {
  DeviceRates own = shipped_rates("cpu");
  own.bytes_per_second = 12345;
  const std::string path = file("own.yaml", own);
  EXPECT_EQ(rates_named("", config_of(path)).bytes_per_second, 12345);
  EXPECT_EQ(rates_named("", config_of("h100")).device, "h100");
  EXPECT_EQ(rates_named("h200", config_of(path)).device, "h200");
  EXPECT_EQ(rates_named(path, config_of("h100")).bytes_per_second, 12345);
}

TEST_F(Rates, ErrorsNameFileKeyAndRemedy) {
  const auto expect = [&](const std::string& rates, const std::vector<std::string>& parts) {
    const std::string error = error_of([&] { rates_named("", config_of(rates)); });
    for (const std::string& part : parts) EXPECT_NE(error.find(part), std::string::npos) << part << "\n" << error;
  };
  const std::string remedy = "ringmaster bench calibrate CONFIG";
  expect("/nowhere/rates.yaml", {"run.rates: /nowhere/rates.yaml", remedy});
  const std::string word = file("word.yaml", std::string("device: cpu\nbytes_per_second: fast\n"));
  expect(word, {"run.rates: " + word, "bytes_per_second", remedy});
  const std::string key = file("key.yaml", std::string("device: cpu\nbytes_a_second: 1e9\n"));
  expect(key, {"run.rates: " + key, "bytes_a_second", remedy});
  const std::string half = file("half.yaml", std::string("device: cpu\npeak_flops: 1e9\n"));
  expect(half, {"run.rates: " + half, "bytes_per_second: must be in", "give it a value", remedy});
  DeviceRates other = shipped_rates("cpu");
  std::swap(other.fp32, other.bf16);
  const std::string precision = file("precision.yaml", other);
  expect(precision, {"run.rates: " + precision, "contain none for fp32", remedy, "train.precision=fp32"});
  EXPECT_EQ(error_of([&] { rates_named(key, config_of(""), "--rates"); }).find("--rates: " + key), 0u);
}

// If transfers are free, a run offloads activations. If transfers are endless, the run recomputes them instead.
TEST_F(Rates, ARunPlansWithThem) {
  const auto moved = [&](double transfer) {
    DeviceRates rates = shipped_rates("cpu");
    rates.host_bytes_per_second = transfer;
    Config c = resolve_config(config_of(file("r.yaml", rates)), 300, 1, Backend::cpu, false);
    const auto mesh = Mesh::fake({.axes = {{"dp", 1}}}, 0);
    c.train.recompute = RecomputeChoice::none;
    const std::size_t most = choose_memory(c, *mesh, 0).fit.peak;
    c.train.recompute = RecomputeChoice::full;
    const std::size_t least = choose_memory(c, *mesh, 0).fit.peak;
    c.train.recompute = RecomputeChoice::automatic;
    c.train.activation_offload_bytes = 1'000'000'000;
    c.train.memory_budget = static_cast<double>((most + least) / 2);
    return choose_memory(c, *mesh, 1'000'000'000).fit.host;
  };
  EXPECT_GT(moved(1e12), 0u);
  EXPECT_EQ(moved(1e4), 0u);
}

class DistRates : public Rates {};

// The files may differ between machines, but the plan must not.
TEST_F(DistRates, RatesOfTheFirstRankAreUsedByAll) {
  std::array<DeviceRates, 2> agreed;
  std::array<DeviceRates, 2> own = {shipped_rates("cpu"), shipped_rates("cpu")};
  own[0].bytes_per_second = 1e10 / 3;
  own[1].bytes_per_second = 2e10;
  const auto errors = test::run_ranks(2, [&](Communicator& comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    agreed[rank] = agreed_rates(config_of(file(std::to_string(rank) + ".yaml", own[rank])), comm);
  });
  ASSERT_EQ(test::joined(errors), "");
  EXPECT_EQ(to_yaml(agreed[1]), to_yaml(own[0]));
  EXPECT_EQ(to_yaml(agreed[0]), to_yaml(own[0]));
}

TEST(GpuRates, TheModelIsTheStreams) {
  if (!backend_available(Backend::cuda)) GTEST_SKIP() << "no GPU";
  EXPECT_EQ(device_model({Backend::cuda, 0}), Stream::create({Backend::cuda, 0}).impl().device_name());
}

}  // namespace
}  // namespace ring
