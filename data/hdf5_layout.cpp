#include "data/hdf5_layout.h"

#include <hdf5.h>

#include <utility>

#include "core/check.h"

namespace ring {
namespace {

static_assert(sizeof(hid_t) == sizeof(std::int64_t), "HDF5 1.10 or newer is needed");

// Each thread has its own HDF5 error stack, so every entry point silences printing.
void silence() { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

// Returns the innermost message of the library's error stack.
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

// RAII wrapper for a library handle.
class Id {
 public:
  Id(hid_t id, Closer close) : id_(id), close_(close) {}
  ~Id() {
    if (id_ >= 0) close_(id_);
  }
  Id(const Id&) = delete;
  Id& operator=(const Id&) = delete;
  operator hid_t() const { return id_; }  // NOLINT: implicit conversion to the handle
  bool ok() const { return id_ >= 0; }

 private:
  hid_t id_;
  Closer close_;
};

hid_t file_type(Hdf5Layout::Element e) {
  using E = Hdf5Layout::Element;
  switch (e) {
    case E::u8: return H5T_STD_U8LE;
    case E::u16: return H5T_STD_U16LE;
    case E::u32: return H5T_STD_U32LE;
    case E::u64: return H5T_STD_U64LE;
  }
  return -1;
}

}  // namespace

std::size_t Hdf5Layout::size_of(Element e) {
  switch (e) {
    case Element::u8: return 1;
    case Element::u16: return 2;
    case Element::u32: return 4;
    case Element::u64: return 8;
  }
  return 0;
}

Hdf5Layout::Hdf5Layout(std::string path, std::uint64_t front)
    : path_(std::move(path)), memory_(memory_file("corpus-layout")) {
  silence();
  const Id access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose), creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
  H5Pset_fapl_stdio(access);  // the default driver resolves links, which fails for paths in /proc
  H5Pset_alignment(access, 1, 64);
  H5Pset_userblock(creation, front);
  id_ = H5Fcreate(memory_.path().c_str(), H5F_ACC_TRUNC, creation, access);
  if (id_ < 0) fail("cannot write the HDF5 structure of ", path_, ": ", reason());
}

Hdf5Layout::~Hdf5Layout() {
  if (id_ >= 0) H5Fclose(id_);
}

void Hdf5Layout::create_group(const std::string& name) {
  silence();
  const Id properties(H5Pcreate(H5P_GROUP_CREATE), H5Pclose);
  H5Pset_obj_track_times(properties, false);
  const Id group(H5Gcreate2(id_, name.c_str(), H5P_DEFAULT, properties, H5P_DEFAULT), H5Gclose);
  if (!group.ok()) fail("cannot write group ", name, " of ", path_, ": ", reason());
}

std::uint64_t Hdf5Layout::create_dataset(const std::string& name, Element element, std::uint64_t count) {
  silence();
  RING_CHECK(count > 0, "dataset ", name, " of ", path_, " is empty: HDF5 reserves no space for it");
  const hsize_t dims = count;
  const Id space(H5Screate_simple(1, &dims, nullptr), H5Sclose);
  const Id properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_obj_track_times(properties, false);  // makes files with equal data byte-identical
  H5Pset_layout(properties, H5D_CONTIGUOUS);
  H5Pset_alloc_time(properties, H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(properties, H5D_FILL_TIME_NEVER);
  const Id set(H5Dcreate2(id_, name.c_str(), file_type(element), space, H5P_DEFAULT, properties, H5P_DEFAULT),
               H5Dclose);
  if (!set.ok()) fail("cannot write dataset ", name, " of ", path_, ": ", reason());
  const haddr_t offset = H5Dget_offset(set);
  if (offset == HADDR_UNDEF) fail("cannot write dataset ", name, " of ", path_, ": HDF5 reserved no space for it");
  return offset;
}

void Hdf5Layout::set_attribute(const std::string& group, const std::string& name, std::uint64_t value) {
  silence();
  const Id space(H5Screate(H5S_SCALAR), H5Sclose);
  const Id attribute(
      H5Acreate_by_name(id_, group.c_str(), name.c_str(), H5T_STD_U64LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
      H5Aclose);
  if (!attribute.ok() || H5Awrite(attribute, H5T_NATIVE_UINT64, &value) < 0) {
    fail("cannot write attribute ", name, " of ", path_, ": ", reason());
  }
}

void Hdf5Layout::set_attribute(const std::string& group, const std::string& name, const std::string& value) {
  silence();
  RING_CHECK(value.size() <= 60000, "attribute ", name, " of ", path_, " has ", value.size(),
             " bytes, but at most 60000 fit");
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

FileHandle Hdf5Layout::finish() {
  silence();
  if (H5Fclose(std::exchange(id_, -1)) < 0) fail("cannot write the HDF5 structure of ", path_, ": ", reason());
  return std::move(memory_);
}

}  // namespace ring
