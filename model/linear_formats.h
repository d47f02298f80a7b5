#pragma once
// The formats that train.linears may name.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/setting_problem.h"
#include "model/linear_format.h"

namespace ring {

class Model;

// Makers of the formats, by the name in train.linears. Programs may add formats before settings are read.
using MakeLinearFormat = std::function<std::unique_ptr<LinearFormat>(Model&)>;
std::map<std::string, MakeLinearFormat>& linear_formats();

struct LinearsConfig {
  std::string format = "auto";      // a name in linear_formats(); auto and bf16 mean no format
  std::vector<std::string> except;  // patterns (fnmatch) of weights that get no format
  bool fp8_swiglu_inputs = false;   // LinearFormat::round_swiglu_inputs()
  bool encode_frozen = true;        // sets Param::encoded of frozen weights whose format has an encoding
};

// Gives the linear layers of a declared model (Param::linear) the configured format. Call before the model is sharded,
// and after bind_groups(), which freezes weights. Adds a problem for each weight whose shape does not fit the format,
// and for each pattern in `except` that matches no weight of a linear layer. Adds a problem, too, if the model or the
// format cannot round SwiGLU's inputs as configured.
void bind_linears(Model&, const LinearsConfig&, int slices, std::vector<SettingProblem>& errors);
// Same, but throws Error for the first problem.
void bind_linears(Model&, const LinearsConfig&, int slices);

}  // namespace ring
