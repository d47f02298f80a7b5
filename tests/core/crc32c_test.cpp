#include "core/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace ring {
namespace {

TEST(Crc32c, MatchesKnownVectors) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
}

}  // namespace
}  // namespace ring
