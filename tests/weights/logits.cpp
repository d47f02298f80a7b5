// logits whole|cached|gradients RUN TOKENS OUTPUT: computes a model's logits after each token. TOKENS is a file of i32,
// one sequence. OUTPUT becomes a file of f32 [tokens, vocabulary]; `cached` computes the first half at once and then
// token by token through the cache. With `gradients`, OUTPUT is an existing folder that gets model.safetensors: the
// gradients of the mean loss under the names of published weights; the loss is printed.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "checkpoint/safetensors/writer.h"
#include "engine/devices.h"
#include "evaluate/session.h"
#include "interchange/hf/names.h"
#include "kernels/cross_entropy.h"
#include "model/decoder.h"

namespace ring {
namespace {

std::vector<std::int32_t> read_ids(const char* file) {
  std::ifstream in(file, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
  std::vector<std::int32_t> ids(bytes.size() / sizeof(std::int32_t));
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(ids.data()));
  return ids;
}

Config config_of(const Origin& origin) {
  Config config = origin.config;
  config.run.device = DeviceChoice::cpu;
  config.run.threads = 2;
  return config;
}

// A loaded model. Unlike open_session(), it needs no tokenizer.
struct Model {
  Model(const char* path, bool trainable)
      : origin(origin_of(find_checkpoint(path))),
        ctx(make_exec_context(config_of(origin))),
        decoder(origin.config.model) {
    decoder.allocate(ctx, 1, {.trainable = trainable});
    load_model_weights(decoder, origin.checkpoint, ctx);
  }
  Sequences sequence(std::size_t length, std::int64_t first = 0) const {
    return Sequences::uniform(1, static_cast<std::int64_t>(length), ctx, first);
  }
  std::vector<float> logits(Run& run, const Var& hidden) const {
    const Tensor logits = decoder.logits(run, hidden.value);
    return to_host<float>(logits.view({logits.numel()}), ctx.stream);
  }

  Origin origin;
  ExecContext ctx;
  Decoder decoder;
};

std::vector<float> whole(const Model& m, const std::vector<std::int32_t>& ids) {
  Run run{m.ctx};
  const Sequences seqs = m.sequence(ids.size());
  return m.logits(run, m.decoder.hidden(run, from_host(ids, m.ctx.stream), seqs));
}

std::vector<float> cached(const Model& m, const std::vector<std::int32_t>& ids) {
  KvCache cache = m.decoder.make_cache(1, std::ssize(ids), m.ctx);
  std::vector<float> all;
  for (std::size_t at = 0, next = ids.size() / 2; at < ids.size(); at = next++) {
    const std::vector<std::int32_t> part(ids.begin() + static_cast<std::ptrdiff_t>(at),
                                         ids.begin() + static_cast<std::ptrdiff_t>(next));
    Run run{m.ctx};
    const Sequences seqs = m.sequence(part.size(), static_cast<std::int64_t>(at));
    const Var h = m.decoder.hidden(run, from_host(part, m.ctx.stream), seqs, cache);
    const std::vector<float> logits = m.logits(run, h);
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

// Backpropagates the loss of predicting each next token; the last token has no target. Returns the mean loss.
double compute_gradients(Model& m, const std::vector<std::int32_t>& ids) {
  std::vector<std::int32_t> targets(ids.begin() + 1, ids.end());
  targets.push_back(kIgnoreTarget);
  const float scale = 1.0f / static_cast<float>(ids.size() - 1);
  Tape tape;
  Run run{m.ctx, &tape};
  const Sequences seqs = m.sequence(ids.size());
  LossHead head;
  head.targets = from_host(targets, m.ctx.stream);
  head.scale = scale;
  m.decoder.parameters().start_step();
  const LossOutput out = m.decoder.loss(run, from_host(ids, m.ctx.stream), seqs, head);
  const double sum = to_host<float>(out.sum.value, m.ctx.stream)[0];
  tape.backward(out.sum.slot, {}, m.ctx);
  return sum * scale;
}

std::vector<float> gradient_of(const Parameters& all, const OurTensor& tensor) {
  for (const Param* p : all.layout())
    for (const LogicalParam& part : p->parts)
      if (part.name == tensor.name) {
        const Tensor g = p->part_of(all.gradients, part);
        return {g.data<float>(), g.data<float>() + g.numel()};
      }
  fail("no parameter ", tensor.name);
}

void write_gradients(const Model& m, const char* folder) {
  const std::vector<PublishedTensor> tensors = published_tensors(family_of(m.decoder.config()), m.decoder.config());
  std::vector<OutputTensor> outputs;
  for (const PublishedTensor& t : tensors) outputs.push_back({t.name, t.shape()});
  write_safetensors(folder, outputs, {}, [&](std::size_t i) {
    std::vector<float> rows;
    for (const OurTensor& part : tensors[i].parts) {
      const std::vector<float> g = gradient_of(m.decoder.parameters(), part);
      rows.insert(rows.end(), g.begin(), g.end());
    }
    return to_published_layout(tensors[i], std::move(rows));
  });
}

void run(const std::string& what, const char* path, const char* tokens, const char* output) {
  const std::vector<std::int32_t> ids = read_ids(tokens);
  Model m(path, what == "gradients");
  if (what == "gradients") {
    std::printf("%.9g\n", compute_gradients(m, ids));
    return write_gradients(m, output);
  }
  const std::vector<float> logits = what == "cached" ? cached(m, ids) : whole(m, ids);
  std::ofstream out(output, std::ios::binary);
  out.write(reinterpret_cast<const char*>(logits.data()), static_cast<std::streamsize>(logits.size() * sizeof(float)));
  if (!out.flush()) fail("cannot write ", output);
}

}  // namespace
}  // namespace ring

int main(int argc, char** argv) {
  if (argc != 5) return std::fprintf(stderr, "usage: logits whole|cached|gradients RUN TOKENS OUTPUT\n"), 2;
  try {
    ring::run(argv[1], argv[2], argv[3], argv[4]);
    return 0;
  } catch (const std::exception& e) {
    return std::fprintf(stderr, "error: %s\n", e.what()), 1;
  }
}
