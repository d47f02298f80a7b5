#include "cli/weights_option.h"

#include "cli/command.h"

namespace ring {

Option add_weights(Command command, SavedWeights& choice) {
  const auto take = [&choice](const std::string& name) {
    choice = name == "ema" ? SavedWeights::ema : SavedWeights::latest;
  };
  return command
      .add_option("--weights", take,
                  "Weights to use: latest (of the checkpoint's step) or ema (their moving average, train.ema)")
      .one_of({"latest", "ema"})
      .show_default("latest");
}

}  // namespace ring
