#pragma once
// Published weights: the tensors of one safetensors file, or of several that model.safetensors.index.json names. Files
// are mapped into memory, so that only what is asked for is read.

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/safetensors/header.h"

namespace ring {

inline constexpr const char* kSafetensorsName = "model.safetensors";
inline constexpr const char* kSafetensorsIndex = "model.safetensors.index.json";

// A file's bytes, read by the system when they are looked at, or expected. A file that becomes shorter meanwhile ends
// the process with SIGBUS.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path&);  // Error: it cannot be read
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  std::span<const std::byte> bytes() const { return bytes_; }
  // Hints about a part of them: what is wanted soon is read meanwhile, what is not wanted any more leaves the process's
  // memory.
  static void expect(std::span<const std::byte>);
  static void forget(std::span<const std::byte>);

 private:
  std::span<const std::byte> bytes_;
};

class Safetensors {
 public:
  // `path`: a file, or a folder with model.safetensors or an index. Error names the file: there is none,
  // parse_safetensors refuses it, or the index and the files disagree.
  explicit Safetensors(const std::filesystem::path& path);

  std::vector<std::string> names() const;  // in the order of the alphabet
  bool has(const std::string& name) const { return places_.contains(name); }
  // Error: there is no tensor of this name.
  const SafeTensor& tensor(const std::string& name) const;
  std::span<const std::byte> bytes(const std::string& name) const;
  // All of it as f32, row by row. Error: it has another type than F32, F16 or BF16.
  std::vector<float> values(const std::string& name) const;
  std::filesystem::path file_of(const std::string& name) const;  // for messages

 private:
  struct OneFile {
    std::filesystem::path path;
    MappedFile map;
    SafetensorsHeader header;
    explicit OneFile(const std::filesystem::path&);
  };
  struct Place {
    const OneFile* file;
    const SafeTensor* tensor;
  };
  void add(const std::filesystem::path&);
  void add_indexed(const std::filesystem::path& index);
  const Place& place(const std::string& name) const;

  std::filesystem::path path_;
  std::vector<std::unique_ptr<OneFile>> files_;
  std::map<std::string, Place> places_;
};

}  // namespace ring
