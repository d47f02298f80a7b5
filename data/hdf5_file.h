#pragma once
// The part of HDF5 that corpora and checkpoints use: groups, number and text attributes, contiguous 1-D datasets whose
// bytes are read and written directly at their place in the file. Every failure is an Error that names the file; the
// library's own error stack stays silent.

#include <cstdint>
#include <optional>
#include <string>

namespace ring {

class Hdf5File {
 public:
  enum class Element { u8, u16, i32, u32, u64, f32, bf16 };  // bf16 is stored as u16
  static std::size_t size_of(Element);

  static Hdf5File create(const std::string& path);  // replaces an existing file
  static Hdf5File open(const std::string& path);    // read only. Error: missing, not HDF5, truncated
  ~Hdf5File();
  Hdf5File(Hdf5File&&) noexcept;
  Hdf5File& operator=(Hdf5File&&) = delete;

  void create_group(const std::string& name);
  // Space for `count` elements (at least one), contiguous, not written. Returns the offset of its first byte in the
  // file, which stays valid after close(): write the bytes there.
  std::uint64_t create_dataset(const std::string& name, Element, std::uint64_t count);

  struct Dataset {
    std::uint64_t offset = 0;  // of the first byte in the file
    std::uint64_t count = 0;   // elements
    std::size_t element_size = 0;
    std::uint64_t bytes() const { return count * element_size; }
  };
  // Error: missing, not one-dimensional, not contiguous, not unsigned integers where `unsigned_integers`, or its bytes
  // reach past the end of the file (checked before anything is mapped).
  Dataset dataset(const std::string& name, bool unsigned_integers = true) const;
  bool exists(const std::string& name) const;

  // Attributes of a group, "/" for the root.
  void set(const std::string& group, const std::string& name, std::uint64_t value);
  void set(const std::string& group, const std::string& name, const std::string& value);  // up to 60,000 bytes
  std::optional<std::uint64_t> number(const std::string& group, const std::string& name) const;
  std::optional<std::string> text(const std::string& group, const std::string& name) const;

  void close();  // Error when the library cannot write its metadata
  const std::string& path() const { return path_; }

 private:
  Hdf5File(std::string path, std::int64_t id);
  std::string path_;
  std::int64_t id_ = -1;  // hid_t
};

}  // namespace ring
