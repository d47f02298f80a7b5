#include "model/attention/kinds.h"

namespace ring {

AttentionKind dense_attention() {
  return {.name = "dense",
          .keys = "all before it",
          .settings = {},
          .validate = {},
          .pattern = [](const AttentionConfig&, const ModelSizes&) { return Pattern{}; },
          .text = {}};
}

}  // namespace ring
