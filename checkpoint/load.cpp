#include <algorithm>
#include <cstring>
#include <memory>
#include <sstream>

#include "checkpoint/files.h"
#include "checkpoint/fp8_tensors.h"
#include "checkpoint/reader.h"

namespace ring {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t kWindow = 1 << 20;
constexpr std::size_t kListed = 8;

// Reads a file at offsets that mostly ascend. Short reads are served from a buffer; long reads go directly to their
// destination.
class WindowReader {
 public:
  WindowReader(const fs::path& path, std::uint64_t end) : file_(path, File::Mode::read), end_(end) {}

  void read(std::uint64_t offset, std::byte* out, std::size_t bytes) {
    if (bytes >= kWindow) return file_.read_at(offset, out, bytes);
    if (offset < start_ || offset + bytes > start_ + window_.size()) {
      start_ = offset;
      window_.resize(std::min<std::uint64_t>(kWindow, end_ - offset));
      file_.read_at(start_, window_.data(), window_.size());
    }
    std::memcpy(out, window_.data() + (offset - start_), bytes);
  }

 private:
  File file_;
  std::uint64_t end_, start_ = 0;
  std::vector<std::byte> window_;
};

// Copies the intersection of `slice` and `wanted` into `out` (the bytes of `wanted`). A slice that is read completely
// is also hashed: the files were verified before, but memory and disks can fail, too.
void read_slice(const fs::path& folder, const std::string& name, std::size_t element, const SavedSlice& slice,
                const Region& wanted, std::byte* out) {
  const Region both = intersect(slice.region, wanted);
  if (both.numel() == 0) return;
  WindowReader reader(folder / slice.file, slice.offset + slice.bytes);
  Hasher hasher;
  for_each_run(slice.region, wanted, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
    const std::size_t bytes = static_cast<std::size_t>(count) * element;
    std::byte* place = out + static_cast<std::size_t>(to) * element;
    reader.read(slice.offset + static_cast<std::uint64_t>(from) * element, place, bytes);
    hasher.update(place, bytes);
  });
  if (both == slice.region && hasher.hex() != slice.xxh3)
    fail((folder / slice.file).string(), ": tensor '", name, "' was read with xxh3 ", hasher.hex(),
         ", but the manifest says ", slice.xxh3);
}

void read_slices(const fs::path& folder, const std::string& name, const SavedTensor& saved, const Region& wanted,
                 std::byte* out) {
  for (const SavedSlice& slice : saved.slices) read_slice(folder, name, size_of(saved.dtype), slice, wanted, out);
}

bool is_float(DType t) { return t == DType::f32 || t == DType::bf16; }

// Converts between f32 and bf16, for a run in which the float type of a tensor differs from the checkpoint's. bf16 ->
// f32 is exact, f32 -> bf16 rounds to nearest.
void convert(const std::byte* from, DType type, std::byte* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    if (type == DType::bf16)
      reinterpret_cast<float*>(to)[i] = to_float(reinterpret_cast<const bf16*>(from)[i]);
    else
      reinterpret_cast<bf16*>(to)[i] = to_bf16(reinterpret_cast<const float*>(from)[i]);
  }
}

// Host memory through which tensors are copied to a device, one after another. The memory is reused and not zeroed.
class Staging {
 public:
  std::byte* room(std::size_t bytes) {
    if (bytes > size_) memory_ = std::make_unique_for_overwrite<std::byte[]>(size_ = bytes);
    return memory_.get();
  }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t size_ = 0;
};

void load_tensor(const fs::path& folder, const StateTensor& wanted, const SavedTensor& saved, const Stream& stream,
                 Staging& staging) {
  const Tensor& local = wanted.local;
  const bool on_host = local.device().backend == Backend::cpu, same_type = saved.dtype == local.dtype();
  std::byte* out = on_host ? local.raw() : staging.room(local.bytes());
  std::vector<std::byte> raw(same_type ? 0 : static_cast<std::size_t>(local.numel()) * size_of(saved.dtype));
  read_slices(folder, wanted.name, saved, {wanted.start, local.shape()}, same_type ? out : raw.data());
  if (!same_type) convert(raw.data(), saved.dtype, out, local.numel());
  if (on_host || local.bytes() == 0) return;
  stream.impl().copy(local.raw(), out, local.bytes());
  stream.synchronize();
}

