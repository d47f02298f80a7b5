#include "engine/memory_record.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <tuple>
#include <vector>

#include "checkpoint/files.h"
#include "checkpoint/writer_token.h"
#include "core/counted.h"
#include "core/device_memory.h"
#include "core/fields.h"
#include "core/host_memory.h"
#include "core/io_error.h"
#include "core/joined.h"
#include "core/json.h"
#include "core/log.h"
#include "engine/devices.h"

namespace ring {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxRecordBytes = 1 << 16;

fs::path notes_of(const RunDirectory& run) { return fs::path(run.path()) / "out_of_memory"; }

// Returns true for settings that affect the memory of a step and may be changed when a run is resumed.
bool affects_memory(const std::string& key) {
  constexpr const char* kKeys[] = {"model.",
                                   "train.precision",
                                   "run.device",
                                   "train.linears",
                                   "train.swiglu_inputs",
                                   "train.batch_size",
                                   "train.micro_batch",
                                   "train.recompute",
                                   "train.mlp_chunk",
                                   "train.sequence_chunk",
                                   "train.activation_offload",
                                   "train.memory_budget",
                                   "train.loss_chunk_bytes",
                                   "parallel.",
                                   "optimizer.master",
                                   "optimizer.moments",
                                   "optimizer.gradients",
                                   "optimizer.offload",
                                   "optimizer.kind",
                                   "optimizer.groups"};
  return std::ranges::any_of(kKeys, [&](const char* k) { return key.starts_with(k); });
}

std::uint64_t total_memory(const Config& c, Mesh& mesh) {
  if (const auto gpu = device_memory({backend_of(c.run.device), mesh.device().index})) return gpu->total;
  const std::vector<MemoryBound> bounds = memory_bounds();
  return std::ranges::min(bounds, {}, &MemoryBound::total).total;
}

std::int64_t count_in(const nlohmann::json& json, const char* key) {
  const auto& value = json.at(key);
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > (std::uint64_t{1} << 62))
    fail(key, " is not a count");
  return value.get<std::int64_t>();
}

void check(const MemoryRecord& r) {
  if (r.micro_batch < 1) fail("micro_batch is 0");
  if (r.ran_out > 0 && r.budget == 0) fail("budget is 0");
  if (r.steps_ran_out > r.ran_out) fail("steps_ran_out is more than ran_out");
}

// Returns the note with the smallest choice, among those that are newer than the record and were left while the writer
// with this token was the newest.
std::optional<MemoryRecord> smallest_note(const RunDirectory& run, std::int64_t token, std::int64_t ran_out) {
  std::optional<MemoryRecord> smallest;
  std::error_code error;
  for (fs::directory_iterator at(notes_of(run), error), end; !error && at != end; at.increment(error)) {
    try {
      if (at->path().extension() != ".json") continue;  // a temporary file of a process that died while writing
      const MemoryRecord note = parse_memory_record(read_text(at->path(), kMaxRecordBytes));
      if (note.token != token || note.ran_out <= ran_out) continue;
      const auto size = [](const MemoryRecord& r) {
        return std::tuple(r.micro_batch, r.budget, r.validation_micro_batch ? r.validation_micro_batch : r.micro_batch);
      };
      if (!smallest || size(note) < size(*smallest)) smallest = note;
    } catch (const std::exception& e) {
      log::warn(at->path().string(), " is ignored: ", e.what());
    }
  }
  return smallest;
}

std::optional<MemoryRecord> read_record(const RunDirectory& run, const std::string& in_checkpoint) {
  std::error_code error;
  if (fs::exists(run.memory_file(), error)) {
    try {
      return parse_memory_record(read_text(run.memory_file(), kMaxRecordBytes));
    } catch (const std::exception& e) {
      log::warn(run.memory_file(), " cannot be read (", e.what(), "): ",
                in_checkpoint.empty() ? "the memory plan is chosen again"
                                      : "the memory record in the newest checkpoint is used instead");
    }
  }
  if (in_checkpoint.empty()) return {};
  try {
    return parse_memory_record(in_checkpoint);
  } catch (const std::exception& e) {
    log::warn("the memory record in the newest checkpoint cannot be read: ", e.what());
    return {};
  }
}

}  // namespace

void MemoryRecord::set_choice(const MemoryChoice& choice) {
  micro_batch = choice.micro_batch;
  peak = choice.fit.peak;
  plan = choice.text();
  // A budget that was lowered after memory ran out stays, unless the choice needs more.
  if (steps_ran_out == 0 || peak > budget) budget = choice.fit.budget;
}

