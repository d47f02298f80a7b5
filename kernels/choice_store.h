#pragma once
// ChoiceMap that all runs of a user share on a machine, or all machines of a cluster: whichever run meets a shape first
// measures it, and every later one takes the same choice, so that fresh runs of the same settings have the same bits.

#include <atomic>
#include <mutex>
#include <optional>
#include <string>

#include "kernels/choice_file.h"

namespace ring {

// The store of this user on this machine: ringmaster/choices.yaml in $XDG_CACHE_HOME, or else in $HOME/.cache. Empty if
// neither variable names an absolute path.
std::string user_choice_store();

// Thread-safe, and safe beside other processes: a lock file beside the store serialises writers, and readers only ever
// see whole files. What cannot be written stays in this process, with one warning.
class ChoiceStore {
 public:
  // Reads the file if it exists. Throws Error as read_choice_file().
  explicit ChoiceStore(std::string path);

  const std::string& path() const { return path_; }
  // Rereads the file if another process has changed it and this one does not know the key.
  std::optional<std::string> find(const std::string& key);
  // Adds a choice and returns the one that holds from now on: that of whoever added it first, unless it is `rejected`,
  // one that turned out not to run here.
  std::string add(const std::string& key, const std::string& choice, const std::optional<std::string>& rejected);

 private:
  void reread();
  std::string add_locked(const std::string& key, const std::string& choice, const std::optional<std::string>& rejected);
  void keep_to_itself(const std::string& why);

  const std::string path_;
  std::mutex mutex_;
  ChoiceMap choices_;
  std::string seen_;  // inode, size and time of the file that choices_ come from
  bool writable_ = true;
};

}  // namespace ring
