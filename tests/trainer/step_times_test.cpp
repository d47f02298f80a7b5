// Tests that step times are differences of events on the stream. The stream has a fake clock.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "comm/mesh/mesh.h"
#include "engine/devices.h"
#include "tests/trainer/documents.h"
#include "tests/trainer/tiny.h"
#include "trainer/trainer.h"

namespace ring::test {
namespace {

namespace fs = std::filesystem;

class FakeTime final : public EventImpl {
 public:
  explicit FakeTime(double at) : at_(at) {}
  bool done() const override { return true; }
  void synchronize() const override {}
  double host_seconds() const override { return at_; }

 private:
  double at_;
};

// A CPU stream with a clock that advances only when an event is recorded: by 1 ns, then 2 ns, then 3 ns, ...
class FakeClockStream final : public StreamImpl {
 public:
  FakeClockStream() {
    device = {Backend::cpu, 0};
    allocator = cpu_.allocator();
  }
  Event record() override { return {}; }
  Event record_time() override { return Event(std::make_shared<FakeTime>((clock_ += ++events_) * 1e-9)); }
  void wait(const Event& e) override { e.synchronize(); }
  void synchronize() override {}
  ThreadPool* pool() override { return &cpu_.pool(); }
  int threads() const override { return cpu_.impl().threads(); }
  void copy(void* dst, const void* src, std::size_t bytes) override { cpu_.impl().copy(dst, src, bytes); }
  void fill_zero(void* dst, std::size_t bytes) override { cpu_.impl().fill_zero(dst, bytes); }

 private:
  Stream cpu_ = Stream::cpu(1);
  int events_ = 0, clock_ = 0;
};

TEST(StepTimes, AreMeasuredByEventsOfTheStream) {
  const fs::path folder = fs::temp_directory_path() / str("ringmaster-step-times-", getpid());
  fs::create_directories(folder);
  write_documents((folder / "a.h5").string(), 60, 6, [](std::uint64_t) { return 60; });
  {
    const ResolvedConfig config = resolve_config(tiny_config(), 257);
    ExecContext ctx = make_exec_context(config);
    ctx.stream = Stream(std::make_shared<FakeClockStream>());
    ctx.tuning = nullptr;  // without tuning, no kernel is benchmarked, so only steps record times
    const std::unique_ptr<Mesh> mesh = mesh_of_one();
    Loader loader(open_corpus((folder / "a.h5").string()), loader_options(config, *mesh));
    Trainer trainer(config, ctx, *mesh, loader);
    for (const double nanoseconds : {2, 4, 6}) {  // the second, fourth and sixth event end a step
      trainer.launch();
      EXPECT_NEAR(trainer.finish().seconds, nanoseconds * 1e-9, 1e-15);
    }
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace ring::test
