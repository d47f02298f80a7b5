#include "checkpoint/safetensors/writer.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "checkpoint/files.h"
#include "checkpoint/safetensors/header.h"
#include "checkpoint/safetensors/reader.h"
#include "core/check.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

// Consecutive tensors that are stored in one file.
struct OneFile {
  std::string name;
  std::size_t first = 0, count = 0;
  std::uint64_t bytes = 0;
};

std::uint64_t bytes_of(const OutputTensor& t, FloatType type) {
  std::uint64_t bytes = size_of(type);
  for (const std::int64_t d : t.shape) bytes *= static_cast<std::uint64_t>(d);
  return bytes;
}

std::string file_name(std::size_t i, std::size_t files) {
  if (files == 1) return kSafetensorsName;
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, files);
  return name;
}

std::vector<OneFile> divided(const std::vector<OutputTensor>& tensors, const SafetensorsOutput& how) {
  std::vector<OneFile> files(1);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t bytes = bytes_of(tensors[i], how.type);
    if (files.back().count > 0 && files.back().bytes + bytes > how.max_bytes) files.push_back({"", i, 0, 0});
    ++files.back().count;
    files.back().bytes += bytes;
  }
  for (std::size_t i = 0; i < files.size(); ++i) files[i].name = file_name(i, files.size());
  return files;
}

std::string header_of(const OneFile& file, const std::vector<OutputTensor>& tensors, FloatType type) {
  std::vector<std::pair<std::string, SafeTensor>> entries;
  std::uint64_t at = 0;
  for (std::size_t i = file.first; i < file.first + file.count; ++i) {
    const std::uint64_t begin = at;
    at += bytes_of(tensors[i], type);
    entries.emplace_back(tensors[i].name, SafeTensor{std::string(safetensors_name(type)), tensors[i].shape, begin, at});
  }
  // Some readers reject a file without "format"; all of them accept "pt".
  return safetensors_header(entries, {{"format", "pt"}});
}

std::vector<std::byte> bytes_of(const OutputTensor& t, const std::vector<float>& values, FloatType type) {
  std::vector<std::byte> bytes(values.size() * size_of(type));
  RING_CHECK(bytes.size() == bytes_of(t, type), t.name, ": ", values.size(), " values were given");
  try {
    round_to(type, values.data(), values.size(), bytes.data());
  } catch (const Error& e) {
    fail("tensor '", t.name, "': ", e.what());
  }
  return bytes;
}

void write_index(const fs::path& folder, const std::vector<OneFile>& files, const std::vector<OutputTensor>& tensors) {
  nlohmann::ordered_json index;
  std::uint64_t total = 0;
  for (const OneFile& f : files) total += f.bytes;
  index["metadata"]["total_size"] = total;
  for (const OneFile& f : files)
    for (std::size_t i = f.first; i < f.first + f.count; ++i) index["weight_map"][tensors[i].name] = f.name;
  write_text(folder / kSafetensorsIndex, index.dump(2) + "\n");
}

}  // namespace

std::vector<std::string> write_safetensors(const fs::path& folder, const std::vector<OutputTensor>& tensors,
                                           const SafetensorsOutput& how,
                                           const std::function<std::vector<float>(std::size_t i)>& values) {
  const std::vector<OneFile> files = divided(tensors, how);
  std::vector<std::string> names;
  for (const OneFile& f : files) {
    const std::string header = header_of(f, tensors, how.type);
    File file(folder / f.name, File::Mode::create);
    file.reserve(header.size() + f.bytes);
    file.write_at(0, header.data(), header.size());
    std::uint64_t at = header.size();
    for (std::size_t i = f.first; i < f.first + f.count; ++i) {
      const std::vector<std::byte> bytes = bytes_of(tensors[i], values(i), how.type);
      file.write_at(at, bytes.data(), bytes.size());
      at += bytes.size();
    }
    file.sync();
    names.push_back(f.name);
  }
  if (files.size() > 1) {
    write_index(folder, files, tensors);
    names.push_back(kSafetensorsIndex);
  }
  return names;
}

}  // namespace ring
