#include "tests/parallel/training.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <future>
#include <mutex>
#include <thread>

#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "core/fields.h"
#include "core/philox.h"
#include "engine/devices.h"
#include "engine/dry_step.h"
#include "evaluate/evaluate.h"
#include "evaluate/score.h"
#include "evaluate/session.h"
#include "tests/comm/local_link.h"
#include "tests/trainer/documents.h"
#include "tests/trainer/tiny.h"
#include "trainer/trainer.h"

namespace ring::test {
namespace {

namespace fs = std::filesystem;
constexpr Timeout kTimeout{60'000};

// A corpus of this process: documents of pseudo-random tokens with some regularity.
class CorpusFile {
 public:
  CorpusFile() : folder_(fs::temp_directory_path() / str("ringmaster-training-", getpid())) {
    fs::create_directories(folder_);
    write_documents(path(), 60, 6, [](std::uint64_t d) { return 30 + random_bits({7, 0, 0}, d) % 90; });
  }
  ~CorpusFile() { fs::remove_all(folder_); }
  std::string path() const { return (folder_ / "corpus.h5").string(); }

 private:
  fs::path folder_;
};

const CorpusFile& corpus() {
  static const CorpusFile file;
  return file;
}

Config config_of(const TrainingOptions& options) {
  Config config = tiny_config();
  config.run.threads = 1;
  config.data.prefetch = 0;
  config.schedule.warmup_steps = 2;
  config.optimizer.lr = 3e-3;
  config.data.path = corpus().path();
  override_config(config, options.overrides);  // for a mixture, together with data.path=
  return config;
}

// Results that the ranks collect.
struct Gathered {
  std::mutex mutex;
  Training result;
  std::map<std::string, std::vector<bool>> known;
};

void gather_row(Gathered& g, const StateTensor& t, std::size_t at, const float* values, std::int64_t n) {
  std::vector<float>& whole = g.result.tensors[t.name];
  std::vector<bool>& known = g.known[t.name];
  whole.resize(static_cast<std::size_t>(t.global_shape.numel()));
  known.resize(whole.size());
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    RING_CHECK(!known[at + i] || std::memcmp(&whole[at + i], &values[i], sizeof(float)) == 0, t.name, " element ",
               at + i, " is ", whole[at + i], " on one rank and ", values[i], " on another");
    whole[at + i] = values[i];
    known[at + i] = true;
  }
}

// Codes and scales of FP8 states are gathered as numbers.
std::vector<float> row_of(const Tensor& t, std::int64_t first, std::int64_t n) {
  if (t.dtype() == DType::u8) return {t.data<std::uint8_t>() + first, t.data<std::uint8_t>() + first + n};
  return {t.data<float>() + first, t.data<float>() + first + n};
}

void gather(Gathered& g, const State& state) {
  for (const auto& [name, t] : state.tensors()) {
    const bool matrix = t.global_shape.size() == 2;
    const std::int64_t columns = matrix ? t.local.dim(1) : t.local.numel(), rows = matrix ? t.local.dim(0) : 1;
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t at = matrix ? (t.start[0] + r) * t.global_shape[1] + t.start[1] : t.start[0];
      const std::vector<float> row = row_of(t.local, r * columns, columns);
      gather_row(g, t, static_cast<std::size_t>(at), row.data(), columns);
    }
  }
}

void check_complete(const Gathered& g) {
  for (const auto& [name, known] : g.known)
    for (std::size_t i = 0; i < known.size(); ++i) RING_CHECK(known[i], name, " element ", i, " is held by no rank");
}

class Rank {
 public:
  Rank(const TrainingOptions& options, const WorkerEnvironment& env)
      : options_(options),
        asked_(config_of(options)),
        mesh_(Mesh::join(env, comm_options(options), mesh_layout(plan_of(asked_, env.world), {}))),
        config_(resolve_config(asked_, 257, *mesh_)),
        ctx_(make_exec_context(config_)),
        loader_(open_corpora(config_.data), loader_options(config_, *mesh_)),
        trainer_(config_, ctx_, *mesh_, loader_) {
    trainer_.add_state(state_);
    if (options.init_from) {
      trainer_.load_weights(options.load);
    } else if (!options.load.empty()) {
      load_state(options.load, state_, ctx_.stream);
      trainer_.on_state_loaded();
    }
  }

