#pragma once
// Finds types with several definitions in the tree.

#include <string>
#include <vector>

#include "tests/meta/source_tree.h"

namespace ring::test {

// Returns the types outside of functions and unnamed namespaces that two files of the rooms define under one name:
// "ring::Job: data/encode_job.h, launcher/job.h". The linker would silently use the members of one for both.
std::vector<std::string> types_defined_twice(const std::vector<SourceFile>&);

}  // namespace ring::test
