#include "core/dtype.h"

namespace ring {

DType parse_dtype(std::string_view name) {
  for (DType t : {DType::f32, DType::bf16, DType::i32, DType::u8})
    if (to_string(t) == name) return t;
  fail("unknown dtype '", name, "': expected f32, bf16, i32 or u8");
}

}  // namespace ring
