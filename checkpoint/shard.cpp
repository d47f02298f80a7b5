#include "checkpoint/shard.h"

#include <hdf5.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "checkpoint/files.h"
#include "job/run_phase.h"

namespace ring {
namespace {

constexpr std::size_t kCopyBlock = 4 << 20;
constexpr hsize_t kDatasetAlignment = 64;  // alignment in bytes of every dataset's offset

// An HDF5 id that closes itself.
class Handle {
 public:
  Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  ~Handle() {
    if (id_ >= 0) close_(id_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  operator hid_t() const { return id_; }
  herr_t close() { return close_(std::exchange(id_, -1)); }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

// Stops libhdf5 from printing its errors, since our own messages include them.
class QuietErrors {
 public:
  QuietErrors() {
    H5Eget_auto2(H5E_DEFAULT, &function_, &data_);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~QuietErrors() { H5Eset_auto2(H5E_DEFAULT, function_, data_); }

 private:
  H5E_auto2_t function_ = nullptr;
  void* data_ = nullptr;
};

std::string hdf5_reason() {
  std::string reason;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned n, const H5E_error2_t* e, void* out) -> herr_t {
        if (n == 0 && e->desc) *static_cast<std::string*>(out) = e->desc;
        return 0;
      },
      &reason);
  return reason.empty() ? "no reason given" : reason;
}

hid_t checked(hid_t result, const char* what, const std::filesystem::path& path) {
  if (result < 0) fail("cannot ", what, " in ", path.string(), ": HDF5: ", hdf5_reason());
  return result;
}

// bfloat16 is the upper half of an IEEE float32. Readers that support HDF5's float types convert it automatically.
hid_t bf16_type() {
  const hid_t type = H5Tcopy(H5T_IEEE_F32LE);
  H5Tset_fields(type, 15, 7, 8, 0, 7);
  H5Tset_size(type, 2);
  H5Tset_ebias(type, 127);
  return type;
}

hid_t file_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return H5Tcopy(H5T_IEEE_F32LE);
    case DType::bf16: return bf16_type();
    case DType::i32: return H5Tcopy(H5T_STD_I32LE);
    case DType::u8: return H5Tcopy(H5T_STD_U8LE);
  }
  return -1;
}

hid_t data_space(const Shape& size) {
  hsize_t dims[kMaxDims];
  std::copy(size.begin(), size.end(), dims);
  return size.size() == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(size.size(), dims, nullptr);
}

void add_dataset(hid_t file, hid_t properties, const PlannedSlice& planned, const std::filesystem::path& path) {
  const Handle type(checked(file_type(planned.dtype), "create a type", path), H5Tclose);
  const Handle space(checked(data_space(planned.slice->region.size), "create a data space", path), H5Sclose);
  const Handle set(checked(H5Dcreate2(file, planned.name.c_str(), type, space, H5P_DEFAULT, properties, H5P_DEFAULT),
                           ("create dataset '" + planned.name + "'").c_str(), path),
                   H5Dclose);
  planned.slice->offset = 0;
  if (planned.slice->bytes == 0) return;
  const haddr_t offset = H5Dget_offset(set);
  if (offset == HADDR_UNDEF) fail("HDF5 reserved no space for dataset '", planned.name, "' in ", path.string());
  planned.slice->offset = offset;
}

// An anonymous in-memory file. The file is sparse: the tensors' byte ranges are never touched.
class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("checkpoint-layout", MFD_CLOEXEC)) {
    if (fd_ < 0) fail("cannot create a file in memory: ", std::strerror(errno));
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::filesystem::path path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

void lay_out(const std::filesystem::path& path, const std::vector<PlannedSlice>& slices) {
  const QuietErrors quiet;
  const Handle access(checked(H5Pcreate(H5P_FILE_ACCESS), "create properties", path), H5Pclose);
  H5Pset_fapl_stdio(access);  // the default driver resolves links, but an in-memory file has no path
  H5Pset_alignment(access, 1, kDatasetAlignment);
  H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
  const Handle properties(checked(H5Pcreate(H5P_DATASET_CREATE), "create properties", path), H5Pclose);
  H5Pset_layout(properties, H5D_CONTIGUOUS);
  H5Pset_alloc_time(properties, H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(properties, H5D_FILL_TIME_NEVER);
  H5Pset_obj_track_times(properties, false);  // makes files with equal states identical
  Handle file(checked(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access), "create a file", path), H5Fclose);
  for (const PlannedSlice& s : slices) add_dataset(file, properties, s, path);
  checked(file.close(), "close the file", path);
}

std::vector<const PlannedSlice*> by_offset(const std::vector<PlannedSlice>& slices) {
  std::vector<const PlannedSlice*> sorted;
  for (const PlannedSlice& s : slices) sorted.push_back(&s);
  std::ranges::stable_sort(sorted, {}, [](const PlannedSlice* s) { return s->slice->offset; });
  return sorted;
}

// Writes a file from front to back and hashes it on the way.
class Appender {
 public:
  explicit Appender(File& file) : file_(file) {}
  void append(const void* data, std::size_t bytes) {
    whole_.update(data, bytes);
    file_.write_at(at_, data, bytes);
    at_ += bytes;
  }
  // Appends the bytes of `other` from size() to `end`.
  void append_from(const File& other, std::uint64_t end) {
    std::vector<char> bytes(end - at_);
    other.read_at(at_, bytes.data(), bytes.size());
    append(bytes.data(), bytes.size());
  }
  std::uint64_t size() const { return at_; }
  std::string hash() const { return whole_.hex(); }

