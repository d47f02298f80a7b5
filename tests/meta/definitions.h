#pragma once
// Types of the whole tree.

#include <string>
#include <vector>

#include "tests/meta/source_tree.h"

namespace ring::test {

// Types outside of functions and of unnamed namespaces that two files of the rooms define under one name: "ring::Job:
// data/encode_job.h, launcher/job.h". The linker takes the members of one of them for both, without a word.
std::vector<std::string> types_defined_twice(const std::vector<SourceFile>&);

}  // namespace ring::test
