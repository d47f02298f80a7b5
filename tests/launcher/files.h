#pragma once
// Files that several tests of this folder read or write.

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace ring::test {

inline std::string read_file(const std::filesystem::path& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

// Writes a text to train on. A different modulus gives a different text.
inline void write_training_text(const std::filesystem::path& path, int modulus) {
  std::ofstream text(path);
  for (int i = 0; i < 400; ++i) text << "line " << i * i % modulus << " of a text for training\n";
}

}  // namespace ring::test