 private:
  File& file_;
  Hasher whole_;
  std::uint64_t at_ = 0;
};

// Returns an upper bound on the shard's size, including HDF5's headers.
std::uint64_t max_bytes(const std::vector<PlannedSlice>& slices) {
  std::uint64_t total = 16 << 10;
  for (const PlannedSlice& s : slices) total += s.slice->bytes + kDatasetAlignment + 2048 + 4 * s.name.size();
  return total;
}

// Reads a tensor on any device, one block at a time.
class Blocks {
 public:
  explicit Blocks(const Stream& stream) : stream_(stream) {}
  const std::byte* read(const Tensor& t, std::uint64_t at, std::size_t bytes) {
    if (t.device().backend == Backend::cpu) return t.raw() + at;
    if (!block_) block_ = stream_.impl().host_buffer(kCopyBlock);
    stream_.impl().copy(block_.get(), t.raw() + at, bytes);
    stream_.synchronize();  // allowed host wait: checkpoint
    return static_cast<const std::byte*>(block_.get());
  }

 private:
  const Stream& stream_;
  std::shared_ptr<void> block_;
};

// Hashes each block twice, for the slice and for the file, while the block is in the cache.
void append_slice(Appender& out, SavedSlice& slice, const Tensor& tensor, Blocks& blocks) {
  Hasher hasher;
  for (std::uint64_t at = 0; at < slice.bytes; at += kCopyBlock) {
    const std::size_t count = std::min<std::uint64_t>(kCopyBlock, slice.bytes - at);
    const std::byte* bytes = blocks.read(tensor, at, count);
    hasher.update(bytes, count);
    out.append(bytes, count);
  }
  slice.xxh3 = hasher.hex();
}

std::string cut_tensors(const std::vector<PlannedSlice>& slices, std::uint64_t size) {
  for (const PlannedSlice* s : by_offset(slices))
    if (s->slice->offset + s->slice->bytes > size) return str(", truncated from tensor '", s->name, "' on");
  return "";
}

SavedFile write_tensors(const std::filesystem::path& path, const std::vector<PlannedSlice>& slices,
                        const std::function<Tensor(const std::string&)>& tensor_of, const Stream& stream) {
  File file(path, File::Mode::create);
  file.reserve(max_bytes(slices));
  const MemoryFile memory;
  lay_out(memory.path(), slices);
  const File layout(memory.path(), File::Mode::read);
  Appender out(file);
  Blocks blocks(stream);
  for (const PlannedSlice* s : by_offset(slices)) {
    if (s->slice->bytes > 0) out.append_from(layout, s->slice->offset);
    append_slice(out, *s->slice, tensor_of(s->name), blocks);
  }
  out.append_from(layout, layout.size());
  file.resize(out.size());
  enter(RunPhase::sync);
  file.sync();
  return {path.filename().string(), out.size(), out.hash()};
}

}  // namespace

SavedFile write_shard(const std::filesystem::path& path, const std::vector<PlannedSlice>& slices,
                      const Snapshot& state) {
  const auto tensor_of = [&](const std::string& name) {
    state.wait();
    return state.tensors().at(name).local;
  };
  return write_tensors(path, slices, tensor_of, state.stream());
}

SavedFile write_shard(const std::filesystem::path& path, const std::vector<PlannedSlice>& slices,
                      const std::function<Tensor(const std::string& name)>& tensor_of) {
  return write_tensors(path, slices, tensor_of, Stream::cpu(1));
}

std::vector<std::string> verify_shard(const std::filesystem::path& folder, const SavedFile& saved,
                                      const std::vector<PlannedSlice>& slices, bool from_disk) {
  const std::filesystem::path path = folder / saved.name;
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error) return {str(path.string(), " is missing")};
  if (const std::uint64_t size = File(path, File::Mode::read).size(); size != saved.bytes)
    return {
        str(path.string(), " has ", size, " bytes, but the manifest says ", saved.bytes, cut_tensors(slices, size))};
  const std::vector<const PlannedSlice*> sorted = by_offset(slices);
  std::vector<ByteRange> ranges;
  for (const PlannedSlice* s : sorted) ranges.push_back({s->slice->offset, s->slice->bytes});
  const FileHashes hashes = hash_file(path, ranges, from_disk);
  std::vector<std::string> problems;
  for (std::size_t i = 0; i < sorted.size(); ++i)
    if (hashes.ranges[i] != sorted[i]->slice->xxh3)
      problems.push_back(str(path.string(), ": the bytes of tensor '", sorted[i]->name, "' are damaged (xxh3 ",
                             hashes.ranges[i], ", but the manifest says ", sorted[i]->slice->xxh3, ")"));
  if (problems.empty() && hashes.whole != saved.xxh3)
    problems.push_back(str(path.string(), ": bytes outside the tensors are damaged (xxh3 ", hashes.whole,
                           ", but the manifest says ", saved.xxh3, ")"));
  return problems;
}

}  // namespace ring
