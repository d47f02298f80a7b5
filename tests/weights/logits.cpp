// logits RUN TOKENS OUTPUT: what a model says after each token. TOKENS is a file of i32, one sequence; OUTPUT becomes
// one of f32 [tokens, vocabulary].
#include <cstdio>
#include <fstream>
#include <iterator>
#include <vector>

#include "engine/devices.h"
#include "trainer/session.h"

namespace ring {
namespace {

std::vector<std::int32_t> read_ids(const char* file) {
  std::ifstream in(file, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
  std::vector<std::int32_t> ids(bytes.size() / sizeof(std::int32_t));
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(ids.data()));
  return ids;
}

// Beside open_session(), this needs no tokenizer.
std::vector<float> logits_of(const char* path, const std::vector<std::int32_t>& ids) {
  const Origin origin = origin_of(find_checkpoint(path));
  Config config = origin.config;
  config.run.device = DeviceChoice::cpu;
  config.run.threads = 2;
  const ExecContext ctx = make_exec_context(config);
  Decoder model(config.model);
  model.allocate(ctx, 1, {.trainable = false});
  load_model_weights(model, origin.checkpoint, ctx);
  Run run{ctx};
  const Sequences seqs = Sequences::uniform(1, static_cast<std::int64_t>(ids.size()), ctx);
  const Var h = model.hidden(run, from_host(ids, ctx.stream), seqs);
  const Tensor logits = model.logits(run, h.value);
  return to_host<float>(logits.view({logits.numel()}), ctx.stream);
}

}  // namespace
}  // namespace ring

int main(int argc, char** argv) {
  if (argc != 4) return std::fprintf(stderr, "usage: logits RUN TOKENS OUTPUT\n"), 2;
  try {
    const std::vector<float> logits = ring::logits_of(argv[1], ring::read_ids(argv[2]));
    std::ofstream out(argv[3], std::ios::binary);
    out.write(reinterpret_cast<const char*>(logits.data()),
              static_cast<std::streamsize>(logits.size() * sizeof(float)));
    return out.flush() ? 0 : 1;
  } catch (const std::exception& e) {
    return std::fprintf(stderr, "error: %s\n", e.what()), 1;
  }
}
