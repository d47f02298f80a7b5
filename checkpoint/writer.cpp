#include "checkpoint/writer.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "checkpoint/files.h"
#include "checkpoint/plan.h"
#include "checkpoint/shard.h"
#include "comm/host.h"
#include "core/json.h"
#include "core/log.h"
#include "job/run_phase.h"

namespace ring {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string shard_record(const SavedFile& file, const std::vector<PlannedSlice>& slices) {
  json places = json::array();
  for (const PlannedSlice& s : slices) places.push_back({s.name, s.slice->offset, s.slice->xxh3});
  return json{{"bytes", file.bytes}, {"xxh3", file.xxh3}, {"slices", places}}.dump();
}

void merge_record(Manifest& manifest, int rank, const std::string& text) {
  const json record = parse_own_json<json>(text);
  const std::string name = shard_name(rank);
  manifest.files.push_back({name, record.at("bytes").get<std::uint64_t>(), record.at("xxh3").get<std::string>()});
  const std::vector<PlannedSlice> slices = slices_of(manifest, name);  // refer to the slices in `manifest`
  const json& places = record.at("slices");
  RING_CHECK(places.size() == slices.size(), "rank ", rank, " wrote ", places.size(), " slices, but the plan has ",
             slices.size());
  for (std::size_t i = 0; i < slices.size(); ++i) {
    RING_CHECK(places[i].at(0) == slices[i].name, "rank ", rank, " wrote ", places[i].at(0), " instead of ",
               slices[i].name);
    slices[i].slice->offset = places[i].at(1).get<std::uint64_t>();
    slices[i].slice->xxh3 = places[i].at(2).get<std::string>();
  }
}

// The steps of writing one checkpoint, on one rank.
class Writing {
 public:
  Writing(const fs::path& folder, std::int64_t step, const WriterGroup& group)
      : group_(group), folder_(folder), target_(folder / checkpoint_name(step)) {
    RING_CHECK(group.world >= 1 && group.rank >= 0 && group.rank < group.world, "rank ", group.rank, " of ",
               group.world);
    RING_CHECK(group.world == 1 || group.all_gather, "several ranks need all_gather");
    plan_.step = step;
  }

  ~Writing() { enter(RunPhase::nothing); }
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;

  fs::path run(const Snapshot& state, const std::string& metadata, const Retention& keep) {
    enter(RunPhase::write);
    try {
      prepare(state);
      write_shards(state);
      commit(state, metadata);
    } catch (...) {
      std::error_code ignored;
      if (first() && !temporary_.empty()) fs::remove_all(temporary_, ignored);
      throw;
    }
    read_back();
    if (first()) retain(keep);
    return target_;
  }

 private:
  bool first() const { return group_.rank == 0; }
  std::string own_shard() const { return shard_name(group_.rank); }

  // Only rank 0 commits and removes, so only rank 0's token is checked.
  void check_token() const {
    if (first() && group_.token) group_.token->check();
  }

  // Ranks exchange results as text: one of these marks, then the result or the error's message.
  static constexpr char kDone = '+', kFailed = '-', kSuperseded = '!', kMoved = '?';

  // Returns `error` with its mark. If the token is no longer valid, that may be why files vanished: returns
  // the token's error instead.
  std::string error_text(const std::string& error) const try {
    check_token();
    return kFailed + error;
  } catch (const WriterSuperseded& e) {
    return str(kSuperseded, e.what());
  } catch (const DirectoryMoved& e) {
    return str(kMoved, e.what());
  } catch (const std::exception&) {
    return kFailed + error;
  }

  // Runs `part` and returns its result or its error, with a mark.
  std::string result_of(const std::function<std::string()>& part) const try {
    return kDone + part();
  } catch (const std::exception& e) {
    return error_text(e.what());
  }

  // Runs this rank's part and exchanges the results. A failure on any rank throws Error on all of them, so that no rank
  // waits for one that has given up.
  std::vector<std::string> together(const std::function<std::string()>& part) {
    const std::string own = result_of(part);
    std::vector<std::string> all = group_.world == 1 ? std::vector{own} : group_.all_gather(own);
    RING_CHECK(static_cast<int>(all.size()) == group_.world, "all_gather returned ", all.size(), " texts for ",
               group_.world, " ranks");
    for (std::size_t r = 0; r < all.size(); ++r) {
      const char kind = all[r].at(0);
      all[r].erase(0, 1);
      if (kind == kSuperseded) throw WriterSuperseded(all[r]);
      if (kind == kMoved) throw DirectoryMoved(all[r]);
      const std::string rank = group_.world > 1 ? str("rank ", r, ": ") : "";
      if (kind == kFailed) throw SaveFailed(str("checkpoint ", target_.string(), ": ", rank, all[r]));
    }
    return all;
  }

