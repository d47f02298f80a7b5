#include "core/gpu_sensors.h"

#include <gtest/gtest.h>

namespace ring {
namespace {

TEST(NvmlSensors, ReportTheValuesOfNvml) {
  GpuSensors sensors(RING_FAKE_NVML);
  const GpuReading there = sensors.read("0000:3b:00.0"), elsewhere = sensors.read("0000:af:00.0");
  EXPECT_EQ(there.celsius, 61);
  EXPECT_EQ(there.used_bytes, 50'000);
  EXPECT_DOUBLE_EQ(there.watts.value(), 412.5);
  EXPECT_DOUBLE_EQ(there.utilization.value(), 0.97);
  EXPECT_EQ(there.sm_mhz, 1980);
  EXPECT_EQ(throttle_text(there.throttle), "heat");
  EXPECT_FALSE(elsewhere.celsius || elsewhere.used_bytes || elsewhere.watts || elsewhere.utilization ||
               elsewhere.sm_mhz || elsewhere.throttle);
}

TEST(NvmlSensors, AreEmptyWithoutNvml) {
  GpuSensors sensors("libno-such-library.so");
  const GpuReading r = sensors.read("0000:3b:00.0");
  EXPECT_FALSE(r.celsius || r.used_bytes || r.watts || r.utilization || r.sm_mhz || r.throttle);
}

// Bits of nvmlClocksThrottleReasons in nvml.h.
TEST(NvmlSensors, ReasonsAreWords) {
  EXPECT_EQ(throttle_text(0), "");
  EXPECT_EQ(throttle_text(kGpuIdle), "");
  EXPECT_EQ(throttle_text(0x4), "the power limit");
  EXPECT_EQ(throttle_text(0x4 | 0x40 | kGpuIdle), "the power limit, heat (hardware slowdown)");
}

TEST(NvmlSensors, ACpuHasNoAddress) { EXPECT_EQ(device_bus({Backend::cpu, 0}), ""); }

}  // namespace
}  // namespace ring