// Returns the form of a tensor's codes, given the tensors among which its scales are; nullopt if it has no scales.
template <class Tensors>
std::optional<Fp8Moment> form_of(const std::string& name, const Tensors& tensors) {
  for (const Fp8Moment form : {Fp8Moment::e4m3, Fp8Moment::e4m4})
    if (tensors.contains(scales_name(name, form))) return form;
  return std::nullopt;
}

std::vector<std::byte> read_region(const fs::path& folder, const std::string& name, const SavedTensor& saved,
                                   const Region& region) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(region.numel()) * size_of(saved.dtype));
  read_slices(folder, name, saved, region, bytes.data());
  return bytes;
}

// Returns a region of a saved tensor in f32, whatever its type.
std::vector<float> read_floats(const fs::path& folder, const Manifest& manifest, const std::string& name,
                               const Region& region) {
  const SavedTensor& saved = manifest.tensors.at(name);
  const std::vector<std::byte> raw = read_region(folder, name, saved, region);
  std::vector<float> values(static_cast<std::size_t>(region.numel()));
  if (saved.dtype == DType::f32) {
    std::memcpy(values.data(), raw.data(), raw.size());
  } else if (saved.dtype == DType::bf16) {
    convert(raw.data(), saved.dtype, reinterpret_cast<std::byte*>(values.data()), region.numel());
  } else {
    const Fp8Moment form = form_of(name, manifest.tensors).value();
    const std::string scales = scales_name(name, form);
    const std::vector<std::byte> there =
        read_region(folder, scales, manifest.tensors.at(scales), scales_region(saved.global_shape, region).region);
    const auto bytes = [](const std::vector<std::byte>& v) { return reinterpret_cast<const std::uint8_t*>(v.data()); };
    dequantize(saved.global_shape, region, form, bytes(raw), bytes(there), values.data());
  }
  return values;
}

void set_bytes(const Tensor& tensor, const void* bytes, const Stream& stream) {
  if (tensor.bytes() == 0) return;
  if (tensor.device().backend == Backend::cpu) {
    std::memcpy(tensor.raw(), bytes, tensor.bytes());
    return;
  }
  stream.impl().copy(tensor.raw(), bytes, tensor.bytes());
  stream.synchronize();  // allowed host wait: checkpoint
}

// Loads a tensor that has codes and scales either in the checkpoint or in the State, but not in both.
void load_converted(const fs::path& folder, const Manifest& manifest, const State& state, const std::string& name,
                    const Stream& stream) {
  const Tensor& local = state.tensors().at(name).local;
  if (local.numel() == 0) return;
  const std::vector<float> values =
      read_floats(folder, manifest, name, {state.tensors().at(name).start, local.shape()});
  if (local.dtype() == DType::f32) return set_bytes(local, values.data(), stream);
  if (local.dtype() == DType::bf16) {
    std::vector<bf16> rounded(values.size());
    std::ranges::transform(values, rounded.begin(), to_bf16);
    return set_bytes(local, rounded.data(), stream);
  }
  const Fp8Moment form = form_of(name, state.tensors()).value();
  std::vector<std::uint8_t> codes(values.size()), scales(static_cast<std::size_t>(moment_blocks(local.numel())));
  quantize(values.data(), local.numel(), form, codes.data(), scales.data());
  set_bytes(local, codes.data(), stream);
  set_bytes(state.tensors().at(scales_name(name, form)).local, scales.data(), stream);
}

// Returns true if the scales of a tensor come or go with its conversion: the other side has the tensor as floats.
// types(name): the type of a tensor on the other side, if it is there.
template <class Types>
bool scales_are_converted(const std::string& name, const Types& types) {
  const std::optional<ScalesOwner> owner = owner_of_scales(name);
  const std::optional<DType> type = owner ? types(owner->codes) : std::nullopt;
  return type && is_float(*type);
}

bool has_valid_scales(const std::string& name, const SavedTensor& saved, const Manifest& manifest) {
  const std::optional<Fp8Moment> form = form_of(name, manifest.tensors);
  if (!form) return false;
  const SavedTensor& scales = manifest.tensors.at(scales_name(name, *form));
  return scales.dtype == DType::u8 && scales.global_shape == scales_shape(saved.global_shape);
}

