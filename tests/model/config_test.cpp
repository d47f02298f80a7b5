// The section `model`: values that it refuses.
#include "model/config.h"

#include <gtest/gtest.h>

#include "core/check.h"
#include "core/fields.h"

namespace ring {
namespace {

std::string model_error(const std::string& yaml) {
  ModelConfig c;
  try {
    load_config_text(c, yaml, "test");
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// The error is reported once, for the key that does not fit, with values that would fit.
TEST(ModelConfig, HeadsThatDoNotFitAreRefusedWithHeadsThatFit) {
  const std::string channels = " into multiples of 8 channels: ";
  EXPECT_EQ(model_error("{width: 128, heads: 5}"),
            "test:1: heads: 5 does not divide model.width = 128" + channels + "use 4 or 8, or set model.head_dim");
  EXPECT_EQ(model_error("{width: 128, heads: 64}"),
            "test:1: heads: 64 does not divide model.width = 128" + channels + "use 16, or set model.head_dim");
  EXPECT_EQ(model_error("{width: 12, heads: 3}"),
            "test:1: heads: 3 does not divide model.width = 12" + channels + "set model.head_dim");
  EXPECT_EQ(model_error("{width: 128, heads: 5, head_dim: 24}"), "");
  EXPECT_EQ(model_error("{head_dim: 20}"), "test:1: head_dim: 20 is not a multiple of 8. Use 16 or 24");
  EXPECT_EQ(model_error("{head_dim: 7}"), "test:1: head_dim: 7 is not a multiple of 8. Use 8");
  EXPECT_EQ(model_error("{heads: 8, kv_heads: 3}"), "test:1: kv_heads: 3 does not divide model.heads = 8. Use 2 or 4");
  EXPECT_EQ(model_error("{heads: 8, kv_heads: 9}"), "test:1: kv_heads: 9 does not divide model.heads = 8. Use 8");
}

}  // namespace
}  // namespace ring
