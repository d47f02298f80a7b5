#pragma once
// manifest.json: what a checkpoint holds and where. Valid JSON; its last field is the xxh3-128 of every byte before it.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/region.h"
#include "checkpoint/state.h"

namespace ring {

inline constexpr const char* kManifestName = "manifest.json";

struct SavedSlice {
  Region region;     // of the whole tensor, in elements
  std::string file;  // name inside the checkpoint's directory
  std::uint64_t offset = 0, bytes = 0;
  std::string xxh3;
};

struct SavedTensor {
  DType dtype = DType::f32;
  Shape global_shape;
  std::vector<SavedSlice> slices;  // disjoint, together the whole tensor
};

struct SavedFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::string xxh3;
};

struct Manifest {
  std::int64_t step = 0;
  int world = 1;                // ranks that wrote it
  std::int64_t token = 0;       // of the process that wrote it (checkpoint/writer_token.h); 0: it had none
  std::string metadata = "{}";  // JSON object of the trainer's: config, versions
  std::map<std::string, StateValue> values;
  std::vector<SavedFile> files;
  std::map<std::string, SavedTensor> tensors;

  std::uint64_t tensor_bytes() const;
};

// What the slices of a tensor make: all of it, or one rank's part.
enum class Cover { whole, part };
// Whether the slices lie in the tensor, do not overlap, and cover what they should; else an Error names `name`.
void check_cover(const std::string& name, const SavedTensor&, Cover = Cover::whole);

std::string to_text(const Manifest&);
// Error when a byte was changed, when the file is not a manifest, or when its parts contradict each other.
Manifest parse_manifest(const std::string& text, Cover = Cover::whole);
Manifest read_manifest(const std::filesystem::path& checkpoint);  // Error names the file

// Values travel as JSON text that keeps every bit, infinities and NaN included.
std::string value_to_text(const std::string& name, const StateValue&);

}  // namespace ring
