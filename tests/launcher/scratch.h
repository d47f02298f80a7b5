#pragma once
// A fixture with a folder for each test, which is removed at the end.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <thread>

#include "tests/launcher/files.h"

namespace ring::test {

class ScratchTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "ring_launcher_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  // Waits until the condition is true. Returns false if it is still false after `seconds`.
  static bool eventually(const std::function<bool()>& condition, double seconds = 5) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (!condition() && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return condition();
  }

  std::filesystem::path dir_;
};

}  // namespace ring::test
