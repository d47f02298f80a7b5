#include "cli/version.h"

#include "core/check.h"
#include "generated/build_info.h"

namespace ring {

std::string version_text() {
  namespace info = build_info;
  return str(info::kVersion, " (", info::kCommit, ", ", info::kBuildType, ", ", info::kCompiler, ", ", info::kArch,
             ")");
}

}  // namespace ring
