#include "cli/config_docs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "core/fields.h"
#include "engine/config.h"
#include "tests/paths.h"

namespace ring {
namespace {

TEST(ConfigDocs, ThePageIsUpToDate) {
  const std::string page = config::read_source(test::source_dir() + "/docs/configuration.md").text;
  EXPECT_TRUE(page == configuration_reference()) << "refresh it: ringmaster config docs > docs/configuration.md";
}

TEST(ConfigDocs, BeginsWithTenSettingsThatExist) {
  const std::string page = configuration_reference();
  const std::size_t begin = page.find("## The ten settings"), end = page.find("## All settings");
  ASSERT_LT(begin, end);
  std::size_t rows = 0;
  for (std::size_t at = page.find("\n| `", begin); at < end; at = page.find("\n| `", at + 1), ++rows) {
    const std::string key = page.substr(at + 4, page.find('`', at + 4) - at - 4);
    EXPECT_NE(page.find("* **`" + key + "`**"), std::string::npos) << key;
  }
  EXPECT_EQ(rows, 10u);
}

// Sections with the same keys are described only once.
TEST(ConfigDocs, RepeatsNoSection) {
  const std::string page = configuration_reference();
  EXPECT_NE(page.find("## `model.attention_layers[].attention`"), std::string::npos);
  EXPECT_NE(page.find("The keys are those of [`model.attention`](#modelattention)"), std::string::npos);
  EXPECT_EQ(page.find("* **`model.attention_layers[].attention."), std::string::npos);
  EXPECT_NE(page.find("* **`model.attention.rules[].decay`**"), std::string::npos);
  EXPECT_NE(page.find("* **`data.path`**"), std::string::npos);
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
