#pragma once
// manifest.json lists the contents of a checkpoint and where they are stored. The file is valid JSON; its last field is
// the xxh3-128 of every byte before that field.

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
  Region region;     // region of the whole tensor, in elements
  std::string file;  // name within the checkpoint's folder
  std::uint64_t offset = 0, bytes = 0;
  std::string xxh3;
};

struct SavedTensor {
  DType dtype = DType::f32;
  Shape global_shape;
  std::vector<SavedSlice> slices;  // disjoint slices that together cover the tensor
};

struct SavedFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::string xxh3;
};

struct Manifest {
  std::int64_t step = 0;
  int world = 1;                // number of ranks that wrote the checkpoint
  std::int64_t token = 0;       // WriterToken::number() of the process that wrote the checkpoint; 0 without a token
  std::string metadata = "{}";  // JSON object from the trainer: config and versions
  std::map<std::string, StateValue> values;
  std::vector<SavedFile> files;
  std::map<std::string, SavedTensor> tensors;

  std::uint64_t tensor_bytes() const;
};

// Elements that a tensor's slices must cover: the whole tensor, or only one rank's part of it.
enum class Cover { whole, part };
// Throws Error with `name` unless the slices are inside the tensor, do not overlap and, for Cover::whole, cover the
// whole tensor.
void check_cover(const std::string& name, const SavedTensor&, Cover = Cover::whole);

std::string to_text(const Manifest&);
// Throws Error if the hash does not match, the text is not a manifest, or parts of it contradict each other.
Manifest parse_manifest(const std::string& text, Cover = Cover::whole);
Manifest read_manifest(const std::filesystem::path& checkpoint);  // errors name the file

// Returns the value as JSON text that preserves every bit, even of infinities and NaN.
std::string value_to_json(const std::string& name, const StateValue&);

}  // namespace ring
