#include "model/architectures.h"

#include <map>
#include <utility>

#include "core/check.h"
#include "core/joined.h"
#include "model/architecture_names.h"
#include "model/decoder.h"

namespace ring {
namespace {

std::map<std::string, MakeModel>& architectures() {
  static std::map<std::string, MakeModel> all = {
      {"decoder", [](const ModelConfig& c, std::int64_t padding) { return std::make_unique<Decoder>(c, padding); }}};
  return all;
}

}  // namespace

void add_architecture(const std::string& name, MakeModel make) {
  RING_CHECK(architectures().emplace(name, std::move(make)).second, "architecture ", name, " already exists");
  architecture_names().push_back(name);
}

void remove_architecture(const std::string& name) {
  architectures().erase(name);
  std::erase(architecture_names(), name);
}

std::unique_ptr<Model> make_model(const ModelConfig& config, std::int64_t vocab_padding) {
  const auto found = architectures().find(config.architecture);
  if (found == architectures().end())
    fail("model.architecture: expected ", joined(architecture_names(), " or "), ", got '", config.architecture, "'");
  return found->second(config, vocab_padding);
}

}  // namespace ring
