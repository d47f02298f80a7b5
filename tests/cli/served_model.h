#pragma once
// A small model that a test trains and serves with `ringmaster serve`.

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/check.h"
#include "job/socket.h"
#include "tests/paths.h"
#include "tests/process.h"

namespace ring::test {

class ServedModel : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / str("ring_serve_", getpid());
    std::filesystem::create_directories(folder_);
    prepare();
    std::ofstream(folder_ / "c.yaml") << "run: {device: cpu, directory: " << path("run") << "}\n"
                                      << "model: {context: 64, layers: 1, width: 32, heads: 2}\ndata: {path: "
                                      << path("c.h5") << "}\ntrain: {batch_size: 4, steps: 30}\n";
    ok(train());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Writes the corpus c.h5.
  virtual void prepare() {
    std::ofstream(folder_ / "text.txt") << std::string(4000, 'a') << "\n";
    ok({"data", "prepare", "--input", path("text.txt"), "--tokenizer", "bytes", "--output", path("c.h5")});
  }
  virtual std::vector<std::string> train() const { return {"train", path("c.yaml")}; }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static void ok(std::vector<std::string> words) {
    words.insert(words.begin(), ring_binary());
    const Finished f = run_process(words);
    ASSERT_EQ(f.code, 0) << f.output;
  }
  void serve(const std::vector<std::string>& more = {}) {
    const std::string out = path("out");
    std::filesystem::remove(out);
    std::vector<std::string> words = {ring_binary(), "serve", path("run"), "--listen", "0", "--threads", "1"};
    words.insert(words.end(), more.begin(), more.end());
    server_.emplace(words, Process::Environment{}, [out] { freopen(out.c_str(), "w", stdout) ? void() : _exit(9); });
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (; std::chrono::steady_clock::now() < end; std::this_thread::sleep_for(std::chrono::milliseconds(20))) {
      std::ifstream file(out);
      const std::string text((std::istreambuf_iterator<char>(file)), {}), begin = "http://127.0.0.1:";
      if (const std::size_t found = text.find(begin); found != std::string::npos && text.ends_with("\n")) {
        at_ = {"127.0.0.1", std::stoi(text.substr(found + begin.size()))};
        return;
      }
    }
    FAIL() << "serve did not begin: " << server_->wait().output;
  }

  std::filesystem::path folder_;
  std::optional<Process> server_;
  Endpoint at_;
};

}  // namespace ring::test
