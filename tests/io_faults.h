#pragma once
// Watches what this process asks of the file system, and lets it fail or wait. Linked in, it takes the place of the C
// library's calls; without a hook they do what they always do.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace ring::test {

struct IoCall {
  // create, open, make_directory, reserve, read, write, resize, sync, close, rename, exchange, remove, lock, access.
  // What the C library calls itself, as fwrite() does, is not shown.
  std::string name;
  std::string path;
  std::string to = {};           // of rename and exchange
  std::uint64_t offset = 0;      // of write; the new size of resize
  std::vector<char> bytes = {};  // of write
};

// Before each call, on the thread that makes it. 0: go on; an errno: fail with it; kShort: write half of it. A close
// that fails closes all the same, as Linux does.
inline constexpr int kShort = -1;
using IoHook = std::function<int(const IoCall&)>;

// One at a time. Calls of paths that do not contain `under` are not shown.
class IoWatch {
 public:
  IoWatch(std::string under, IoHook);
  ~IoWatch();
  IoWatch(const IoWatch&) = delete;
  IoWatch& operator=(const IoWatch&) = delete;
};

}  // namespace ring::test
