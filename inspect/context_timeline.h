#pragma once
// The timeline of one rank during a forward and backward of context-parallel attention: the rank's kernels, and which
// of its messages were in flight.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/work.h"
#include "kernels/kernel.h"

namespace ring {

struct TimeSpan {
  double begin = 0, end = 0;  // seconds; empty if end <= begin
  bool operator==(const TimeSpan&) const = default;
};
// Returns the union of the spans, sorted and without overlaps.
std::vector<TimeSpan> merge_spans(std::vector<TimeSpan> spans);
// Returns the time covered by the spans but not by `others`.
std::vector<TimeSpan> subtract_spans(const std::vector<TimeSpan>& spans, const std::vector<TimeSpan>& others);
double length_of(const std::vector<TimeSpan>& spans);  // sum of the lengths; spans must not overlap

enum class TimelineLane : std::uint8_t {
  computation,
  keys,       // keys and values sent to queries of other ranks
  gradients,  // gradients of keys and values, returned to their owner
  messages,   // keys and gradients in one message, or any other message
};

struct TimelineBar {
  TimelineLane lane = TimelineLane::computation;
  std::string name;    // a kernel's slot, or a message's operation
  std::string detail;  // a kernel's candidate and shape, or a message's peers and size
  TimeSpan time{};     // seconds since begin()
};

struct ContextTimeline {
  std::vector<TimelineBar> bars;
  double seconds = 0;  // time until this rank's stream had finished all work

  // Returns the times when messages were in flight while no kernel ran; kernels that pack and unpack messages count as
  // running.
  std::vector<TimeSpan> waiting() const;
};

// Records a timeline.
// - On a GPU, events time the bars, and recording does not block. A message counts as in flight from the moment it
//   could start, even if its peer is not ready yet, until its operation is done.
// - On a CPU, the stream has only the host's clock. A message counts as in flight from its call until this rank notices
//   that it is done. The rank checks this between kernels and at its next message.
//
// The host names each kernel before queueing it. That takes a few us, or ms for block patterns over a million tokens.
// If kernels are shorter than that, `seconds` and waiting() are longer than without a recorder.
class TimelineRecorder final : public KernelObserver {
 public:
  void start_recording(const ExecContext&);  // requires an idle stream
  ContextTimeline finish_recording();        // blocks until all work is done

  void call(const KernelCall&, const ExecContext&, const std::function<void()>& run) override;
  // Calls `start`, which begins an operation that may run once `after` is done. Records the operation as a message, and
  // returns its Work.
  Work message(TimelineLane, std::string name, std::string detail, const Event& after,
               const std::function<Work()>& start);

 private:
  struct Entry {
    TimelineBar bar;
    Event begin{}, end{};
    Work work{};  // CPU: operation of a message that is not yet found to be done
  };
  // Two streams that time the messages of one lane. They wait for the begin and the end of each message, so that the
  // compute stream does not have to wait. Messages of a lane end in order.
  struct Sides {
    Stream begin, end;
  };

  bool inline_work() const { return stream_->device().backend == Backend::cpu; }
  void end_finished_messages();  // CPU: ends the entries of messages that are done by now
  Sides& lane_streams(TimelineLane);

  std::optional<Stream> stream_;  // compute stream
  Event origin_;
  std::vector<Entry> entries_;
  std::vector<std::size_t> open_;  // CPU: indices of entries whose message is not yet done
  std::map<TimelineLane, Sides> sides_;
  bool inside_ = false;  // true while a recorded kernel runs; kernels that it calls are not recorded
};

}  // namespace ring
