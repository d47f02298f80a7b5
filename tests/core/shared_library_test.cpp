// Tests where the program searches for libraries that it loads at run time.

#include "core/shared_library.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace ring {
namespace {

namespace fs = std::filesystem;

TEST(SharedLibrary, ThePathOfTheBuildIsUsedIfTheLoaderFindsNothing) {
  const SharedLibrary none = open_shared_library("libring_missing.so.7");
  EXPECT_EQ(none.handle, nullptr);
  EXPECT_NE(none.problem.find("libring_missing.so.7"), std::string::npos) << none.problem;
  EXPECT_EQ(find_function(none, "cos"), nullptr);
  const SharedLibrary found = open_shared_library("libring_missing.so.7", "libm.so.6");
  ASSERT_NE(found.handle, nullptr) << found.problem;
  EXPECT_NE(find_function(found, "cos"), nullptr);
  EXPECT_EQ(find_function(found, "ring_missing"), nullptr);
}

TEST(SharedLibrary, NvidiasPythonPackagesAreFound) {
  const fs::path prefix = fs::temp_directory_path() / ("ring_packages_" + std::to_string(getpid()));
  const auto add = [&](const char* path) {
    fs::create_directories((prefix / path).parent_path());
    std::ofstream(prefix / path) << "a library";
    return prefix / path;
  };
  const fs::path debian = add("lib/python3.11/dist-packages/nvidia/cu13/lib/libcublasLt.so.13");
  const fs::path venv = add("lib/python3.12/site-packages/nvidia/cu13/lib/libcublasLt.so.13");
  const fs::path nccl = add("lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2");
  add("lib/python3.12/site-packages/other/cu13/lib/libcublasLt.so.13");
  add("lib/ringmaster/libcublasLt.so.13");
  EXPECT_EQ(paths_in_python_packages(prefix, "libcublasLt.so.13"), (std::vector<fs::path>{debian, venv}));
  EXPECT_EQ(paths_in_python_packages(prefix, "libnccl.so.2"), std::vector<fs::path>{nccl});
  EXPECT_TRUE(paths_in_python_packages(prefix, "libcudnn.so.9").empty());
  EXPECT_TRUE(paths_in_python_packages(prefix / "missing", "libnccl.so.2").empty());
  fs::remove_all(prefix);
}

}  // namespace
}  // namespace ring
