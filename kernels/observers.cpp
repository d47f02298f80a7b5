#include "kernels/observers.h"

#include "core/ranges.h"

namespace ring {
namespace {

class ObserverList final : public KernelObserver {
 public:
  explicit ObserverList(std::vector<std::shared_ptr<KernelObserver>> all) : all_(std::move(all)) {}

  void call(const KernelCall& c, const ExecContext& ctx, const std::function<void()>& run) override {
    call_from(0, c, ctx, run);
  }
  void enter_scope(const ScopeId& id, const ExecContext& ctx) override {
    for (const auto& o : all_) o->enter_scope(id, ctx);
  }
  void enter_step(std::string_view op, const ExecContext& ctx) override {
    for (const auto& o : all_) o->enter_step(op, ctx);
  }
  void leave(const ExecContext& ctx) override {
    for (auto o = all_.rbegin(); o != all_.rend(); ++o) (*o)->leave(ctx);
  }

 private:
  void call_from(std::size_t i, const KernelCall& c, const ExecContext& ctx, const std::function<void()>& run) {
    if (i == all_.size()) return run();
    all_[i]->call(c, ctx, [&] { call_from(i + 1, c, ctx, run); });
  }

  std::vector<std::shared_ptr<KernelObserver>> all_;
};

class RangeObserver final : public KernelObserver {
 public:
  explicit RangeObserver(const RangeMarks& marks) : marks_(marks) {}

  void call(const KernelCall& c, const ExecContext&, const std::function<void()>& run) override {
    const Range range(marks_, str(c.slot, ' ', c.candidate, ' ', c.cost.shape));
    run();
  }
  void enter_scope(const ScopeId& id, const ExecContext&) override { marks_.push(str(id).c_str()); }
  void enter_step(std::string_view op, const ExecContext&) override { marks_.push(std::string(op).c_str()); }
  void leave(const ExecContext&) override { marks_.pop(); }

 private:
  struct Range {
    Range(const RangeMarks& m, const std::string& name) : marks(m) { marks.push(name.c_str()); }
    ~Range() { marks.pop(); }
    Range(const Range&) = delete;
    Range& operator=(const Range&) = delete;
    const RangeMarks& marks;
  };
  const RangeMarks& marks_;
};

}  // namespace

std::shared_ptr<KernelObserver> combine_observers(std::initializer_list<std::shared_ptr<KernelObserver>> observers) {
  std::vector<std::shared_ptr<KernelObserver>> all;
  for (const auto& o : observers)
    if (o) all.push_back(o);
  if (all.empty()) return nullptr;
  return all.size() == 1 ? all.front() : std::make_shared<ObserverList>(std::move(all));
}

std::shared_ptr<KernelObserver> make_range_observer() {
  const RangeMarks* marks = range_marks();
  if (!marks) fail("--nvtx: NVTX ranges need CUDA, which this build lacks. Rebuild with `make build CUDA=ON`");
  return std::make_shared<RangeObserver>(*marks);
}

}  // namespace ring
