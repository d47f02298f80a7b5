// An NVML library for a machine with one GPU, at 0000:3b:00.0.
#include <cstring>

extern "C" {

struct Utilization {
  unsigned gpu, memory;
};
struct Memory {
  unsigned long long total, free, used;
};

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus, void** device) {
  static int gpu = 0;
  *device = &gpu;
  return std::strcmp(bus, "0000:3b:00.0") == 0 ? 0 : 6;
}
int nvmlDeviceGetTemperature(void*, int sensor, unsigned* celsius) {
  *celsius = 61;
  return sensor == 0 ? 0 : 2;
}
int nvmlDeviceGetMemoryInfo(void*, Memory* memory) {
  *memory = {80'000, 30'000, 50'000};
  return 0;
}
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
  *milliwatts = 412'500;
  return 0;
}
int nvmlDeviceGetUtilizationRates(void*, Utilization* rates) {
  *rates = {97, 40};
  return 0;
}
int nvmlDeviceGetClockInfo(void*, int type, unsigned* mhz) {
  *mhz = type == 1 ? 1980 : 2619;
  return 0;
}
// The driver reports that it slows the GPU down because of heat (nvmlClocksThrottleReasonSwThermalSlowdown).
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) {
  *reasons = 0x20;
  return 0;
}
}