bool types_fit(const StateTensor& wanted, const SavedTensor& saved, const State& state, const Manifest& manifest) {
  const DType here = wanted.local.dtype();
  if (saved.dtype == here || (is_float(saved.dtype) && is_float(here))) return true;
  if (here == DType::u8) return is_float(saved.dtype) && form_of(wanted.name, state.tensors());
  return saved.dtype == DType::u8 && is_float(here) && has_valid_scales(wanted.name, saved, manifest);
}

std::string mismatch(const StateTensor& wanted, const SavedTensor& saved, const State& state,
                     const Manifest& manifest) {
  if (saved.global_shape == wanted.global_shape && types_fit(wanted, saved, state, manifest)) return "";
  return str(wanted.name, ": ", saved.dtype, saved.global_shape, " in the checkpoint, but ", wanted.local.dtype(),
             wanted.global_shape, " here");
}

void list(std::ostream& out, const char* what, const std::vector<std::string>& names) {
  if (names.empty()) return;
  out << "\n  " << what << ":";
  for (std::size_t i = 0; i < names.size() && i < kListed; ++i) out << (i ? ", " : " ") << names[i];
  if (names.size() > kListed) out << " and " << names.size() - kListed << " more";
}

const char* type_name(const StateValue& value) {
  constexpr const char* names[] = {"i64", "u64", "f64", "string"};
  return names[value.index()];
}

void compare_values(const Manifest& manifest, const State& state, WeightsReport& report) {
  for (const auto& [name, slot] : state.values()) {
    const auto saved = manifest.values.find(name);
    if (saved == manifest.values.end()) {
      report.missing.push_back(name);
    } else if (const StateValue here = read_slot(slot); here.index() != saved->second.index()) {
      report.mismatched.push_back(
          str(name, ": ", type_name(saved->second), " in the checkpoint, but ", type_name(here), " here"));
    }
  }
  for (const auto& [name, value] : manifest.values)
    if (!state.values().contains(name)) report.unexpected.push_back(name);
}

template <class Is>
std::vector<std::string> take_if(std::vector<std::string>& names, const Is& is) {
  std::vector<std::string> taken;
  std::ranges::copy_if(names, std::back_inserter(taken), is);
  std::erase_if(names, is);
  return taken;
}

// Removes from `report` the differences that State::allow_partial_load() allows. Returns the policies' notifications,
// which are to be called after loading.
std::vector<std::function<void()>> forgive(const fs::path& folder, const Manifest& manifest, const State& state,
                                           WeightsReport& report) {
  std::vector<std::function<void()>> on_mismatch;
  for (const auto& [prefix, how] : state.partial_load_policies()) {
    const auto below = [&](const std::string& name) { return name.starts_with(prefix); };
    if (std::ranges::none_of(report.missing, below) && std::ranges::none_of(report.unexpected, below)) continue;
    const bool any = !how.saved;
    const std::set<std::string> saved = any ? std::set<std::string>{} : how.saved(manifest.metadata);
    const auto never_saved = [&](const std::string& name) { return below(name) && (any || !saved.contains(name)); };
    const auto not_wanted = [&](const std::string& name) { return below(name) && (any || saved.contains(name)); };
    const KeyMismatch mismatch{take_if(report.missing, never_saved), take_if(report.unexpected, not_wanted)};
    on_mismatch.emplace_back([&how = how, mismatch, &manifest, folder] {
      for (const std::string& name : mismatch.unexpected)
        if (how.on_unexpected && manifest.tensors.contains(name))
          how.on_unexpected(name, [&](const Region& r) { return read_tensor(folder, manifest, name, r); });
      how.on_mismatch(mismatch, manifest.metadata);
    });
  }
  return on_mismatch;
}

void check_sizes(const fs::path& folder, const Manifest& manifest) {
  for (const SavedFile& file : manifest.files)
    if (const auto size = File(folder / file.name, File::Mode::read).size(); size != file.bytes)
      fail((folder / file.name).string(), " has ", size, " bytes, but the manifest says ", file.bytes);
}

