#pragma once
#include <cstdint>

namespace ring {

// Type of the keys and values in a KV cache (model/kv_cache.h).
enum class KvCacheType : std::uint8_t {
  automatic,  // the activation type of the context's precision
  fp8,        // e4m3 with a scale for each row of a head (kernels/row_encoding.h)
};

}  // namespace ring
