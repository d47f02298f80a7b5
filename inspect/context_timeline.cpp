#include "inspect/context_timeline.h"

#include <algorithm>

namespace ring {

std::vector<TimeSpan> merge_spans(std::vector<TimeSpan> spans) {
  std::erase_if(spans, [](const TimeSpan& s) { return !(s.begin < s.end); });
  std::sort(spans.begin(), spans.end(), [](const TimeSpan& a, const TimeSpan& b) { return a.begin < b.begin; });
  std::vector<TimeSpan> out;
  for (const TimeSpan& s : spans)
    if (!out.empty() && s.begin <= out.back().end)
      out.back().end = std::max(out.back().end, s.end);
    else
      out.push_back(s);
  return out;
}

std::vector<TimeSpan> subtract_spans(const std::vector<TimeSpan>& spans, const std::vector<TimeSpan>& others) {
  const std::vector<TimeSpan> holes = merge_spans(others);
  std::vector<TimeSpan> out;
  auto first = holes.begin();
  for (TimeSpan left : merge_spans(spans)) {
    while (first != holes.end() && first->end <= left.begin) ++first;
    for (auto hole = first; hole != holes.end() && hole->begin < left.end; ++hole) {
      if (left.begin < hole->begin) out.push_back({left.begin, hole->begin});
      left.begin = hole->end;
    }
    if (left.begin < left.end) out.push_back(left);
  }
  return out;
}

double length_of(const std::vector<TimeSpan>& spans) {
  double sum = 0;
  for (const TimeSpan& s : spans) sum += s.end - s.begin;
  return sum;
}

std::vector<TimeSpan> ContextTimeline::waiting() const {
  std::vector<TimeSpan> computing, messages;
  for (const TimelineBar& b : bars) (b.lane == TimelineLane::computation ? computing : messages).push_back(b.time);
  return subtract_spans(messages, computing);
}

void TimelineRecorder::start_recording(const ExecContext& ctx) {
  stream_ = ctx.stream;
  entries_.clear();
  open_.clear();
  origin_ = ctx.stream.record_time();
}

ContextTimeline TimelineRecorder::finish_recording() {
  for (const std::size_t i : open_) entries_[i].work.synchronize();  // allowed host wait: diagnosis
  end_finished_messages();
  const Event last = stream_->record_time();
  last.synchronize();  // allowed host wait: diagnosis
  ContextTimeline t;
  t.seconds = last.seconds_after(origin_);
  for (Entry& e : entries_) {
    e.begin.synchronize();  // allowed host wait: diagnosis
    e.end.synchronize();    // allowed host wait: diagnosis
    // The two events may be on different streams, so the later event may have a slightly earlier time.
    e.bar.time.begin = std::max(0.0, e.begin.seconds_after(origin_));
    e.bar.time.end = std::max(e.bar.time.begin, e.end.seconds_after(origin_));
    t.bars.push_back(std::move(e.bar));
  }
  entries_.clear();
  return t;
}

void TimelineRecorder::call(const KernelCall& c, const ExecContext& ctx, const std::function<void()>& run) {
  if (inside_) return run();  // called by another kernel, which is already recorded
  if (inline_work()) end_finished_messages();
  inside_ = true;
  Entry e{.bar = {.name = std::string(c.slot), .detail = str(c.candidate, ' ', c.cost.shape)}};
  e.begin = ctx.stream.record_time();
  run();
  e.end = ctx.stream.record_time();
  inside_ = false;
  entries_.push_back(std::move(e));
  if (inline_work()) end_finished_messages();
}

Work TimelineRecorder::message(TimelineLane lane, std::string name, std::string detail, const Event& after,
                               const std::function<Work()>& start) {
  Entry e{.bar = {.lane = lane, .name = std::move(name), .detail = std::move(detail)}};
  if (inline_work()) {
    end_finished_messages();
    e.begin = stream_->record_time();
    Work work = start();
    e.work = work;
    open_.push_back(entries_.size());
    entries_.push_back(std::move(e));
    return work;
  }
  const Sides& beside = lane_streams(lane);
  beside.begin.wait(after);
  e.begin = beside.begin.record_time();
  // `seen` only times the message. The caller's `work` keeps the sent tensors alive until the caller has waited.
  Work work = start(), seen = work;
  seen.wait(beside.end);
  e.end = beside.end.record_time();
  entries_.push_back(std::move(e));
  return work;
}

void TimelineRecorder::end_finished_messages() {
  std::erase_if(open_, [&](std::size_t i) {
    Entry& e = entries_[i];
    if (!e.work.done()) return false;
    e.end = stream_->record_time();
    e.work = {};
    return true;
  });
}

TimelineRecorder::Sides& TimelineRecorder::lane_streams(TimelineLane lane) {
  const auto at = sides_.find(lane);
  if (at != sides_.end()) return at->second;
  const Device device = stream_->device();
  return sides_.emplace(lane, Sides{Stream::create(device), Stream::create(device)}).first->second;
}

}  // namespace ring
