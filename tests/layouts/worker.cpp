#include "tests/layouts/worker.h"

#include <unistd.h>

#include <memory>
#include <optional>

#include "core/crc32c.h"
#include "core/fields.h"
#include "engine/devices.h"
#include "tests/layouts/order.h"
#include "trainer/session.h"
#include "trainer/trainer.h"

namespace ring::test {
namespace {

constexpr std::int64_t kVocabulary = 257;                // bytes and an end of documents
constexpr std::chrono::milliseconds kOperation{60'000};  // the longest time of one
constexpr std::chrono::milliseconds kSilence{20'000};    // of a rank that lives, on a busy machine

CommOptions comm_options() {
  CommOptions options;
  options.connect_timeout = options.timeout = kOperation;
  options.liveness = kSilence;
  return options;
}

class Run {
 public:
  Run(const Config& config, const ExecContext& ctx, Mesh& mesh)
      : config_(config),
        ctx_(ctx),
        loader_(open_corpora(config_.data), loader_options(config_, mesh)),
        trainer_(config_, ctx_, mesh, loader_) {}

  Answer train(int steps) {
    for (int i = 0; i < steps; ++i) {
      trainer_.launch();
      while (trainer_.in_flight() > trainer_.most_in_flight()) finish();
    }
    while (trainer_.in_flight() > 0) finish();
    answer_.replayed = trainer_.replays_graph();
    add_regions();
    return answer_;
  }

 private:
  void finish() {
    const StepReport r = trainer_.finish();
    if (!r.accepted) fail("step ", r.step, " is not finite: ", trainer_.diagnose());
    answer_.losses.push_back(r.loss);
    answer_.norms.push_back(r.norm);
  }
  void add_regions() {
    State state;
    trainer_.add_state(state);
    const Snapshot snapshot = state.snapshot(ctx_.stream);
    snapshot.wait();
    for (const auto& [name, t] : snapshot.tensors())
      if (t.local.numel() > 0)
        answer_.regions[str(name, " from ", t.start, " of ", t.local.shape())] =
            crc32c({reinterpret_cast<const char*>(t.local.raw()), t.local.bytes()});
  }

  const Config config_;
  ExecContext ctx_;
  Loader loader_;
  Trainer trainer_;
  Answer answer_;
};

class Worker {
 public:
  Answer answer(const Order& o) {
    Answer a;
    Config config;
    ParallelPlan plan;
    try {
      Config asked;
      override_config(asked, o.settings);
      config = resolve_config(asked, kVocabulary, o.world, backend_of(asked.run.device), false);
      plan = plan_of(config, o.world);
    } catch (const Error& e) {
      a.refused = e.what();
      return a;
    }
    try {
      return Run(config, context(config, o.gpu), meet(o, plan, config)).train(o.steps);
    } catch (const std::exception& e) {
      a.error = e.what();
      return a;
    }
  }

 private:
  // All orders compute on one stream and with the same choices.
  const ExecContext& context(const Config& config, int gpu) {
    if (!ctx_) ctx_ = make_exec_context(config, gpu);
    return *ctx_;
  }
  Mesh& meet(const Order& o, const ParallelPlan& plan, const Config& config) {
    if (mesh_ && groups_ == o.groups) return *mesh_;
    mesh_.reset();
    WorkerEnvironment env;
    env.rank = env.local_rank = o.rank;
    env.world = env.local_world = o.world;
    env.store = {"127.0.0.1", o.store_port};
    env.cookie = o.cookie;
    const Backend backend = backend_of(config.run.device);
    const Device device{backend, backend == Backend::cpu ? 0 : o.gpu};
    mesh_ = Mesh::join(env, comm_options(), mesh_layout(plan, device));
    groups_ = o.groups;
    return *mesh_;
  }

  std::optional<ExecContext> ctx_;
  std::unique_ptr<Mesh> mesh_;
  int groups_ = 0;  // of the mesh
};

}  // namespace

int serve_orders(int socket) {
  Worker worker;
  for (std::string text; receive_message(socket, text);) {
    const Answer answer = worker.answer(order_of(text));
    send_message(socket, to_text(answer));
    if (!answer.error.empty()) _exit(1);  // other ranks that wait for this one then notice; to leave groups may wait
  }
  return 0;
}

}  // namespace ring::test
