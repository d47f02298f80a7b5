#pragma once
// Watches the file system calls of this process, and can make them fail or wait. The functions replace those of the C
// library at link time; without a hook, they call the C library's.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace ring::test {

struct IoCall {
  // One of create, open, make_directory, reserve, read, write, resize, sync, close, rename, exchange, remove, lock,
  // access. Calls inside the C library, such as those of fwrite(), are not shown.
  std::string name;
  std::string path;
  std::string to = {};           // target of rename and exchange
  std::uint64_t offset = 0;      // offset of write; new size of resize
  std::vector<char> bytes = {};  // data of write
};

// Called before each call, on the thread that makes it. Returns 0 to continue, an errno to fail with it, or kShort to
// write half of the data. A close that fails still closes the file, as on Linux.
inline constexpr int kShort = -1;
using IoHook = std::function<int(const IoCall&)>;

// Installs a hook for as long as the object lives; only one at a time. Calls for paths that do not contain `under` are
// not shown.
class IoWatch {
 public:
  IoWatch(std::string under, IoHook);
  ~IoWatch();
  IoWatch(const IoWatch&) = delete;
  IoWatch& operator=(const IoWatch&) = delete;
};

}  // namespace ring::test