  void run(Gathered& g) {
    std::vector<double> losses, norms, index_losses;
    std::vector<std::vector<double>> part_norms;
    std::vector<WatchReport> watched;
    std::vector<std::vector<SourceLoss>> sources;
    for (int i = 0; i < options_.steps; ++i) {
      trainer_.begin_exchange();
      StepReport r = trainer_.step();
      trainer_.end_exchange();
      trainer_.average_over_islands(r);
      RING_CHECK(r.accepted, "step ", i, " is not finite: ", trainer_.diagnose_step());
      losses.push_back(r.loss);
      norms.push_back(r.norm);
      if (r.auxiliary_loss) index_losses.push_back(*r.auxiliary_loss);
      if (!trainer_.has_islands()) part_norms.push_back(r.part_norms);  // islands have different ones
      watched.push_back(r.watched);
      sources.push_back(r.sources);
      if (options_.validate_often) evaluation(), evaluation_of_average();
    }
    report_sources(g, sources);
    report_index_losses(g, index_losses);
    Evaluation validation;
    if (options_.validate) validation = evaluation();
    if (options_.validate && trainer_.averages()) report_average(g, evaluation_of_average());
    if (options_.score) score_requests(g);
    std::string saved;
    trainer_.prepare_save();
    if (!options_.save.empty())
      saved = write_checkpoint(options_.save, trainer_.steps_done(), state_.snapshot(ctx_.stream),
                               checkpoint_metadata(config_, {}, nullptr), {}, make_writer_group(mesh_->host()))
                  .string();
    if (options_.steps_behind > 0) save_behind();
    report(g, losses, norms, validation, saved);
    report_parts(g, part_norms);
    report_watched(g, watched);
    mesh_->all().barrier().synchronize();
  }

