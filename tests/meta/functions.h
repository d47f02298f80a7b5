#pragma once
// Finds the functions of a C++ or CUDA source by their braces.

#include <string>
#include <vector>

#include "tests/meta/source_tree.h"

namespace ring::test {

struct Function {
  int line, lines;  // line of its first word; lines up to its last brace
};

// Returns the functions at namespace or class level, in order. Code inside them, such as lambdas, counts as theirs.
std::vector<Function> functions_of(const SourceFile&);

}  // namespace ring::test
