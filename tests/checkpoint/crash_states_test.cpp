// All states that a crash may leave on a disk. A save is recorded call by call. Then every prefix of the calls is
// replayed, without any part of the changes that were not synced by then, as POSIX allows. In each such state, a run
// must resume from the old or the new checkpoint as a whole.

#include <map>
#include <random>
#include <set>

#include "core/log.h"
#include "tests/checkpoint/fixture.h"
#include "tests/io_faults.h"

namespace ring::test {
namespace {

constexpr int kRoot = 0;
constexpr std::size_t kMaxSubsets = 400;  // sets of lost changes that are tried for each prefix
constexpr std::size_t kPieces = 3;        // parts that a write may be torn into

struct Inode {
  bool folder = false;
  std::map<std::string, int> entries{};
  std::string bytes{};
  bool operator==(const Inode&) const = default;
};
using Disk = std::vector<Inode>;

// A change to the disk. It names inodes, so that it means the same if changes before it are lost.
struct Change {
  std::string kind;  // link, unlink, move, exchange, write, resize, sync
  int inode = 0;     // the file or folder that changes
  std::string name{}, to{};
  int child = 0;  // the linked inode
  std::uint64_t offset = 0;
  std::string bytes{};
};

void apply_change(Disk& disk, const Change& c) {
  Inode& at = disk[static_cast<std::size_t>(c.inode)];
  if (c.kind == "link") at.entries[c.name] = c.child;
  if (c.kind == "unlink") at.entries.erase(c.name);
  if (c.kind == "write") {
    if (at.bytes.size() < c.offset + c.bytes.size()) at.bytes.resize(c.offset + c.bytes.size());
    at.bytes.replace(c.offset, c.bytes.size(), c.bytes);
  }
  if (c.kind == "resize") at.bytes.resize(c.offset);
  const auto from = at.entries.find(c.name);
  if (from == at.entries.end()) return;
  const int moved = from->second;
  if (c.kind == "move") at.entries.erase(from), at.entries[c.to] = moved;
  if (c.kind == "exchange" && at.entries.contains(c.to)) std::swap(at.entries[c.name], at.entries[c.to]);
}

// The state of the disk while calls are made, and the changes that they make.
class Recording {
 public:
  explicit Recording(fs::path root) : root_(std::move(root)) {
    disk.push_back({.folder = true});
    read(root_, kRoot);
    before = disk;
  }

  // Called as an IoHook, before each call. None of the calls fails.
  int operator()(const IoCall& call) {
    const std::lock_guard lock(mutex_);
    const fs::path path = call.path;
    for (const char* changes_nothing : {"open", "read", "close", "lock", "access"})
      if (call.name == changes_nothing) return 0;
    if (call.name == "sync") return changes.push_back({"sync", find(path)}), 0;
    if (call.name == "write") return write(find(path), call), 0;
    if (call.name == "resize") return add({"resize", find(path), "", "", 0, call.offset}), 0;
    if (call.name == "reserve") {
      const auto longer = std::max<std::uint64_t>(call.offset, disk[static_cast<std::size_t>(find(path))].bytes.size());
      return add({"resize", find(path), "", "", 0, longer}), 0;
    }
    return names(call, find(path.parent_path()), path.filename().string()), 0;
  }

  Disk before, disk;
  std::vector<Change> changes;

 private:
  void read(const fs::path& path, int inode) {
    for (const auto& entry : fs::directory_iterator(path)) {
      const int child = static_cast<int>(disk.size());
      disk.push_back({.folder = entry.is_directory()});
      disk[static_cast<std::size_t>(inode)].entries[entry.path().filename().string()] = child;
      if (entry.is_directory()) {
        read(entry.path(), child);
        continue;
      }
      std::ifstream in(entry.path(), std::ios::binary);
      disk[static_cast<std::size_t>(child)].bytes = {std::istreambuf_iterator<char>(in), {}};
    }
  }
  int find(const fs::path& path) const {
    int at = kRoot;
    for (const fs::path& name : path.lexically_relative(root_))
      if (name != ".") at = disk[static_cast<std::size_t>(at)].entries.at(name.string());
    return at;
  }
  void add(Change c) {
    apply_change(disk, c);
    changes.push_back(std::move(c));
  }
  void write(int inode, const IoCall& call) {
    const std::size_t piece = std::max<std::size_t>(1, (call.bytes.size() + kPieces - 1) / kPieces);
    for (std::size_t at = 0; at < call.bytes.size(); at += piece)
      add({"write", inode, "", "", 0, call.offset + at,
           std::string(call.bytes.data() + at, std::min(piece, call.bytes.size() - at))});
  }
  void names(const IoCall& call, int folder, const std::string& name) {
    const auto& entries = disk[static_cast<std::size_t>(folder)].entries;
    if (call.name == "create" || call.name == "make_directory") {
      if (entries.contains(name)) return;
      disk.push_back({.folder = call.name == "make_directory"});
      before.push_back(disk.back());
      return add({"link", folder, name, "", static_cast<int>(disk.size()) - 1});
    }
    if (call.name == "remove") {
      if (entries.contains(name)) add({"unlink", folder, name});
      return;
    }
    const fs::path to = call.to;
    RING_CHECK(find(to.parent_path()) == folder, "a move between folders: ", call.path, " to ", call.to);
    if (call.name == "rename" && entries.contains(to.filename()) && entries.contains(name)) {
      const Inode& there = disk[static_cast<std::size_t>(entries.at(to.filename()))];
      if (there.folder && !there.entries.empty()) return;  // refused by the kernel
    }
    add({call.name == "rename" ? "move" : "exchange", folder, name, to.filename().string()});
  }