  void prepare(const Snapshot& state) {
    const std::vector<std::string> described = together([&] {
      check_token();
      if (first()) create_temporary();
      return json{{"folder", temporary_.string()}, {"step", plan_.step}, {"state", describe_state(state)}}.dump();
    });
    std::vector<std::string> states;
    for (std::size_t r = 0; r < described.size(); ++r) {
      const json j = parse_own_json<json>(described[r]);
      if (j.at("step") != plan_.step)
        fail("rank ", group_.rank, " writes a checkpoint of step ", plan_.step, ", but rank ", r, " of step ",
             j.at("step"));
      if (r == 0) temporary_ = j.at("folder").get<std::string>();
      states.push_back(j.at("state").get<std::string>());
    }
    const std::int64_t step = plan_.step;
    plan_ = plan_shards(states);  // sets no step
    plan_.step = step;
  }

  void create_temporary() {
    if (fs::create_directory(folder_)) sync_directory(folder_.parent_path());
    remove_stale_entries(folder_);  // removes folders left by failed attempts that could not clean up
    const fs::path path = target_.string() + ".tmp-" + std::to_string(::getpid());
    fs::create_directory(path);
    temporary_ = path;
  }

  void write_shards(const Snapshot& state) {
    const std::vector<std::string> records = together([&] {
      const std::vector<PlannedSlice> slices = slices_of(plan_, own_shard());
      return shard_record(write_shard(temporary_ / own_shard(), slices, state), slices);
    });
    for (std::size_t r = 0; r < records.size(); ++r) merge_record(plan_, static_cast<int>(r), records[r]);
  }

  void commit(const Snapshot& state, const std::string& metadata) {
    plan_.values = state.values();
    plan_.metadata = metadata;
    if (group_.token) plan_.token = group_.token->number();
    together([&] {
      if (!first()) return std::string();
      // Checked last: a process that takes over later moves this folder away before it looks for checkpoints.
      check_token();
      commit_manifest(plan_, temporary_, target_);
      return std::string();
    });
  }

  void read_back() {
    enter(RunPhase::read_back);
    try {
      together([&] {
        check_token();
        Manifest manifest = read_manifest(target_);
        const auto own = static_cast<std::size_t>(group_.rank);
        const auto problems =
            verify_shard(target_, manifest.files.at(own), slices_of(manifest, own_shard()), /*from_disk=*/true);
        if (!problems.empty()) fail(problems.front());
        return std::string();
      });
    } catch (const SaveFailed& e) {
      if (first()) remove_damaged();
      throw;
    }
  }

  // Removes the damaged checkpoint, which would only be in the way of the next one. If it had replaced a checkpoint,
  // that checkpoint is restored.
  void remove_damaged() {
    log::error("the new checkpoint cannot be read back and is removed; older ones are kept");
    std::error_code error = remove_checkpoint(target_);
    std::error_code ignored;
    // commit_directory() left the replaced checkpoint there, if there was one.
    if (!error && fs::exists(temporary_, ignored)) fs::rename(temporary_, target_, error);
    if (error) log::warn("cannot remove ", target_.string(), ": ", error.message());
  }

  // Only warns about errors: the checkpoint itself is committed, even if older ones cannot be removed.
  void retain(const Retention& keep) {
    try {
      fs::remove_all(temporary_);  // the replaced checkpoint, if there was one
      apply_retention(folder_, plan_.step, keep);
    } catch (const std::exception& e) {
      log::warn("old checkpoints are not removed: ", e.what());
    }
  }

  const WriterGroup& group_;
  fs::path folder_, target_, temporary_;
  Manifest plan_;
};

}  // namespace

WriterGroup make_writer_group(Communicator& host) {
  return {host.rank(), host.size(), [&host](const std::string& text) { return gather_host(host, text); }};
}

void commit_manifest(const Manifest& manifest, const fs::path& temporary, const fs::path& final) {
  const std::string text = to_text(manifest);
  parse_manifest(text);  // checks that the manifest can be parsed
  write_text(temporary / kManifestName, text);
  enter(RunPhase::sync);
  sync_directory(temporary);
  enter(RunPhase::commit);
  commit_directory(temporary, final);
}

fs::path write_checkpoint(const fs::path& folder, std::int64_t step, const Snapshot& state, const std::string& metadata,
                          const Retention& keep, const WriterGroup& group) {
  if (keep.keep_last < 1) fail("keep_last is ", keep.keep_last, ": at least one checkpoint must be kept");
  if (keep.keep_every < 0) fail("keep_every is ", keep.keep_every, ": use 0 for none");
  return Writing(folder, step, group).run(state, metadata, keep);
}

}  // namespace ring
