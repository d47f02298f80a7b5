#include "bench/traced_communicator.h"

#include <cstdio>

namespace ring {
namespace {

std::string megabytes(std::size_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g MB", 1e-6 * static_cast<double>(bytes));
  return text;
}

// Returns e.g. "2.1 MB to rank 1, 2.1 MB to rank 3"; empty if no data is sent to or received from other ranks.
std::string text_of(const std::vector<Transfer>& transfers, const char* direction, int self) {
  std::string text;
  for (const auto& [tensor, peer, free] : transfers)
    if (peer != self && tensor.numel() > 0)
      text += str(text.empty() ? "" : ", ", megabytes(tensor.bytes()), direction, peer);
  return text;
}

}  // namespace

Work TracedCommunicator::run(TimelineLane lane, const char* name, const std::string& detail,
                             std::vector<Tensor> tensors, const Event& after, const Start& start) {
  if (tracing) trace_.push_back(start);
  if (silent) return {after, std::move(tensors)};
  if (!recording || detail.empty()) return start(after);
  return recorder_.message(lane, name, detail, after, [&] { return start(after); });
}

Work TracedCommunicator::collective(TimelineLane lane, const char* name, std::size_t bytes, std::vector<Tensor> tensors,
                                    const Event& after, const Start& start) {
  return run(lane, name, bytes > 0 ? str(megabytes(bytes), " of ours") : "", std::move(tensors), after, start);
}

Work TracedCommunicator::do_all_reduce(Operation, const Tensor& t, Reduce op, const Event& after) {
  return collective(TimelineLane::messages, "all_reduce", t.bytes(), {t}, after,
                    [&inner = inner_, t, op](const Event& e) { return inner.all_reduce(t, op, e); });
}

Work TracedCommunicator::do_all_gather(Operation, const Tensor& out, const Tensor& in, const Event& after) {
  return collective(TimelineLane::keys, "all_gather", in.bytes(), {out, in}, after,
                    [&inner = inner_, out, in](const Event& e) { return inner.all_gather(out, in, e); });
}

Work TracedCommunicator::do_reduce_scatter(Operation, const Tensor& out, const Tensor& in, Reduce op,
                                           const Event& after) {
  return collective(TimelineLane::gradients, "reduce_scatter", in.bytes(), {out, in}, after,
                    [&inner = inner_, out, in, op](const Event& e) { return inner.reduce_scatter(out, in, op, e); });
}

Work TracedCommunicator::do_all_to_all(Operation, const Tensor& out, const Tensor& in, const Event& after) {
  return collective(TimelineLane::messages, "all_to_all", in.bytes(), {out, in}, after,
                    [&inner = inner_, out, in](const Event& e) { return inner.all_to_all(out, in, e); });
}

Work TracedCommunicator::do_exchange(Operation, const std::vector<Transfer>& sends,
                                     const std::vector<Transfer>& receives, const Event& after) {
  std::vector<Tensor> tensors;
  bool any_gradients = false;
  for (const auto* list : {&sends, &receives})
    for (const Transfer& t : *list) {
      tensors.push_back(t.tensor);
      any_gradients |= t.tensor.dtype() == gradients;
    }
  const TimelineLane lane = !gradients      ? TimelineLane::messages
                            : any_gradients ? TimelineLane::gradients
                                            : TimelineLane::keys;
  std::string detail = text_of(sends, " to rank ", rank());
  const std::string in = text_of(receives, " from rank ", rank());
  if (!detail.empty() && !in.empty()) detail += ", ";
  return run(lane, "exchange", detail + in, std::move(tensors), after,
             [&inner = inner_, sends, receives](const Event& e) { return inner.exchange(sends, receives, e); });
}

}  // namespace ring
