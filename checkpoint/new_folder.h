#pragma once
// A folder that appears either complete or not at all.

#include <filesystem>

namespace ring {

// While the folder is being filled, it is named NAME.tmp-PID. The destructor removes it unless commit() succeeded.
class NewFolder {
 public:
  // Creates the temporary folder and its parents. Throws Error if `final` exists or the folder cannot be created.
  explicit NewFolder(const std::filesystem::path& final);
  ~NewFolder();
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  const std::filesystem::path& path() const { return temporary_; }  // write here until commit()
  const std::filesystem::path& final() const { return final_; }     // the final path, without a trailing slash
  // Renames the folder to final(). The files in it must be synced. Throws Error if final() exists by now.
  void commit();

 private:
  std::filesystem::path final_, temporary_;
};

}  // namespace ring
