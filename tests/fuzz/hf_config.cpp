// Target: config.json of a published model. A configuration that is read can be checked like settings. If it passes and
// can be exported, reading the export gives the same model.

#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/fields.h"
#include "interchange/hf/config.h"

namespace {

struct ModelFile {
  ring::ModelConfig model;
  void fields(ring::Fields& f) { f("model", model, "the decoder"); }
};

void check_again(const ring::PublishedModel& published) {
  published.model.resolved();  // like an import
  ModelFile checked;
  ring::load_config_text(checked, ring::to_yaml(ModelFile{published.model}), "input");
  const ring::ModelConfig model = checked.model.resolved();
  const ring::Family family = ring::family_of(model);
  const ring::PublishedModel again =
      ring::parse_hf_config(ring::hf_config(family, model, ring::FloatType::f32, {1, 3}), "written");
  if (again.family != family || ring::family_of(again.model.resolved()) != family) std::abort();  // a finding
  if (again.model.resolved().head_dim != model.head_dim) std::abort();                            // a finding
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    check_again(ring::parse_hf_config(std::string(reinterpret_cast<const char*>(data), size), "input"));
  } catch (const ring::Error&) {
  }
  return 0;
}
