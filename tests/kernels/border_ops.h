#pragma once
// Calls of kernels with operands beyond the border of 32-bit offsets (border_operands.h).

#include <ostream>

#include "tests/kernels/border_operands.h"

namespace ring::test {

struct BorderOp {
  std::string slot, name;  // name: of the variant; "" if the slot has only one
  void (*call)(BorderOperands&, DType) = nullptr;
};
inline void PrintTo(const BorderOp& op, std::ostream* out) { *out << op.slot << ' ' << op.name; }
// Namespaces, because functions have the names of ops.
namespace border_rows {
std::vector<BorderOp> ops();  // rows far apart
}
namespace border_attention {
std::vector<BorderOp> ops();  // rows far apart, and rows with high numbers
}
namespace border_linear_attention {
std::vector<BorderOp> ops();  // rows far apart
}
namespace border_flat {
std::vector<BorderOp> ops();  // every element is read: for GPUs only
}

}  // namespace ring::test
