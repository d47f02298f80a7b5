#include "tests/layouts/worker.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include "core/crc32c.h"
#include "core/fields.h"
#include "engine/devices.h"
#include "evaluate/session.h"
#include "tests/layouts/request.h"
#include "trainer/trainer.h"

namespace ring::test {
namespace {

constexpr std::int64_t kVocabulary = 257;  // bytes and an end-of-document token
// Returns the GPUs on which this process has a context, according to CUDA's driver API.
std::vector<int> gpus_with_context() {
  using Count = int(int*);
  using ContextState = int(int device, unsigned* flags, int* active);
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);  // null if nothing in this process uses CUDA
  if (!driver) return {};
  const auto count = reinterpret_cast<Count*>(dlsym(driver, "cuDeviceGetCount"));
  const auto state = reinterpret_cast<ContextState*>(dlsym(driver, "cuDevicePrimaryCtxGetState"));
  int devices = 0;
  if (!count || !state || count(&devices) != 0) fail("the CUDA driver did not say which GPUs have contexts");
  std::vector<int> with_context;
  for (int i = 0; i < devices; ++i) {
    unsigned flags = 0;
    int active = 0;
    if (state(i, &flags, &active) == 0 && active) with_context.push_back(i);
  }
  return with_context;
}

constexpr std::chrono::milliseconds kOperationTimeout{60'000};  // of one communication operation
constexpr std::chrono::milliseconds kLivenessTimeout{20'000};   // silence of a dead rank, even on a busy machine

CommOptions comm_options() {
  CommOptions options;
  if (const char* copies = std::getenv("RINGMASTER_COPY_ENGINES")) options.copy_engines = std::string(copies) != "0";
  options.connect_timeout = options.timeout = kOperationTimeout;
  options.liveness = kLivenessTimeout;
  return options;
}

class Run {
 public:
  Run(const Config& config, const ExecContext& ctx, Mesh& mesh)
      : config_(config),
        ctx_(ctx),
        loader_(open_corpora(config_.data), loader_options(config_, mesh)),
        trainer_(config_, ctx_, mesh, loader_) {}

  Reply train(int steps) {
    for (int i = 0; i < steps; ++i) {
      trainer_.launch();
      while (trainer_.in_flight() > trainer_.max_in_flight()) finish();
    }
    while (trainer_.in_flight() > 0) finish();
    reply_.replayed = trainer_.replays_graph();
    add_regions();
    reply_.gpus = gpus_with_context();
    return reply_;
  }

 private:
  void finish() {
    const StepReport r = trainer_.finish();
    if (!r.accepted) fail("step ", r.step, " is not finite: ", trainer_.diagnose_step());
    reply_.losses.push_back(r.loss);
    reply_.norms.push_back(r.norm);
  }
  void add_regions() {
    State state;
    trainer_.add_state(state);
    const Snapshot snapshot = state.snapshot(ctx_.stream);
    snapshot.wait();
    for (const auto& [name, t] : snapshot.tensors())
      if (t.local.numel() > 0)
        reply_.regions[str(name, " from ", t.start, " of ", t.local.shape())] =
            crc32c({reinterpret_cast<const char*>(t.local.raw()), t.local.bytes()});
  }

  const Config config_;
  ExecContext ctx_;
  Loader loader_;
  Trainer trainer_;
  Reply reply_;
};

class Worker {
 public:
  Reply train(const Request& o) {
    Reply a;
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
      return Run(config, context(config, o.gpu), join_mesh(o, plan, config)).train(o.steps);
    } catch (const std::exception& e) {
      a.error = e.what();
      return a;
    }
  }

 private:
  // Returns the context that all requests share, with one stream and the same choices.
  const ExecContext& context(const Config& config, int gpu) {
    if (!ctx_) ctx_ = make_exec_context(config, gpu);
    return *ctx_;
  }
  Mesh& join_mesh(const Request& o, const ParallelPlan& plan, const Config& config) {
    if (mesh_ && mesh_number_ == o.mesh) return *mesh_;
    mesh_.reset();
    WorkerEnvironment env;
    env.rank = env.local_rank = o.rank;
    env.world = env.local_world = o.world;
    env.store = {"127.0.0.1", o.store_port};
    env.cookie = o.cookie;
    const Backend backend = backend_of(config.run.device);
    const Device device{backend, backend == Backend::cpu ? 0 : o.gpu};
    mesh_ = Mesh::join(env, comm_options(), mesh_layout(plan, device));
    mesh_number_ = o.mesh;
    return *mesh_;
  }

  std::optional<ExecContext> ctx_;
  std::unique_ptr<Mesh> mesh_;
  int mesh_number_ = 0;  // Request::mesh of mesh_
};

}  // namespace

int serve_requests(int socket) {
  Worker worker;
  for (std::string text; receive_message(socket, text);) {
    const Reply reply = worker.train(request_of(text));
    send_message(socket, to_text(reply));
    if (!reply.error.empty()) _exit(1);  // so that waiting ranks notice; leaving the mesh could block
  }
  return 0;
}

}  // namespace ring::test
