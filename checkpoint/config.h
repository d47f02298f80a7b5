#pragma once
// Settings of the section `checkpoint`.

#include <cstdint>

#include "core/fields.h"

namespace ring {

// The help texts in config.cpp explain the values.
enum class SaveMode : std::uint8_t { async, blocking };
enum class AfterSaveError : std::uint8_t { go_on, stop };
enum class OnUsr1 : std::uint8_t { stop, go_on };

struct CheckpointConfig {
  SaveMode mode = SaveMode::async;
  std::int64_t interval = 500;
  std::int64_t memory_interval = 0;
  double minutes = 0;
  bool automatic = false;  // the setting checkpoint.auto
  double mtbf_hours = 24;
  std::int64_t keep_last = 2;
  std::int64_t keep_every = 0;
  AfterSaveError on_error = AfterSaveError::go_on;
  OnUsr1 on_usr1 = OnUsr1::stop;
  void fields(Fields&);
};

// Effective settings of a run's saves. They differ from the config if it asks for more host memory than there is.
struct Saving {
  SaveMode mode = SaveMode::async;
  bool keeps = false;  // true if the launcher keeps snapshots in memory (MemoryTier)
  // Returns how many copies of this rank's state are held in host memory. If 0, steps wait while the live tensors are
  // written.
  int copies() const { return keeps ? 2 : mode == SaveMode::async ? 1 : 0; }
};
inline Saving saving_of(const CheckpointConfig& c) { return {c.mode, c.memory_interval > 0}; }

}  // namespace ring
