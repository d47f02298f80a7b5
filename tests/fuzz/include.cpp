// Target: several settings files that include each other. The bytes are split at lines of "%": the first part is
// run.yaml, the others are 1.yaml, 2.yaml, ..
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/fields.h"
#include "engine/config.h"

namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() : path_(fs::path("/dev/shm") / ring::str("ring_fuzz_include_", getpid())) { fs::create_directories(path_); }
  ~Folder() { fs::remove_all(path_); }
  void clear() const {
    for (const auto& entry : fs::directory_iterator(path_)) fs::remove_all(entry.path());
  }
  fs::path at(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  folder.clear();
  const std::string all(data, data + size);
  int part = 0;
  for (std::size_t at = 0; at <= all.size() && part < 40; ++part) {
    const std::size_t end = std::min(all.find("\n%\n", at), all.size());
    std::ofstream(folder.at(part ? ring::str(part, ".yaml") : "run.yaml"), std::ios::binary)
        << all.substr(at, end - at) << "\n";
    at = end + 3;
  }
  try {
    ring::Config config;
    ring::load_config(config, folder.at("run.yaml").string());
  } catch (const ring::Error&) {
  }
  return 0;
}
