// Writes the kept inputs of the targets manifest and shard: checkpoint_seeds tests/fuzz/corpus

#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

#include "checkpoint/files.h"
#include "checkpoint/manifest.h"
#include "checkpoint/writer.h"

namespace {

namespace fs = std::filesystem;

void write(const fs::path& path, const std::string& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string before_hash(const std::string& manifest) { return manifest.substr(0, manifest.rfind(",\n \"xxh3\"")); }

// Saves the state that the target shard loads. Returns its manifest, and the bytes of both files.
ring::Manifest save(const fs::path& folder, std::string& manifest, std::string& shard) {
  const ring::Stream stream = ring::Stream::cpu(1);
  std::int64_t step = 1;
  ring::State state;
  state.add("w", ring::from_host(std::vector<float>(12, 0.5f), stream).view({4, 3}));
  state.add("half", ring::Tensor::zeros({5}, ring::DType::bf16, stream));
  state.add("train.step", &step);
  const fs::path made =
      ring::write_checkpoint(folder, step, state.snapshot(stream), R"({"config":"run:\n  name: a\n","config_hash":1})");
  manifest = before_hash(ring::read_text(made / ring::kManifestName));
  shard = ring::read_text(made / "shard-00000.h5");
  return ring::read_manifest(made);
}

// Returns the manifest of the same state in two slices, with every kind of value.
ring::Manifest of_two_ranks(ring::Manifest m) {
  m.world = 2;
  m.files.push_back({"shard-00001.h5", 4096, std::string(32, '0')});
  ring::SavedTensor& w = m.tensors.at("w");
  w.slices = {{{{0, 0}, {1, 3}}, "shard-00000.h5", 2048, 12, std::string(32, '1')},
              {{{1, 0}, {3, 3}}, "shard-00001.h5", 2048, 36, std::string(32, '2')}};
  m.values["a"] = 0.1;
  m.values["b"] = std::uint64_t{7};
  m.values["c"] = std::string("text \"quoted\"");
  return m;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::cerr << "checkpoint_seeds FOLDER\n", 1;
  const fs::path corpus = argv[1], scratch = fs::temp_directory_path() / "checkpoint_seeds";
  std::string manifest, shard;
  const ring::Manifest saved = save(scratch, manifest, shard);
  fs::remove_all(scratch);
  write(corpus / "manifest" / "saved", manifest);
  write(corpus / "manifest" / "two_ranks", before_hash(ring::to_text(of_two_ranks(saved))));
  const std::string head = {static_cast<char>(manifest.size() & 255), static_cast<char>(manifest.size() >> 8)};
  write(corpus / "shard" / "saved", head + '\0' + manifest + shard);
  write(corpus / "shard" / "hashes_fit", head + '\1' + manifest + shard);
  return 0;
}
