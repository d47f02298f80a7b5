#pragma once
// Functions of a C++ or CUDA source, found by their braces.

#include <string>
#include <vector>

#include "tests/meta/source_tree.h"

namespace ring::test {

struct Function {
  int line, lines;  // of its first word; until its last brace
};

// Those at namespace or class level, in order; what is defined inside of them counts as theirs.
std::vector<Function> functions_of(const SourceFile&);

}  // namespace ring::test
