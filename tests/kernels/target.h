#pragma once
// Base class of kernel tests that run on the CPU and, if available, on a GPU.

#include <gtest/gtest.h>

#include <ostream>

#include "core/stream.h"
#include "tests/kernels/poison_allocator.h"

namespace ring::test {

struct Target {
  Backend backend = Backend::cpu;
  DType dtype = DType::f32;
  double tolerance = 0;  // for tests that compare with one
};
inline void PrintTo(const Target& t, std::ostream* out) { *out << to_string(t.backend) << "_" << t.dtype; }

class OnTarget : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    if (!backend_available(GetParam().backend)) GTEST_SKIP() << "no device";
  }
  static ExecContext context(int threads = 3) {
    return GetParam().backend == Backend::cpu ? poisoned_context(threads)
                                              : poisoned_device_context({GetParam().backend, 0});
  }
};

}  // namespace ring::test
