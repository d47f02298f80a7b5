// Registers NVTX ranges. NVTX is a header of the CUDA toolkit. It finds the profiler if the process runs under one, and
// otherwise does nothing.
#include <nvtx3/nvToolsExt.h>

#include "core/ranges.h"

namespace ring::cuda {
namespace {

const bool added = register_range_marks({[](const char* name) { nvtxRangePushA(name); }, [] { nvtxRangePop(); }});

}  // namespace
}  // namespace ring::cuda
