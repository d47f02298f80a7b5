#pragma once
// Checks of the options that name a file to write.

#include <string>
#include <vector>

namespace ring {

// Throws Error if the option's file cannot be written, is one of the inputs (see check_output_is_no_input), or is a
// file that a run wrote. Call this before the work whose result the file receives.
void check_output(const std::string& option, const std::string& output, const std::vector<std::string>& inputs = {});

}  // namespace ring
