#pragma once
// A folder that appears whole or not at all.

#include <filesystem>

namespace ring {

// While it is being filled it has a name beside its own, NAME.tmp-PID, and unless commit() was called it is removed.
class NewFolder {
 public:
  // Makes the folders around it. Error: something of that name exists, or the folder cannot be made.
  explicit NewFolder(const std::filesystem::path& final);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const std::filesystem::path& path() const { return temporary_; }  // where to write
  const std::filesystem::path& final() const { return final_; }     // without a slash at its end
  // Renames it; what was written in it is synced by then. Error: meanwhile something has its name.
  void commit();

 private:
  std::filesystem::path final_, temporary_;
};

}  // namespace ring
