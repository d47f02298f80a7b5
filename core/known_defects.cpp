#include "core/known_defects.h"

#include "core/check.h"

namespace ring {

std::string to_string(const Version& v) { return str(v.major, '.', v.minor, '.', v.patch); }

const std::vector<KnownDefect>& all_known_defects() {
  static const std::vector<KnownDefect> defects = {
      {"cuDNN",
       {0, 0, 0},
       {9, 13, 0},
       true,
       "the attention of versions before 9.13 has defects on Hopper (9.10.0 and 9.10.1: backward; 9.11 and 9.12: heads "
       "wider than 128; before 9.12: strides of the log-sum-exp are ignored)",
       "Install cuDNN 9.13 or newer (nvidia-cudnn-cu13)",
       "NVIDIA/cudnn-frontend, release notes 1.14.1 and the support checks of its attention nodes"},
      {"cuDNN",
       {9, 14, 0},
       {9, 14, 1},
       false,
       "attention with a non-causal window over more than 1024 keys is wrong; dense attention is not affected",
       "No action is needed: Ringmaster's own kernels handle such calls",
       "NVIDIA/cudnn-frontend, support check of the attention backward node"},
      {"cuDNN",
       {0, 0, 0},
       {9, 15, 1},
       false,
       "in a replayed CUDA graph, the attention backward reads out of bounds if lengths are not a multiple of 128",
       "No action is needed: Ringmaster's own kernels handle such lengths",
       "NVIDIA/cudnn-frontend, release notes 1.16.0"},
      {"NCCL",
       {2, 28, 3},
       {2, 28, 9},
       false,
       "tearing down a communicator after a failure can crash the process",
       "Install NCCL 2.28.9 or newer (nvidia-nccl-cu13) for recovery without a restart",
       "NVIDIA/nvidia-resiliency-ext, requirements of in-process restart"},
  };
  return defects;
}

std::vector<KnownDefect> known_defects(std::string_view library, const Version& version) {
  std::vector<KnownDefect> found;
  for (const KnownDefect& d : all_known_defects())
    if (d.library == library && d.from <= version && version < d.fixed) found.push_back(d);
  return found;
}

}  // namespace ring
