#include "trainer/folder_name.h"

#include <filesystem>

namespace ring {

std::string folder_name(const std::string& path) {
  const std::filesystem::path whole = std::filesystem::absolute(path).lexically_normal();
  const std::string name = (whole.has_filename() ? whole : whole.parent_path()).filename().string();
  return name.empty() ? path : name;
}

}  // namespace ring