  fs::path root_;
  std::mutex mutex_;
};

void write_out(const Disk& disk, int inode, const fs::path& path) {
  const Inode& at = disk[static_cast<std::size_t>(inode)];
  if (!at.folder) {
    std::ofstream(path, std::ios::binary) << at.bytes;
    return;
  }
  fs::create_directory(path);
  for (const auto& [name, child] : at.entries) write_out(disk, child, path / name);
}

// Returns all that can be reached from the root, as text. Disks that look alike have equal texts.
std::string text_of(const Disk& disk, int inode) {
  const Inode& at = disk[static_cast<std::size_t>(inode)];
  if (!at.folder) return str("(", at.bytes.size(), ")", at.bytes);
  std::string text = "{";
  for (const auto& [name, child] : at.entries) text += name + text_of(disk, child);
  return text + "}";
}

// Returns the changes before `end` that no sync before `end` made durable.
std::vector<std::size_t> open_changes(const std::vector<Change>& changes, std::size_t end) {
  std::vector<std::size_t> open;
  for (std::size_t i = 0; i < end; ++i) {
    if (changes[i].kind != "sync") open.push_back(i);
    if (changes[i].kind == "sync")
      std::erase_if(open, [&](std::size_t o) { return changes[o].inode == changes[i].inode; });
  }
  return open;
}

// Returns the sync that makes the commit durable: the first sync of the commit's folder after it.
std::size_t durable_from(const std::vector<Change>& changes, const std::string& name) {
  const auto commit = std::ranges::find(changes, name, &Change::to);
  const auto sync = std::find_if(commit, changes.end(),
                                 [&](const Change& c) { return c.kind == "sync" && c.inode == commit->inode; });
  return static_cast<std::size_t>(sync - changes.begin());
}

// Returns all subsets if they are few, otherwise the extremes and a sample.
std::vector<std::set<std::size_t>> subsets(const std::vector<std::size_t>& all, std::mt19937& random) {
  std::vector<std::set<std::size_t>> found;
  if (all.size() < 9) {
    for (std::size_t bits = 0; bits < std::size_t{1} << all.size(); ++bits) {
      std::set<std::size_t> lost;
      for (std::size_t i = 0; i < all.size(); ++i)
        if (bits >> i & 1) lost.insert(all[i]);
      found.push_back(lost);
    }
    return found;
  }
  found = {{}, {all.begin(), all.end()}};
  for (const std::size_t i : all) {
    found.push_back({i});
    found.emplace_back(all.begin(), all.end()).erase(i);
  }
  while (found.size() < kMaxSubsets) {
    std::set<std::size_t> lost;
    const unsigned share = 1 + random() % 9;  // tenths of the changes that are lost
    for (const std::size_t i : all)
      if (random() % 10 < share) lost.insert(i);
    found.push_back(lost);
  }
  return found;
}

struct Counts {
  std::size_t states = 0, old_ones = 0, new_ones = 0, none = 0, broken = 0;
  std::string first_broken;
};

class SlowCrashStates : public testing::Test {
 protected:
  void SetUp() override { log::set_level(log::Level::error); }
  void TearDown() override { log::set_level(log::Level::info); }

