#pragma once
// Expands Slurm's compressed host lists without scontrol, which is often missing where a job runs.

#include <string>
#include <vector>

namespace ring {

// Expands e.g. "n[09-11,20],login" to {"n09", "n10", "n11", "n20", "login"}. Throws Error, before anything is expanded,
// if the list is malformed, if a name has more than 255 characters, or if there are more than 65,536 hosts.
std::vector<std::string> expand_host_list(const std::string& text);

}  // namespace ring