 private:
  Evaluation evaluation() {
    trainer_.swap_outer_weights();
    const ValidationSet set(open_corpora(config_.data), loader_options(config_, *mesh_), 8);
    const Evaluation e = trainer_.preference() ? trainer_.preference()->evaluate(set, mesh_->host())
                                               : evaluate(trainer_.model(), ctx_, set, mesh_->host(),
                                                          &trainer_.cp_batches(), &mesh_->axis("tp"));
    trainer_.swap_outer_weights();
    return e;
  }
  double evaluation_of_average() {
    if (!trainer_.averages()) return 0;
    trainer_.swap_average_weights();
    const double loss = evaluation().loss;
    trainer_.swap_average_weights();
    return loss;
  }
  static void report_average(Gathered& g, double loss) {
    const std::lock_guard lock(g.mutex);
    if (g.result.average_validation == 0) g.result.average_validation = loss;
    RING_CHECK(g.result.average_validation == loss, "ranks report different losses of the average");
  }
  static bool same(const std::vector<SourceLoss>& a, const std::vector<SourceLoss>& b) {
    return std::ranges::equal(
        a, b, [](const SourceLoss& x, const SourceLoss& y) { return x.sum == y.sum && x.targets == y.targets; });
  }
  static void report_sources(Gathered& g, const std::vector<std::vector<SourceLoss>>& sources) {
    const std::lock_guard lock(g.mutex);
    if (g.result.sources.empty()) g.result.sources = sources;
    RING_CHECK(std::ranges::equal(g.result.sources, sources, same), "ranks report different losses of corpora");
  }
  static void report_index_losses(Gathered& g, const std::vector<double>& losses) {
    const std::lock_guard lock(g.mutex);
    if (g.result.index_losses.empty()) g.result.index_losses = losses;
    RING_CHECK(g.result.index_losses == losses, "ranks report different losses of indexers");
  }
  // Requests have many lengths, some longer than a row.
  void score_requests(Gathered& g) {
    std::vector<Request> requests(23);
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const auto n = 2 + i * i % static_cast<std::size_t>(config_.model.context + 5);
      for (std::size_t t = 0; t < n; ++t)
        requests[i].tokens.push_back(static_cast<std::int32_t>((i * i + t * (1 + i % 3)) % 257));
      requests[i].scored = static_cast<std::int64_t>(1 + i % (n - 1));
    }
    const LoaderOptions o = loader_options(config_, *mesh_);
    const std::vector<Score> all = score(trainer_.model(), ctx_, requests, {o.context, o.rows, o.rank, o.world},
                                         mesh_->host(), &trainer_.cp_batches(), &mesh_->axis("tp"));
    std::vector<double> scores;
    for (const Score& s : all) scores.push_back(s.log_probability);
    for (const Score& s : all) scores.push_back(s.greedy);
    const std::lock_guard lock(g.mutex);
    if (g.result.scores.empty()) g.result.scores = scores;
    RING_CHECK(g.result.scores == scores, "ranks report different scores");
  }
  static CommOptions comm_options(const TrainingOptions& options) {
    CommOptions comm = between_threads();
    comm.connect_timeout = Timeout(10'000);
    comm.timeout = kTimeout;
    comm.verify = comm.verify || options.verify_order;
    return comm;
  }
  // Writes a snapshot after a step has changed its source, and while further steps run.
  void save_behind() {
    const Snapshot snapshot = state_.snapshot(ctx_.stream);
    const std::string metadata = checkpoint_metadata(config_, {}, nullptr);
    const std::int64_t step = trainer_.steps_done();
    Communicator& host = mesh_->background();
    trainer_.step();
    std::future<void> written = std::async(std::launch::async, [&] {
      write_checkpoint(options_.save + "-behind", step, snapshot, metadata, {}, make_writer_group(host));
    });
    for (int i = 1; i < options_.steps_behind; ++i) trainer_.step();
    written.get();
  }
  void report(Gathered& g, const std::vector<double>& losses, const std::vector<double>& norms, const Evaluation& e,
              const std::string& saved) {
    const std::lock_guard lock(g.mutex);
    Training& all = g.result;
    if (all.losses.empty())
      all.losses = losses, all.norms = norms, all.validation = e.loss, all.accuracy = e.accuracy,
      all.validation_sources = e.sources;
    RING_CHECK(all.losses == losses && all.norms == norms && all.validation == e.loss && all.accuracy == e.accuracy &&
                   same(all.validation_sources, e.sources),
               "ranks report different losses or norms");
    all.state_bytes[static_cast<std::size_t>(mesh_->rank())] = state_.bytes();
    all.memory[static_cast<std::size_t>(mesh_->rank())] = trainer_.lasting_memory_text();
    if (const HostOffload* offload = trainer_.offload())
      all.offloaded[static_cast<std::size_t>(mesh_->rank())] = offload->bytes().moved;
    const ActivationPlan& plan = trainer_.memory().fit.plan;
    all.segments = plan.segments;
    if (options_.dry) {
      const auto rank = static_cast<std::size_t>(mesh_->rank());
      const DryStep dry = dry_step(config_, options_.ranks, plan, mesh_->rank());
      all.slabs.at(rank) = trainer_.arena().plan().bytes;
      all.unplanned.at(rank) = trainer_.arena().unplanned_peak();
      all.dry_slabs.at(rank) = dry.plan.bytes;
      all.dry_unplanned.at(rank) = dry.unplanned;
    }
    if (mesh_->rank() == 0) all.checkpoint = saved;
    gather(g, state_);
  }

  static void report_parts(Gathered& g, const std::vector<std::vector<double>>& part_norms) {
    const std::lock_guard lock(g.mutex);
    if (g.result.part_norms.empty()) g.result.part_norms = part_norms;
    RING_CHECK(g.result.part_norms == part_norms, "ranks report different norms of parts");
  }

  static void report_watched(Gathered& g, const std::vector<WatchReport>& watched) {
    const auto equal = [](const WatchReport& a, const WatchReport& b) {
      return a.update_ratios == b.update_ratios && a.entropies == b.entropies && a.min_entropies == b.min_entropies;
    };
    const std::lock_guard lock(g.mutex);
    if (g.result.watched.empty()) g.result.watched = watched;
    RING_CHECK(std::ranges::equal(g.result.watched, watched, equal), "ranks report different watched steps");
  }

  const TrainingOptions& options_;
  Config asked_;
  std::unique_ptr<Mesh> mesh_;
  Config config_;
  ExecContext ctx_;
  Loader loader_;
  Trainer trainer_;
  State state_;
};

std::string run_rank(const TrainingOptions& options, const WorkerEnvironment& env, Gathered& g) {
  try {
    Rank(options, env).run(g);
  } catch (const std::exception& e) {
    return str("rank ", env.rank, ": ", e.what(), "\n");
  }
  return "";
}

}  // namespace

