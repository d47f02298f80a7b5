#pragma once
// Slurm's compressed host lists, expanded here because scontrol is often absent where a job runs.

#include <string>
#include <vector>

namespace ring {

// "n[09-11,20],login" -> {"n09", "n10", "n11", "n20", "login"}. Error: malformed, a name of more than 255 characters,
// more than 65,536 hosts; nothing is expanded before that is known.
std::vector<std::string> expand_host_list(const std::string& text);

}  // namespace ring
