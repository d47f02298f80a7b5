#pragma once
// Settings of saving: the section `checkpoint`.

#include <cstdint>

#include "core/fields.h"

namespace ring {

enum class SaveMode : std::uint8_t { async, blocking };
enum class AfterSaveError : std::uint8_t { go_on, stop };

struct CheckpointConfig {
  SaveMode mode = SaveMode::async;
  std::int64_t interval = 500;
  double minutes = 0;
  bool automatic = false;  // checkpoint.auto
  double mtbf_hours = 24;
  std::int64_t keep_last = 2;
  std::int64_t keep_every = 0;
  AfterSaveError on_error = AfterSaveError::go_on;
  void fields(Fields&);
};

}  // namespace ring
