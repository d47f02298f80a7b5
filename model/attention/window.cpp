// Sliding windows (Longformer: Beltagy et al. 2020), with attention sinks (StreamingLLM: Xiao et al. 2023).
#include "core/check.h"
#include "core/checked.h"
#include "model/attention/kinds.h"
#include "model/attention/pools.h"

namespace ring {
namespace {

void validate(const AttentionConfig& c, std::vector<SettingProblem>& errors) {
  if (c.window < 1)
    errors.push_back(str("window: ", c.window, ", but kind: window needs 1 token or more, such as window: 256"));
  validate_pools(c, errors);
}

Pattern pattern(const AttentionConfig& c, const ModelSizes&) {
  Pattern p;
  p.branches = {{.window = narrow<std::int32_t>(c.window)}};
  p.sinks = narrow<std::int32_t>(c.sinks);
  return with_pools(p, c);
}

std::string text(const AttentionConfig& c, std::optional<std::int64_t>) {
  return str("window of ", c.window, c.sinks ? str(", ", c.sinks, " sinks") : "", pools_text(c));
}

}  // namespace

AttentionKind window_attention() {
  return {
      .name = "window",
      .keys = "a window",
      .settings = {{"window", "newest tokens that are seen, the token itself among them"},
                   {"sinks", "first tokens of the document that stay in sight"},
                   {"pools", "sizes in tokens: of each the keys and values of all pools before a token are seen, too"},
                   {"pooling",
                    "keys and values of a pool: mean of its tokens', or learned: their sum by weights that the layer "
                    "learns, which begin as a mean"},
                   {"pool_gates", "whether each token and head learns to weigh the pools that it sees"}},
      .validate = validate,
      .pattern = pattern,
      .text = text};
}

}  // namespace ring
