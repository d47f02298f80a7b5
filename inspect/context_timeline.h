#pragma once
// What one rank computed, and which messages of its were under way, during one forward and backward of attention whose
// sequence is cut among ranks.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/work.h"
#include "kernels/kernel.h"

namespace ring {

struct TimeSpan {
  double begin = 0, end = 0;  // seconds; none where end <= begin
  bool operator==(const TimeSpan&) const = default;
};
// What any of them covers, in order, without overlaps.
std::vector<TimeSpan> united(std::vector<TimeSpan>);
// What they cover and the others do not.
std::vector<TimeSpan> outside(const std::vector<TimeSpan>&, const std::vector<TimeSpan>& others);
double length_of(const std::vector<TimeSpan>&);  // of spans that do not overlap: their sum

enum class TimelineLane : std::uint8_t {
  computation,
  keys,       // on their way to queries of other ranks, with their values
  gradients,  // of keys and values, on their way home
  messages,   // of either kind, or of another
};

struct TimelineBar {
  TimelineLane lane = TimelineLane::computation;
  std::string name;    // of a kernel: its slot; of a message: its operation
  std::string detail;  // the candidate and its shape; from and to whom, and how much
  TimeSpan time{};     // since the ranks began
};

struct ContextTimeline {
  std::vector<TimelineBar> bars;
  double seconds = 0;  // until this rank's stream had done everything

  // When messages were under way and no kernel ran, not even one that copies rows into or out of a message.
  std::vector<TimeSpan> waiting() const;
};

// Takes a timeline. On a GPU bars are as its events tell, and nothing waits for them meanwhile: a message is under way
// from when it could start, where the peer may not be ready yet, until its operation is done. A CPU's stream knows no
// other time than the host's: there a message is under way from its call until this rank, between two kernels or at its
// next message, found it done.
//
// The host names each kernel before it queues it, which takes it some us, and ms for block patterns over a million
// tokens. Where kernels are shorter than that, `seconds` is more than without a recorder, and so is what is waited for.
class TimelineRecorder final : public KernelObserver {
 public:
  void begin(const ExecContext&);  // the stream is idle
  ContextTimeline end();           // blocks until everything is done

  void call(const KernelCall&, const ExecContext&, const std::function<void()>& run) override;
  // start: begins an operation that may run once `after` is done.
  Work message(TimelineLane, std::string name, std::string detail, const Event& after,
               const std::function<Work()>& start);

 private:
  struct Entry {
    TimelineBar bar;
    Event begin{}, end{};
    Work work{};  // CPU: of a message that was not found done yet
  };
  // Beside the stream that computes; one pair for each kind of message, since those of one kind end in order.
  struct Sides {
    Stream begin, end;
  };

  bool inline_work() const { return stream_->device().backend == Backend::cpu; }
  void look();  // CPU: which messages are done by now
  Sides& sides(TimelineLane);

  std::optional<Stream> stream_;  // that computes
  Event origin_;
  std::vector<Entry> entries_;
  std::vector<std::size_t> open_;  // CPU: entries with work
  std::map<TimelineLane, Sides> sides_;
  bool inside_ = false;
};

}  // namespace ring
