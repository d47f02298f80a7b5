#pragma once
// Builds the layout of an HDF5 file: groups, number and text attributes, and space for contiguous 1-D datasets. libhdf5
// works on a file in memory, so that it never encounters a full disk. The writer of the real file copies the headers
// and fills in the data. Nothing here reads a file. Every failure throws Error; libhdf5 itself prints no errors.

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/files.h"

namespace ring {

class Hdf5Layout {
 public:
  enum class Element { u8, u16, u32, u64 };
  static std::size_t size_of(Element);

  // path: names the file in errors; it is not opened. front: number of bytes before the HDF5 data: 0, 512 or a higher
  // power of two.
  Hdf5Layout(std::string path, std::uint64_t front);
  ~Hdf5Layout();
  Hdf5Layout(const Hdf5Layout&) = delete;
  Hdf5Layout& operator=(const Hdf5Layout&) = delete;

  void create_group(const std::string& name);
  // Reserves space for `count` elements, at least one. Returns the file offset of the first byte.
  std::uint64_t create_dataset(const std::string& name, Element, std::uint64_t count);
  // Sets an attribute of a group; "/" is the root.
  void set_attribute(const std::string& group, const std::string& name, std::uint64_t value);
  void set_attribute(const std::string& group, const std::string& name,
                     const std::string& value);  // value: at most 60,000 bytes

  // Returns an in-memory file of the final size, with holes for the data. Call last.
  FileHandle finish();

 private:
  std::string path_;
  FileHandle memory_;
  std::int64_t id_ = -1;  // hid_t
};

}  // namespace ring
