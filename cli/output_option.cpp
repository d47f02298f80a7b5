#include "cli/output_option.h"

#include "core/files.h"
#include "data/output_file.h"
#include "engine/run_directory.h"

namespace ring {

void check_output(const std::string& option, const std::string& output, const std::vector<std::string>& inputs) {
  check_writable(output);
  check_output_is_no_input(option, output, inputs);
  check_output_is_no_run_file(option, output);
}

}  // namespace ring