void load_tensors(const fs::path& folder, const Manifest& manifest, const State& state,
                  const std::vector<std::string>& names, const Stream& stream) {
  check_sizes(folder, manifest);
  state.wait_for_writes(stream);
  stream.synchronize();  // queued work may still use the bytes that are about to change
  Staging staging;
  for (const std::string& name : names) {
    const StateTensor& wanted = state.tensors().at(name);
    const SavedTensor& saved = manifest.tensors.at(name);
    if (saved.dtype != wanted.local.dtype() && (saved.dtype == DType::u8 || wanted.local.dtype() == DType::u8))
      load_converted(folder, manifest, state, name, stream);
    else
      load_tensor(folder, wanted, saved, stream, staging);
  }
}

}  // namespace

std::string WeightsReport::problems() const {
  std::ostringstream out;
  list(out, "missing in the checkpoint", missing);
  list(out, "only in the checkpoint", unexpected);
  list(out, "different", mismatched);
  return out.str();
}

void set_values(const Manifest& manifest, const State& state) {
  for (const auto& [name, slot] : state.values())
    if (const auto saved = manifest.values.find(name); saved != manifest.values.end())
      std::visit([&](auto* place) { *place = std::get<std::decay_t<decltype(*place)>>(saved->second); }, slot);
}

WeightsReport compare_weights(const Manifest& manifest, const State& state, const std::string& prefix) {
  WeightsReport report;
  const auto type_there = [&](const std::string& name) -> std::optional<DType> {
    const auto found = manifest.tensors.find(name);
    return found == manifest.tensors.end() ? std::nullopt : std::optional(found->second.dtype);
  };
  const auto type_here = [&](const std::string& name) -> std::optional<DType> {
    const auto found = state.tensors().find(name);
    return found == state.tensors().end() ? std::nullopt : std::optional(found->second.local.dtype());
  };
  for (const auto& [name, wanted] : state.tensors()) {
    if (!name.starts_with(prefix)) continue;
    const auto saved = manifest.tensors.find(name);
    if (saved == manifest.tensors.end() && scales_are_converted(name, type_there)) continue;
    if (saved == manifest.tensors.end())
      report.missing.push_back(name);
    else if (std::string text = mismatch(wanted, saved->second, state, manifest); !text.empty())
      report.mismatched.push_back(text);
    else
      report.matching.push_back(name);
  }
  for (const auto& [name, saved] : manifest.tensors)
    if (name.starts_with(prefix) && !state.tensors().contains(name) && !scales_are_converted(name, type_here))
      report.unexpected.push_back(name);
  return report;
}

Tensor read_tensor(const fs::path& checkpoint, const Manifest& manifest, const std::string& name,
                   const Region& region) {
  const SavedTensor& saved = manifest.tensors.at(name);
  Tensor t = Tensor::empty(region.size, saved.dtype, Stream::cpu(1));
  read_slices(checkpoint, name, saved, region, t.raw());
  return t;
}

Manifest load_state(const fs::path& checkpoint, State& state, const Stream& stream) {
  Manifest manifest = read_manifest(checkpoint);
  fill_state(checkpoint, manifest, state, stream);
  return manifest;
}

void fill_state(const fs::path& folder, const Manifest& manifest, State& state, const Stream& stream) {
  WeightsReport report = compare_weights(manifest, state, "");
  compare_values(manifest, state, report);
  const auto on_mismatch = forgive(folder, manifest, state, report);
  if (!report.complete())
    fail("checkpoint ", folder.string(), " does not fit this run:", report.problems(),
         "\nResume from a different checkpoint or with the settings that this one was saved with, or start a separate "
         "run from its weights (run.init_from)");
  load_tensors(folder, manifest, state, report.matching, stream);
  set_values(manifest, state);
  for (const auto& tell : on_mismatch) tell();
}

WeightsReport load_weights(const fs::path& checkpoint, State& state, const std::string& prefix, const Stream& stream,
                           bool strict) {
  const Manifest manifest = read_manifest(checkpoint);
  WeightsReport report = compare_weights(manifest, state, prefix);
  if (strict && !report.complete())
    fail("the weights in ", checkpoint.string(), " do not fit this model:", report.problems());
  if (report.matching.empty() && strict) fail("no tensor in ", checkpoint.string(), " is named '", prefix, "...'");
  load_tensors(checkpoint, manifest, state, report.matching, stream);
  return report;
}

}  // namespace ring
