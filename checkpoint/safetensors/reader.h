#pragma once
// Reads published weights: the tensors of one safetensors file, or of the files listed in model.safetensors.index.json.
// Files are memory-mapped, so only the requested tensors are read.

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

// A memory-mapped file. Pages are read when they are accessed or prefetched with prefetch_pages(). If the file is
// truncated while it is mapped, accessing it ends the process with SIGBUS.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path&);  // throws Error if the file cannot be read
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  std::span<const std::byte> bytes() const { return bytes_; }
  // Hints about a part of bytes(): prefetch_pages() reads it in the background, drop_pages() releases its memory.
  static void prefetch_pages(std::span<const std::byte>);
  static void drop_pages(std::span<const std::byte>);

 private:
  std::span<const std::byte> bytes_;
};

class Safetensors {
 public:
  // `path`: a file, or a folder with model.safetensors or an index. Throws Error with the file's name if there is no
  // such file, if parse_safetensors() rejects it, or if the index and the files disagree.
  explicit Safetensors(const std::filesystem::path& path);

  std::vector<std::string> names() const;  // sorted alphabetically
  bool has(const std::string& name) const { return places_.contains(name); }
  // The functions with a tensor's name throw Error if there is no tensor with this name.
  const SafeTensor& tensor(const std::string& name) const;
  std::span<const std::byte> bytes(const std::string& name) const;
  // Returns the tensor as f32, row by row. Throws Error unless its type is F32, F16 or BF16.
  std::vector<float> values(const std::string& name) const;
  std::filesystem::path file_of(const std::string& name) const;  // the file that holds the tensor

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
  void add_file(const std::filesystem::path&);
  void add_indexed(const std::filesystem::path& index);
  const Place& location(const std::string& name) const;

  std::filesystem::path path_;
  std::vector<std::unique_ptr<OneFile>> files_;
  std::map<std::string, Place> places_;
};

}  // namespace ring
