#pragma once
// The shape of an HDF5 file: groups, number and text attributes, and space for contiguous 1-D datasets. libhdf5 makes
// it in memory, so that no full disk meets the library; whoever writes the file copies the headers and fills in the
// data. Nothing here reads a file. Every failure is an Error; the library's own error stack stays silent.

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/files.h"

namespace ring {

class Hdf5Layout {
 public:
  enum class Element { u8, u16, u32, u64 };
  static std::size_t size_of(Element);

  // `path` names the file in errors and is not opened. `front` bytes lie before what HDF5 knows of: 0, 512 or a higher
  // power of two.
  Hdf5Layout(std::string path, std::uint64_t front);
  ~Hdf5Layout();
  Hdf5Layout(const Hdf5Layout&) = delete;
  Hdf5Layout& operator=(const Hdf5Layout&) = delete;

  void create_group(const std::string& name);
  // Space for `count` elements (at least one). Returns the offset of its first byte in the file.
  std::uint64_t create_dataset(const std::string& name, Element, std::uint64_t count);
  // Attributes of a group, "/" for the root.
  void set(const std::string& group, const std::string& name, std::uint64_t value);
  void set(const std::string& group, const std::string& name, const std::string& value);  // up to 60,000 bytes

  // A file in memory with the final size; it has holes where data belongs. No more calls after this.
  FileHandle finish();

 private:
  std::string path_;
  FileHandle memory_;
  std::int64_t id_ = -1;  // hid_t
};

}  // namespace ring
