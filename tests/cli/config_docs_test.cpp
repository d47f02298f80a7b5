#include "cli/config_docs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <functional>
#include <sstream>

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

// Calls fn(key, field) for each field of a section and of its subsections.
void for_each_field(const config::Node& section, const std::string& prefix,
                    const std::function<void(const std::string&, const config::Field&)>& fn) {
  for (const config::Field& f : section.fields) {
    fn(prefix + f.name, f);
    if (f.node.kind == config::Kind::section) for_each_field(f.node, prefix + f.name + ".", fn);
    if (f.node.kind == config::Kind::list) for_each_field(f.node.prototype(), prefix + f.name + "[].", fn);
  }
}

TEST(ConfigDocs, HelpOfAKeyIsOneLine) {
  Config config;
  for_each_field(bind_config(config), "", [](const std::string& key, const config::Field& f) {
    EXPECT_LE(f.text.size(), config::kMaxHelp) << key << ": " << f.text;
  });
}

// Returns the anchor that Markdown makes of a heading: lower case, blanks as hyphens, without punctuation.
std::string anchor_of(const std::string& heading) {
  std::string anchor;
  for (const char c : heading)
    if (c == ' ') {
      anchor += '-';
    } else if (std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_') {
      anchor += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  return anchor;
}

TEST(ConfigDocs, PagesOfKeysExist) {
  Config config;
  for_each_field(bind_config(config), "", [](const std::string& key, const config::Field& f) {
    if (f.page.empty()) return;
    const std::size_t hash = f.page.find('#');
    ASSERT_NE(hash, std::string::npos) << key << ": " << f.page;
    std::istringstream page(config::read_source(test::source_dir() + "/docs/" + f.page.substr(0, hash)).text);
    bool found = false;
    for (std::string line; std::getline(page, line);)
      found |= line.starts_with("#") && anchor_of(line.substr(line.find(' ') + 1)) == f.page.substr(hash + 1);
    EXPECT_TRUE(found) << key << ": " << f.page;
  });
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
