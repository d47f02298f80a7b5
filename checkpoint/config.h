#pragma once
// Settings of saving: the section `checkpoint`.

#include <cstdint>

#include "core/fields.h"

namespace ring {

enum class SaveMode : std::uint8_t { async, blocking };
enum class AfterSaveError : std::uint8_t { go_on, stop };
enum class OnUsr1 : std::uint8_t { stop, go_on };

struct CheckpointConfig {
  SaveMode mode = SaveMode::async;
  std::int64_t interval = 500;
  std::int64_t memory_interval = 0;
  double minutes = 0;
  bool automatic = false;  // checkpoint.auto
  double mtbf_hours = 24;
  std::int64_t keep_last = 2;
  std::int64_t keep_every = 0;
  AfterSaveError on_error = AfterSaveError::go_on;
  OnUsr1 on_usr1 = OnUsr1::stop;
  void fields(Fields&);
};

// How a run saves, which is as its settings say only where the host has room for it.
struct Saving {
  SaveMode mode = SaveMode::async;
  bool keeps = false;  // snapshots in the launcher's memory
  // How many copies of this rank's state lie in host memory. Without one, steps wait while it is written from where it
  // is.
  int copies() const { return keeps ? 2 : mode == SaveMode::async ? 1 : 0; }
};
inline Saving saving_of(const CheckpointConfig& c) { return {c.mode, c.memory_interval > 0}; }

}  // namespace ring
