#include "kernels/attention/cudnn/plans.h"

#include <cudnn.h>

#include "core/cuda/handles.h"
#include "core/log.h"
#include "kernels/attention/cudnn/library.h"

namespace ring::cudnn {

Plans::Plans(StreamImpl& stream) : device_(stream.device.index), plans_(stream, kMaxPlans) {
  if (version() == 0) return;
  const cuda::OnDevice on(device_);
  cudnnHandle_t handle = nullptr;
  cudnnStatus_t status = cudnnCreate(&handle);
  if (status == CUDNN_STATUS_SUCCESS) status = cudnnSetStream(handle, static_cast<cudaStream_t>(stream.native()));
  if (status == CUDNN_STATUS_SUCCESS)
    handle_ = handle;
  else
    log::warn("cuDNN cannot be started (", cudnnGetErrorString(status),
              "), so ringmaster's own attention kernels are used");
}

Plans::~Plans() {
  plans_.clear();
  if (handle_) cudnnDestroy(static_cast<cudnnHandle_t>(handle_));
}

const Plan* Plans::find(const Problem& p) {
  if (!handle_) return nullptr;
  return plans_.find(p, [this](const Problem& problem) { return make(problem); });
}

std::unique_ptr<Plan> Plans::make(const Problem& p) const {
  const cuda::OnDevice on(device_);
  try {
    auto plan = std::make_unique<Plan>(p, handle_);
    if (plan->workspace_bytes() <= kMaxWorkspace) return plan;
    log::debug("cuDNN attention would need ", plan->workspace_bytes(), " bytes of workspace, so own kernels are used");
  } catch (const std::exception& e) {
    log::debug(e.what(), ". Own kernels are used for ", p.batch, " x ", p.queries, " tokens of ", p.heads, " heads of ",
               p.dim);
  }
  return nullptr;
}

}  // namespace ring::cudnn
