#pragma once
// Opens shared libraries that this program needs only for some devices and therefore loads on first use.

#include <filesystem>
#include <string>
#include <vector>

namespace ring {

struct SharedLibrary {
  void* handle = nullptr;  // from dlopen; null if the library cannot be loaded
  std::string problem;     // the loader's message if the library cannot be loaded
};

// Opens a library by its file name, such as "libnccl.so.2". It stays open until the process ends. Searches, in this
// order: the loader's search path; NVIDIA's Python packages (nvidia-cublas and others) in the Python environment in
// which this program is installed; `fallback`, a path found at build time, or "" for none.
SharedLibrary open_shared_library(const std::string& name, const std::string& fallback = "");

// Returns the function; null if the library is not loaded or has no such function.
void* find_function(const SharedLibrary&, const char* function);

// Returns the paths of the library in NVIDIA's Python packages of an environment, PREFIX/lib/python3*/site-packages (or
// dist-packages)/nvidia/*/lib, in alphabetical order.
std::vector<std::filesystem::path> paths_in_python_packages(const std::filesystem::path& prefix,
                                                            const std::string& name);

}  // namespace ring
