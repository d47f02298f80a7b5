#include "cli/weights_option.h"

#include <CLI/CLI.hpp>

namespace ring {

CLI::Option* add_weights(CLI::App& command, SavedWeights& choice) {
  const auto take = [&choice](const std::string& name) {
    choice = name == "ema" ? SavedWeights::ema : SavedWeights::latest;
  };
  return command
      .add_option_function<std::string>("--weights", take,
                                        "latest: those of the checkpoint's step; ema: their average (train.ema)")
      ->check(CLI::IsMember({"latest", "ema"}))
      ->default_str("latest");
}

}  // namespace ring
