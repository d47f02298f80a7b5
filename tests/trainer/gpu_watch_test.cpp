// GPU sensors during training, with made-up readings: the readings become metrics, and a GPU that slows down is named.
#include "trainer/gpu_watch.h"

#include <atomic>

#include "comm/pace.h"
#include "core/fields.h"
#include "core/stop_signal.h"
#include "engine/config.h"
#include "engine/devices.h"
#include "tests/trainer/runs.h"
#include "trainer/train.h"

namespace ring {
namespace {

GpuReading reading(double watts, double mhz, std::uint64_t throttle = 0) {
  return {.celsius = 60, .watts = watts, .utilization = 0.5, .sm_mhz = mhz, .throttle = throttle};
}

TEST(SensorSamples, AreAveragedSinceTheReadersLastCall) {
  using Reader = GpuSamples::Reader;
  GpuSamples samples;
  EXPECT_FALSE(samples.take(Reader::metrics).mean.watts);
  samples.add(reading(100, 1000));
  samples.add(reading(300, 2000, 0x20));
  EXPECT_EQ(samples.take(Reader::metrics).mean.watts, 200);
  samples.add(reading(500, 400, kGpuIdle));
  EXPECT_EQ(samples.take(Reader::metrics).mean.watts, 500);
  EXPECT_EQ(samples.take(Reader::metrics).mean.watts, 500) << "the newest, as none came since";
  const GpuSamples::Means pace = samples.take(Reader::pace);
  EXPECT_EQ(pace.mean.watts, 300);
  EXPECT_EQ(pace.busy, 1500) << "without the reading of an idle GPU";
  EXPECT_EQ(pace.mean.throttle, 0x20u);
}

TEST(SensorWatch, ReadsUntilItEnds) {
  std::atomic<int> reads = 0;
  const auto source = std::make_shared<const GpuSource>(GpuSource{"0000:3b:00.0", [&] {
                                                                    ++reads;
                                                                    return reading(400, 1980);
                                                                  }});
  {
    GpuWatch watch(source, 1e-3);
    while (reads < 3) std::this_thread::yield();
    EXPECT_EQ(watch.take(GpuSamples::Reader::metrics).mean.watts, 400);
    EXPECT_EQ(watch.bus(), "0000:3b:00.0");
  }
  const int after = reads;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(reads, after);
}

class SensorRuns : public test::Runs {};

TEST_F(SensorRuns, ReadingsAreMetricsOfTheRun) {
  Config config;
  constexpr config::Synonyms kNone{};
  std::vector<std::string> words = train("run", {"train.steps=4"});
  const std::string file = words[2];
  load_config(config, file, {words.begin() + 3, words.end()}, &kNone);
  TrainOptions options;
  options.gpu = std::make_shared<const GpuSource>(GpuSource{"0000:3b:00.0", [] { return reading(412.5, 1980); }});
  StopSignal signal(false);
  const std::unique_ptr<Mesh> mesh = join_mesh(config);
  ring::train(config, options, *mesh, signal);
  int records = 0;
  std::ifstream lines(path("run/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto record = nlohmann::json::parse(line);
    if (record.at("group") != "train" || ++records < 4) continue;  // by then there was a reading
    EXPECT_EQ(record.at("gpu_watts"), 412.5);
    EXPECT_EQ(record.at("gpu_utilization"), 0.5);
    EXPECT_EQ(record.at("gpu_sm_mhz"), 1980);
    EXPECT_EQ(record.at("gpu_celsius"), 60);
  }
  EXPECT_EQ(records, 4);
}

}  // namespace
}  // namespace ring
