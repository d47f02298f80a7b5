#include "data/hdf5_file.h"

#include <hdf5.h>

#include <array>
#include <filesystem>
#include <memory>
#include <utility>

#include "core/check.h"

namespace ring {
namespace {

static_assert(sizeof(hid_t) == sizeof(std::int64_t), "HDF5 1.10 or newer is needed");

// The error stack belongs to the calling thread: every entry point silences its printing.
void silence() { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

// The innermost message of the library's error stack.
std::string reason() {
  std::string out;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned n, const H5E_error2_t* e, void* into) -> herr_t {
        if (n == 0 && e->desc) *static_cast<std::string*>(into) = e->desc;
        return 0;
      },
      &out);
  return out.empty() ? "unknown HDF5 error" : out;
}

using Closer = herr_t (*)(hid_t);

// A library handle that closes itself.
class Id {
 public:
  Id(hid_t id, Closer close) : id_(id), close_(close) {}
  ~Id() {
    if (id_ >= 0) close_(id_);
  }
  Id(const Id&) = delete;
  Id& operator=(const Id&) = delete;
  operator hid_t() const { return id_; }  // NOLINT: stands for the handle
  bool ok() const { return id_ >= 0; }

 private:
  hid_t id_;
  Closer close_;
};

hid_t file_type(Hdf5File::Element e) {
  using E = Hdf5File::Element;
  switch (e) {
    case E::u8: return H5T_STD_U8LE;
    case E::u16:
    case E::bf16: return H5T_STD_U16LE;
    case E::i32: return H5T_STD_I32LE;
    case E::u32: return H5T_STD_U32LE;
    case E::u64: return H5T_STD_U64LE;
    case E::f32: return H5T_IEEE_F32LE;
  }
  return -1;
}

}  // namespace

std::size_t Hdf5File::size_of(Element e) {
  switch (e) {
    case Element::u8: return 1;
    case Element::u16:
    case Element::bf16: return 2;
    case Element::i32:
    case Element::u32:
    case Element::f32: return 4;
    case Element::u64: return 8;
  }
  return 0;
}

Hdf5File::Hdf5File(std::string path, std::int64_t id) : path_(std::move(path)), id_(id) {}

Hdf5File::Hdf5File(Hdf5File&& o) noexcept : path_(std::move(o.path_)), id_(std::exchange(o.id_, -1)) {}

Hdf5File::~Hdf5File() {
  if (id_ >= 0) H5Fclose(id_);
}

Hdf5File Hdf5File::create(const std::string& path) {
  silence();
  const Id access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_alignment(access, 1, 64);  // so that mapped data can be read in place
  const hid_t id = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
  if (id < 0) fail("cannot write ", path, ": ", reason());
  return Hdf5File(path, id);
}

Hdf5File Hdf5File::open(const std::string& path) {
  namespace fs = std::filesystem;
  silence();
  if (!fs::exists(path)) fail("cannot open ", path, ": no such file");
  if (fs::is_directory(path)) fail("cannot open ", path, ": it is a directory, an HDF5 file is wanted");
  if (H5Fis_hdf5(path.c_str()) <= 0) {
    fail(path, " is not an HDF5 file (", fs::file_size(path), " bytes): it was damaged, or is something else");
  }
  const hid_t id = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  if (id < 0) fail(path, " is damaged or truncated (", fs::file_size(path), " bytes): ", reason());
  return Hdf5File(path, id);
}

void Hdf5File::create_group(const std::string& name) {
  silence();
  const Id properties(H5Pcreate(H5P_GROUP_CREATE), H5Pclose);
  H5Pset_obj_track_times(properties, false);
  const Id group(H5Gcreate2(id_, name.c_str(), H5P_DEFAULT, properties, H5P_DEFAULT), H5Gclose);
  if (!group.ok()) fail("cannot write group ", name, " of ", path_, ": ", reason());
}