  // Returns the step of the checkpoint that a run would find; 0 for none, -1 for anything but one whole checkpoint.
  std::int64_t find_step(const Disk& disk) {
    const auto [known, is_new] = seen_.emplace(text_of(disk, kRoot), 0);
    if (!is_new) return known->second;
    const TempFolder folder(fs::is_directory("/dev/shm") ? "/dev/shm" : fs::temp_directory_path());
    write_out(disk, kRoot, folder.path() / "disk");
    std::int64_t step = -1;
    try {
      const auto found = find_newest_verified(folder.path() / "disk" / "checkpoints");
      SmallState loaded(0);
      if (found) load_state(found->path, loaded.state, stream());
      if (!found)
        step = 0;
      else if (loaded.equals(SmallState(seed_of(found->manifest.metadata))))
        step = seed_of(found->manifest.metadata);
    } catch (const Error&) {
    }
    return known->second = step;
  }
  static std::int64_t seed_of(const std::string& metadata) {
    return std::stoll(metadata.substr(metadata.find(':') + 1));
  }

  static void save(const fs::path& root, std::int64_t step, std::int64_t seed) {
    const SmallState s(static_cast<std::uint64_t>(seed));
    write_checkpoint(root / "checkpoints", step, s.state.snapshot(stream()), str("{\"seed\":", seed, "}"), {1, 0});
  }

  // Saves while recording. Expects that the recorded disk equals the real one.
  void record(Recording& r, const fs::path& root, std::int64_t step, std::int64_t seed) {
    {
      const IoWatch watch(root.string(), std::ref(r));
      save(root, step, seed);
    }
    const Recording after(root);
    EXPECT_EQ(text_of(r.disk, kRoot), text_of(after.disk, kRoot)) << "a call was missed";
  }

  // Counts what a run would find in every crash state. The new checkpoint appears in the folder `name`.
  Counts enumerate(const Recording& r, std::int64_t old_step, std::int64_t new_step, const std::string& name) {
    std::mt19937 random(7);
    Counts counts;
    const std::size_t durable = durable_from(r.changes, name);
    EXPECT_LT(durable, r.changes.size());
    for (std::size_t end = 0; end <= r.changes.size(); ++end)
      for (const std::set<std::size_t>& lost : subsets(open_changes(r.changes, end), random)) {
        Disk disk = r.before;
        for (std::size_t i = 0; i < end; ++i)
          if (!lost.contains(i)) apply_change(disk, r.changes[i]);
        const std::int64_t found = find_step(disk);
        ++counts.states;
        counts.old_ones += found == old_step;
        counts.new_ones += found == new_step;
        if (found == new_step || (found == old_step && end <= durable)) continue;
        if (counts.broken++ == 0) counts.first_broken = str("after ", end, " changes, without ", lost.size());
      }
    return counts;
  }

  std::map<std::string, std::int64_t> seen_;
};

TEST_F(SlowCrashStates, OfASaveHoldTheOldOrTheNewCheckpoint) {
  const TempFolder root;
  save(root.path(), 10, 10);
  Recording r(root.path());
  record(r, root.path(), 20, 20);
  const Counts counts = enumerate(r, 10, 20, checkpoint_name(20));
  EXPECT_GE(counts.states, 5000u);
  EXPECT_GT(seen_.size(), 1000u);  // different disks
  EXPECT_EQ(counts.broken, 0u) << counts.first_broken;
  EXPECT_GT(counts.old_ones, 1000u);
  EXPECT_GT(counts.new_ones, 10u);
}

// The step was saved before: the new checkpoint replaces the old one.
TEST_F(SlowCrashStates, OfAReplacementHoldTheOldOrTheNewCheckpoint) {
  const TempFolder root;
  save(root.path(), 10, 10);
  Recording r(root.path());
  record(r, root.path(), 10, 11);
  const Counts counts = enumerate(r, 10, 11, checkpoint_name(10));
  EXPECT_EQ(counts.broken, 0u) << counts.first_broken;
  EXPECT_GT(counts.new_ones, 10u);
}

TEST_F(SlowCrashStates, OfTheFirstSaveHoldNothingOrTheCheckpoint) {
  const TempFolder root;
  Recording r(root.path());
  record(r, root.path(), 20, 20);
  const Counts counts = enumerate(r, 0, 20, checkpoint_name(20));
  EXPECT_EQ(counts.broken, 0u) << counts.first_broken;
  EXPECT_GT(counts.new_ones, 0u);
}

// Each sync is needed: without the syncs of files, the test finds broken states.
TEST_F(SlowCrashStates, AreBrokenIfSyncsAreMissing) {
  const TempFolder root;
  Recording r(root.path());
  record(r, root.path(), 20, 20);
  std::erase_if(r.changes,
                [&](const Change& c) { return c.kind == "sync" && !r.disk[static_cast<std::size_t>(c.inode)].folder; });
  EXPECT_GT(enumerate(r, 0, 20, checkpoint_name(20)).broken, 0u);
}

}  // namespace
}  // namespace ring::test
