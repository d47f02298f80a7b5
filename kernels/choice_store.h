#pragma once
// Choices shared by all runs of a user on a machine, or on all machines of a cluster. The first run that meets a shape
// measures it, and every later run reuses its choice, so that new runs with the same settings are bit-identical.

#include <atomic>
#include <mutex>
#include <optional>
#include <string>

#include "kernels/choice_file.h"

namespace ring {

// Returns the path of this user's store on this machine: ringmaster/choices.yaml in $XDG_CACHE_HOME, or else in
// $HOME/.cache. Returns "" if neither variable holds an absolute path.
std::string user_choice_store_path();

// Safe for several threads and processes: writers take a lock file beside the store, and readers only ever see complete
// files. If the store cannot be written, later choices stay in this process, and one warning is logged.
class ChoiceStore {
 public:
  // Reads the file if it exists. Throws Error like read_choice_file().
  explicit ChoiceStore(std::string path);

  const std::string& path() const { return path_; }
  // Rereads the file if the key is unknown and another process has changed the file.
  std::optional<std::string> find(const std::string& key);
  // Adds a choice and returns the choice to use from now on: the first one that any process stored for this key, unless
  // it equals `rejected`, a choice that turned out not to run here.
  std::string add(const std::string& key, const std::string& choice, const std::optional<std::string>& rejected);

 private:
  // Callers of the next three functions must hold mutex_. add_locked() also takes the lock file, and throws Error if it
  // cannot write the store.
  void reload_if_changed();
  std::string add_locked(const std::string& key, const std::string& choice, const std::optional<std::string>& rejected);
  void stop_sharing(const std::string& why);

  const std::string path_;
  std::mutex mutex_;
  ChoiceMap choices_;
  std::string loaded_;  // file_identity() of the file that was read last
  bool writable_ = true;
};

}  // namespace ring
