// Sliding windows (Longformer: Beltagy et al. 2020), with attention sinks (StreamingLLM: Xiao et al. 2023).
#include "core/check.h"
#include "core/checked.h"
#include "model/attention/kinds.h"
#include "model/attention/variant_settings.h"

namespace ring {
namespace {

void validate_window(const AttentionConfig& c, std::vector<SettingProblem>& errors) {
  if (c.window < 1)
    errors.push_back(str("window: expected at least 1 token for kind: window, such as window: 256, got ", c.window));
  validate_variants(c, errors);
}

Pattern window_pattern(const AttentionConfig& c, const ModelSizes&) {
  Pattern p;
  p.branches = {{.window = narrow<std::int32_t>(c.window)}};
  p.sinks = narrow<std::int32_t>(c.sinks);
  return with_variants(p, c);
}

std::string window_text(const AttentionConfig& c, std::optional<std::int64_t>) {
  return str("window of ", c.window, c.sinks ? str(", ", c.sinks, " sinks") : "", variants_text(c));
}

void add_ineffective_window(const AttentionConfig& c, const TrainingSizes& t, std::vector<std::string>& texts) {
  if (c.window >= t.longest)
    texts.push_back(str("window: ", c.window, ", but the longest sequence has ", t.longest,
                        " tokens, so that every token sees all earlier ones, as in dense attention. Lower window, or "
                        "train longer sequences"));
  add_ineffective_variants(c, t, texts);
}

}  // namespace

AttentionKind window_attention() {
  return {.name = "window",
          .keys = "a window",
          .settings = {{"window", "number of most recent tokens that are seen, including the token itself"},
                       {"sinks", "number of first tokens of the document that stay visible"},
                       {"pools", "pool sizes in tokens; of each size, a token also sees all earlier pools"},
                       {"pooling", "mean of the tokens' keys and values, or their sum with learned weights"},
                       {"pool_gates", "learn for each token and head how to weight the pools that it sees"}},
          .validate = validate_window,
          .pattern = window_pattern,
          .text = window_text,
          .ineffective = add_ineffective_window};
}

}  // namespace ring
