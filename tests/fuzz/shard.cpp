// Target: the files of a checkpoint, read like a run does: a whole checkpoint of two tensors, with a damaged manifest
// and a damaged shard. The first two bytes (little endian) are the length of the manifest, whose hash is made to fit.
// The hashes of the shard are made to fit if the first bit of the third byte is set.

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "checkpoint/files.h"
#include "checkpoint/reader.h"

namespace {

namespace fs = std::filesystem;

// A folder in memory if possible, removed when the process ends.
class Scratch {
 public:
  Scratch() {
    std::error_code none;
    const fs::path base = fs::is_directory("/dev/shm", none) ? "/dev/shm" : fs::temp_directory_path();
    folder_ = base / ("ringmaster-fuzz-shard-" + std::to_string(::getpid())) / "step-000000001";
    fs::create_directories(folder_);
  }
  ~Scratch() {
    std::error_code none;
    fs::remove_all(folder_.parent_path(), none);
  }
  const fs::path& folder() const { return folder_; }

 private:
  fs::path folder_;
};

const fs::path& folder() {
  static const Scratch scratch;
  return scratch.folder();
}

void write(const char* name, const std::string& bytes) { std::ofstream(folder() / name, std::ios::binary) << bytes; }

std::string with_hash(std::string body) {
  while (!body.empty() && (body.back() == '\n' || body.back() == '}')) body.pop_back();
  body += ",\n";
  return body + " \"xxh3\": \"" + ring::hash_of(body) + "\"\n}\n";
}

// Replaces the manifest's hashes of the shard by those that the shard has.
std::string with_shard_hashes(const std::string& text, const std::string& shard) {
  ring::Manifest m = ring::parse_manifest(text);
  for (ring::SavedFile& f : m.files) f = {f.name, shard.size(), ring::hash_of(shard)};
  for (auto& [name, t] : m.tensors)
    for (ring::SavedSlice& s : t.slices)
      if (s.offset <= shard.size() && s.bytes <= shard.size() - s.offset)
        s.xxh3 = ring::hash_of(std::string_view(shard).substr(s.offset, s.bytes));
  return ring::to_text(m);
}

// Aborts (a finding) unless the loaded tensor has the hash that the manifest gives.
void check_loaded(const ring::Manifest& m, const std::string& name, const ring::Tensor& t) {
  const ring::SavedTensor& saved = m.tensors.at(name);
  if (saved.slices.size() != 1 || saved.dtype != t.dtype()) return;
  const std::string_view bytes(reinterpret_cast<const char*>(t.raw()), t.bytes());
  if (ring::hash_of(bytes) != saved.slices[0].xxh3) std::abort();
}

void load(const ring::Stream& stream) {
  ring::State state;
  std::int64_t step = 0;
  const ring::Tensor w = ring::Tensor::zeros({4, 3}, ring::DType::f32, stream);
  const ring::Tensor half = ring::Tensor::zeros({5}, ring::DType::f32, stream);  // saved as bf16: converted
  state.add("w", w);
  state.add("half", half);
  state.add("train.step", &step);
  check_loaded(ring::load_state(folder(), state, stream), "w", w);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const ring::Stream stream = ring::Stream::cpu(1);
  if (size < 3) return 0;
  const std::string rest(reinterpret_cast<const char*>(data) + 3, size - 3);
  const std::size_t cut = std::min<std::size_t>(data[0] + 256u * data[1], rest.size());
  const std::string shard = rest.substr(cut);
  std::string manifest = with_hash(rest.substr(0, cut));
  try {
    if (data[2] & 1) manifest = with_shard_hashes(manifest, shard);
    write(ring::kManifestName, manifest);
    write("shard-00000.h5", shard);
    ring::verify_checkpoint(folder());
    load(stream);
  } catch (const ring::Error&) {
  }
  return 0;
}
