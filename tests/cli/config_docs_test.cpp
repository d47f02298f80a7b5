#include "cli/config_docs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "core/fields.h"
#include "engine/config.h"
#include "tests/paths.h"

namespace ring {
namespace {

TEST(ConfigDocs, PageIsFresh) {
  const std::string page = config::read_source(test::source_dir() + "/docs/configuration.md").text;
  EXPECT_TRUE(page == configuration_reference()) << "refresh it: ringmaster config docs > docs/configuration.md";
}

TEST(ConfigDocs, EveryShippedConfigLoadsAndReadsBack) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test::source_dir() + "/configs")) {
    if (entry.path().extension() != ".yaml") continue;
    ++files;
    Config config, back;
    ASSERT_NO_THROW(load_config(config, entry.path().string())) << entry.path();
    load_config_text(back, to_yaml(config), "printed");
    EXPECT_EQ(to_yaml(back), to_yaml(config)) << entry.path();
    EXPECT_EQ(hash_config(back), hash_config(config)) << entry.path();
  }
  EXPECT_GT(files, 0);
}

}  // namespace
}  // namespace ring
