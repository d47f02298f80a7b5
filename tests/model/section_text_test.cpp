// Printed sections of attention.
#include "model/attention/section_text.h"

#include <gtest/gtest.h>

#include "core/fields.h"
#include "model/config.h"

namespace ring {
namespace {

ModelConfig overridden(const std::string& attention) {
  ModelConfig c;
  override_config(c, {"attention=" + attention});
  return c;
}

const char* const kSectionTexts[] = {
    "{kind: dense}",
    "{kind: window, window: 64, sinks: 4}",
    "{kind: window, window: 64, pools: [16, 64], pool_gates: true, pooling: learned}",
    "{kind: dilated, segments: [64, 256], rates: [1, 4], dedup: true}",
    "{kind: block_sparse, block: 64, rules: [{local: 2}, {pattern: strided, every: 3}], heads: [1, 0]}",
    "{kind: block_sparse, rules: [{pattern: content, local: 2, keep: [[0, 64], [1000, 5]], mass: 0.5}], "
    "layers_per_selection: 2}",
    "{kind: block_sparse, rules: [{pattern: learned, keep: 9}], index_distances: 32, index_warmup_steps: 400}",
    "{kind: block_sparse, rules: [{pattern: importance, local: 2, keep: 9, explore: 1, decay: 0.5}]}",
    "{kind: block_sparse, rules: [{pattern: file, file: \"a file, of 'blocks'.txt\"}]}",
};

TEST(SectionText, GivesTheKindAndChangedSettings) {
  EXPECT_EQ(section_text({}), "{kind: dense}");
  EXPECT_EQ(section_text(overridden(kSectionTexts[1]).attention), kSectionTexts[1]);
}

// The printed section gives the same settings whatever section it replaces.
TEST(SectionText, GivesTheSectionInPlaceOfAnyOther) {
  for (const char* text : kSectionTexts)
    for (const char* before : kSectionTexts) {
      const AttentionConfig want = overridden(text).attention;
      ModelConfig changed = overridden(before);
      override_config(changed, {"attention=" + section_text(want, changed.attention)});
      EXPECT_EQ(to_yaml(changed.attention), to_yaml(want)) << text << " in place of " << before;
    }
}

}  // namespace
}  // namespace ring
