#pragma once
#include <string>

#include "model/model.h"

namespace ring::test {

// Returns the model's parameters whose first part has a name that contains `text`, in the order of declaration.
inline ParamList params_named(Model& model, const std::string& text) {
  ParamList found;
  for (Param* p : model.parameters().declared())
    if (p->parts[0].name.find(text) != std::string::npos) found.push_back(p);
  return found;
}

}  // namespace ring::test
