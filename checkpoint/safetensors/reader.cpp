#include "checkpoint/safetensors/reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "checkpoint/files.h"
#include "checkpoint/safetensors/float_type.h"
#include "core/check.h"
#include "core/json.h"
#include "core/regular_file.h"
#include "core/yaml.h"

namespace ring {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t kMaxIndex = 64 << 20;  // in bytes

bool path_exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

[[noreturn]] void fail_without_weights(const fs::path& folder) {
  const bool pickled =
      path_exists(folder / "pytorch_model.bin") || path_exists(folder / "pytorch_model.bin.index.json");
  fail(folder.string(), " holds neither ", kSafetensorsName, " nor ", kSafetensorsIndex,
       pickled ? ", but weights that PyTorch pickled, which run code when they are read. In Python, "
                 "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(OTHER) writes them as safetensors"
               : ": give the folder of a published model");
}

// Rejects paths: the index is untrusted, and its files must be in the same folder.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

// Returns the file of each tensor as listed in an index.
std::map<std::string, std::string> weight_map(const fs::path& index) {
  const std::string text = read_text(index, kMaxIndex);
  std::map<std::string, std::string> files;
  try {
    const json j = parse_json<json>(text);
    for (const auto& [tensor, file] : j.at("weight_map").items()) files[tensor] = file.get<std::string>();
  } catch (const std::exception& e) {
    fail(index.string(), ": weight_map: expected a file name for each tensor: ", shown(e.what(), 400));
  }
  for (const auto& [tensor, file] : files)
    if (!is_plain_name(file))
      fail(index.string(), ": weight_map: ", shown(tensor), ": '", shown(file),
           "' is not the name of a file beside it");
  return files;
}

void advise(std::span<const std::byte> bytes, int advice) {
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<std::uintptr_t>(bytes.data()) / page * page;
  const auto end = reinterpret_cast<std::uintptr_t>(bytes.data()) + bytes.size();
  // Only a hint, so errors do not matter.
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}

}  // namespace

MappedFile::MappedFile(const fs::path& path) {
  const int fd = open_regular("read", path.string(), O_RDONLY);
  struct stat info {};
  const bool known = ::fstat(fd, &info) == 0;
  const auto size = static_cast<std::uint64_t>(info.st_size);
  void* at = known && size > 0 ? ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
  const int error = errno;
  ::close(fd);
  if (known && size == 0) return;
  if (at == MAP_FAILED) fail("cannot map ", path.string(), " into memory: ", std::strerror(error));
  bytes_ = {static_cast<const std::byte*>(at), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

// Linux reads about 1 MB per call, whatever the requested size, and blocks callers while the disk is busy.
void MappedFile::prefetch_pages(std::span<const std::byte> bytes) {
  constexpr std::size_t kPiece = 1 << 20;
  for (std::size_t at = 0; at < bytes.size(); at += kPiece)
    advise(bytes.subspan(at, std::min(kPiece, bytes.size() - at)), MADV_WILLNEED);
}
void MappedFile::drop_pages(std::span<const std::byte> bytes) { advise(bytes, MADV_DONTNEED); }

Safetensors::OneFile::OneFile(const fs::path& p) : path(p), map(p) {
  try {
    header = parse_safetensors({reinterpret_cast<const char*>(map.bytes().data()), map.bytes().size()});
  } catch (const Error& e) {
    fail(path.string(), " ", e.what());
  }
}

Safetensors::Safetensors(const fs::path& path) : path_(path) {
  std::error_code error;
  const bool folder = fs::is_directory(path, error);
  const fs::path file = folder ? path / kSafetensorsName : path;
  const bool indexed = folder && !path_exists(file);
  if (indexed && !path_exists(path / kSafetensorsIndex)) fail_without_weights(path);
  if (indexed)
    add_indexed(path / kSafetensorsIndex);
  else
    add_file(file);
}

void Safetensors::add_file(const fs::path& path) {
  const OneFile& file = *files_.emplace_back(std::make_unique<OneFile>(path));
  for (const auto& [name, tensor] : file.header.tensors)
    if (const auto [at, added] = places_.try_emplace(name, Place{&file, &tensor}); !added)
      fail(path.string(), ": tensor '", shown(name), "' is in ", at->second.file->path.string(), ", too");
}

void Safetensors::add_indexed(const fs::path& index) {
  const std::map<std::string, std::string> files = weight_map(index);
  std::set<std::string> names;
  for (const auto& [tensor, file] : files) names.insert(file);
  for (const std::string& name : names) add_file(index.parent_path() / name);
  for (const auto& [tensor, file] : files)
    if (!has(tensor) || file_of(tensor).filename() != file)
      fail(index.string(), ": weight_map: tensor '", shown(tensor), "' is not in ", file, ", where it should be");
  for (const auto& [tensor, place] : places_)
    if (!files.contains(tensor))
      fail(index.string(), ": weight_map: tensor '", shown(tensor), "' of ", place.file->path.string(),
           " is not listed");
}

std::vector<std::string> Safetensors::names() const {
  std::vector<std::string> all;
  for (const auto& [name, place] : places_) all.push_back(name);
  return all;
}

const Safetensors::Place& Safetensors::location(const std::string& name) const {
  const auto found = places_.find(name);
  if (found == places_.end()) fail(path_.string(), " has no tensor '", shown(name), "'");
  return found->second;
}

const SafeTensor& Safetensors::tensor(const std::string& name) const { return *location(name).tensor; }

fs::path Safetensors::file_of(const std::string& name) const { return location(name).file->path; }

std::span<const std::byte> Safetensors::bytes(const std::string& name) const {
  const auto& [file, t] = location(name);
  return file->map.bytes().subspan(file->header.bytes + t->begin, t->end - t->begin);
}

std::vector<float> Safetensors::values(const std::string& name) const {
  const SafeTensor& t = tensor(name);
  const std::optional<FloatType> type = parse_float_type(t.type);
  if (!type)
    fail(file_of(name).string(), ": tensor '", shown(name), "' is ", text_of(t),
         "; weights are read as F32, F16 or BF16");
  const std::span<const std::byte> from = bytes(name);
  std::vector<float> out(from.size() / size_of(*type));
  widen(*type, from.data(), out.size(), out.data());
  return out;
}

}  // namespace ring