std::uint64_t Hdf5File::create_dataset(const std::string& name, Element element, std::uint64_t count) {
  silence();
  RING_CHECK(count > 0, "dataset ", name, " of ", path_, " is empty: an HDF5 file has no place for it");
  const hsize_t dims = count;
  const Id space(H5Screate_simple(1, &dims, nullptr), H5Sclose);
  const Id properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_obj_track_times(properties, false);  // the same data, the same file
  H5Pset_layout(properties, H5D_CONTIGUOUS);
  H5Pset_alloc_time(properties, H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(properties, H5D_FILL_TIME_NEVER);
  const Id set(H5Dcreate2(id_, name.c_str(), file_type(element), space, H5P_DEFAULT, properties, H5P_DEFAULT),
               H5Dclose);
  if (!set.ok()) fail("cannot write dataset ", name, " of ", path_, ": ", reason());
  const haddr_t offset = H5Dget_offset(set);
  if (offset == HADDR_UNDEF) fail("cannot write dataset ", name, " of ", path_, ": it got no place in the file");
  return offset;
}

Hdf5File::Dataset Hdf5File::dataset(const std::string& name, bool unsigned_integers) const {
  silence();
  if (!exists(name)) fail(path_, " has no dataset ", name);
  const Id set(H5Dopen2(id_, name.c_str(), H5P_DEFAULT), H5Dclose);
  if (!set.ok()) fail(path_, ": dataset ", name, " cannot be opened: ", reason());
  const Id type(H5Dget_type(set), H5Tclose), space(H5Dget_space(set), H5Sclose);
  const Id properties(H5Dget_create_plist(set), H5Pclose);
  if (H5Sget_simple_extent_ndims(space) != 1) fail(path_, ": dataset ", name, " is not one-dimensional");
  if (H5Pget_layout(properties) != H5D_CONTIGUOUS || H5Pget_external_count(properties) != 0) {
    fail(path_, ": dataset ", name, " is not contiguous (chunked, compressed or external data cannot be mapped)");
  }
  const bool integers = H5Tget_class(type) == H5T_INTEGER && H5Tget_sign(type) == H5T_SGN_NONE;
  const bool little = H5Tget_size(type) == 1 || H5Tget_order(type) == H5T_ORDER_LE;
  if (unsigned_integers && !(integers && little))
    fail(path_, ": dataset ", name, " does not hold little-endian unsigned integers");
  Dataset out;
  hsize_t dims = 0;
  H5Sget_simple_extent_dims(space, &dims, nullptr);
  out.count = dims;
  out.element_size = H5Tget_size(type);
  const haddr_t offset = H5Dget_offset(set);
  if (out.count > 0 && offset == HADDR_UNDEF) fail(path_, ": dataset ", name, " has no bytes in the file");
  out.offset = out.count > 0 ? offset : 0;
  const std::uint64_t size = std::filesystem::file_size(path_);
  if (out.count > size / out.element_size || out.offset > size - out.bytes()) {
    fail(path_, " is truncated: dataset ", name, " needs bytes up to ", out.offset, " + ", out.bytes(),
         ", the file has ", size);
  }
  return out;
}

bool Hdf5File::exists(const std::string& name) const {
  silence();
  for (std::size_t end = name.find('/', 1); end != std::string::npos; end = name.find('/', end + 1)) {
    if (H5Lexists(id_, name.substr(0, end).c_str(), H5P_DEFAULT) <= 0) return false;
  }
  return name == "/" || H5Lexists(id_, name.c_str(), H5P_DEFAULT) > 0;
}

void Hdf5File::set(const std::string& group, const std::string& name, std::uint64_t value) {
  silence();
  const Id space(H5Screate(H5S_SCALAR), H5Sclose);
  const Id attribute(
      H5Acreate_by_name(id_, group.c_str(), name.c_str(), H5T_STD_U64LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
      H5Aclose);
  if (!attribute.ok() || H5Awrite(attribute, H5T_NATIVE_UINT64, &value) < 0) {
    fail("cannot write attribute ", name, " of ", path_, ": ", reason());
  }
}

void Hdf5File::set(const std::string& group, const std::string& name, const std::string& value) {
  silence();
  RING_CHECK(value.size() <= 60000, "attribute ", name, " of ", path_, " has ", value.size(),
             " bytes, at most 60000 fit");
  const Id space(H5Screate(H5S_SCALAR), H5Sclose), type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type, value.size() + 1);
  H5Tset_cset(type, H5T_CSET_UTF8);
  const Id attribute(
      H5Acreate_by_name(id_, group.c_str(), name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
      H5Aclose);
  if (!attribute.ok() || H5Awrite(attribute, type, value.c_str()) < 0) {
    fail("cannot write attribute ", name, " of ", path_, ": ", reason());
  }
}

std::optional<std::uint64_t> Hdf5File::number(const std::string& group, const std::string& name) const {
  silence();
  if (!exists(group) || H5Aexists_by_name(id_, group.c_str(), name.c_str(), H5P_DEFAULT) <= 0) return std::nullopt;
  const Id attribute(H5Aopen_by_name(id_, group.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  const Id type(H5Aget_type(attribute), H5Tclose), space(H5Aget_space(attribute), H5Sclose);
  std::uint64_t value = 0;
  if (H5Tget_class(type) != H5T_INTEGER || H5Sget_simple_extent_npoints(space) != 1 ||
      H5Aread(attribute, H5T_NATIVE_UINT64, &value) < 0) {
    return std::nullopt;
  }
  return value;
}

std::optional<std::string> Hdf5File::text(const std::string& group, const std::string& name) const {
  silence();
  if (!exists(group) || H5Aexists_by_name(id_, group.c_str(), name.c_str(), H5P_DEFAULT) <= 0) return std::nullopt;
  const Id attribute(H5Aopen_by_name(id_, group.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  const Id type(H5Aget_type(attribute), H5Tclose), space(H5Aget_space(attribute), H5Sclose);
  if (H5Tget_class(type) != H5T_STRING || H5Tis_variable_str(type) > 0 || H5Sget_simple_extent_npoints(space) != 1) {
    return std::nullopt;
  }
  std::string value(H5Tget_size(type), '\0');
  if (H5Aread(attribute, type, value.data()) < 0) return std::nullopt;
  value.resize(value.find_last_not_of('\0') + 1);
  return value;
}

void Hdf5File::close() {
  silence();
  if (id_ < 0) return;
  if (H5Fclose(std::exchange(id_, -1)) < 0) fail("cannot finish writing ", path_, ": ", reason());
}

}  // namespace ring
