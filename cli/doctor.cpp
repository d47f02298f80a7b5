#include <iostream>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/version.h"
#include "core/exit_code.h"
#include "generated/build_info.h"
#include "inspect/doctor.h"

namespace ring {
namespace {

void examine() {
  namespace info = build_info;
  const HostFacts host = inspect_host(".");
  std::vector<Finding> findings = check_host(host);
  const BackendFacts gpus = inspect_backend(Backend::cuda);
  for (const auto& part :
       {check_build(), check_cuda(gpus, {info::kCuda, info::kCudaArchs}, host), check_choices(gpus, inspect_choices())})
    findings.insert(findings.end(), part.begin(), part.end());
  std::cout << "Ringmaster " << version_text() << "\n\n" << findings_table(findings);
  if (!is_healthy(findings)) throw ExitCode{kExitError};
}

}  // namespace

void add_doctor_command(Command app) {
  app.add_subcommand("doctor",
                     "Check this machine for training: print its hardware and libraries, missing parts and remedies")
      .set_callback(examine);
}

}  // namespace ring
