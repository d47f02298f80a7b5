#include "core/shared_library.h"

#include <dlfcn.h>

#include <algorithm>

namespace ring {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> all;
  std::error_code none;  // ignored: an unreadable folder counts as empty
  for (const fs::directory_entry& e : fs::directory_iterator(folder, none)) all.push_back(e.path());
  return all;
}

// Returns the prefix of this program's installation: the parent of bin/.
fs::path installation_prefix() {
  std::error_code none;
  return fs::read_symlink("/proc/self/exe", none).parent_path().parent_path();
}

}  // namespace

std::vector<fs::path> paths_in_python_packages(const fs::path& prefix, const std::string& name) {
  std::vector<fs::path> found;
  for (const fs::path& python : entries(prefix / "lib")) {
    if (!python.filename().string().starts_with("python3")) continue;
    for (const char* packages : {"site-packages", "dist-packages"})
      for (const fs::path& package : entries(python / packages / "nvidia"))
        if (std::error_code none; fs::exists(package / "lib" / name, none)) found.push_back(package / "lib" / name);
  }
  std::ranges::sort(found);
  return found;
}

SharedLibrary open_shared_library(const std::string& name, const std::string& fallback) {
  SharedLibrary library;
  const auto open = [&](const fs::path& path) {
    library.handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library.handle && library.problem.empty()) library.problem = dlerror();
    return library.handle != nullptr;
  };
  // Packages are searched only if the loader finds nothing.
  if (!open(name) && !std::ranges::any_of(paths_in_python_packages(installation_prefix(), name), open) &&
      !fallback.empty())
    open(fallback);
  return library;
}

void* find_function(const SharedLibrary& library, const char* function) {
  return library.handle ? dlsym(library.handle, function) : nullptr;
}

}  // namespace ring
