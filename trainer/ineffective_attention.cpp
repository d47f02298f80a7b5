#include "trainer/ineffective_attention.h"

#include <algorithm>
#include <utility>

#include "core/log.h"
#include "data/token_store.h"
#include "model/ineffective_attention.h"

namespace ring {
namespace {

// Returns the number of tokens of the longest document; stops searching at a document of `max` tokens and returns
// `max`.
std::int64_t longest_document(const TokenSplit& split, std::int64_t max) {
  DocumentStarts start(split);
  std::uint64_t before = 0;
  std::int64_t longest = 0;
  for (std::uint64_t i = 1; i <= split.documents() && longest < max; ++i) {
    const std::uint64_t end = start(i);
    longest = std::max(longest, static_cast<std::int64_t>(end - std::exchange(before, end)));
  }
  return std::min(longest, max);
}

std::int64_t longest_sequence(const Config& c, const Corpora& corpora) {
  const std::int64_t max = c.train.context ? c.train.context : c.model.context;
  if (!c.data.packing.documents) return max;
  std::int64_t longest = 1;
  for (const auto& store : corpora.stores) longest = std::max(longest, longest_document(store->train(), max));
  return longest;
}

}  // namespace

void warn_of_ineffective_attention(const Config& c, const Corpora& corpora) {
  if (!may_be_ineffective(c.model)) return;
  for (const std::string& text : ineffective_attention(c.model, longest_sequence(c, corpora), c.train.steps))
    log::warn(text);
}

}  // namespace ring
