#pragma once
// A communicator that forwards operations, records them, or both. It is used to time a computation without its
// transfers, the transfers without the computation, and both together.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "inspect/context_timeline.h"

namespace ring {

class TracedCommunicator final : public Communicator {
 public:
  // The arguments must outlive this object.
  TracedCommunicator(Communicator& inner, TimelineRecorder& recorder)
      : Communicator(inner.rank(), inner.size()), inner_(inner), recorder_(recorder) {}
  std::string_view backend() const override { return inner_.backend(); }
  void abort(const std::string& reason) override { inner_.abort(reason); }
  Tensor receive_buffer(const Shape& shape, DType dtype, const Stream& stream) override {
    return inner_.receive_buffer(shape, dtype, stream);
  }
  std::size_t receive_bytes() const override { return inner_.receive_bytes(); }
  bool uses_copy_engines() const override { return inner_.uses_copy_engines(); }

  bool silent = false;             // true if nothing is sent: receive buffers keep their contents
  bool tracing = false;            // true while operations are recorded for replay()
  bool recording = false;          // true while messages are reported to the recorder
  std::optional<DType> gradients;  // type of gradients; nullopt if exchanged keys have the same type

  // Repeats the recorded operations, one after another.
  void replay(const Stream& stream) const {
    for (const Start& start : trace_) start(stream.record()).wait(stream);
  }
  void clear_trace() { trace_.clear(); }

 private:
  using Start = std::function<Work(const Event& after)>;
  // bytes: size of this rank's part; if 0, nothing is reported to the recorder.
  Work collective(TimelineLane, const char* name, std::size_t bytes, std::vector<Tensor> tensors, const Event& after,
                  const Start&);
  Work run(TimelineLane, const char* name, const std::string& detail, std::vector<Tensor> tensors, const Event& after,
           const Start&);

  Work do_all_reduce(Operation, const Tensor& t, Reduce, const Event& after) override;
  Work do_all_gather(Operation, const Tensor& out, const Tensor& in, const Event& after) override;
  Work do_reduce_scatter(Operation, const Tensor& out, const Tensor& in, Reduce, const Event& after) override;
  Work do_all_to_all(Operation, const Tensor& out, const Tensor& in, const Event& after) override;
  Work do_exchange(Operation, const std::vector<Transfer>& sends, const std::vector<Transfer>& receives,
                   const Event& after) override;
  // Only forwarded: no attention schedule uses these operations.
  Work do_broadcast(Operation, const Tensor& t, int root, const Event& after) override {
    return inner_.broadcast(t, root, after);
  }
  Work do_reduce_pieces(Operation, const std::vector<OwnedPiece>& pieces, Reduce op, const Event& after) override {
    return inner_.reduce_pieces(pieces, op, after);
  }
  Work do_broadcast_pieces(Operation, const std::vector<OwnedPiece>& pieces, const Event& after) override {
    return inner_.broadcast_pieces(pieces, after);
  }
  Work do_barrier(Operation, const Event& after) override { return inner_.barrier(after); }

  Communicator& inner_;
  TimelineRecorder& recorder_;
  std::vector<Start> trace_;
};

}  // namespace ring
