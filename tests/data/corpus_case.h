#pragma once
// Temporary folders and small corpora for the tests of data.

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "core/check.h"
#include "data/token_store.h"
#include "text/tokenizer.h"

namespace ring {

class TempFolder {
 public:
  TempFolder() {
    static std::atomic<int> count{0};
    path_ = std::filesystem::temp_directory_path() /
            ("ringmaster_data_" + std::to_string(::getpid()) + "_" + std::to_string(count++));
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

inline void write_text(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

// Returns 0, 1, 2, ... modulo `modulus`, so that a token tells its offset.
inline std::vector<std::int32_t> counting(std::size_t n, std::int32_t modulus = 256) {
  std::vector<std::int32_t> tokens(n);
  for (std::size_t i = 0; i < n; ++i) tokens[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(modulus));
  return tokens;
}

inline std::string write_corpus(const std::string& path, const std::vector<std::int32_t>& train,
                                const std::vector<std::int32_t>& validation,
                                std::shared_ptr<const Tokenizer> tokenizer = bytes_tokenizer()) {
  TokenStoreWriter writer(path, tokenizer->vocab_size());
  const auto put = [&](Split split, const std::vector<std::int32_t>& tokens) {
    if (tokens.empty()) return;
    writer.begin_document(split);
    writer.append(split, tokens);
    writer.add_text_bytes(split, tokens.size());
  };
  put(Split::train, train);
  put(Split::validation, validation);
  writer.finish(*tokenizer, "a test");
  return path;
}

// Runs `work`, which must throw an Error whose message contains every part.
template <class F>
void expect_error(F&& work, const std::vector<std::string>& parts) {
  try {
    work();
    ADD_FAILURE() << "no error; expected one with: " << parts.front();
  } catch (const Error& e) {
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << "'" << part << "' is not in: " << e.what();
    }
  }
}

}  // namespace ring
