#include "cli/version.h"

#include <sstream>

#include "core/check.h"
#include "generated/build_info.h"

namespace ring {

std::string version_text() {
  namespace info = build_info;
  std::string gpus = info::kCuda ? ", GPUs" : ", no GPU support";
  std::istringstream archs(info::kCudaArchs);
  for (std::string arch; info::kCuda && archs >> arch;) gpus += " sm_" + arch;
  return str(info::kVersion, " (", info::kCommit, ", ", info::kBuildType, ", ", info::kCompiler, ", ", info::kArch,
             gpus, ")");
}

}  // namespace ring
