#include "model/architecture_names.h"

namespace ring {

std::vector<std::string>& architecture_names() {
  static std::vector<std::string> names = {"decoder"};
  return names;
}

}  // namespace ring
