#include "inspect/report_samples.h"

#include "checkpoint/directory.h"
#include "core/check.h"
#include "evaluate/generate_text.h"
#include "evaluate/prompt.h"
#include "inspect/html.h"

namespace ring {
namespace {

constexpr std::size_t kMaxSamples = 8;

std::string written_by(const Session& session, const SampleOptions& options) {
  const TextStart start{prompt_tokens(*session.tokenizer, options.prompt), {}};
  return generate_text(session, start, options.tokens, {}, [](const std::string&) { return true; }).text();
}

CheckpointSample sample_of(const CheckpointEntry& checkpoint, const SampleOptions& options) try {
  const Session session = open_session(checkpoint.path.string(), {.threads = options.threads});
  return {checkpoint.step, options.prompt, written_by(session, options), ""};
} catch (const std::exception& e) {
  return {checkpoint.step, options.prompt, "", e.what()};
}

}  // namespace

std::vector<CheckpointSample> checkpoint_samples(const std::string& run, const SampleOptions& options) try {
  if (options.prompt.empty()) return {};
  const std::vector<CheckpointEntry> all = list_checkpoints(RunDirectory(run).checkpoints());
  std::vector<CheckpointSample> samples;
  const std::size_t count = std::min(all.size(), kMaxSamples);
  for (std::size_t i = 0; i < count; ++i)
    samples.push_back(sample_of(all[count == 1 ? 0 : i * (all.size() - 1) / (count - 1)], options));
  return samples;
} catch (const std::exception& e) {
  return {{.problem = e.what()}};
}

std::string samples_html(const std::string& run, const std::vector<CheckpointSample>& samples) {
  std::string out;
  for (const CheckpointSample& s : samples) {
    out += html_note(str(run, s.step ? str(", step ", *s.step) : "", s.problem.empty() ? "" : ": " + s.problem));
    if (s.problem.empty())
      out += str("<pre class=\"sample\"><b>", html_escaped(s.prompt), "</b>", html_escaped(s.text), "</pre>\n");
  }
  return out;
}

}  // namespace ring