Training train_on_ranks(const TrainingOptions& options) {
  corpus();
  // A save does not create the run's folder, since a run's folder may have been removed.
  if (!options.save.empty()) std::filesystem::create_directories(options.save);
  const std::string cookie = random_cookie();
  const StoreServer server({"127.0.0.1", 0}, cookie);
  Gathered g;
  g.result.state_bytes.resize(static_cast<std::size_t>(options.ranks));
  g.result.memory.resize(static_cast<std::size_t>(options.ranks));
  g.result.offloaded.resize(static_cast<std::size_t>(options.ranks));
  for (auto* bytes : {&g.result.slabs, &g.result.dry_slabs, &g.result.unplanned, &g.result.dry_unplanned})
    bytes->resize(static_cast<std::size_t>(options.ranks));
  std::vector<std::string> errors(static_cast<std::size_t>(options.ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.ranks; ++rank)
    threads.emplace_back([&, rank] {
      WorkerEnvironment env;
      env.rank = env.local_rank = rank;
      env.world = env.local_world = options.ranks;
      env.store = server.endpoint();
      env.cookie = cookie;
      errors[static_cast<std::size_t>(rank)] = run_rank(options, env, g);
    });
  for (std::thread& t : threads) t.join();
  for (const std::string& e : errors) g.result.errors += e;
  if (g.result.errors.empty()) check_complete(g);
  return std::move(g.result);
}

double largest_difference(const Training& a, const Training& b, const std::string& prefix) {
  if (a.tensors.empty() || a.tensors.size() != b.tensors.size()) return INFINITY;
  double worst = 0;
  for (const auto& [name, x] : a.tensors) {
    if (name.rfind(prefix, 0) != 0) continue;
    const auto other = b.tensors.find(name);
    if (other == b.tensors.end() || other->second.size() != x.size()) return INFINITY;
    double largest = 0.01, difference = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (!std::isfinite(x[i]) || !std::isfinite(other->second[i])) return INFINITY;
      largest = std::max(largest, std::abs(static_cast<double>(x[i])));
      difference = std::max(difference, std::abs(static_cast<double>(x[i]) - static_cast<double>(other->second[i])));
    }
    worst = std::max(worst, difference / largest);
  }
  return worst;
}

double largest_loss_difference(const Training& a, const Training& b) {
  if (a.losses.empty() || a.losses.size() != b.losses.size()) return INFINITY;
  double worst = 0;
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    const double difference = std::abs(a.losses[i] - b.losses[i]) / std::abs(a.losses[i]);
    if (!(difference <= worst)) worst = std::isfinite(difference) ? difference : INFINITY;
  }
  return worst;
}

bool same_bits(const Training& a, const Training& b, const std::string& prefix) {
  if (a.tensors.empty() || a.losses != b.losses || a.tensors.size() != b.tensors.size()) return false;
  for (const auto& [name, x] : a.tensors) {
    if (name.rfind(prefix, 0) != 0) continue;
    const auto other = b.tensors.find(name);
    if (other == b.tensors.end() || other->second.size() != x.size()) return false;
    if (std::memcmp(x.data(), other->second.data(), x.size() * sizeof(float)) != 0) return false;
  }
  return true;
}

}  // namespace ring::test
