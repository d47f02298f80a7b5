#include "cli/settings.h"

#include <filesystem>

#include "core/fields.h"
#include "trainer/origin.h"
#include "trainer/session.h"

namespace ring {

Config settings_at(const std::string& path, const std::vector<std::string>& overrides) {
  Config config;
  if (std::error_code none; !std::filesystem::is_directory(path, none)) {
    load_config(config, path, overrides);
    return config;
  }
  const RunDirectory run(path);
  config = run.exists() ? settings_to_go_on(run, true) : origin_of(find_checkpoint(path)).config;
  override_config(config, overrides);
  return config;
}

}  // namespace ring