MemoryRecord MemoryRecord::with_smaller_choice(const MemoryChoice& choice, const std::string& cause) const {
  MemoryRecord next = *this;
  next.set_choice(choice);
  next.budget = choice.fit.budget;
  next.why = cause;
  ++next.ran_out;
  ++next.steps_ran_out;
  return next;
}

std::string MemoryRecord::reductions_text() const {
  std::vector<std::string> parts;
  if (steps_ran_out > 0) parts.push_back(plan);
  if (validation_micro_batch > 0)
    parts.push_back(str("validations compute ", counted(validation_micro_batch, "sequence"), " at a time"));
  return joined(parts, "; ");
}

MemoryRecord MemoryRecord::with_smaller_validation(std::int64_t sequences, const std::string& cause) const {
  MemoryRecord next = *this;
  next.validation_micro_batch = sequences;
  next.why = cause;
  ++next.ran_out;
  return next;
}

std::string to_json(const MemoryRecord& r) {
  const nlohmann::json json = {{"ran_out", r.ran_out},
                               {"steps_ran_out", r.steps_ran_out},
                               {"token", r.token},
                               {"micro_batch", r.micro_batch},
                               {"validation_micro_batch", r.validation_micro_batch},
                               {"budget", r.budget},
                               {"peak", r.peak},
                               {"plan", r.plan},
                               {"why", r.why},
                               {"for", r.chosen_for}};
  return json_text(json);
}

MemoryRecord parse_memory_record(const std::string& text) {
  MemoryRecord r;
  try {
    const auto json = parse_json<nlohmann::json>(text);
    r.ran_out = count_in(json, "ran_out");
    // Earlier versions recorded only failures of steps, in ran_out.
    r.steps_ran_out = json.contains("steps_ran_out") ? count_in(json, "steps_ran_out") : r.ran_out;
    r.token = count_in(json, "token");
    r.micro_batch = count_in(json, "micro_batch");
    if (json.contains("validation_micro_batch")) r.validation_micro_batch = count_in(json, "validation_micro_batch");
    r.budget = static_cast<std::uint64_t>(count_in(json, "budget"));
    r.peak = static_cast<std::uint64_t>(count_in(json, "peak"));
    json.at("plan").get_to(r.plan);
    json.at("why").get_to(r.why);
    json.at("for").get_to(r.chosen_for);
  } catch (const std::exception& e) {
    fail("not a valid memory record: ", e.what());
  }
  check(r);
  return r;
}

MemoryRecord memory_record_of(const Config& c, Mesh& mesh) {
  MemoryRecord r;
  r.micro_batch = plan_of(c, mesh.world()).micro_batch;
  for (const auto& [key, value] : global_values(c))
    if (affects_memory(key)) r.chosen_for[key] = value;
  const auto host_room = static_cast<std::size_t>(c.train.activation_offload_bytes);
  r.chosen_for["train.activation_offload_bytes"] = bytes_text(min_over_ranks(host_room, mesh));
  r.chosen_for["processes"] = std::to_string(mesh.world());
  r.chosen_for["memory of the device"] = bytes_text(min_over_ranks(total_memory(c, mesh), mesh));
  return r;
}

std::optional<MemoryRecord> recall_memory(const RunDirectory& run, const std::string& in_checkpoint) {
  const std::optional<MemoryRecord> record = read_record(run, in_checkpoint);
  const auto holder = newest_holder(run.path());
  if (!holder) return record;
  const auto note = smallest_note(run, holder->token, record ? record->ran_out : 0);
  return note ? note : record;
}

std::string changes_since(const MemoryRecord& old, const MemoryRecord& now) {
  std::vector<std::string> changes;
  for (const auto& [key, value] : now.chosen_for) {
    const auto before = old.chosen_for.find(key);
    if (before == old.chosen_for.end() || before->second != value)
      changes.push_back(str(key, ": ", before == old.chosen_for.end() ? "unknown" : before->second, " -> ", value));
  }
  return joined(changes, ", ");
}

void write_memory(const RunDirectory& run, const MemoryRecord& record) {
  try {
    replace_text(run.memory_file(), to_json(record) + "\n");
    fs::remove_all(notes_of(run));
  } catch (const std::exception& e) {
    log::warn("cannot record the run's memory plan: ", e.what());
  }
}

void write_memory_note(const RunDirectory& run, int rank, const MemoryRecord& record) {
  std::error_code error;
  fs::create_directory(notes_of(run), error);
  if (error) fail("cannot create ", notes_of(run).string(), ": ", io_error_text(error.value()));
  replace_text(notes_of(run) / str("rank-", rank, ".json"), to_json(record) + "\n");
}

}  // namespace ring
